//! Passive ejection: replicas that fail time after time are left alone for a while.
//!
//! This is what one gateway sees of its own requests, sooner than the relay's checks and for paths
//! that those don't take. The decision never lets it empty a zone: see [`crate::decision`].
//!
//! A request may be what makes a replica fail. So what it may be to blame for counts once for its
//! prompt and once for the client's connection: nobody ejects a replica for all by sending the same
//! again, nor many of its kind at once.

mod ending;

pub use ending::{Ending, engines_failed, is_overloaded, is_taken};

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

/// Prompts, and as many connections, that are remembered of a replica: those whose failures count.
const REMEMBERED: usize = 32;

/// What may have caused a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The replica itself: it took no connection.
    Replica,
    /// The replica or the prompt, which another replica has answered.
    Prompt(u64),
    /// The replica or the request.
    Request {
        /// What was sent.
        prompt: u64,
        /// Over which connection of which client.
        connection: u64,
    },
}

/// How replicas did, by their names ([`crate::view::Replica::name`]). Only those that failed last
/// are kept.
#[derive(Clone, Debug, Default)]
pub struct Health(BTreeMap<u64, Track>);

#[derive(Clone, Debug, Default)]
struct Track {
    failures: u32,
    ejections: u32,
    until_ms: u64,
    /// Of the failures that were counted.
    prompts: Vec<u64>,
    connections: Vec<u64>,
}

impl Track {
    /// Whether a failure of this cause is another one, and not more of the same.
    fn counts(&mut self, cause: Cause) -> bool {
        let (prompt, connection) = match cause {
            Cause::Replica => (None, None),
            Cause::Prompt(prompt) => (Some(prompt), None),
            Cause::Request { prompt, connection } => (Some(prompt), Some(connection)),
        };
        let names = [(&mut self.prompts, prompt), (&mut self.connections, connection)];
        if names.iter().any(|(known, name)| name.is_some_and(|name| known.contains(&name))) {
            return false;
        }
        for (known, name) in names {
            if known.len() >= REMEMBERED {
                known.remove(0);
            }
            known.extend(name);
        }
        true
    }
}

impl Health {
    /// A request could not be served there. Says whether that ejects the replica.
    pub fn failed(&mut self, rule: &Ejection, name: u64, cause: Cause, now_ms: u64) -> bool {
        if rule.after == 0 || (self.0.len() >= MOST && !self.0.contains_key(&name)) {
            return false;
        }
        let track = self.0.entry(name).or_default();
        // Of those who were under way when it was ejected nothing new is learned.
        if track.until_ms > now_ms || !track.counts(cause) {
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
        // By anybody's request, if it is not one of those that it failed at before.
        track.connections.clear();
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

    const REPLICA: Cause = Cause::Replica;

    fn out(health: &Health, name: u64, now_ms: u64) -> bool {
        health.ejected(now_ms).any(|(ejected, _)| ejected == name)
    }

    #[test]
    fn failures_in_a_row_eject_for_longer_each_time() {
        let (mut health, rule) = (Health::default(), Ejection::default());
        assert!(!health.failed(&rule, 1, REPLICA, 0) && health.doubts(1));
        assert!(!health.failed(&rule, 1, REPLICA, 0));
        health.served(1);
        assert!(!health.doubts(1));
        for now in [0, 10] {
            assert!(!health.failed(&rule, 1, REPLICA, now), "a success in between");
        }
        assert!(health.failed(&rule, 1, REPLICA, 20));
        assert!(out(&health, 1, 2_019) && !out(&health, 1, 2_020) && !out(&health, 2, 30));
        assert!(!health.failed(&rule, 1, REPLICA, 1_000), "one that was under way");
        assert!(!out(&health, 1, 2_020), "doesn't prolong it");
        // On trial: one failure is enough, and the times double up to the longest.
        let mut now = 2_020;
        for long in [4_000, 8_000, 16_000, 30_000, 30_000] {
            assert!(health.failed(&rule, 1, REPLICA, now));
            now += long;
            assert!(out(&health, 1, now - 1) && !out(&health, 1, now));
        }
        health.served(1);
        assert!(!health.failed(&rule, 1, REPLICA, now), "all is forgiven");
        let never = Ejection { after: 0, ..rule };
        assert!((0..10).all(|now| !health.failed(&never, 2, REPLICA, now)));
    }

    fn request(prompt: u64, connection: u64) -> Cause {
        Cause::Request { prompt, connection }
    }

    #[test]
    fn more_of_the_same_is_no_further_failure() {
        let rule = Ejection::default();
        let mut health = Health::default();
        let mut failed = |causes: &[Cause], now| {
            let all = causes.iter().map(|cause| health.failed(&rule, 1, *cause, now));
            all.collect::<Vec<_>>()
        };
        // One prompt over many connections, many prompts over one.
        for n in 1..100 {
            assert_eq!(failed(&[request(1, n), request(n, 1), Cause::Prompt(1)], 0), [false; 3]);
        }
        // What was not counted doesn't keep another one from counting.
        assert_eq!(failed(&[request(50, 50), request(51, 51)], 0), [false, true]);
        // On trial a prompt that it failed at before tells nothing new, a connection does.
        let back = rule.base_ms;
        assert_eq!(failed(&[request(51, 99), request(1, 98)], back), [false, false]);
        assert_eq!(failed(&[request(52, 51)], back), [true]);
        // Who refuses connections fails each time.
        let mut health = Health::default();
        let all = [request(1, 1), REPLICA, REPLICA].map(|c| health.failed(&rule, 1, c, 0));
        assert_eq!(all, [false, false, true]);
        // What others answer counts by prompts, whoever sends them.
        let mut health = Health::default();
        let all = [1, 1, 2, 2, 3].map(|p| health.failed(&rule, 1, Cause::Prompt(p), 0));
        assert_eq!(all, [false, false, false, false, true]);
    }

    fn any_cause() -> impl Strategy<Value = Cause> {
        prop_oneof![
            Just(REPLICA),
            (0u64..99).prop_map(Cause::Prompt),
            (0u64..99, 0u64..99).prop_map(|(prompt, connection)| request(prompt, connection)),
        ]
    }

    proptest! {
        /// Nobody is out for longer than the longest, and what is kept stays bounded.
        #[test]
        fn every_ejection_ends(
            steps in proptest::collection::vec((0u64..9, 0u8..16, any_cause()), 0..500),
            after in 1u32..100,
        ) {
            let mut health = Health::default();
            let rule = Ejection { after, ..Ejection::default() };
            for (now, (name, what, cause)) in (0..).zip(steps) {
                if what == 0 {
                    health.served(name);
                } else {
                    health.failed(&rule, name, cause, now);
                }
                prop_assert!(health.ejected(now).all(|(_, until)| until <= now + rule.most_ms));
                prop_assert!(health.0.len() <= MOST);
                let long = |track: &Track| track.prompts.len().max(track.connections.len());
                prop_assert!(health.0.values().all(|track| long(track) <= REMEMBERED));
            }
            health.retain(|_| false);
            prop_assert!(health.0.is_empty());
        }
    }
}
