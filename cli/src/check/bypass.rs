//! Listeners, and parts of them, that have no filter of ours: nobody looks at the zone of what they
//! take, so nothing of it may reach a host that could be a replica.

use super::config::Envoy;
use super::finding::Findings;
use super::hosts::{Regions, is_address};
use super::node::At;
use super::plugin::Router;
use super::routes;

const MEND: &str = "Put the filter there too, or lead this listener elsewhere.";

pub(super) fn check(envoy: &Envoy<'_>, routers: &[(Router<'_>, Regions)], findings: &mut Findings) {
    let watched = |config: &At<'_>| {
        routers.iter().any(|(router, _)| std::ptr::eq(router.manager.config.node, config.node))
    };
    let checked = BypassCheck { envoy, routers };
    for manager in &envoy.managers {
        let config = &manager.config;
        if watched(config) {
            continue;
        }
        checked.place(config, findings);
        match routes::table(envoy, config) {
            Some(table) => {
                checked.place(&table, findings);
                checked.ways(&table, findings);
            }
            None => findings.leak(
                "bypass",
                config,
                "The routes of this listener, which has no Warmpath filter, come from elsewhere: \
                 nothing keeps them from leading to replicas.",
                MEND,
            ),
        }
    }
    for filter in &envoy.others {
        checked.place(filter, findings);
        checked.ways(filter, findings);
    }
}

struct BypassCheck<'e, 'a> {
    envoy: &'e Envoy<'a>,
    routers: &'e [(Router<'a>, Regions)],
}

impl<'a> BypassCheck<'_, 'a> {
    /// Whatever names a cluster that has replicas, in whichever field.
    fn place(&self, place: &At<'a>, findings: &mut Findings) {
        for named in place.find_all(&["cluster", "cluster_name", "name"]) {
            let Some(name) = named.node.text() else { continue };
            let Some(reach) = self.envoy.reach(name) else { continue };
            let replica = |key: &str| {
                self.routers.iter().any(|(router, regions)| regions.is_replica(&router.policy, key))
            };
            if reach.hosts.iter().any(|host| replica(&host.key)) {
                findings.leak(
                    "bypass",
                    &named,
                    format!(
                        "Requests reach replicas (cluster {name}) by a listener that has no \
                         Warmpath filter: nobody looks at their zone."
                    ),
                    MEND,
                );
            }
        }
        for header in place.find_all(&["cluster_header"]) {
            findings.leak(
                "bypass",
                &header,
                "A header names the cluster on a listener that has no Warmpath filter: clients \
                 reach every cluster.",
                "Put the filter there too, or name the cluster.",
            );
        }
        let elsewhere = ["cluster_specifier_plugin", "inline_cluster_specifier_plugin", "vhds"];
        for elsewhere in place.find_all(&elsewhere) {
            findings.leak(
                "bypass",
                &elsewhere,
                "The cluster is chosen elsewhere, on a listener that has no Warmpath filter: \
                 nothing keeps it from leading to replicas.",
                "Put the filter there too, or name the cluster.",
            );
        }
    }

    /// Where requests go: each has to be provably apart from the replicas.
    fn ways(&self, place: &At<'a>, findings: &mut Findings) {
        let direct = place.find_all(&["cluster"]).into_iter();
        let weighted = place.find_all(&["weighted_clusters"]);
        let weighted = weighted.iter().flat_map(|weighted| weighted.items("clusters"));
        for named in direct.chain(weighted.filter_map(|weighted| weighted.get("name"))) {
            let Some(name) = named.node.text().filter(|name| !name.is_empty()) else { continue };
            let why = match self.envoy.reach(name) {
                None => "which is not in the files".to_owned(),
                Some(reach) => {
                    let open =
                        reach.open.iter().find(|open| !open.here).map(|open| open.why.clone());
                    let named = || {
                        let host = reach.hosts.iter().find(|host| !is_address(&host.key))?;
                        Some(format!("{} is a name, which can come to mean a replica", host.key))
                    };
                    let Some(why) = open.or_else(named) else { continue };
                    why
                }
            };
            if !findings.tells_of(&named) {
                findings.leak(
                    "bypass",
                    &named,
                    format!(
                        "A listener that has no Warmpath filter leads to cluster {name}: {why}. It \
                         isn't provably apart from the replicas, and nobody looks at the zone."
                    ),
                    MEND,
                );
            }
        }
    }
}
