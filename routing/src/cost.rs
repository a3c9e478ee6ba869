//! What it would take, in milliseconds, for a replica to give the first token.

use serde::Deserialize;

use crate::view::{Load, Medium};

/// Prices in milliseconds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CostModel {
    /// Any prefill, however little is left to do.
    pub prefill_base_ms: f64,
    /// Prefill of a thousand tokens that are not cached.
    pub prefill_ms_per_1k_tokens: f64,
    /// Attention: a million pairs of a token that is computed and one before it. It makes long
    /// prompts dearer than their length; a prompt of a thousand tokens has half a million.
    pub prefill_ms_per_1m_pairs: f64,
    /// A thousand tokens that the host's memory holds and the GPU doesn't: bringing them in.
    pub cpu_ms_per_1k_tokens: f64,
    /// The same from a local disk.
    pub disk_ms_per_1k_tokens: f64,
    /// The same from a store that several engines share.
    pub shared_ms_per_1k_tokens: f64,
    /// Each request that waits before this one.
    pub queued_ms: f64,
    /// Each request that runs beside this one.
    pub running_ms: f64,
    /// Costs closer than this are equal.
    pub tie_ms: f64,
    /// What a megabyte (10⁶ bytes) of a request that leaves its region is worth; a prompt token
    /// counts as 4 bytes.
    pub abroad_ms_per_mb: f64,
}

impl Default for CostModel {
    /// A mid-sized model on one GPU: 2,000 cold tokens take about 0.8 s. A thousand tokens are some
    /// 0.3 GB of KV cache: at 20 GB/s from the host's memory, 5 GB/s from a disk, 3 GB/s over the
    /// network.
    fn default() -> Self {
        Self {
            prefill_base_ms: 20.0,
            prefill_ms_per_1k_tokens: 380.0,
            prefill_ms_per_1m_pairs: 0.0,
            cpu_ms_per_1k_tokens: 15.0,
            disk_ms_per_1k_tokens: 60.0,
            shared_ms_per_1k_tokens: 100.0,
            queued_ms: 200.0,
            running_ms: 2.0,
            tie_ms: 2.0,
            abroad_ms_per_mb: 0.0,
        }
    }
}

/// A replica's cost, in milliseconds, by its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Prefill of the tokens that it does not hold.
    pub prefill: f64,
    /// Network round trip.
    pub network: f64,
    /// Waiting for those who came before.
    pub queue: f64,
    /// The price of bytes that leave the region.
    pub abroad: f64,
    /// Bringing in what only slower tiers hold.
    pub load: f64,
}

impl Cost {
    /// The sum.
    pub fn total(&self) -> f64 {
        self.prefill + self.network + self.queue + self.abroad + self.load
    }
}

/// The way from this gateway to a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Way {
    /// Network round trip in milliseconds, where it was not measured.
    pub rtt_ms: f64,
    /// It leads into another region.
    pub abroad: bool,
}

impl CostModel {
    /// The cost of a prompt of which `cached` tokens are held and `uncached` are not.
    pub fn cost(&self, cached: u32, uncached: u32, way: Way, load: &Load) -> Cost {
        const TOKEN_BYTES: f64 = 4.0;
        let bytes = (f64::from(cached) + f64::from(uncached)) * TOKEN_BYTES;
        Cost {
            prefill: self.prefill(cached, uncached),
            network: if load.rtt_us > 0 { f64::from(load.rtt_us) / 1e3 } else { way.rtt_ms },
            queue: f64::from(Self::queued(load)) * self.queued_ms
                + f64::from(load.running) * self.running_ms,
            abroad: if way.abroad { bytes / 1e6 * self.abroad_ms_per_mb } else { 0.0 },
            load: 0.0,
        }
    }

    /// Computing `uncached` tokens after `cached` ones, in milliseconds.
    pub fn prefill(&self, cached: u32, uncached: u32) -> f64 {
        let (before, new) = (f64::from(cached), f64::from(uncached));
        // Each new token looks at all before it: (before + new)² / 2 − before² / 2.
        let pairs = new * (before + new / 2.0);
        self.prefill_base_ms
            + new / 1e3 * self.prefill_ms_per_1k_tokens
            + pairs / 1e6 * self.prefill_ms_per_1m_pairs
    }

    /// Bringing `tokens` in from a slower tier, in milliseconds.
    pub fn load(&self, medium: Medium, tokens: u32) -> f64 {
        let per_1k = match medium {
            Medium::Cpu => self.cpu_ms_per_1k_tokens,
            Medium::Disk => self.disk_ms_per_1k_tokens,
            Medium::Shared => self.shared_ms_per_1k_tokens,
        };
        f64::from(tokens) / 1e3 * per_1k
    }

    /// Requests that wait there: those that the engine says, and those that this gateway has sent
    /// and the engine has not reported yet.
    pub fn queued(load: &Load) -> u32 {
        let reported = load.waiting.saturating_add(load.running);
        load.waiting.saturating_add(load.in_flight.saturating_sub(reported))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_prompts_cost_more_than_their_length_and_so_does_leaving_home() {
        let model = CostModel {
            prefill_base_ms: 5.0,
            prefill_ms_per_1k_tokens: 100.0,
            prefill_ms_per_1m_pairs: 2.0,
            abroad_ms_per_mb: 50.0,
            ..CostModel::default()
        };
        assert!((model.prefill(0, 1_000) - 106.0).abs() < 1e-9);
        assert!((model.prefill(0, 10_000) - 1_105.0).abs() < 1e-9);
        // In two parts it costs the same, but for the base.
        let parts = model.prefill(0, 4_000) + model.prefill(4_000, 6_000);
        assert!((parts - model.prefill(0, 10_000) - 5.0).abs() < 1e-9);
        let way = Way { rtt_ms: 80.0, abroad: true };
        let cost = model.cost(9_000, 1_000, way, &Load::default());
        assert!((cost.abroad - 2.0).abs() < 1e-9, "40 kB");
        let home = model.cost(9_000, 1_000, Way { abroad: false, ..way }, &Load::default());
        assert!((cost.total() - home.total() - 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_measured_round_trip_goes_before_the_configured_one() {
        let way = Way { rtt_ms: 80.0, abroad: true };
        let network = |rtt_us| {
            let load = Load { rtt_us, ..Load::default() };
            CostModel::default().cost(0, 0, way, &load).network
        };
        assert_eq!((network(0), network(12_500)), (80.0, 12.5));
    }

    #[test]
    fn what_is_sent_but_not_reported_waits() {
        let model = CostModel { queued_ms: 10.0, running_ms: 1.0, ..CostModel::default() };
        let queue = |waiting, running, in_flight| {
            model
                .cost(
                    0,
                    0,
                    Way::default(),
                    &Load { waiting, running, in_flight, ..Load::default() },
                )
                .queue
        };
        assert!((queue(0, 0, 3) - 30.0).abs() < 1e-9);
        assert!((queue(0, 3, 3) - 3.0).abs() < 1e-9);
        assert!((queue(2, 1, 5) - 41.0).abs() < 1e-9);
    }
}
