//! Learned prices: what prefill and waiting really take, from times to the first token.
//!
//! Each price is the configured one times a factor that follows the median of what was seen, in
//! small steps: one outlier moves it no further than any other answer. Without answers it is 1, and
//! it stays within fixed bounds of that, so that nothing that an engine does makes prices absurd.

use crate::cost::CostModel;
use crate::drift::Forecast;
use crate::usage::{Reported, Usage};

/// A learned price stays within this factor of the configured one.
pub const MOST_FACTOR: f64 = 8.0;

/// Prefills below this many tokens tell more of the base than of the price per token.
const FEW_TOKENS: u32 = 64;

/// One answer's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Tokens of the prompt that the engine had to compute.
    pub uncached: u32,
    /// Tokens that it had cached.
    pub cached: u32,
    /// Requests that waited before this one ([`CostModel::queued`]).
    pub queued: u32,
    /// Network round trip, in milliseconds.
    pub rtt_ms: f64,
    /// From sending the request to the first token, in milliseconds.
    pub first_token_ms: f64,
}

/// Tokens of a prompt and those of them that were cached, to learn prices from: by the engine's own word
/// where there is one, else by a forecast that nothing but the map speaks for.
pub fn counted(usage: Option<Usage>, forecast: Option<Forecast>) -> Option<(u32, u32)> {
    match (usage, forecast) {
        (Some(Usage { prompt: Some(prompt), cached: Reported::Tokens(cached) }), _) => {
            Some((prompt, cached))
        }
        (_, Some(forecast)) if forecast.certain => {
            forecast.prompt.map(|prompt| (prompt, forecast.cached))
        }
        _ => None,
    }
}

/// What was learned of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Learned {
    base: Factor,
    tokens: Factor,
    queue: Factor,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Factor {
    value: f64,
    seen: u32,
}

impl Default for Factor {
    fn default() -> Self {
        Self { value: 1.0, seen: 0 }
    }
}

impl Factor {
    /// Steps towards what was seen: widely at first, so as to get there, finely later.
    fn step(&mut self, seen: f64) {
        let step = (0.5 / (1.0 + f64::from(self.seen) / 4.0)).max(0.02);
        self.seen = self.seen.saturating_add(1);
        let factor = if seen > self.value { step.exp() } else { (-step).exp() };
        self.value = (self.value * factor).clamp(1.0 / MOST_FACTOR, MOST_FACTOR);
    }
}

impl Learned {
    /// Prices as learned.
    pub fn prices(&self, configured: &CostModel) -> CostModel {
        CostModel {
            prefill_base_ms: configured.prefill_base_ms * self.base.value,
            prefill_ms_per_1k_tokens: configured.prefill_ms_per_1k_tokens * self.tokens.value,
            prefill_ms_per_1m_pairs: configured.prefill_ms_per_1m_pairs * self.tokens.value,
            queued_ms: configured.queued_ms * self.queue.value,
            ..configured.clone()
        }
    }

    /// Takes in one answer: it tells of what made up most of its time.
    pub fn observe(&mut self, configured: &CostModel, seen: &Timing) {
        let took = seen.first_token_ms - seen.rtt_ms;
        if !took.is_finite() || took < 0.0 {
            return;
        }
        let prices = self.prices(configured);
        let prefill = prices.prefill(seen.cached, seen.uncached);
        let tokens = prefill - prices.prefill_base_ms;
        if seen.queued > 0 {
            // What others wait for shows only where there is not much prefill of one's own.
            let expected = f64::from(seen.queued) * configured.queued_ms;
            if expected > 0.0 && prefill < f64::from(seen.queued) * prices.queued_ms * 2.0 {
                self.queue.step((took - prefill) / expected);
            }
        } else if seen.uncached <= FEW_TOKENS {
            if configured.prefill_base_ms > 0.0 {
                self.base.step((took - tokens) / configured.prefill_base_ms);
            }
        } else if tokens > 2.0 * prices.prefill_base_ms {
            let expected = tokens / self.tokens.value;
            self.tokens.step((took - prices.prefill_base_ms) / expected);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::drift::NextBlock;

    #[test]
    fn prices_are_learned_by_the_engines_word_or_by_a_forecast_that_only_the_map_speaks_for() {
        let forecast = Forecast {
            cached: 64,
            excused: 0,
            sent_before: 0,
            next: NextBlock::default(),
            certain: true,
            prompt: Some(100),
        };
        let usage = |prompt, cached| Some(Usage { prompt, cached });
        let whole = usage(Some(99), Reported::Tokens(80));
        assert_eq!(counted(whole, Some(forecast)), Some((99, 80)), "the engine's own word");
        for usage in [None, usage(None, Reported::Tokens(80)), usage(Some(99), Reported::Null)] {
            assert_eq!(counted(usage, Some(forecast)), Some((100, 64)), "{usage:?}");
            assert_eq!(counted(usage, Some(Forecast { certain: false, ..forecast })), None);
            assert_eq!(counted(usage, Some(Forecast { prompt: None, ..forecast })), None);
            assert_eq!(counted(usage, None), None);
        }
    }

    fn engine(model: &CostModel, uncached: u32, queued: u32) -> Timing {
        let first_token_ms =
            10.0 + model.prefill(0, uncached) + f64::from(queued) * model.queued_ms;
        Timing { uncached, cached: 0, queued, rtt_ms: 10.0, first_token_ms }
    }

    fn close(a: f64, b: f64) -> bool {
        (a / b).ln().abs() < 0.1
    }

    #[test]
    fn prices_become_the_engine_s_own_and_outliers_don_t_matter() {
        let configured = CostModel::default();
        let real = CostModel {
            prefill_base_ms: 55.0,
            prefill_ms_per_1k_tokens: 95.0,
            queued_ms: 420.0,
            ..CostModel::default()
        };
        let mut learned = Learned::default();
        assert_eq!(learned.prices(&configured), configured, "a cold start");
        for n in 0..600_u32 {
            let uncached = [16, 4_000, 2_000, 60, 64][n as usize % 5];
            let queued = if n % 5 == 4 { 1 + n % 3 } else { 0 };
            let mut seen = engine(&real, uncached, queued);
            if n % 10 == 7 {
                seen.first_token_ms *= 50.0;
            }
            learned.observe(&configured, &seen);
        }
        let prices = learned.prices(&configured);
        assert!(close(prices.prefill_base_ms, 55.0), "{prices:?}");
        assert!(close(prices.prefill_ms_per_1k_tokens, 95.0), "{prices:?}");
        assert!(close(prices.queued_ms, 420.0), "{prices:?}");
    }

    #[test]
    fn a_few_answers_are_enough_for_each_worker_to_learn_alone() {
        let configured = CostModel::default();
        for factor in [0.3, 0.8, 2.0, 5.0] {
            let prefill_ms_per_1k_tokens = configured.prefill_ms_per_1k_tokens * factor;
            let real = CostModel { prefill_ms_per_1k_tokens, ..CostModel::default() };
            let mut learned = Learned::default();
            for _ in 0..20 {
                learned.observe(&configured, &engine(&real, 4_000, 0));
            }
            let is = learned.prices(&configured).prefill_ms_per_1k_tokens;
            assert!(close(is, prefill_ms_per_1k_tokens), "{factor}: {is}");
        }
    }

    proptest! {
        #[test]
        fn prices_stay_within_their_bounds(
            seen in proptest::collection::vec(
                (any::<u32>(), any::<u32>(), any::<u32>(), any::<f64>()), 0..200),
        ) {
            let configured = CostModel { prefill_ms_per_1m_pairs: 1.0, ..CostModel::default() };
            let mut learned = Learned::default();
            for (uncached, cached, queued, first_token_ms) in seen {
                let seen = Timing { uncached, cached, queued, rtt_ms: 1.0, first_token_ms };
                learned.observe(&configured, &seen);
                let prices = learned.prices(&configured);
                for (is, was) in [
                    (prices.prefill_base_ms, configured.prefill_base_ms),
                    (prices.prefill_ms_per_1k_tokens, configured.prefill_ms_per_1k_tokens),
                    (prices.queued_ms, configured.queued_ms),
                ] {
                    let factor = is / was;
                    let bounds = 0.99 / MOST_FACTOR..=1.01 * MOST_FACTOR;
                    prop_assert!(bounds.contains(&factor), "{}", factor);
                }
            }
        }
    }
}
