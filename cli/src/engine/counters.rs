//! What one rank counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// vLLM's buckets of `time_to_first_token_seconds`, as it writes them.
pub(super) const BUCKETS: [(f64, &str); 22] = [
    (0.001, "0.001"),
    (0.005, "0.005"),
    (0.01, "0.01"),
    (0.02, "0.02"),
    (0.04, "0.04"),
    (0.06, "0.06"),
    (0.08, "0.08"),
    (0.1, "0.1"),
    (0.25, "0.25"),
    (0.5, "0.5"),
    (0.75, "0.75"),
    (1.0, "1.0"),
    (2.5, "2.5"),
    (5.0, "5.0"),
    (7.5, "7.5"),
    (10.0, "10.0"),
    (20.0, "20.0"),
    (40.0, "40.0"),
    (80.0, "80.0"),
    (160.0, "160.0"),
    (640.0, "640.0"),
    (2560.0, "2560.0"),
];

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The answer was over.
    Stop,
    /// `max_tokens` was reached.
    Length,
}

impl Finish {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// What one rank counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(super) queries: AtomicU64,
    pub(super) hits: AtomicU64,
    pub(super) generated: AtomicU64,
    pub(super) stopped: AtomicU64,
    pub(super) cut: AtomicU64,
    pub(super) first_tokens: [AtomicU64; BUCKETS.len()],
    pub(super) first_token_count: AtomicU64,
    pub(super) first_token_micros: AtomicU64,
}

impl Counters {
    /// A request got its blocks: its prompt tokens, and those of them that were cached.
    pub(crate) fn admitted(&self, prompt_tokens: usize, cached_tokens: usize) {
        self.queries.fetch_add(prompt_tokens as u64, Ordering::Relaxed);
        self.hits.fetch_add(cached_tokens as u64, Ordering::Relaxed);
    }

    /// Time from a request's arrival to its first token.
    pub(crate) fn first_token(&self, after: Duration) {
        let seconds = after.as_secs_f64();
        for ((bound, _), count) in BUCKETS.iter().zip(&self.first_tokens) {
            if seconds <= *bound {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.first_token_count.fetch_add(1, Ordering::Relaxed);
        self.first_token_micros.fetch_add(after.as_micros() as u64, Ordering::Relaxed);
    }

    /// A token was generated.
    pub(crate) fn generated(&self) {
        self.generated.fetch_add(1, Ordering::Relaxed);
    }

    /// A request ended well.
    pub(crate) fn finished(&self, finish: Finish) {
        match finish {
            Finish::Stop => self.stopped.fetch_add(1, Ordering::Relaxed),
            Finish::Length => self.cut.fetch_add(1, Ordering::Relaxed),
        };
    }
}
