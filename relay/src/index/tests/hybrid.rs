//! Hits of engines with several KV cache groups, against a small model of vLLM's.

use std::collections::{BTreeSet, HashMap, VecDeque};

use proptest::prelude::*;

use super::*;

/// Tokens of full attention's blocks.
const SIZE: u32 = 16;

/// Blocks of the main group up to a place in a prompt.
type Path = Vec<u8>;

#[derive(Clone, Copy, Debug)]
enum What {
    Full,
    /// Of so many tokens.
    Window(u32),
    State,
}

/// A group, with the blocks of the main one that its own are long.
type Of = (What, usize);

/// Groups as models have them, in the order of their numbers.
const MODELS: [&[Of]; 8] = [
    &[(What::Window(64), 1), (What::Window(64), 1), (What::Full, 1)],
    &[(What::Full, 1), (What::Window(33), 1)],
    &[(What::Window(20), 1), (What::Window(80), 1), (What::Full, 1)],
    &[(What::State, 1), (What::State, 1), (What::Full, 1)],
    &[(What::Window(50), 2), (What::Full, 1)],
    &[(What::State, 2), (What::Full, 1), (What::Window(40), 1)],
    &[(What::Full, 1), (What::Full, 1), (What::Window(48), 1)],
    &[(What::State, 3), (What::Window(30), 2), (What::Full, 1)],
];

fn hash(path: &[u8]) -> u64 {
    path.iter().fold(1, |hash, &step| hash * 4 + 1 + u64::from(step))
}

fn tokens(path: &[u8]) -> Vec<u32> {
    let of =
        |i: usize, step: u8| (0..SIZE).map(move |t| (i as u32) << 16 | u32::from(step) << 8 | t);
    path.iter().enumerate().flat_map(|(i, &step)| of(i, step)).collect()
}

/// What an engine has: copies by group and hash, and blocks in the order in which they leave.
struct Engine {
    groups: &'static [Of],
    drop: BlockDrop,
    room: usize,
    copies: HashMap<(usize, u64), u32>,
    queue: VecDeque<(usize, u64)>,
    events: Vec<Event>,
}

impl Engine {
    fn new(groups: &'static [Of], room: usize) -> Self {
        Self {
            groups,
            drop: BlockDrop::None,
            room,
            copies: HashMap::new(),
            queue: VecDeque::new(),
            events: Vec::new(),
        }
    }

    fn has(&self, group: usize, path: &[u8]) -> bool {
        self.copies.contains_key(&(group, hash(path)))
    }

    /// Whether a group allows a hit of the whole path: `single_type_kv_cache_manager.py`,
    /// `find_longest_cache_hit` of each manager.
    fn allows(&self, group: usize, path: &[u8]) -> bool {
        let (what, length) = self.groups[group];
        if !path.len().is_multiple_of(length) {
            return false;
        }
        let blocks = path.len() / length;
        let need = match what {
            What::Full => blocks,
            What::Window(window) => (window as usize - 1).div_ceil(length * SIZE as usize),
            What::State => 1,
        };
        let first = blocks.saturating_sub(need);
        (first + 1..=blocks).all(|block| self.has(group, &path[..block * length]))
    }

    /// The same where a block of each group that drops one is behind the hit: whether the group
    /// allows a hit of so many blocks of the main one.
    fn allows_dropping(&self, group: usize, path: &[u8], hit: usize) -> bool {
        let (what, length) = self.groups[group];
        let whole = |to: usize| path.get(..to).is_some_and(|path| self.allows(group, path));
        match what {
            What::Full => whole(hit + 1),
            What::Window(_) if self.drop == BlockDrop::All => {
                let block = path.get(..hit + length);
                hit.is_multiple_of(length)
                    && whole(hit)
                    && block.is_some_and(|block| self.has(group, block))
            }
            What::Window(_) | What::State => whole(hit),
        }
    }

    /// Blocks of the main group that a prompt of this path hits, where one more token follows.
    fn hit(&self, path: &[u8]) -> usize {
        let all = |blocks: &usize| {
            (0..self.groups.len()).all(|group| match self.drop {
                BlockDrop::None => self.allows(group, &path[..*blocks]),
                _ => self.allows_dropping(group, path, *blocks),
            })
        };
        (1..=path.len()).rev().find(all).unwrap_or(0)
    }

    /// Computes a prompt and keeps its blocks: all of full attention's, of others those that `keep`
    /// says, by the block's number.
    fn ask(&mut self, path: &[u8], keep: u32, report: bool) {
        let hit = self.hit(path);
        if report && hit > 0 {
            for group in 0..self.groups.len() {
                self.tell(group, &path[..hit], 0, u32::MAX, false);
            }
        }
        let align = self.groups.iter().map(|(_, length)| *length).fold(1, |a, b| match (a, b) {
            (2, 3) | (3, 2) => 6,
            (a, b) => a.max(b),
        });
        let end = path.len() / align * align;
        if end > hit {
            for group in 0..self.groups.len() {
                self.tell(group, &path[..end], hit, keep, true);
            }
        }
        while self.queue.len() > self.room {
            let Some(oldest) = self.queue.pop_front() else { break };
            self.drop_copy(oldest);
        }
    }

    fn drop_copy(&mut self, (group, hash): (usize, u64)) {
        let copies = self.copies.get_mut(&(group, hash)).unwrap();
        *copies -= 1;
        if *copies == 0 {
            self.copies.remove(&(group, hash));
        }
        let gone =
            Removed { hashes: vec![h(hash)], group: Some(group as u32), ..Removed::default() };
        self.events.push(Event::Removed(gone));
    }

    /// `cache_full_blocks`, or `emit_cached_block_events` where nothing is `stored`.
    fn tell(&mut self, group: usize, path: &[u8], from: usize, keep: u32, stored: bool) {
        let (what, length) = self.groups[group];
        let blocks = from / length..path.len() / length;
        let (kind, window) = match what {
            What::Full => (Kind::Full, None),
            What::Window(window) => (Kind::Window, Some(window)),
            What::State => (Kind::State, None),
        };
        let kept = |block: &usize| matches!(what, What::Full) || keep & (1 << (block % 32)) != 0;
        let hashes: Vec<u64> =
            blocks.clone().filter(kept).map(|block| hash(&path[..(block + 1) * length])).collect();
        if stored {
            for &hash in &hashes {
                *self.copies.entry((group, hash)).or_default() += 1;
            }
            // The last leave first.
            self.queue.extend(hashes.iter().rev().map(|&hash| (group, hash)));
        }
        let range = blocks.start * length..blocks.end * length;
        self.events.push(Event::Stored(Stored {
            sparse: hashes.len() < blocks.len(),
            hashes: hashes.into_iter().map(h).collect(),
            parent: (from > 0).then(|| h(hash(&path[..from]))),
            tokens: tokens(path)[range.start * SIZE as usize..range.end * SIZE as usize].to_vec(),
            block_size: length as u32 * SIZE,
            group: Some(group as u32),
            kind,
            window,
            ..Stored::default()
        }));
    }
}

/// Blocks of the main group that the announced keys say a prompt hits, those included that are dropped.
fn said(bench: &Bench, path: &[u8]) -> usize {
    let keys = keys("", "", &tokens(path));
    let (held, ends) = (bench.reader.keys(), bench.reader.keys_of(ENDS));
    let known = keys.iter().take_while(|key| held.contains(key)).count();
    (1..=known).rev().find(|&blocks| ends.contains(&keys[blocks - 1])).unwrap_or(0)
}

#[derive(Clone, Debug)]
enum Step {
    Ask {
        path: Path,
        keep: u32,
        report: bool,
    },
    /// A block leaves out of turn.
    Lose {
        which: usize,
    },
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    let path = prop::collection::vec(prop_oneof![4 => Just(0u8), 1 => Just(1)], 1..14);
    // The last ones, or any; the first one never, as whoever keeps all never keeps less.
    let keep = prop_oneof![Just(0xf00), Just(0x3c30), any::<u32>().prop_map(|keep| keep & !1)];
    prop_oneof![
        8 => (path, keep, prop::bool::weighted(0.1))
            .prop_map(|(path, keep, report)| Step::Ask { path, keep, report }),
        3 => any::<usize>().prop_map(|which| Step::Lose { which }),
        1 => Just(Step::Reset),
    ]
}

/// Drives an engine, and compares what is said of each prompt seen with what it hits.
fn drive(
    (model, drop): (usize, BlockDrop),
    room: usize,
    steps: Vec<Step>,
    compare: impl Fn(usize, usize, &[u8]) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut engine = Engine { drop, ..Engine::new(MODELS[model], room) };
    let mut bench = Bench::new(Duplicates::Count);
    bench.view = view(Duplicates::Count, Limits::default()).dropping(drop);
    let mut paths: BTreeSet<Path> = BTreeSet::new();
    for step in steps {
        match step {
            Step::Ask { path, keep, report } => {
                engine.ask(&path, keep, report);
                paths.insert(path);
            }
            Step::Lose { which } => {
                let Some(at) = which.checked_rem(engine.queue.len()) else { continue };
                let block = engine.queue.remove(at).unwrap();
                engine.drop_copy(block);
            }
            Step::Reset => {
                engine = Engine { drop, ..Engine::new(MODELS[model], room) };
                engine.events.push(Event::Cleared);
            }
        }
        for event in std::mem::take(&mut engine.events) {
            bench.apply(&event);
        }
        for path in &paths {
            let dropped = bench.view.dropped_tokens() as usize / SIZE as usize;
            let (said, hit) = (said(&bench, path).saturating_sub(dropped), engine.hit(path));
            // A prompt that ends with a hit's last block, and not with the one behind it, doesn't get
            // the hit; computed anew it looks like a report of it.
            if dropped > 0 && bench.view.seen().stores_repeated > 0 {
                prop_assert!(said <= hit, "{:?}", path);
            } else {
                compare(said, hit, path)?;
            }
        }
        // Nothing is announced that no hit comes to, and what is announced is closed.
        let held = bench.reader.keys();
        let mut hits = BTreeSet::new();
        for path in &paths {
            let keys = keys("", "", &tokens(path));
            hits.extend(keys[..said(&bench, path)].iter().copied());
        }
        prop_assert_eq!(held, hits);
    }
    let left: Vec<_> = engine.queue.drain(..).collect();
    for block in left {
        engine.drop_copy(block);
    }
    for event in std::mem::take(&mut engine.events) {
        bench.apply(&event);
    }
    prop_assert!(bench.reader.keys().is_empty() && bench.reader.keys_of(ENDS).is_empty());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn hits_are_what_all_groups_allow(
        model in 0..MODELS.len(),
        room in 8usize..120,
        all in any::<bool>(),
        steps in prop::collection::vec(step(), 1..50),
    ) {
        let plain = steps.into_iter().map(|step| match step {
            Step::Ask { path, keep, .. } => {
                Step::Ask { path, keep: if all { u32::MAX } else { keep }, report: false }
            }
            other => other,
        });
        drive((model, BlockDrop::None), room, plain.collect(), |said, hit, path| {
            prop_assert_eq!(said, hit, "{:?}", path);
            Ok(())
        })?;
    }
}

/// Models whose groups have blocks of one length.
const PLAIN: [usize; 5] = [0, 1, 2, 3, 6];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Blocks that are dropped behind a hit.
    #[test]
    fn hits_of_an_engine_that_drops_are_what_all_groups_allow(
        model in 0..5usize,
        all_drop in any::<bool>(),
        room in 8usize..120,
        all in any::<bool>(),
        steps in prop::collection::vec(step(), 1..50),
    ) {
        let plain = steps.into_iter().map(|step| match step {
            Step::Ask { path, keep, .. } => {
                Step::Ask { path, keep: if all { u32::MAX } else { keep }, report: false }
            }
            other => other,
        });
        let drop = if all_drop { BlockDrop::All } else { BlockDrop::Draft };
        drive((PLAIN[model], drop), room, plain.collect(), |said, hit, path| {
            prop_assert_eq!(said, hit, "{:?}", path);
            Ok(())
        })?;
    }
}

/// A prompt is asked for, and its events are taken.
fn asked(engine: &mut Engine, bench: &mut Bench, path: &[u8], keep: u32, report: bool) {
    engine.ask(path, keep, report);
    for event in std::mem::take(&mut engine.events) {
        bench.apply(&event);
    }
}

#[test]
fn a_shared_beginning_is_hit_once_its_window_is_kept() {
    // Case: two questions after a system prompt hit nothing, the third does.
    let (mut engine, mut bench) = (Engine::new(MODELS[0], 999), Bench::new(Duplicates::Count));
    let question = |last: u8| [vec![0; 10], vec![last; 3]].concat();
    asked(&mut engine, &mut bench, &question(1), 0x1e00, false);
    assert_eq!(said(&bench, &question(1)), 13);
    assert_eq!((said(&bench, &question(2)), engine.hit(&question(2))), (0, 0));
    // The engine keeps the window at the junction now.
    asked(&mut engine, &mut bench, &question(2), 0x1fc0, false);
    assert_eq!((said(&bench, &question(3)), engine.hit(&question(3))), (10, 10));
    assert_eq!(bench.view.groups().iter().filter(|group| group.counted).count(), 3);
    assert_eq!(bench.view.seen().other_group, 0);
}

#[test]
fn removals_of_one_group_never_count_against_another() {
    let (mut engine, mut bench) = (Engine::new(MODELS[0], 999), Bench::new(Duplicates::Count));
    let path = [0; 8];
    asked(&mut engine, &mut bench, &path, u32::MAX, false);
    let gone = |group| {
        Event::Removed(Removed { hashes: vec![h(hash(&path[..2]))], group, ..Removed::default() })
    };
    // Out of the window of every longer hit; twice, though there is one.
    for _ in 0..2 {
        bench.apply(&gone(Some(0)));
    }
    assert_eq!(said(&bench, &path), 8);
    assert_eq!(bench.view.seen().removals_unknown, 1);
    bench.apply(&gone(Some(2)));
    assert_eq!(said(&bench, &path), 1);
}

#[test]
fn a_report_of_what_was_hit_is_no_copy() {
    for model in [0, 3] {
        let (mut engine, mut bench) =
            (Engine::new(MODELS[model], 999), Bench::new(Duplicates::Count));
        let path = [0; 8];
        asked(&mut engine, &mut bench, &path, 0xf0, false);
        asked(&mut engine, &mut bench, &path, 0xf0, true);
        assert!(bench.view.seen().stores_repeated > 0);
        let gone = |group, blocks: usize| {
            let hashes = vec![h(hash(&path[..blocks]))];
            Event::Removed(Removed { hashes, group: Some(group), ..Removed::default() })
        };
        bench.apply(&gone(0, 8));
        assert!(said(&bench, &path) < 8, "one copy of the group, and one removal");
    }
}

#[test]
fn a_prompt_that_fills_its_last_block_is_computed_anew_and_no_report() {
    // It may not hit all of itself: where no shorter hit is, its full attention is a second copy.
    // That of group 0 is heard of first; only the window tells.
    let mut bench = Bench::new(Duplicates::Count);
    let path = [0; 4];
    let of = |kind, group, blocks: &[usize]| Stored {
        hashes: blocks.iter().map(|&n| h(hash(&path[..n]))).collect(),
        tokens: tokens(&path),
        block_size: SIZE,
        sparse: blocks.len() < path.len(),
        group: Some(group),
        kind,
        window: (kind == Kind::Window).then_some(33),
        ..Stored::default()
    };
    bench.store(of(Kind::Full, 0, &[1, 2, 3, 4]));
    bench.store(of(Kind::Window, 1, &[3, 4]));
    assert_eq!(said(&bench, &path), 4);
    bench.store(of(Kind::Full, 0, &[1, 2, 3, 4]));
    bench.store(of(Kind::Window, 1, &[2, 3]));
    let gone = Removed { hashes: vec![h(hash(&path[..1]))], group: Some(0), ..Removed::default() };
    bench.apply(&Event::Removed(gone.clone()));
    assert_eq!(said(&bench, &path), 4);
    bench.apply(&Event::Removed(gone));
    assert_eq!(said(&bench, &path), 0);
}

#[test]
fn groups_whose_needs_are_not_known_change_nothing() {
    let mut bench = Bench::new(Duplicates::Count);
    let of = |group, kind| Stored { group: Some(group), kind, ..stored(&[1, 2], None, 0..64, 32) };
    bench.store(of(0, Kind::Other));
    bench.store(of(1, Kind::Full));
    bench.assert_holds(&keys("", "", &(0..64).collect::<Vec<_>>()));
    assert_eq!((bench.view.ends(), bench.view.seen().other_group), (None, 1));
    let counted: Vec<_> = bench.view.groups().iter().map(|group| group.counted).collect();
    assert_eq!(counted, [false, true]);
}

#[test]
fn a_group_heard_of_late_takes_back_what_it_does_not_allow() {
    let mut bench = Bench::new(Duplicates::Count);
    let full = Stored { group: Some(0), kind: Kind::Full, ..stored(&[1, 2], None, 0..64, 32) };
    bench.store(full);
    bench.assert_holds(&keys("", "", &(0..64).collect::<Vec<_>>()));
    let window = Stored {
        group: Some(1),
        kind: Kind::Window,
        window: Some(40),
        sparse: true,
        ..stored(&[], None, 0..64, 32)
    };
    bench.store(window.clone());
    bench.assert_holds(&[]);
    bench.store(Stored { sparse: false, hashes: vec![h(1), h(2)], ..window });
    bench.assert_holds(&keys("", "", &(0..64).collect::<Vec<_>>()));
}
