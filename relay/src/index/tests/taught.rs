//! What answers teach, beside the view.

use std::time::Duration;

use proptest::prelude::*;
use tokio::time::Instant;

use super::*;
use crate::index::lesson::Lesson;

const SLOT: u32 = 7;

/// A view, what was taught beside it, and what a reader of both knows.
struct Beside {
    view: View,
    taught: Taught,
    reader: Reader,
    now: Instant,
}

impl Beside {
    fn new() -> Self {
        Self {
            view: view(Duplicates::Count, Limits::default()),
            taught: Taught::default(),
            reader: Reader::default(),
            now: Instant::now() + 2 * LIFETIME,
        }
    }

    /// The answer to a prompt of these keys, of which so many were foreseen and so many cached.
    fn answer(&mut self, keys: &[Key], foreseen: usize, cached: usize) {
        self.answer_of(keys, foreseen, cached, MOST_KEYS);
    }

    fn answer_of(&mut self, keys: &[Key], foreseen: usize, cached: usize, most: usize) {
        let cut = foreseen.min(cached);
        let lesson = Lesson {
            slot: SLOT,
            after: cut.checked_sub(1).map(|at| keys[at]),
            blocks: cut as u32,
            keys: keys[cut..].to_vec(),
            missing: (foreseen > cached).then(|| keys[foreseen - 1]),
        };
        let mut changes = Changes::default();
        self.taught.learn(&lesson, most, &self.view, self.now, &mut changes);
        self.reader.read(&mut changes);
    }

    fn event(&mut self, event: &Event) {
        let mut said = Changes::default();
        self.view.apply(event, SLOT, &mut said);
        let mut changes = Changes::default();
        self.taught.follow(&said, SLOT, &mut changes);
        self.taught.hear(event, SLOT, self.now, &mut changes);
        said.append(changes);
        for change in said.take().into_iter().flat_map(|blocks| blocks.changes) {
            let held = self.reader.0.entry(change.slot).or_default();
            change.lost.as_chunks().0.iter().for_each(|key| {
                held.remove(&Key(*key));
            });
            held.extend(change.held.as_chunks().0.iter().map(|key| Key(*key)));
        }
    }

    fn store(&mut self, parent: Option<u64>, hashes: &[u64], tokens: &[u32]) {
        self.event(&Event::Stored(Stored {
            hashes: hashes.iter().copied().map(EngineHash::from_int).collect(),
            parent: parent.map(EngineHash::from_int),
            tokens: tokens.to_vec(),
            block_size: 16,
            ..Stored::default()
        }));
    }

    fn remove(&mut self, hashes: &[u64]) {
        let hashes = hashes.iter().copied().map(EngineHash::from_int).collect();
        self.event(&Event::Removed(Removed { hashes, ..Removed::default() }));
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        let mut changes = Changes::default();
        self.taught.expire(SLOT, self.now, &mut changes);
        self.reader.read(&mut changes);
    }

    /// How much of a prompt is in the map; what is there is closed.
    fn known(&self, keys: &[Key]) -> usize {
        let held = self.reader.0.get(&SLOT).cloned().unwrap_or_default();
        let known = keys.iter().take_while(|key| held.contains(key)).count();
        assert!(keys.iter().skip(known).all(|key| !held.contains(key)), "a hole");
        let all: BTreeSet<Key> = self.view.keys().chain(self.taught.keys()).collect();
        assert_eq!(held, all, "what is told is what is known");
        assert_eq!(self.view.len() + self.taught.len(), all.len(), "each by one of the two");
        known
    }
}

fn prompt(name: u32, blocks: usize) -> Vec<Key> {
    let tokens: Vec<u32> =
        (0..16 * blocks as u32).map(|at| if at < 160 { at } else { name }).collect();
    keys("", "", &tokens)
}

#[test]
fn an_answer_teaches_and_the_next_one_judges() {
    let mut beside = Beside::new();
    let (one, other) = (prompt(1, 40), prompt(2, 20));
    beside.answer(&one, 0, 30);
    assert_eq!((beside.known(&one), beside.known(&other)), (40, 10), "the beginning is shared");
    beside.answer(&other, 10, 10);
    assert_eq!(beside.known(&other), 20);
    // An answer shows less: what was foreseen is gone, what it shares with others too, and the
    // engine has just computed the rest anew.
    beside.answer(&one[..39], 39, 12);
    assert_eq!((beside.known(&one), beside.known(&other)), (39, 20));
    assert_eq!(beside.taught.judged().refuted, 28);
    beside.answer(&one[..5], 5, 0);
    assert_eq!((beside.known(&one), beside.known(&other)), (5, 5), "of both the beginning");
    // What follows on something unknown says nothing.
    beside.answer(&other, 10, 10);
    assert_eq!((beside.known(&other), beside.taught.judged().loose), (5, 1));
}

#[test]
fn what_no_answer_speaks_for_ends() {
    let mut beside = Beside::new();
    let (one, other) = (prompt(1, 40), prompt(2, 20));
    beside.answer(&one, 0, 30);
    beside.answer(&other, 10, 10);
    beside.wait(LIFETIME / 2);
    beside.answer(&other[..15], 15, 15);
    beside.wait(LIFETIME / 2 + Duration::from_secs(1));
    // Of one there is what it shares with the other, of which an answer spoke since.
    assert_eq!((beside.known(&one), beside.known(&other)), (10, 15));
    beside.wait(LIFETIME);
    assert_eq!((beside.known(&other), beside.taught.len()), (0, 0));
    assert!(beside.taught.is_clean());
}

#[test]
fn what_events_tell_takes_over_and_takes_away() {
    let mut beside = Beside::new();
    let tokens: Vec<u32> = (0..64).collect();
    let one = keys("", "", &tokens);
    beside.answer(&one, 0, 3);
    // The engine computes the first two blocks anew: they are the view's from now on.
    beside.store(None, &[1, 2], &tokens[..32]);
    assert_eq!((beside.known(&one), beside.taught.len(), beside.view.len()), (4, 2, 2));
    // A block that goes takes what was taught after it along.
    beside.remove(&[2]);
    assert_eq!((beside.known(&one), beside.taught.len()), (1, 0));
    // What the view holds isn't taught again; the block before is enough to go on from.
    beside.answer(&one, 1, 1);
    assert_eq!((beside.known(&one), beside.taught.len(), beside.view.len()), (4, 3, 1));
    beside.answer(&one, 4, 1);
    assert_eq!((beside.taught.judged().refuted, beside.known(&one)), (3, 4));
}

#[test]
fn an_engine_that_evicts_what_came_later_has_evicted_what_was_taught() {
    let mut beside = Beside::new();
    let (one, other) = (prompt(1, 40), prompt(2, 20));
    beside.answer(&one, 0, 30);
    beside.wait(Duration::from_secs(10));
    beside.store(None, &[1], &[9; 16]);
    beside.wait(Duration::from_secs(10));
    beside.answer(&other, 10, 10);
    // What was there before the relay was says nothing: it is older than all answers.
    beside.remove(&[1_000]);
    assert_eq!((beside.known(&one), beside.known(&other)), (40, 20));
    beside.remove(&[1]);
    assert_eq!((beside.known(&one), beside.known(&other)), (10, 20));
}

#[test]
fn what_is_taught_is_bounded() {
    let mut beside = Beside::new();
    for name in 0..50 {
        beside.now += Duration::from_secs(1);
        let keys = prompt(name, 30);
        let known = beside.known(&keys);
        beside.answer_of(&keys, known, known, 70);
        if known == 0 {
            beside.answer_of(&keys, 0, 10, 70);
        }
        assert_eq!(beside.known(&keys), 30, "the latest is there");
        assert!(beside.taught.len() <= 70);
    }
    assert!(beside.taught.judged().crowded > 0);
    // One that is too long alone is known as far as there is room.
    let long = prompt(99, 200);
    let known = beside.known(&long);
    beside.answer_of(&long, known, known, 70);
    assert_eq!(beside.known(&long), 70);
    beside.taught.clear();
    assert!(beside.taught.is_empty() && beside.taught.judged().learned > 0);
}

proptest! {
    /// Whatever answers and events say, in whatever order: what is told is closed, and by one of
    /// the two; and nothing is left behind.
    #[test]
    fn it_is_closed(steps in proptest::collection::vec(
        (0..6u8, 0..4u32, 1..14usize, 0..14usize, 0..14usize), 1..60))
    {
        let mut beside = Beside::new();
        for (what, name, blocks, foreseen, cached) in steps {
            let tokens: Vec<u32> =
                (0..16 * blocks as u32).map(|at| if at < 48 { at } else { name }).collect();
            let all = keys("", "", &tokens);
            let hash = |at: usize| if at < 3 { at as u64 } else { 100 * u64::from(name) + at as u64 };
            beside.now += Duration::from_secs(3);
            match what {
                0 | 1 => beside.answer_of(&all, foreseen.min(blocks), cached.min(blocks), 25),
                2 => {
                    let hashes: Vec<u64> = (0..blocks).map(hash).collect();
                    beside.store(None, &hashes, &tokens);
                }
                3 => beside.remove(&[hash(cached)]),
                4 => beside.wait(LIFETIME / 20 * foreseen as u32),
                _ => beside.answer_of(&all, beside.known(&all), cached.min(blocks), 25),
            }
            for name in 0..4 {
                let tokens: Vec<u32> =
                    (0..16 * 14).map(|at| if at < 48 { at } else { name }).collect();
                beside.known(&keys("", "", &tokens));
            }
        }
        beside.wait(3 * LIFETIME);
        prop_assert!(beside.taught.is_clean());
    }
}
