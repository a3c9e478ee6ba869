//! What clusters send on of their own accord: a cluster's own mirrors go before those of routes, and
//! copy whatever is sent to it, be it a request or what an authorization service is asked.

use std::collections::{BTreeMap, BTreeSet};

use super::config::Envoy;
use super::finding::Findings;
use super::hosts::Regions;
use super::node::{At, Value};
use super::plugin::Router;
use super::routes;

pub(super) fn check(
    envoy: &Envoy<'_>,
    router: &Router<'_>,
    regions: &Regions,
    findings: &mut Findings,
) {
    for (name, zones) in reached(envoy, router) {
        let Some(cluster) = envoy.clusters.get(name) else { continue };
        let mut policy = router.policy.clone();
        policy.zones.retain(|zone, _| zones.contains(zone.as_str()));
        for options in cluster.holders("request_mirror_policies") {
            routes::mirrors(envoy, &policy, regions, &options, findings);
        }
    }
}

/// Each cluster that requests of ours could come to, with the zones that they are of: a zone's own
/// clusters, those that anything around the filter names, and those that such clusters name.
fn reached<'a>(envoy: &Envoy<'a>, router: &'a Router<'_>) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let zones = &router.policy.zones;
    let mut open: Vec<(&str, BTreeSet<&str>)> = Vec::new();
    for (zone, rule) in zones {
        let own = rule.clusters.values();
        open.extend(own.map(|name| (name.as_str(), BTreeSet::from([zone.as_str()]))));
    }
    let all: BTreeSet<&str> = zones.keys().map(String::as_str).collect();
    let manager = &router.manager;
    let table = routes::table(envoy, &manager.config);
    let beside = ["bootstrap_extensions", "tracing", "stats_sinks", "cluster_manager"];
    let beside = beside.iter().filter_map(|name| envoy.root.get(name));
    for place in beside.chain([manager.listener.clone()]).chain(table) {
        // The policy's own names are those above.
        open.extend(named(envoy, &place, &router.said).into_iter().map(|name| (name, all.clone())));
    }
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    while let Some((name, zones)) = open.pop() {
        let known = reached.entry(name).or_default();
        let before = known.len();
        known.extend(&zones);
        if known.len() == before {
            continue;
        }
        let Some(cluster) = envoy.clusters.get(name) else { continue };
        let next = named(envoy, cluster, &router.said).into_iter();
        open.extend(next.filter(|next| *next != name).map(|next| (next, zones.clone())));
    }
    reached
}

/// The clusters that are named below, in whichever field, but for this one.
fn named<'a>(envoy: &Envoy<'a>, place: &At<'a>, but: &At<'_>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![place.node];
    while let Some(node) = open.pop() {
        if std::ptr::eq(node, but.node) {
            continue;
        }
        match &node.value {
            Value::Scalar(_) => {
                let Some(text) = node.text() else { continue };
                let key = envoy.clusters.get_key_value(text);
                found.extend(key.map(|(name, _)| *name));
                // A plugin's configuration is JSON in a text.
                if text.trim_start().starts_with('{') {
                    let quoted = |name: &&&str| text.contains(&format!("\"{name}\""));
                    found.extend(envoy.clusters.keys().filter(quoted).copied());
                }
            }
            Value::List(items) => open.extend(items),
            Value::Map(fields) => open.extend(fields.iter().map(|(_, field)| field)),
        }
    }
    found
}
