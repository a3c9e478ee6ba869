//! The right model: that the policy, the relay and the clusters mean the same by each pool.

use std::collections::{BTreeMap, BTreeSet};

use warmpath_routing::policy::ModelNames;

use super::config::Envoy;
use super::finding::Findings;
use super::hosts::Regions;
use super::node::{At, Node};
use super::plugin::Router;

pub(super) fn check(
    envoy: &Envoy<'_>,
    router: &Router<'_>,
    regions: &Regions,
    findings: &mut Findings,
) {
    clusters(envoy, router, regions, findings);
    for relay in &envoy.input.relays {
        pools(&At::root(relay), router, findings);
    }
    adapters(&envoy.input.relays, router, findings);
}

/// Pools of each host: as something lists them, else by whose cluster has it first.
fn members<'r>(
    envoy: &Envoy<'_>,
    router: &'r Router<'_>,
    regions: &'r Regions,
) -> BTreeMap<String, BTreeSet<&'r str>> {
    let mut first: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (pool, cluster) in router.policy.zones.values().flat_map(|zone| &zone.clusters) {
        let reach = envoy.reach(cluster).unwrap_or_default();
        let least = reach.hosts.iter().map(|host| host.priority).min();
        for host in reach.hosts.iter().filter(|host| Some(host.priority) == least) {
            first.entry(host.key.clone()).or_default().insert(pool);
        }
    }
    for (host, pools) in &mut first {
        let listed: BTreeSet<&str> = regions.pools_of(host).collect();
        if !listed.is_empty() {
            *pools = listed;
        }
    }
    first
}

/// A zone's cluster fails over to replicas of its own model only.
fn clusters(envoy: &Envoy<'_>, router: &Router<'_>, regions: &Regions, findings: &mut Findings) {
    let policy = &router.policy;
    let model = |pool: &str| policy.pools.get(pool).map(|pool| pool.model.as_str());
    let members = members(envoy, router, regions);
    for (zone, rule) in &policy.zones {
        for (pool, cluster) in &rule.clusters {
            let Some(meant) = model(pool) else { continue };
            for host in envoy.reach(cluster).unwrap_or_default().hosts {
                let listed: Vec<&str> = regions.pools_of(&host.key).collect();
                let pools = members.get(&host.key).into_iter().flatten().copied();
                let pools = if listed.is_empty() { pools.collect() } else { listed };
                let Some(other) = pools.first() else { continue };
                if pools.iter().any(|pool| model(pool) == Some(meant)) {
                    continue;
                }
                findings.error(
                    "other-model",
                    &host.at,
                    format!(
                        "Cluster {cluster} of zone {zone} is for pool {pool} of model {meant}, and \
                         reaches {}, a replica of pool {other} of model {}: it answers with 404, or \
                         as another model.",
                        host.key,
                        model(other).unwrap_or("?")
                    ),
                    "Remove the host from this cluster: it fails over to replicas of its own model \
                     only.",
                );
            }
        }
    }
}

/// What a relay's configuration says of pools.
fn pools(relay: &At<'_>, router: &Router<'_>, findings: &mut Findings) {
    let policy = &router.policy;
    let all = relay.items("replicas").into_iter().chain(relay.items("discovery"));
    for source in all {
        let Some(named) = source.get("pool") else { continue };
        let Some(name) = named.node.text() else { continue };
        let Some(pool) = policy.pools.get(name) else {
            let known: Vec<&str> = policy.pools.keys().map(String::as_str).collect();
            findings.error(
                "relay-pool",
                &named,
                format!(
                    "The policy has no pool {name:?}: the filter never names these replicas (known pools: {}).",
                    known.join(", ")
                ),
                "Name one of the policy's pools here, or add this one there.",
            );
            continue;
        };
        let Some(model) = source.get("model") else { continue };
        if model.node.text() != Some(&pool.model) {
            findings.error(
                "pool-model",
                &model,
                format!(
                    "The policy's pool {name} is of model {:?}, the relay's replica of it has {:?}: \
                     requests for either find no replica.",
                    pool.model,
                    model.node.text().unwrap_or("?")
                ),
                "Give both the same name; other names of a model are its served_names.",
            );
        }
    }
}

/// Adapters that the policy promises, and no relay knows.
fn adapters(relays: &[Node], router: &Router<'_>, findings: &mut Findings) {
    if relays.is_empty() {
        return;
    }
    for (model, adapter) in missing(relays, &router.policy.models) {
        findings.error(
            "adapter-unknown",
            &router.said,
            format!(
                "models.{model}.adapters has {adapter:?}, which no relay's configuration lists for \
                 that model, or for none of its replicas: nobody has loaded it."
            ),
            "Add it to the relay's models[].adapters, or have from_engine ask the engines.",
        );
    }
}

/// Each of the policy's `models.NAME.adapters` that no relay's `models[]` has.
fn missing<'p>(
    relays: &[Node],
    models: &'p BTreeMap<String, ModelNames>,
) -> Vec<(&'p str, &'p str)> {
    let mut missing = Vec::new();
    for (name, names) in models {
        let known: Vec<At<'_>> = relays
            .iter()
            .flat_map(|relay| At::root(relay).items("models"))
            .filter(|known| known.text("name") == Some(name))
            .collect();
        if known.iter().any(|known| known.is_true("from_engine")) {
            continue;
        }
        let listed = |adapter: &str| {
            known
                .iter()
                .filter_map(|known| known.get("adapters"))
                .any(|list| list.node.items().iter().any(|given| given.text() == Some(adapter)))
        };
        // Replicas that say what they have loaded.
        let sources: Vec<At<'_>> = relays
            .iter()
            .map(At::root)
            .flat_map(|relay| [relay.items("replicas"), relay.items("discovery")].concat())
            .filter(|source| source.text("model") == Some(name))
            .collect();
        let said: Vec<Option<At<'_>>> = sources
            .iter()
            .map(|source| source.get("adapters").filter(|l| l.node.is_list()))
            .collect();
        let loaded = |adapter: &str| {
            said.is_empty()
                || said.iter().any(|list| {
                    list.as_ref().is_none_or(|list| {
                        list.node.items().iter().any(|given| given.text() == Some(adapter))
                    })
                })
        };
        let wanted = names.adapters.iter().map(String::as_str);
        missing.extend(
            wanted
                .filter(|adapter| !listed(adapter) || !loaded(adapter))
                .map(|a| (name.as_str(), a)),
        );
    }
    missing
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::node::read;
    use super::*;

    #[test]
    fn an_adapter_is_looked_for_at_its_model() {
        let relays = |text: &str| read(text, 0).unwrap();
        let policy = json!({"demo": {"adapters": ["a", "b"]}, "beta": {}});
        let policy: BTreeMap<String, ModelNames> = serde_json::from_value(policy).unwrap();
        let known = relays("models: [{name: demo, adapters: [a]}, {name: beta, adapters: [b]}]");
        assert_eq!(missing(&known, &policy), [("demo", "b")]);
        let both = relays(
            "models: [{name: demo, adapters: [a]}]\n---\nmodels: [{name: demo, adapters: [b]}]",
        );
        assert_eq!(missing(&both, &policy), []);
        let asked = relays("models: [{name: demo, from_engine: true}]");
        assert_eq!(missing(&asked, &policy), []);
        assert_eq!(missing(&relays("models: []"), &policy), [("demo", "a"), ("demo", "b")]);
        assert_eq!(missing(&known, &BTreeMap::new()), []);
        let replicas = |adapters: &str| {
            let list = "models: [{name: demo, adapters: [a, b]}]";
            let other = "{model: beta, adapters: []}";
            relays(&format!(
                "{list}\nreplicas: [{{model: demo, adapters: [a]}}, {other}, {adapters}]"
            ))
        };
        assert_eq!(missing(&replicas("{model: demo, adapters: []}"), &policy), [("demo", "b")]);
        assert_eq!(missing(&replicas("{model: demo, adapters: [b]}"), &policy), []);
        assert_eq!(missing(&replicas("{model: demo}"), &policy), [], "nobody says what it has");
    }
}
