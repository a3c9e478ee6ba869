//! What becomes of answers that were not as foreseen: whether their replicas' events came in the
//! moments after them, which tells a short cache or an event on its way from a map that is wrong.
//!
//! So many are followed at a time, each by one bucket of the map and one row of the tallies with each
//! tick; what is beyond is not followed, and counts for nothing.

use std::collections::BTreeMap;

use super::forecast::NextBlock;
use super::observation::{After, Observation};
use super::table::Id;
use crate::fingerprint::Key;
use crate::tally::Tallies;

/// Answers that are followed at a time; and such of one replica of which nothing was cached, nor
/// expected to be.
const MOST: usize = 64;
const MOST_COLD: usize = 8;
/// An event's own way, and a step of an engine that it may have waited for; and that of what is read
/// of it here.
const EVENT_MS: u64 = 750;
/// Where events come, nobody looks again for so long whether they still do.
const CALM_MS: u64 = 5_000;

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    /// Model and replica.
    pub id: Id,
    /// The model's name, for a log.
    pub model: String,
    /// The replica's endpoint, for a log.
    pub endpoint: String,
    /// What it shows.
    pub seen: Observation,
}

/// What an answer is compared with afterwards: the map as it is by then. Times are in milliseconds since
/// 1970.
pub trait MapView {
    /// The slot of a replica now; `None` of one that is no more.
    fn slot(&self, replica: u64) -> Option<u16>;

    /// Whether the map says that a slot holds a block.
    fn holds(&self, slot: u16, key: Key) -> bool;

    /// When the map last changed for each slot.
    fn tallies(&self) -> Tallies;
}

/// One that is followed.
#[derive(Debug)]
struct Pending {
    answered: Answered,
    next: NextBlock,
    sent_ms: u64,
    /// Until when to look; set when it is looked for the first time.
    until_ms: Option<u64>,
}

impl Pending {
    fn is_cold(&self) -> bool {
        self.answered.seen.expected.max(self.answered.seen.actual) == 0
    }

    /// What became of it; `None` where that isn't known yet.
    fn outcome(&mut self, map: &impl MapView, tallies: &Tallies, now_ms: u64) -> Option<Outcome> {
        let over = now_ms >= *self.until_ms.get_or_insert(now_ms.saturating_add(EVENT_MS));
        let Observation { expected, actual, their_prompt, .. } = self.answered.seen;
        let slot = self.next.slot;
        let Some(slot_now) = map.slot(self.answered.id.replica) else { return Some(None) };
        let tally = tallies.of(slot);
        let since_sent = |at_ms: u64| at_ms > 0 && at_ms >= self.sent_ms;
        if actual < expected {
            let removed = slot_now != slot || since_sent(tally.lost_ms);
            return (removed || over).then_some(Some(After { removed, ..After::default() }));
        }
        if slot_now != slot {
            // Its cache was emptied, or is another's: what it held doesn't show any more.
            return Some(None);
        }
        let key = self.next.key?;
        if map.holds(slot, key) {
            return Some(Some(After { came: Some(true), announced: true, removed: false }));
        }
        let computed = their_prompt.map_or(0, |prompt| prompt.saturating_sub(actual));
        let announced = if computed >= self.next.block_tokens {
            since_sent(tally.held_ms)
        } else {
            tally.held_ms > 0
        };
        over.then_some(Some(After { came: Some(false), announced, removed: false }))
    }
}

/// `None` where it can't be known any more.
type Outcome = Option<After>;

/// Answers that are followed.
#[derive(Debug, Default)]
pub struct Aftermath {
    pending: Vec<Pending>,
    /// Until when events of a replica count as coming.
    calm_until: BTreeMap<u64, u64>,
}

impl Aftermath {
    /// Takes an answer that is to be followed; gives it back if there is nothing to follow. `next`: where
    /// the map's promise ended when it was decided, at `sent_ms`.
    pub fn take(&mut self, answered: Answered, next: NextBlock, sent_ms: u64) -> Option<Answered> {
        let Observation { expected, actual, .. } = answered.seen;
        // Of what an engine had cached, or has computed.
        let found = actual.saturating_add(next.dropped_tokens);
        let looks = next.key.is_some() && (actual <= expected || next.tokens <= found);
        let pending = Pending { answered, next, sent_ms, until_ms: None };
        let replica = pending.answered.id.replica;
        let follows = if pending.is_cold() {
            let of_it = |it: &&Pending| it.answered.id.replica == replica && it.is_cold();
            looks
                && self.calm_until.get(&replica).is_none_or(|until| *until <= sent_ms)
                && self.pending.iter().filter(of_it).count() < MOST_COLD
        } else {
            actual < expected || actual > expected && looks
        };
        if !follows {
            return Some(pending.answered);
        }
        if self.pending.len() < MOST {
            self.pending.push(pending);
        }
        None
    }

    /// Looks again, and gives those of which is known what became of them.
    pub fn settle(&mut self, map: &impl MapView, now_ms: u64) -> Vec<Answered> {
        if self.pending.is_empty() {
            return Vec::new();
        }
        let tallies = map.tallies();
        let mut settled = Vec::new();
        let calm_until = &mut self.calm_until;
        self.pending.retain_mut(|pending| {
            let Some(outcome) = pending.outcome(map, &tallies, now_ms) else { return true };
            if let Some(after) = outcome {
                if after.announced {
                    calm_until.insert(pending.answered.id.replica, now_ms + CALM_MS);
                }
                pending.answered.seen.after = after;
                settled.push(pending.answered.clone());
            }
            false
        });
        settled
    }

    /// Whether the map still lacks, a tick after its answer, what an engine had cached.
    pub fn is_in_doubt(&self) -> bool {
        let lacks = |it: &Pending| it.until_ms.is_some() && !it.is_cold();
        self.pending.iter().any(lacks)
    }

    /// Whether none is followed.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The map says nothing now, or something else.
    pub fn clear(&mut self) {
        self.pending.clear();
        self.calm_until.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct World {
        slot: Option<u16>,
        held: bool,
        tallies: Tallies,
    }

    impl MapView for World {
        fn slot(&self, _: u64) -> Option<u16> {
            self.slot
        }

        fn holds(&self, slot: u16, _: Key) -> bool {
            self.held && slot == 1
        }

        fn tallies(&self) -> Tallies {
            self.tallies.clone()
        }
    }

    fn answered(expected: u32, actual: u32) -> Answered {
        Answered {
            id: Id { model: 1, replica: 7 },
            model: "m".into(),
            endpoint: "e".into(),
            seen: Observation {
                expected,
                actual,
                their_prompt: Some(1_000),
                ..Observation::default()
            },
        }
    }

    const NEXT: NextBlock = NextBlock {
        slot: 1,
        key: Some(Key([0; 16])),
        tokens: 128,
        block_tokens: 16,
        dropped_tokens: 0,
    };

    /// What is known of one answer when its replica's events last told of the slot at those times.
    fn after(answer: Answered, held_ms: u64, lost_ms: u64, at_ms: u64) -> Vec<After> {
        let mut tallies = Tallies::default();
        tallies.changed(1, false, true, held_ms);
        tallies.changed(1, true, false, lost_ms);
        let world = World { slot: Some(1), held: false, tallies };
        let mut aftermath = Aftermath::default();
        assert_eq!(aftermath.take(answer, NEXT, 1_000), None);
        assert!(!aftermath.is_in_doubt());
        let mut settled = aftermath.settle(&world, 1_050);
        settled.extend(aftermath.settle(&world, at_ms));
        settled.into_iter().map(|it| it.seen.after).collect()
    }

    #[test]
    fn what_left_the_map_since_tells_an_eviction() {
        let gone = After { removed: true, ..After::default() };
        assert_eq!(after(answered(800, 0), 0, 1_000, 1_050), [gone]);
        assert_eq!(after(answered(800, 0), 0, 999, 1_100), []);
        assert_eq!(after(answered(800, 0), 2_000, 999, 1_800), [After::default()]);
        // All of its cache went: it has another slot.
        let mut aftermath = Aftermath::default();
        aftermath.take(answered(800, 0), NEXT, 1_000);
        let world = World { slot: Some(2), held: false, tallies: Tallies::default() };
        let settled = aftermath.settle(&world, 1_050);
        assert_eq!(settled.first().unwrap().seen.after, gone);
    }

    #[test]
    fn what_came_into_the_map_since_tells_other_names_from_lost_events() {
        let unnamed = After { came: Some(false), announced: true, removed: false };
        let lost = After { announced: false, ..unnamed };
        for (seen, held_ms, expected) in [
            (answered(0, 800), 1_001, unnamed),
            (answered(0, 800), 999, lost),
            // Nothing was left to compute: nothing has to come.
            (answered(0, 990), 999, unnamed),
            (answered(0, 990), 0, lost),
            (answered(0, 0), 999, lost),
        ] {
            assert_eq!(after(seen.clone(), held_ms, 0, 1_700), [], "{seen:?}");
            assert_eq!(after(seen.clone(), held_ms, 0, 1_800), [expected], "{seen:?}");
        }
        let mut aftermath = Aftermath::default();
        aftermath.take(answered(0, 800), NEXT, 1_000);
        let mut world = World { slot: Some(1), held: false, tallies: Tallies::default() };
        assert_eq!(aftermath.settle(&world, 1_050), []);
        assert!(aftermath.is_in_doubt());
        world.held = true;
        let settled = aftermath.settle(&world, 1_100);
        let came = After { came: Some(true), announced: true, removed: false };
        assert_eq!(settled.first().unwrap().seen.after, came);
        assert!(aftermath.is_empty());
    }

    #[test]
    fn what_can_not_be_looked_up_is_given_back_and_no_more_is_kept_than_that() {
        let mut aftermath = Aftermath::default();
        let none = NextBlock { key: None, ..NEXT };
        for (answer, next) in [
            (answered(800, 800), NEXT),
            (answered(0, 800), none),
            (answered(0, 112), NEXT),
            (answered(0, 0), none),
        ] {
            assert_eq!(aftermath.take(answer.clone(), next, 1_000), Some(answer));
        }
        // An engine that drops a block of 16 had the next one nevertheless, if it says 112.
        let drops = NextBlock { dropped_tokens: 16, ..NEXT };
        assert_eq!(Aftermath::default().take(answered(96, 112), drops, 1_000), None);
        for n in 0..20 {
            assert_eq!(aftermath.take(answered(0, 0), NEXT, 1_000).is_some(), n >= MOST_COLD);
        }
        for _ in 0..1_000 {
            assert_eq!(aftermath.take(answered(0, 800), NEXT, 1_000), None);
        }
        assert_eq!(aftermath.pending.len(), MOST);
        let world = World { slot: None, held: true, tallies: Tallies::default() };
        assert_eq!(aftermath.settle(&world, 1_050), [], "it is no more");
        assert!(aftermath.is_empty());
        // Once its events are known to come, nobody looks for a while whether they do.
        let world = World { slot: Some(1), ..world };
        aftermath.take(answered(0, 0), NEXT, 1_000);
        assert_eq!(aftermath.settle(&world, 1_050).len(), 1);
        assert!(aftermath.take(answered(0, 0), NEXT, 1_060).is_some());
        assert!(aftermath.take(answered(0, 0), NEXT, 1_050 + CALM_MS).is_none());
    }
}
