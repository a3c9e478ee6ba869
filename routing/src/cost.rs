//! What it would take, in milliseconds, for a replica to give the first token.

use serde::Deserialize;

use crate::fingerprint::BLOCK_TOKENS;
use crate::view::Load;

/// Prices in milliseconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CostModel {
    /// Any prefill, however little is left to do.
    pub prefill_base_ms: f64,
    /// Prefill of a thousand tokens that are not cached.
    pub prefill_ms_per_1k_tokens: f64,
    /// Each request that waits before this one.
    pub queued_ms: f64,
    /// Each request that runs beside this one.
    pub running_ms: f64,
    /// Costs closer than this are equal.
    pub tie_ms: f64,
}

impl Default for CostModel {
    /// A mid-sized model on one GPU: 2,000 cold tokens take about 0.8 s.
    fn default() -> Self {
        Self {
            prefill_base_ms: 20.0,
            prefill_ms_per_1k_tokens: 380.0,
            queued_ms: 200.0,
            running_ms: 2.0,
            tie_ms: 2.0,
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
}

impl Cost {
    /// The sum.
    pub fn total(&self) -> f64 {
        self.prefill + self.network + self.queue
    }
}

impl CostModel {
    /// The cost of `uncached` tokens at a replica that is `rtt_ms` away and loaded like this.
    pub fn cost(&self, uncached: u32, rtt_ms: f64, load: &Load) -> Cost {
        // What this gateway sent and the engine has not reported yet will be waiting there.
        let reported = load.waiting.saturating_add(load.running);
        let queued = load.waiting.saturating_add(load.in_flight.saturating_sub(reported));
        Cost {
            prefill: self.prefill_base_ms
                + f64::from(uncached) * self.prefill_ms_per_1k_tokens / 1000.0,
            network: rtt_ms,
            queue: f64::from(queued) * self.queued_ms + f64::from(load.running) * self.running_ms,
        }
    }
}

/// The tokens that an engine will really find cached, of a prompt whose first `blocks` blocks of
/// 16 tokens it holds.
///
/// An engine reuses whole blocks of its own size (`block_tokens`, 0 if unknown) and always computes
/// the last prompt token again (vLLM: `max_cache_hit_length = num_tokens - 1`).
pub fn cached_tokens(blocks: u32, block_tokens: u32, prompt_tokens: u32) -> u32 {
    let size = block_tokens.max(1);
    let held = (blocks * BLOCK_TOKENS as u32).min(prompt_tokens.saturating_sub(1));
    held / size * size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_engine_blocks_and_never_the_last_token_are_reused() {
        // Figures of vLLM 0.23 with blocks of 32: 162 prompt tokens, 160 of them stored.
        assert_eq!(cached_tokens(10, 32, 162), 160);
        assert_eq!(cached_tokens(10, 32, 160), 128, "the last token is computed again");
        assert_eq!(cached_tokens(9, 32, 162), 128, "144 tokens are four whole blocks");
        assert_eq!(cached_tokens(12, 128, 300), 128);
        assert_eq!(cached_tokens(2, 24, 100), 24, "blocks of 24 that 16 does not divide");
        assert_eq!(cached_tokens(2, 0, 100), 32, "an unknown size rounds nothing");
        assert_eq!(cached_tokens(2, 1, 32), 31);
        assert_eq!(cached_tokens(0, 16, 0), 0);
    }

    #[test]
    fn what_is_sent_but_not_reported_waits() {
        let model = CostModel { queued_ms: 10.0, running_ms: 1.0, ..CostModel::default() };
        let queue = |waiting, running, in_flight| {
            model.cost(0, 0.0, &Load { waiting, running, in_flight, kv_usage: 0.0 }).queue
        };
        assert!((queue(0, 0, 3) - 30.0).abs() < 1e-9);
        assert!((queue(0, 3, 3) - 3.0).abs() < 1e-9);
        assert!((queue(2, 1, 5) - 41.0).abs() < 1e-9);
    }
}
