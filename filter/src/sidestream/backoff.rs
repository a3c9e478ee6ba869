//! When to connect again.

/// The first wait, milliseconds.
const FIRST_MS: u64 = 100;
/// The longest: a relay that is back is followed within a second.
const MOST_MS: u64 = 800;

/// Waits between attempts: doubling, capped, and spread so that gateways don't come back in step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    due_ms: u64,
}

impl Backoff {
    /// Whether an attempt may be made.
    pub(super) fn due(&self, now_ms: u64) -> bool {
        // A clock that was set back must not keep the service from the relay for long.
        now_ms >= self.due_ms || self.due_ms - now_ms > MOST_MS
    }

    /// An attempt failed, or a stream ended. `noise` is any number; the clock's nanoseconds do.
    pub(super) fn failed(&mut self, now_ms: u64, noise: u64) {
        let wait = (FIRST_MS << self.failures.min(8)).min(MOST_MS);
        self.failures = self.failures.saturating_add(1);
        // Nanosecond clocks often end in zeros: mix before the remainder is taken.
        let spread = (noise.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % (wait / 2 + 1);
        self.due_ms = now_ms + wait / 2 + spread;
    }

    /// The stream proved itself: the next failure starts with the first wait again.
    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn waits_grow_to_the_cap_and_start_again_after_success() {
        let mut backoff = Backoff::default();
        assert!(backoff.due(0));
        let mut waits = Vec::new();
        for _ in 0..20 {
            backoff.failed(1_000, 0);
            waits.push(backoff.due_ms - 1_000);
        }
        assert_eq!(waits[..6], [50, 100, 200, 400, 400, 400]);
        assert_eq!(waits[19], 400);
        backoff.succeeded();
        assert!(backoff.due(0));
    }

    #[test]
    fn a_clock_set_back_does_not_stop_the_service() {
        let mut backoff = Backoff::default();
        backoff.failed(1_000_000, 3);
        assert!(!backoff.due(1_000_010));
        assert!(backoff.due(5));
    }

    proptest! {
        #[test]
        fn every_wait_is_within_bounds(failures in 0u32..100, noise: u64) {
            let mut backoff = Backoff { failures, due_ms: 0 };
            backoff.failed(0, noise);
            prop_assert!((FIRST_MS / 2..=MOST_MS).contains(&backoff.due_ms));
        }
    }
}
