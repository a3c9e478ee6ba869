//! The proof: no way out of a zone.

use std::collections::BTreeSet;

use warmpath_routing::policy::Policy;

use super::config::Envoy;
use super::finding::Findings;
use super::hosts::{Open, Reach, Regions, Standing, is_address};
use super::node::At;
use super::plugin::Router;

pub(super) const LABEL: &str = "Give its endpoints locality: { region: … } with a region of the \
     policy in which all zones may be served, or lead nothing there.";

/// What was proved of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Proof {
    pub(super) zone: String,
    pub(super) clusters: usize,
    pub(super) hosts: usize,
    pub(super) regions: BTreeSet<String>,
}

impl Proof {
    pub(super) fn text(&self) -> String {
        let regions = self.regions.iter().map(String::as_str).collect::<Vec<_>>();
        format!(
            "zone {}: its clusters ({}) lead to {}, all in {}",
            self.zone,
            self.clusters,
            super::number::number(self.hosts, "host"),
            regions.join(", ")
        )
    }
}

/// Follows each cluster that the policy names.
pub(super) fn check(
    envoy: &Envoy<'_>,
    router: &Router<'_>,
    regions: &Regions,
    findings: &mut Findings,
) -> Vec<Proof> {
    let policy = &router.policy;
    let mut proofs = Vec::new();
    for (zone, rule) in &policy.zones {
        let mut hosts = BTreeSet::new();
        let mut places = BTreeSet::new();
        for (pool, cluster) in &rule.clusters {
            let Some(reach) = envoy.reach(cluster) else {
                findings.error(
                    "unknown-cluster",
                    &router.said,
                    format!(
                        "zones.{zone}.clusters.{pool} names the cluster {cluster:?}, which does \
                         not exist: requests that go there are answered with 503."
                    ),
                    format!("Add a cluster {cluster:?}, or name one that exists."),
                );
                continue;
            };
            for open in &reach.open {
                let what =
                    format!("Cluster {cluster} of zone {zone} can't be followed: {}.", open.why);
                let mend = "Use STATIC clusters with addresses, or add what is missing.";
                cant_be_followed(open, what, mend, findings);
            }
            let mut sound = reach.open.is_empty();
            for host in &reach.hosts {
                let way = match host.way.split_first() {
                    Some((_, [])) | None => String::new(),
                    Some((_, members)) => format!(", by its member {}", members.join(" › ")),
                };
                let key = &host.key;
                let mut bad = |rule, what: String, mend: &str| {
                    sound = false;
                    let what = format!("Cluster {cluster} of zone {zone} reaches {key}{way}{what}");
                    findings.leak(rule, &host.at, what, mend);
                };
                if !is_address(key) {
                    bad(
                        "host-by-name",
                        ", a name: what it means is decided where it is resolved, and can be any \
                         host whatever its label says."
                            .into(),
                        "Give addresses, or let EDS do so (and check what it gave: \
                         /config_dump?include_eds).",
                    );
                }
                match regions.judge_replica(policy, rule, key) {
                    Standing::Inside => {}
                    Standing::Outside { region, says } => bad(
                        "outside",
                        format!(", which is in {region} (says {says}), outside the zone."),
                        "Remove the host from this cluster, or let the zone admit its region.",
                    ),
                    Standing::Unknown => bad(
                        "region-unknown",
                        ", whose location is not configured.".into(),
                        "Give its endpoints locality: { region: … } with a region of the policy.",
                    ),
                    Standing::Undefined { region } => bad(
                        "region-unknown",
                        format!(", in region {region:?}, which the policy does not define."),
                        "Define the region in the policy, or correct the locality.",
                    ),
                    Standing::Stranger => bad(
                        "stranger",
                        ", which no pool of the zone lists.".into(),
                        "Add it to its pool's cluster or to the relay's configuration, or remove \
                         it here.",
                    ),
                }
                let known: Vec<(&str, &str)> = regions.of(key).collect();
                if let [(one, says), (other, says_too), ..] = known.as_slice() {
                    findings.leak(
                        "region-conflict",
                        &host.at,
                        format!(
                            "{key} stands in {one} (says {says}) and in {other} (says {says_too})."
                        ),
                        "Only one can be true: correct the other one.",
                    );
                }
                places.extend(known.iter().map(|(region, _)| (*region).to_owned()));
                hosts.insert(key.clone());
            }
            if reach.hosts.is_empty() && reach.open.is_empty() {
                findings.error(
                    "no-hosts",
                    envoy.clusters.get(cluster.as_str()).unwrap_or(&router.said),
                    format!(
                        "Cluster {cluster} has no host: requests sent there are answered with 503."
                    ),
                    "Add the pool's replicas to it.",
                );
                sound = false;
            }
            if !sound {
                continue;
            }
            priorities(policy, (zone, pool, cluster), envoy, &reach, regions, findings);
            told(envoy, (zone, pool, cluster), &reach, regions, findings);
        }
        proofs.push(Proof {
            zone: zone.clone(),
            clusters: rule.clusters.len(),
            hosts: hosts.len(),
            regions: places,
        });
    }
    proofs
}

/// The pool's own region comes first, and no pool of the same model is missing.
fn priorities(
    policy: &Policy,
    (zone, pool, cluster): (&str, &str, &str),
    envoy: &Envoy<'_>,
    reach: &Reach<'_>,
    regions: &Regions,
    findings: &mut Findings,
) {
    let (Some(at), Some(first)) = (envoy.clusters.get(cluster), policy.pools.get(pool)) else {
        return;
    };
    let stands = |key: &str, region: &str| regions.of(key).any(|(name, _)| name == region);
    let least = reach.hosts.iter().map(|host| host.priority).min();
    let mut nearest = reach.hosts.iter().filter(|host| Some(host.priority) == least);
    if !nearest.all(|host| stands(&host.key, &first.region)) {
        findings.warning(
            "first-priority",
            at,
            format!(
                "Cluster {cluster} is named when pool {pool} is the first choice, but not all of \
                 its first hosts stand in {}: where the filter names no replica, another region \
                 serves.",
                first.region
            ),
            format!("Give priority 0 to the replicas in {} only.", first.region),
        );
    }
    let Some(rule) = policy.zones.get(zone) else { return };
    for other in rule.clusters.keys() {
        let Some(backup) = policy.pools.get(other) else { continue };
        let there = reach.hosts.iter().any(|host| stands(&host.key, &backup.region));
        if backup.model == first.model && !there {
            findings.warning(
                "pool-missing",
                at,
                format!(
                    "Cluster {cluster} has no host in {}, where zone {zone} has pool {other} of \
                     the same model: requests do not fail over to it.",
                    backup.region
                ),
                format!("Add the replicas of {other} behind those of {pool}."),
            );
        }
    }
}

/// What the relay would name and Envoy would pass over.
fn told(
    envoy: &Envoy<'_>,
    (zone, pool, cluster): (&str, &str, &str),
    reach: &Reach<'_>,
    regions: &Regions,
    findings: &mut Findings,
) {
    let Some(at) = envoy.clusters.get(cluster) else { return };
    for key in regions.told.get(pool).into_iter().flatten() {
        if !reach.hosts.iter().any(|host| host.key == *key) {
            findings.warning(
                "replica-missing",
                at,
                format!(
                    "The relay's configuration has {key} in pool {pool}, but cluster {cluster} of \
                     zone {zone} does not: where the filter names it, Envoy passes over it."
                ),
                format!("Add {key} to the cluster, or remove it from the relay's configuration."),
            );
        }
    }
}

fn cant_be_followed(open: &Open<'_>, what: String, mend: &str, findings: &mut Findings) {
    if open.steered {
        findings.leak("unproven", &open.at, what, mend);
    } else {
        findings.unproved("unproven", &open.at, what, mend);
    }
}

/// Checks a way that requests of every zone can take, decided or not. Says whether it is
/// sound and ends at replicas of a pool.
pub(super) fn for_all_zones(
    envoy: &Envoy<'_>,
    policy: &Policy,
    regions: &Regions,
    rule: &'static str,
    (at, cluster, way): (&At<'_>, &str, &str),
    findings: &mut Findings,
) -> bool {
    let Some(reach) = envoy.reach(cluster) else {
        findings.unproved(
            "unproven",
            at,
            format!("{way} leads to cluster {cluster:?}, which is not in the files."),
            "Pass the file that has the cluster, or route elsewhere.",
        );
        return false;
    };
    for open in &reach.open {
        let why = &open.why;
        let what = format!("{way} leads to cluster {cluster}, which can't be followed: {why}.");
        cant_be_followed(open, what, "Route it to a cluster with addresses, or nowhere.", findings);
    }
    let mut sound = reach.open.is_empty();
    for (zone, admitting) in &policy.zones {
        for host in &reach.hosts {
            let key = &host.key;
            let why = match regions.judge(policy, admitting, key) {
                Standing::Inside | Standing::Stranger if is_address(key) => continue,
                Standing::Inside | Standing::Stranger => {
                    "is a name, which can resolve to any host".into()
                }
                Standing::Outside { region, .. } => format!("stands in {region}"),
                Standing::Unknown => "is at an unknown location".into(),
                Standing::Undefined { region } => {
                    format!("stands in {region:?}, which the policy does not define")
                }
            };
            sound = false;
            findings.leak(
                rule,
                at,
                format!(
                    "{way} takes requests of zone {zone}, whatever the filter decided, to {key} \
                     (cluster {cluster}), which {why}."
                ),
                LABEL,
            );
        }
    }
    sound && reach.hosts.iter().any(|host| regions.is_replica(policy, &host.key))
}
