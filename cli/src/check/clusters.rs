//! How a zone's cluster has to be set up for the filter's choice and for failover.

use super::config::Envoy;
use super::finding::Findings;
use super::node::At;
use super::plugin::Router;

const ENDPOINT: &str = "x-gateway-destination-endpoint";

pub(super) fn check(envoy: &Envoy<'_>, router: &Router<'_>, findings: &mut Findings) {
    for zone in router.policy.zones.values() {
        for name in zone.clusters.values() {
            if let Some(cluster) = envoy.clusters.get(name.as_str()) {
                let aggregate = envoy.reach(name).is_some_and(|reach| reach.through_aggregate);
                check_one(cluster, aggregate, findings);
            }
        }
    }
}

fn check_one(cluster: &At<'_>, aggregate: bool, findings: &mut Findings) {
    if aggregate {
        findings.warning(
            "aggregate",
            cluster,
            "An aggregate cluster does not see the replica that the filter has named: override_host \
             falls back without a word, and requests miss the cache.",
            "Use one cluster per zone and first pool, with the zone's other regions at later \
             priorities.",
        );
        return;
    }
    let sources = cluster.items("load_balancing_policy.policies").into_iter().flat_map(|policy| {
        let typed = policy.get("typed_extension_config").and_then(|c| c.typed("OverrideHost"));
        typed.map(|c| c.items("override_host_sources")).unwrap_or_default()
    });
    let named = sources
        .map(|source| source.text("header").map(str::to_ascii_lowercase))
        .collect::<Vec<_>>();
    if !named.iter().flatten().any(|header| header == ENDPOINT) {
        findings.error(
            "override-host",
            cluster,
            "Envoy does not look at the replica that the filter has named: requests miss the cache.",
            "Use load_balancing_policy envoy.load_balancing_policies.override_host with the header \
             x-gateway-destination-endpoint.",
        );
    }
    let common = cluster.get("common_lb_config");
    let panic = common.as_ref().and_then(|common| common.get("healthy_panic_threshold"));
    // Envoy's own dumps leave zeros out.
    if panic.is_none_or(|panic| panic.number("value").unwrap_or(0.0) > 0.0) {
        findings.warning(
            "panic",
            common.as_ref().unwrap_or(cluster),
            "At Envoy's default of 50 % a region that is half dead gets traffic for its dead half \
             and never fails over.",
            "Set common_lb_config: { healthy_panic_threshold: { value: 0 } }.",
        );
    }
    let checks = cluster.items("health_checks");
    if checks.is_empty() {
        findings.warning(
            "health-checks",
            cluster,
            "Envoy notices a dead replica only by requests that fail.",
            "Add health_checks for the engines' /health.",
        );
    }
    for check in checks {
        if check.seconds("timeout").is_some_and(|seconds| seconds < 5.0) {
            findings.warning(
                "health-timeout",
                &check,
                "While Envoy compiles the filter at its start, a second or two, no answer to a \
                 health check is read: every replica would begin as dead.",
                "Set the check's timeout to 15s.",
            );
        }
    }
    let breakers = cluster.items("circuit_breakers.thresholds");
    for breaker in &breakers {
        // Envoy's own defaults: three retries at once, or a fifth of the requests.
        let budget = breaker.get("retry_budget");
        let share = budget.map(|b| b.number("budget_percent.value").unwrap_or(20.0));
        if share.is_none_or(|share| share < 100.0)
            && breaker.number("max_retries").unwrap_or(3.0) < 1_000.0
        {
            findings.warning(
                "retry-budget",
                breaker,
                "When half the engines of a region die at once, requests fail for want of a retry.",
                "Set retry_budget: { budget_percent: { value: 100 }, min_retry_concurrency: 100 }.",
            );
        }
    }
    if breakers.is_empty() {
        findings.warning(
            "circuit-breakers",
            cluster,
            "LLM requests are long: the default limit of 1,024 is soon reached, and a tripped \
             breaker answers 503 without failing over.",
            "Raise circuit_breakers.thresholds, as in envoy/quickstart.yaml; the filter bounds the \
             load instead.",
        );
    }
}
