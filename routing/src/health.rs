//! Passive ejection: replicas that fail time after time are left alone for a while.
//!
//! This is what one gateway sees of its own requests, sooner than the relay's checks and for paths
//! that those don't take. The decision never lets it empty a zone: see [`crate::decision`].

use std::collections::BTreeMap;

use serde::Deserialize;

/// When a replica is left alone, and for how long.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ejection {
    /// Failures in a row that eject a replica; 0 never does.
    pub after: u32,
    /// The first ejection, in milliseconds; each further one is twice as long.
    pub base_ms: u64,
    /// The longest, in milliseconds.
    pub most_ms: u64,
}

impl Default for Ejection {
    fn default() -> Self {
        Self { after: 3, base_ms: 2_000, most_ms: 30_000 }
    }
}

/// Replicas that are kept track of; beyond that the rest counts as well.
const MOST: usize = 4_096;

/// How replicas did, by their names ([`crate::view::Replica::name`]). Only those that failed last
/// are kept.
#[derive(Clone, Debug, Default)]
pub struct Health(BTreeMap<u64, Track>);

#[derive(Clone, Copy, Debug, Default)]
struct Track {
    failures: u32,
    ejections: u32,
    until_ms: u64,
}

impl Health {
    /// A request could not be served there. Says whether that ejects the replica.
    pub fn failed(&mut self, rule: &Ejection, name: u64, now_ms: u64) -> bool {
        if rule.after == 0 || (self.0.len() >= MOST && !self.0.contains_key(&name)) {
            return false;
        }
        let track = self.0.entry(name).or_default();
        // Of those who were under way when it was ejected nothing new is learned.
        if track.until_ms > now_ms {
            return false;
        }
        track.failures = track.failures.saturating_add(1);
        if track.failures < rule.after {
            return false;
        }
        let long = rule.base_ms.saturating_mul(1 << track.ejections.min(20)).min(rule.most_ms);
        track.until_ms = now_ms.saturating_add(long);
        track.ejections = track.ejections.saturating_add(1);
        // It comes back on trial: the next failure ejects it again.
        track.failures = rule.after - 1;
        true
    }

    /// A request was served there.
    pub fn served(&mut self, name: u64) {
        self.0.remove(&name);
    }

    /// Whether it failed when it was last heard of.
    pub fn doubts(&self, name: u64) -> bool {
        self.0.contains_key(&name)
    }

    /// Forgets replicas that are no more.
    pub fn retain(&mut self, known: impl Fn(u64) -> bool) {
        self.0.retain(|name, _| known(*name));
    }

    /// All that are ejected now, and until when.
    pub fn ejected(&self, now_ms: u64) -> impl Iterator<Item = (u64, u64)> {
        let all = self.0.iter().map(|(name, track)| (*name, track.until_ms));
        all.filter(move |(_, until)| *until > now_ms)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn out(health: &Health, name: u64, now_ms: u64) -> bool {
        health.ejected(now_ms).any(|(ejected, _)| ejected == name)
    }

    #[test]
    fn failures_in_a_row_eject_for_longer_each_time() {
        let (mut health, rule) = (Health::default(), Ejection::default());
        assert!(!health.failed(&rule, 1, 0) && health.doubts(1));
        assert!(!health.failed(&rule, 1, 0));
        health.served(1);
        assert!(!health.doubts(1));
        for now in [0, 10] {
            assert!(!health.failed(&rule, 1, now), "a success in between");
        }
        assert!(health.failed(&rule, 1, 20));
        assert!(out(&health, 1, 2_019) && !out(&health, 1, 2_020) && !out(&health, 2, 30));
        assert!(!health.failed(&rule, 1, 1_000), "one that was under way");
        assert!(!out(&health, 1, 2_020), "doesn't prolong it");
        // On trial: one failure is enough, and the times double up to the longest.
        let mut now = 2_020;
        for long in [4_000, 8_000, 16_000, 30_000, 30_000] {
            assert!(health.failed(&rule, 1, now));
            now += long;
            assert!(out(&health, 1, now - 1) && !out(&health, 1, now));
        }
        health.served(1);
        assert!(!health.failed(&rule, 1, now), "all is forgiven");
        let never = Ejection { after: 0, ..rule };
        assert!((0..10).all(|now| !health.failed(&never, 2, now)));
    }

    proptest! {
        /// Nobody is out for longer than the longest, and what is kept stays bounded.
        #[test]
        fn every_ejection_ends(steps in proptest::collection::vec((0u64..5_000, 0u8..3), 0..500)) {
            let (mut health, rule) = (Health::default(), Ejection::default());
            for (now, (name, what)) in (0..).zip(steps) {
                if what == 0 { health.served(name) } else { health.failed(&rule, name % 50, now); }
                prop_assert!(health.ejected(now).all(|(_, until)| until <= now + rule.most_ms));
                prop_assert!(health.0.len() <= MOST);
            }
            health.retain(|_| false);
            prop_assert!(health.0.is_empty());
        }
    }
}
