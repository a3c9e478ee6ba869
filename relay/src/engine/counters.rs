//! What happened on the way from one engine, counted for metrics and status.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A count that many tasks may raise.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// One more.
    pub fn one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// So far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts of one replica's events and polls, since the relay's start.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the names are the metrics' names")]
pub struct Counters {
    pub batches: Count,
    pub connects: Count,
    pub disconnects: Count,
    pub gaps: Count,
    pub restarts: Count,
    pub replays: Count,
    pub replays_failed: Count,
    pub polls_failed: Count,
    /// Frames that were skipped, by the reason's name.
    skipped: Mutex<BTreeMap<&'static str, u64>>,
}

impl Counters {
    /// A frame was skipped.
    /// Whether it is the first for this reason, which is worth a line.
    pub fn skipped(&self, reason: &'static str) -> bool {
        let Ok(mut skipped) = self.skipped.lock() else { return false };
        let count = skipped.entry(reason).or_default();
        *count += 1;
        *count == 1
    }

    /// Frames skipped so far, by reason.
    pub fn skipped_by_reason(&self) -> BTreeMap<&'static str, u64> {
        self.skipped.lock().map(|skipped| skipped.clone()).unwrap_or_default()
    }
}
