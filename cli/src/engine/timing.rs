//! How long a real engine would have taken.

use std::time::Duration;

use tokio::time::Instant;

/// The durations that stand in for a GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// Per request, before its first token.
    pub(crate) prefill_base: Duration,
    /// Per prompt token that was not cached; the requests take turns for this part.
    pub(crate) prefill_per_token: Duration,
    /// Per generated token; requests don't slow each other down here.
    pub(crate) decode_per_token: Duration,
}

impl Timing {
    /// From milliseconds, all divided by `speedup`.
    pub(crate) fn new(base_ms: f64, per_token_ms: f64, decode_ms: f64, speedup: f64) -> Self {
        let duration =
            |ms: f64| Duration::try_from_secs_f64(ms / 1e3 / speedup).unwrap_or_default();
        Self {
            prefill_base: duration(base_ms),
            prefill_per_token: duration(per_token_ms),
            decode_per_token: duration(decode_ms),
        }
    }

    /// When a prefill of `tokens` that arrives `now` is done. `busy_until` is when the prefill
    /// before it ends, and is moved on.
    pub(crate) fn prefill(&self, now: Instant, busy_until: &mut Instant, tokens: usize) -> Instant {
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        *busy_until = now.max(*busy_until) + self.prefill_per_token.saturating_mul(tokens);
        *busy_until + self.prefill_base
    }

    /// When generated token `index` is there; the first (0) comes with the prefill.
    pub(crate) fn token(&self, first: Instant, index: usize) -> Instant {
        first + self.decode_per_token.saturating_mul(u32::try_from(index).unwrap_or(u32::MAX))
    }
}

/// Sleeps until `due`. The timer ticks in milliseconds, so what is nearly due is due.
pub(crate) async fn sleep_until(due: Instant) {
    if due.saturating_duration_since(Instant::now()) > Duration::from_micros(500) {
        tokio::time::sleep_until(due).await;
    }
}
