//! What answers teach of replicas that hold more than the map says, since the relay did not hear
//! their events from the first one on.
//!
//! Of a request to such a replica the keys are kept until its answer tells how many tokens were
//! cached; what that says of them goes to the relay, which tells all gateways. What is kept, and what
//! waits to be told, is bounded; beyond that answers teach nothing.

use std::cell::Cell;
use std::rc::Rc;

use warmpath_proto::v1::Lesson;
use warmpath_routing::drift::Forecast;
use warmpath_routing::fingerprint::{BLOCK_TOKENS, Key};
use warmpath_routing::view::Replica;

use crate::host::{Counter, HostError};
use crate::shared::{self, Data};

/// Keys that are kept of one request: as many as the relay takes.
const MOST_KEYS: usize = 8_192;
/// Keys that are kept of all requests of this worker, 16 bytes each.
const MOST_KEPT: usize = 1 << 18;
/// Keys and lessons that wait to be told.
const MOST_UNTOLD_KEYS: usize = 1 << 14;
const MOST_UNTOLD: usize = 256;

/// A request's keys.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Kept {
    /// Of the view that named the slot.
    epoch: u64,
    slot: u16,
    keys: Vec<Key>,
    /// How many of them the engine holds once it has computed the prompt.
    stored: usize,
    /// Tokens that it drops of what it finds cached.
    dropped: u32,
    account: Rc<Cell<usize>>,
}

/// What one worker keeps and has to tell.
pub(super) struct Recall {
    kept: Rc<Cell<usize>>,
    untold: Vec<Lesson>,
    untold_keys: usize,
    lessons: Counter,
    crowded: Counter,
}

impl Recall {
    pub(super) fn define() -> Self {
        let counter = |name: &str| Counter::define(&format!("warmpath.router.lessons.{name}"));
        Self {
            kept: Rc::default(),
            untold: Vec::new(),
            untold_keys: 0,
            lessons: counter("told"),
            crowded: counter("crowded"),
        }
    }

    /// Keeps the keys of a request to this replica of this epoch; `None` where there is no room.
    pub(super) fn keep(
        &self,
        epoch: u64,
        replica: &Replica,
        keys: &[Key],
        expected: &Forecast,
    ) -> Option<Kept> {
        let kept = self.kept.get() + keys.len();
        if keys.len() > MOST_KEYS || kept > MOST_KEPT {
            self.crowded.add(1);
            return None;
        }
        self.kept.set(kept);
        let block = replica.block_tokens.max(1);
        // What comes after the keys, where there is more, fills the block in which they end.
        let tokens = expected.prompt.unwrap_or((keys.len() * BLOCK_TOKENS) as u32);
        let stored = (tokens / block * block) as usize / BLOCK_TOKENS;
        let (keys, account) = (keys.to_vec(), Rc::clone(&self.kept));
        Some(Kept {
            epoch,
            slot: replica.slot,
            stored: stored.min(keys.len()),
            dropped: replica.dropped_tokens,
            keys,
            account,
        })
    }

    /// An answer to a request whose keys were kept says that so many tokens were cached. `epoch`: that
    /// of slots now.
    pub(super) fn learn(&mut self, kept: &Kept, expected: &Forecast, cached: u32, epoch: u64) {
        if kept.epoch != epoch {
            return;
        }
        let Some(lesson) = kept.lesson(expected.cached, cached) else { return };
        let keys = lesson.keys.len() / size_of::<Key>();
        if self.untold.len() >= MOST_UNTOLD || self.untold_keys + keys > MOST_UNTOLD_KEYS {
            self.crowded.add(1);
            return;
        }
        self.untold_keys += keys;
        self.untold.push(lesson);
    }

    /// Whether nothing waits to be told.
    pub(super) fn is_told(&self) -> bool {
        self.untold.is_empty()
    }

    /// Puts what there is to tell where the service finds it. What finds no room there is dropped.
    ///
    /// # Errors
    /// Where shared data can't be read or written: the status that Envoy gave.
    pub(super) fn tell(&mut self, data: &mut impl Data) -> Result<(), HostError> {
        if self.untold.is_empty() {
            return Ok(());
        }
        let lessons = std::mem::take(&mut self.untold);
        self.untold_keys = 0;
        let count = lessons.len() as u64;
        match shared::add_lessons(data, lessons) {
            Ok(true) => self.lessons.add(count),
            Ok(false) => self.crowded.add(count),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Kept {
    /// What the answer says of the keys: those up to where forecast and answer agree are confirmed;
    /// those behind are held now, as what was not cached was computed. Nothing where none was cached:
    /// of what is computed from the start events tell, unless nothing is kept at all.
    fn lesson(&self, expected: u32, cached: u32) -> Option<Lesson> {
        let blocks = |tokens: u32| (tokens as usize / BLOCK_TOKENS).min(self.keys.len());
        // The last that the map foresaw is the one that the engine would have dropped.
        let foreseen = blocks(expected.saturating_add(self.dropped));
        let (expected, cached) = (blocks(expected), blocks(cached));
        let agreed = expected.min(cached);
        let missing = if expected > cached { self.key(foreseen) } else { Vec::new() };
        if cached == 0 && missing.is_empty() {
            return None;
        }
        let behind = if cached > 0 { self.keys.get(agreed..self.stored.max(cached)) } else { None };
        Some(Lesson {
            epoch: self.epoch,
            slot: self.slot.into(),
            after: self.key(agreed),
            blocks: agreed as u32,
            keys: behind.unwrap_or_default().iter().flat_map(|key| key.0).collect(),
            missing,
        })
    }

    /// The last one of so many, as bytes.
    fn key(&self, blocks: usize) -> Vec<u8> {
        let key = blocks.checked_sub(1).and_then(|at| self.keys.get(at));
        key.map(|key| key.0.to_vec()).unwrap_or_default()
    }

    /// They are needed no more.
    pub(super) fn release(self) {
        self.account.set(self.account.get().saturating_sub(self.keys.len()));
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use warmpath_proto::v1::Lessons;
    use warmpath_routing::drift::NextBlock;
    use warmpath_routing::view::ReplicaState;

    use super::super::ticket::Ticket;
    use super::*;
    use crate::shared::Memory;

    fn keys(count: usize) -> Vec<Key> {
        (0..count).map(|at| Key((at as u128 + 1).to_le_bytes())).collect()
    }

    fn expected(cached: u32, prompt: Option<u32>) -> Forecast {
        Forecast {
            cached,
            excused: 0,
            sent_before: 0,
            next: NextBlock::default(),
            certain: true,
            prompt,
        }
    }

    fn replica(block_tokens: u32, dropped_tokens: u32) -> Replica {
        Replica {
            slot: 3,
            endpoint: "10.0.0.3:8000".into(),
            rank: None,
            pool: "p".into(),
            block_tokens,
            dropped_tokens,
            state: ReplicaState::Ready,
            weight: Replica::PLAIN,
            tiers: Vec::new(),
            ends: None,
            adapters: None,
        }
    }

    fn learn(recall: &mut Recall, ticket: &Ticket, cached: u32, epoch: u64) {
        let (Some(kept), Some(expected)) = (&ticket.kept, &ticket.expected) else { return };
        recall.learn(kept, expected, cached, epoch);
    }

    fn kept(recall: &Recall, keys: &[Key], block: u32, cached: u32, prompt: u32) -> Ticket {
        let expected = expected(cached, Some(prompt));
        let kept = recall.keep(7, &replica(block, 0), keys, &expected);
        Ticket { kept, expected: Some(expected), ..Ticket::default() }
    }

    /// Blocks confirmed, the first and the number of those taught, and the one that is missing.
    fn told(lesson: Option<Lesson>) -> Option<(u32, u128, usize, u128)> {
        let lesson = lesson?;
        assert_eq!((lesson.epoch, lesson.slot), (7, 3));
        let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |key| u128::from_le_bytes(*key));
        assert_eq!(number(&lesson.after), u128::from(lesson.blocks));
        Some((lesson.blocks, number(&lesson.keys), lesson.keys.len() / 16, number(&lesson.missing)))
    }

    #[test]
    fn an_answer_says_what_is_held_and_what_is_not() {
        let recall = Recall::define();
        let keys = keys(20);
        let lesson = |block, prompt, expected, cached| {
            let ticket = kept(&recall, &keys, block, expected, prompt);
            told(ticket.kept.unwrap().lesson(expected, cached))
        };
        assert_eq!(lesson(16, 327, 0, 0), None, "all of it is computed from the start");
        assert_eq!(lesson(16, 327, 0, 160), Some((0, 1, 20, 0)));
        assert_eq!(lesson(16, 327, 160, 160), Some((10, 11, 10, 0)), "the rest is there now");
        assert_eq!(lesson(16, 327, 320, 320), Some((20, 0, 0, 0)), "nothing but confirmed");
        assert_eq!(lesson(16, 327, 320, 160), Some((10, 11, 10, 20)));
        assert_eq!(lesson(16, 327, 320, 0), Some((0, 0, 0, 20)));
        assert_eq!(lesson(128, 327, 0, 128), Some((0, 1, 16, 0)), "engine blocks that are full");
        assert_eq!(lesson(128, 327, 0, 256), Some((0, 1, 16, 0)));
        assert_eq!(
            lesson(1, 327, 319, 310),
            Some((19, 20, 1, 0)),
            "less than a block is in dispute"
        );
        assert_eq!(lesson(16, 327, 0, u32::MAX), Some((0, 1, 20, 0)), "whatever an engine says");
        // Of an engine that drops a block of 16 the map held 11 for a forecast of 10, and the engine
        // 10 for an answer of 9.
        let kept = recall.keep(7, &replica(16, 16), &keys, &expected(160, Some(327))).unwrap();
        assert_eq!(told(kept.lesson(160, 160)), Some((10, 11, 10, 0)));
        assert_eq!(told(kept.lesson(160, 144)), Some((9, 10, 11, 11)));
        // Of a prompt that wasn't counted to its end as much as is known.
        let unknown = recall.keep(7, &replica(16, 0), &keys, &expected(0, None)).unwrap();
        assert_eq!(told(unknown.lesson(0, 64)), Some((0, 1, 20, 0)));
    }

    #[test]
    fn what_is_kept_and_what_waits_is_bounded() {
        let mut recall = Recall::define();
        assert!(kept(&recall, &keys(MOST_KEYS + 1), 16, 0, 1).kept.is_none());
        let all: Vec<Ticket> = std::iter::repeat_with(|| {
            kept(&recall, &keys(MOST_KEYS), 16, 0, (MOST_KEYS * 16) as u32)
        })
        .take(100)
        .collect();
        let (some, none): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| it.kept.is_some());
        assert_eq!((some.len(), none.len()), (MOST_KEPT / MOST_KEYS, 100 - MOST_KEPT / MOST_KEYS));
        for ticket in &some {
            learn(&mut recall, ticket, 16, 7);
        }
        assert_eq!(recall.untold.len(), MOST_UNTOLD_KEYS / MOST_KEYS);
        for ticket in some {
            ticket.kept.unwrap().release();
        }
        assert_eq!(recall.kept.get(), 0);

        recall.untold.clear();
        recall.untold_keys = 0;
        let small = kept(&recall, &keys(2), 16, 0, 32);
        learn(&mut recall, &small, 16, 8);
        assert!(recall.is_told(), "slots are others now");
        (0..2 * MOST_UNTOLD).for_each(|_| learn(&mut recall, &small, 16, 7));
        assert_eq!(recall.untold.len(), MOST_UNTOLD);
        let mut data = Memory::default();
        recall.tell(&mut data).unwrap();
        assert!(recall.is_told());
        let taken = |data: &mut Memory| {
            let bytes = shared::take_lessons(data).unwrap();
            bytes.map(|bytes| Lessons::decode(bytes.as_slice()).unwrap().lessons.len())
        };
        assert_eq!((taken(&mut data), taken(&mut data)), (Some(MOST_UNTOLD), None));

        // A service that takes nothing makes nobody keep more.
        for _ in 0..100 {
            let ticket = kept(&recall, &keys(MOST_KEYS), 16, 0, (MOST_KEYS * 16) as u32);
            learn(&mut recall, &ticket, 16, 7);
            recall.tell(&mut data).unwrap();
        }
        let bytes = data.get(shared::LESSONS).unwrap().unwrap().len();
        assert!(bytes <= shared::LESSONS_BYTES, "{bytes}");
    }
}
