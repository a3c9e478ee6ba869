//! Speculation: what a replica was just sent it will soon hold.
//!
//! Between a choice and the event that says that the blocks are there lies the time of a prefill.
//! For so long the choice itself counts, so that a burst of one new prefix meets at one replica.
//! Keys are remembered at a few depths, each at most half as deep again as the one before, so that
//! prompts meet that share a beginning of any length.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::fingerprint::Key;
use crate::prefix_map::{Lookup, Match, Matches, Wanted};

/// How long a choice counts, in milliseconds: about the longest prefill.
pub const HOLD_MS: u64 = 2_000;

/// Keys that are remembered; about 64 bytes each.
pub const MOST_KEYS: usize = 8_192;

/// Depths in blocks at which keys are remembered, besides the last.
const DEPTHS: [usize; 26] = [
    1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536,
    2_048, 3_072, 4_096, 6_144, 8_192,
];

/// An end that is at most so many blocks above what is remembered or held anyway, and at most this
/// part of the prompt, is left out: those who share it meet by what is below it, and it is little to
/// prefill.
const LITTLE: usize = 8;
const LITTLE_SHARE: usize = 16;

/// Replicas that are remembered for one key, the newest first: more than one only where a bound
/// parted a burst.
const HOLDERS: usize = 2;

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    slot: u16,
    until_ms: u64,
}

/// Choices made a moment ago.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    keys: HashMap<Key, [Held; HOLDERS]>,
    /// In the order in which they end; each with its place among the depths.
    ends: VecDeque<(u64, Key, usize)>,
    /// How many of those there are of each depth, as none needs to be looked up where there are
    /// none; the last one is for ends of prompts at other depths.
    live: [u32; DEPTHS.len() + 1],
}

impl Recent {
    /// A request with these keys was sent to the replica, which held the first `known` of them by
    /// the map's word.
    ///
    /// A key that counts already is not prolonged: what no event confirms in time was not so.
    pub fn sent(&mut self, keys: &[Key], known: usize, slot: u16, now_ms: u64) {
        self.forget(now_ms);
        let until_ms = now_ms.saturating_add(HOLD_MS);
        let end = keys.len();
        let below = depths(end).nth(1).map_or(0, |(depth, _)| depth).max(known);
        let all = depths(end).skip(usize::from(is_little(below, end)));
        for (depth, place) in all.filter(|(depth, _)| *depth > known) {
            let Some(key) = depth.checked_sub(1).and_then(|at| keys.get(at)) else { continue };
            let held = self.keys.entry(*key).or_default();
            if held.iter().any(|held| held.slot == slot && held.until_ms > now_ms) {
                continue;
            }
            held.rotate_right(1);
            if let Some(first) = held.first_mut() {
                *first = Held { slot, until_ms };
            }
            self.ends.push_back((until_ms, *key, place));
            if let Some(live) = self.live.get_mut(place) {
                *live += 1;
            }
            if self.ends.len() > MOST_KEYS {
                self.pop();
            }
        }
    }

    /// Forgets all: slots mean something else now.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.ends.clear();
        self.live.fill(0);
    }

    /// As of a moment.
    pub fn at(&self, now_ms: u64) -> At<'_> {
        At { recent: self, now_ms, since_ms: 0 }
    }

    fn forget(&mut self, now_ms: u64) {
        while self.ends.front().is_some_and(|(until, ..)| *until <= now_ms) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        let Some((until, key, place)) = self.ends.pop_front() else { return };
        if let Some(live) = self.live.get_mut(place) {
            *live -= 1;
        }
        if let Some(held) = self.keys.get_mut(&key) {
            for held in held.iter_mut().filter(|held| held.until_ms <= until) {
                *held = Held::default();
            }
            if held.iter().all(|held| held.until_ms == 0) {
                self.keys.remove(&key);
            }
        }
    }
}

/// Whether the blocks of a prompt from there to its end are too few to be remembered for their own
/// sake.
pub fn is_little(from: usize, end: usize) -> bool {
    end.saturating_sub(from) <= LITTLE.min(end / LITTLE_SHARE)
}

/// What counts as held at a moment.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    recent: &'a Recent,
    now_ms: u64,
    since_ms: u64,
}

impl At<'_> {
    /// Only choices not older than so many milliseconds.
    #[must_use]
    pub fn within(self, ms: u64) -> Self {
        Self { since_ms: self.now_ms.saturating_sub(ms), ..self }
    }

    fn holds(&self, held: &Held) -> bool {
        held.until_ms > self.now_ms && held.until_ms >= self.since_ms.saturating_add(HOLD_MS)
    }
}

impl Lookup for At<'_> {
    fn matches(&self, keys: &[Key], wanted: &dyn Wanted) -> Matches {
        let mut found: Vec<Match> = Vec::new();
        if self.recent.keys.is_empty() {
            return Matches::default();
        }
        for (depth, place) in depths(keys.len()) {
            if self.recent.live.get(place).is_none_or(|live| *live == 0) {
                continue;
            }
            let key = depth.checked_sub(1).and_then(|at| keys.get(at));
            let Some(held) = key.and_then(|key| self.recent.keys.get(key)) else { continue };
            for held in held.iter().filter(|held| self.holds(held)) {
                if wanted.wants(held.slot) && !found.iter().any(|m| m.slot == held.slot) {
                    found.push(Match { slot: held.slot, blocks: depth as u32 });
                }
            }
        }
        found.sort_unstable_by_key(|m| m.slot);
        Matches { found, ..Matches::default() }
    }
}

/// The depths of a prompt of so many blocks, the deepest first, each with its place in `live`.
fn depths(blocks: usize) -> impl Iterator<Item = (usize, usize)> {
    let below = DEPTHS.partition_point(|depth| *depth < blocks);
    let last = if DEPTHS.get(below) == Some(&blocks) { below } else { DEPTHS.len() };
    let below = DEPTHS.iter().copied().enumerate().take(below).rev();
    let last = (blocks > 0).then_some((last, blocks));
    last.into_iter().chain(below).map(|(place, depth)| (depth, place))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(seed: u64, blocks: u64) -> Vec<Key> {
        let key = |block: u64| {
            let hash = blake3::hash(&[seed.to_le_bytes(), block.to_le_bytes()].concat());
            Key(*hash.as_bytes().first_chunk().unwrap())
        };
        (0..blocks).map(key).collect()
    }

    fn found(recent: &Recent, keys: &[Key], now_ms: u64) -> Vec<(u16, u32)> {
        let matches = recent.at(now_ms).matches(keys, &|_: u16| true);
        matches.found.iter().map(|m| (m.slot, m.blocks)).collect()
    }

    #[test]
    fn a_burst_meets_and_the_moment_ends() {
        let mut recent = Recent::default();
        let one = keys(1, 20);
        recent.sent(&one, 0, 3, 1_000);
        assert_eq!(found(&recent, &one, 1_001), [(3, 20)]);
        let mut other = one[..7].to_vec();
        other.extend(keys(2, 5));
        assert_eq!(found(&recent, &other, 1_001), [(3, 6)], "a shared system prompt");
        assert_eq!(found(&recent, &keys(2, 5), 1_001), []);
        assert_eq!(found(&recent, &one[..7], 1_001), [(3, 6)]);
        assert_eq!(recent.at(1_001).matches(&one, &|slot: u16| slot != 3).found, []);
        let within = |ms| recent.at(1_500).within(ms).matches(&one, &|_: u16| true).found.len();
        assert_eq!((within(499), within(500)), (0, 1));
        // Those who follow don't prolong it.
        recent.sent(&one, 0, 3, 2_500);
        assert_eq!(found(&recent, &one, 2_999), [(3, 20)]);
        assert_eq!(found(&recent, &one, 3_000), []);
        recent.sent(&[], 0, 3, 3_000);
        assert!(recent.keys.is_empty() && recent.ends.is_empty());
    }

    #[test]
    fn what_the_map_knows_is_not_kept_twice() {
        let mut recent = Recent::default();
        recent.sent(&keys(1, 20), 20, 3, 1_000);
        assert!(recent.keys.is_empty());
        recent.sent(&keys(1, 20), 16, 3, 1_000);
        assert_eq!(recent.keys.len(), 1, "the last alone");

        // What is little beside a prompt isn't worth it either.
        let long = keys(2, 200);
        for (blocks, known, ends) in [
            (121, 118, 0), // 48 tokens
            (121, 114, 0),
            (121, 113, 1), // 128 tokens, more than a sixteenth
            (200, 192, 0),
            (200, 191, 1), // 192 blocks, to which 8 are little
            (17, 16, 0),
            (15, 14, 1),
            (1, 0, 1),
        ] {
            let mut recent = Recent::default();
            recent.sent(&long[..blocks], known, 3, 1_000);
            assert_eq!(recent.keys.len(), ends, "{blocks} blocks, {known} known");
        }
    }

    #[test]
    fn an_end_is_found_by_those_that_pass_and_those_that_end_there() {
        let one = keys(1, 200);
        for (ends_at, known) in [(1, 0), (5, 4), (16, 14), (95, 80), (192, 180)] {
            let mut recent = Recent::default();
            recent.sent(&one[..ends_at], known, 3, 1_000);
            assert_eq!(found(&recent, &one[..ends_at], 1_001), [(3, ends_at as u32)]);
            let passed = DEPTHS.contains(&ends_at);
            assert_eq!(!found(&recent, &one, 1_001).is_empty(), passed, "{ends_at}");
        }
    }

    #[test]
    fn a_burst_that_its_bound_parted_is_known_at_both() {
        let mut recent = Recent::default();
        let one = keys(1, 20);
        for slot in [3, 4] {
            recent.sent(&one, 0, slot, 1_000);
        }
        assert_eq!(found(&recent, &one, 1_001), [(3, 20), (4, 20)]);
        recent.sent(&one, 0, 5, 1_500);
        assert_eq!(found(&recent, &one, 1_501), [(4, 20), (5, 20)]);
        assert_eq!(found(&recent, &one, 3_100), [(5, 20)]);
        recent.sent(&[], 0, 0, 3_100);
        assert_eq!(recent.live.iter().sum::<u32>(), recent.ends.len() as u32);
        assert_eq!(found(&recent, &one, 3_100), [(5, 20)], "forgetting the first keeps the last");
        recent.clear();
        assert_eq!(found(&recent, &one, 1_501), []);
    }

    proptest! {
        /// Bounded whatever comes, and nothing is found that was not sent within the time.
        #[test]
        fn bounded_and_true(
            sent in proptest::collection::vec((0u64..40, 1u64..300, 0u16..4, 0u64..900), 1..150),
        ) {
            let mut recent = Recent::default();
            let mut now = 5_000;
            let mut log: Vec<(u64, u64, u16, u64)> = Vec::new();
            for (seed, blocks, slot, later) in sent {
                now += later;
                recent.sent(&keys(seed, blocks), 0, slot, now);
                log.push((seed, blocks, slot, now));
                prop_assert!(recent.ends.len() <= MOST_KEYS && recent.keys.len() <= MOST_KEYS);
                for (slot, deep) in found(&recent, &keys(seed, 300), now) {
                    let was_sent = log.iter().any(|(s, b, at, when)| {
                        let alike = *s == seed && *b >= u64::from(deep) && *at == slot;
                        alike && when + HOLD_MS > now
                    });
                    prop_assert!(was_sent);
                }
            }
            recent.sent(&[], 0, 0, now + HOLD_MS);
            prop_assert!(recent.keys.is_empty() && recent.ends.is_empty());
        }
    }
}
