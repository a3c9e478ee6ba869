//! What the router counts. Envoy puts `wasmcustom.` before the names; the quick start's
//! `stats_tags` make labels of their last parts.

use warmpath_routing::decision::{Degrade, Reason, Refusal, Route};
use warmpath_routing::view::Medium;

use crate::host::{Counter, Gauge, Histogram};
use warmpath_routing::traffic::Totals;

/// Each defined once per root context.
pub(super) struct Metrics {
    reasons: Vec<(Reason, Counter)>,
    degrades: Vec<(Degrade, Counter)>,
    refusals: Vec<(&'static str, Counter)>,
    spilled: Counter,
    pub(super) waited: Counter,
    pub(super) waited_in_vain: Counter,
    pub(super) waiting: Gauge,
    tiers: Vec<(Medium, Counter)>,
    prompt_tokens: Counter,
    expected_cached_tokens: Counter,
    expected_offloaded_tokens: Counter,
    memo_hit_tokens: Counter,
    memo_miss_tokens: Counter,
    beginning_hits: Counter,
    pub(super) memo_bytes: Gauge,
    pub(super) host_errors: Counter,
    pub(super) replica_failures: Counter,
    pub(super) ejections: Counter,
    /// Engines that died while they had a prompt.
    pub(super) poison_deaths: Counter,
    /// Prompts that are refused.
    pub(super) poison_prompts: Gauge,
    pub(super) load_reports: Counter,
    /// Stored responses of which it was written where they are.
    pub(super) responses_known: Counter,
    pub(super) models_refused: Counter,
    pub(super) map_fresh: Gauge,
    pub(super) replicas: Gauge,
    pub(super) misfiled: Gauge,
    pub(super) models: Gauge,
    /// A decision, with the prompt's reading.
    pub(super) decide_us: Histogram,
    /// Without it: the search of the map and the choice.
    pub(super) choose_us: Histogram,
    in_flight: Gauge,
    cold_tokens: Gauge,
    ejected: Gauge,
}

impl Metrics {
    pub(super) fn define() -> Self {
        let counter = |name: &str| Counter::define(&format!("warmpath.router.{name}"));
        let gauge = |name: &str| Gauge::define(&format!("warmpath.router.{name}"));
        Self {
            reasons: Reason::ALL
                .map(|reason| (reason, counter(&format!("decision.{}", reason.name()))))
                .into(),
            degrades: Degrade::ALL
                .map(|degrade| (degrade, counter(&format!("degrade.{}", degrade.name()))))
                .into(),
            refusals: Refusal::CODES.map(|code| (code, counter(&format!("refused.{code}")))).into(),
            spilled: counter("spilled"),
            waited: counter("waited"),
            waited_in_vain: counter("waited_in_vain"),
            waiting: gauge("waiting"),
            tiers: Medium::ALL
                .map(|medium| (medium, counter(&format!("tier.{}", medium.name()))))
                .into(),
            prompt_tokens: counter("prompt_tokens"),
            expected_cached_tokens: counter("expected_cached_tokens"),
            expected_offloaded_tokens: counter("expected_offloaded_tokens"),
            memo_hit_tokens: counter("memo_hit_tokens"),
            memo_miss_tokens: counter("memo_miss_tokens"),
            beginning_hits: counter("beginning_hits"),
            memo_bytes: gauge("memo_bytes"),
            host_errors: counter("host_errors"),
            replica_failures: counter("replica_failures"),
            ejections: counter("ejections"),
            poison_deaths: counter("poison_deaths"),
            poison_prompts: gauge("poison_prompts"),
            load_reports: counter("load_reports"),
            responses_known: counter("responses_known"),
            models_refused: counter("models_refused"),
            map_fresh: gauge("map_fresh"),
            replicas: gauge("replicas"),
            misfiled: gauge("replicas_misfiled"),
            models: gauge("models_loaded"),
            decide_us: Histogram::define("warmpath.router.decide_us"),
            choose_us: Histogram::define("warmpath.router.choose_us"),
            in_flight: gauge("in_flight"),
            cold_tokens: gauge("cold_tokens"),
            ejected: gauge("ejected"),
        }
    }

    pub(super) fn routed(&self, route: &Route<'_>) {
        add_one(&self.reasons, &route.reason);
        if let Some(degrade) = route.degrade {
            add_one(&self.degrades, &degrade);
        }
        if route.spilled {
            self.spilled.add(1);
        }
        if let Some(tier) = route.tier {
            add_one(&self.tiers, &tier);
            self.expected_offloaded_tokens.add(u64::from(route.offloaded_tokens));
        }
        self.prompt_tokens.add(u64::from(route.prompt_tokens));
        self.expected_cached_tokens.add(u64::from(route.cached_tokens));
    }

    /// Sums over all workers, so that it doesn't matter which of them wrote last.
    pub(super) fn totals(&self, totals: Totals) {
        self.in_flight.set(totals.in_flight);
        self.cold_tokens.set(totals.cold_tokens);
        self.ejected.set(totals.ejected);
    }

    /// What of a prompt was known: tokens that the memo knew, and those that were tokenized; and
    /// whether the request began as others did.
    pub(super) fn known(&self, (hits, misses): (u64, u64), beginning: bool) {
        if beginning {
            self.beginning_hits.add(1);
        }
        if hits > 0 {
            self.memo_hit_tokens.add(hits);
        }
        if misses > 0 {
            self.memo_miss_tokens.add(misses);
        }
    }

    pub(super) fn refused(&self, refusal: &Refusal) {
        add_one(&self.refusals, &refusal.code);
    }
}

fn add_one<K: PartialEq>(counters: &[(K, Counter)], key: &K) {
    if let Some((_, counter)) = counters.iter().find(|(known, _)| known == key) {
        counter.add(1);
    }
}
