//! Copies, against a small model of vLLM's block pool.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::*;

/// Tokens of a block.
const SIZE: u32 = 16;

/// A prompt: what is in each full block, and whether a token follows them.
#[derive(Clone, Debug)]
struct Prompt {
    path: Vec<u8>,
    rest: bool,
}

impl Prompt {
    fn hash(&self, blocks: usize) -> u64 {
        self.path[..blocks].iter().fold(1, |hash, &step| hash * 4 + 1 + u64::from(step))
    }

    fn tokens(&self, blocks: std::ops::Range<usize>) -> Vec<u32> {
        let of = |i: usize| (0..SIZE).map(move |t| (i as u32) << 16 | t);
        blocks.flat_map(|i| of(i).map(move |t| t | u32::from(self.path[i]) << 8)).collect()
    }

    fn stored(&self, blocks: std::ops::Range<usize>) -> Event {
        let hashes: Vec<u64> = blocks.clone().map(|i| self.hash(i + 1)).collect();
        let parent = (blocks.start > 0).then(|| self.hash(blocks.start));
        let mut event = stored(&hashes, parent, 0..0, SIZE);
        event.tokens = self.tokens(blocks);
        event.group = Some(0);
        Event::Stored(event)
    }
}

/// A request that holds its blocks.
struct Running {
    prompt: Prompt,
    blocks: Vec<usize>,
    /// Full blocks that are in the cache.
    cached: usize,
}

/// vLLM 0.32.0's `v1/core/block_pool.py` with the calls of `v1/core/kv_cache_manager.py`
/// (`get_computed_blocks`, `allocate_slots`): blocks are cached when they are scheduled, not once they
/// are computed; a block that is cached already is cached again; each copy is evicted on its own.
struct Pool {
    hashes: Vec<Option<u64>>,
    users: Vec<usize>,
    free: VecDeque<usize>,
    copies: HashMap<u64, Vec<usize>>,
    events: Vec<Event>,
}

impl Pool {
    fn new(blocks: usize) -> Self {
        Self {
            hashes: vec![None; blocks],
            users: vec![0; blocks],
            free: (0..blocks).collect(),
            copies: HashMap::new(),
            events: Vec::new(),
        }
    }

    /// Looks the prompt up; `read`: not where prompt logprobs are asked for. None where there is room for
    /// nothing of it: then it waits, and is looked up again when it has its turn.
    fn admit(&mut self, prompt: Prompt, read: bool, report: bool) -> Option<Running> {
        let most = if prompt.rest { prompt.path.len() } else { prompt.path.len() - 1 };
        let cached = |n: &usize| self.copies.contains_key(&prompt.hash(*n));
        let hits = if read { (1..=most).take_while(cached).count() } else { 0 };
        let blocks: Vec<usize> = (1..=hits).map(|n| self.copies[&prompt.hash(n)][0]).collect();
        let unused = blocks.iter().filter(|&&block| self.users[block] == 0).count();
        if hits < prompt.path.len() && self.free.len() == unused {
            return None;
        }
        if report && hits > 0 {
            self.events.push(prompt.stored(0..hits));
        }
        for &block in &blocks {
            if self.users[block] == 0 {
                self.free.retain(|&other| other != block);
            }
            self.users[block] += 1;
        }
        Some(Running { prompt, blocks, cached: hits })
    }

    /// Schedules some more blocks of its prompt, as far as there is room.
    fn schedule(&mut self, running: &mut Running, blocks: usize) {
        let from = running.cached;
        let to = (from + blocks.min(self.free.len())).min(running.prompt.path.len());
        for _ in from..to {
            let block = self.free.pop_front().unwrap();
            self.evict(block);
            self.users[block] = 1;
            running.blocks.push(block);
        }
        for at in from..to {
            let (block, hash) = (running.blocks[at], running.prompt.hash(at + 1));
            self.hashes[block] = Some(hash);
            self.copies.entry(hash).or_default().push(block);
        }
        if to > from {
            self.events.push(running.prompt.stored(from..to));
        }
        running.cached = to;
    }

    fn evict(&mut self, block: usize) {
        let Some(hash) = self.hashes[block].take() else { return };
        let copies = self.copies.get_mut(&hash).unwrap();
        copies.retain(|&other| other != block);
        if copies.is_empty() {
            self.copies.remove(&hash);
        }
        let gone = Removed { hashes: vec![h(hash)], group: Some(0), ..Removed::default() };
        self.events.push(Event::Removed(gone));
    }

    fn finish(&mut self, running: Running) {
        for block in running.blocks.into_iter().rev() {
            self.users[block] -= 1;
            if self.users[block] == 0 {
                self.free.push_back(block);
            }
        }
    }

    /// Keys of what a request could hit.
    fn hits(&self, paths: &BTreeSet<Vec<u8>>) -> BTreeSet<Key> {
        let mut all = BTreeSet::new();
        for path in paths {
            let prompt = Prompt { path: path.clone(), rest: true };
            let cached = |n: &usize| self.copies.contains_key(&prompt.hash(*n));
            let hits = (1..=path.len()).take_while(cached).count();
            all.extend(keys("", "", &prompt.tokens(0..hits)));
        }
        all
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ask { path: Vec<u8>, rest: bool, report: bool, blocks: usize },
    Schedule { which: usize, blocks: usize },
    Finish { which: usize },
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    let path = prop::collection::vec(0u8..2, 1..7);
    prop_oneof![
        6 => (path, any::<bool>(), any::<bool>(), 1usize..7).prop_map(
            |(path, rest, report, blocks)| Step::Ask { path, rest, report, blocks }
        ),
        4 => (any::<usize>(), 1usize..4)
            .prop_map(|(which, blocks)| Step::Schedule { which, blocks }),
        6 => any::<usize>().prop_map(|which| Step::Finish { which }),
        1 => Just(Step::Reset),
    ]
}

/// Drives a pool, and gives what it holds and what is claimed of it, at each step, to `compare`.
fn drive(
    steps: Vec<Step>,
    blocks: usize,
    reports: bool,
    compare: impl Fn(&BTreeSet<Key>, &BTreeSet<Key>) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut bench = Bench::new(Duplicates::Count);
    let mut pool = Pool::new(blocks);
    let mut running: Vec<Running> = Vec::new();
    let mut paths = BTreeSet::new();
    for step in steps {
        match step {
            Step::Ask { path, rest, report, blocks } => {
                paths.insert(path.clone());
                let request = pool.admit(Prompt { path, rest }, true, report && reports);
                if let Some(mut request) = request {
                    pool.schedule(&mut request, blocks);
                    running.push(request);
                }
            }
            Step::Schedule { which, blocks } if !running.is_empty() => {
                let which = which % running.len();
                pool.schedule(&mut running[which], blocks);
            }
            Step::Finish { which } if !running.is_empty() => {
                let which = which % running.len();
                pool.finish(running.swap_remove(which));
            }
            Step::Reset if running.is_empty() => {
                pool = Pool::new(blocks);
                pool.events.push(Event::Cleared);
            }
            _ => {}
        }
        for event in std::mem::take(&mut pool.events) {
            bench.apply(&event);
        }
        compare(&bench.reader.keys(), &pool.hits(&paths))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn copies_are_counted_as_the_pool_has_them(
        steps in prop::collection::vec(step(), 1..100),
        blocks in 4usize..24,
    ) {
        drive(steps, blocks, false, |claimed, held| {
            prop_assert_eq!(claimed, held);
            Ok(())
        })?;
    }

    #[test]
    fn reports_of_what_was_hit_lose_nothing(
        steps in prop::collection::vec(step(), 1..100),
        blocks in 4usize..24,
    ) {
        drive(steps, blocks, true, |claimed, held| {
            prop_assert!(held.is_subset(claimed), "{} of {}", claimed.len(), held.len());
            Ok(())
        })?;
    }
}

fn prompt(path: &[u8]) -> Prompt {
    Prompt { path: path.to_vec(), rest: true }
}

/// What is claimed after the pool's events.
fn claimed(bench: &mut Bench, pool: &mut Pool) -> usize {
    for event in std::mem::take(&mut pool.events) {
        bench.apply(&event);
    }
    bench.view.len()
}

/// A request that runs alone.
fn ask(pool: &mut Pool, path: &[u8], read: bool, report: bool) {
    let mut request = pool.admit(prompt(path), read, report).unwrap();
    pool.schedule(&mut request, path.len());
    pool.finish(request);
}

#[test]
fn a_prompt_computed_twice_is_held_until_both_copies_are_gone() {
    let (mut bench, mut pool) = (Bench::new(Duplicates::Count), Pool::new(9));
    ask(&mut pool, &[0; 4], true, false);
    ask(&mut pool, &[0; 4], false, false);
    assert_eq!(claimed(&mut bench, &mut pool), 4);
    // One free block, then those of the older copy.
    ask(&mut pool, &[1; 5], true, false);
    assert_eq!(
        claimed(&mut bench, &mut pool),
        9,
        "the engine has them, and emits nothing on a hit"
    );
    ask(&mut pool, &[2; 2], true, false);
    assert_eq!(claimed(&mut bench, &mut pool), 2 + 5 + 2);
}

#[test]
fn what_a_report_left_behind_goes_when_the_prompt_is_computed_anew() {
    let (mut bench, mut pool) = (Bench::new(Duplicates::Count), Pool::new(4));
    ask(&mut pool, &[0; 4], true, false);
    ask(&mut pool, &[0; 4], true, true);
    ask(&mut pool, &[1; 4], true, false);
    assert_eq!(claimed(&mut bench, &mut pool), 4 + 4, "in doubt it is believed");
    ask(&mut pool, &[0; 4], true, false);
    assert_eq!(claimed(&mut bench, &mut pool), 4, "the other prompt was never reported");
    ask(&mut pool, &[1; 4], true, false);
    assert_eq!(claimed(&mut bench, &mut pool), 4, "and the first is no longer in doubt");
}

#[test]
fn with_several_groups_a_prompt_computed_anew_is_a_copy() {
    // Its window's blocks were gone: full attention's are stored again from the start.
    let mut bench = Bench::new(Duplicates::Count);
    let group =
        |group, kind| Stored { group: Some(group), kind, ..stored(&[1, 2], None, 0..64, 32) };
    for _ in 0..2 {
        bench.store(group(0, Kind::Window));
        bench.store(group(1, Kind::Full));
    }
    let gone = Removed { hashes: vec![h(2), h(1)], group: Some(1), ..Removed::default() };
    bench.apply(&Event::Removed(gone.clone()));
    bench.assert_holds(&keys("", "", &(0..64).collect::<Vec<_>>()));
    assert_eq!(bench.view.seen().stores_repeated, 0);
    bench.apply(&Event::Removed(gone));
    bench.assert_holds(&[]);
}
