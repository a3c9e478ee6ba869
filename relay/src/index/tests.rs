//! The view by its events.

mod hybrid;
mod law;
mod pool;
mod taught;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warmpath_routing::fingerprint::{Chain, Key, Scope};

use super::*;
use crate::events::{EngineHash, Event, ExtraKeys, Kind, Medium, Removed, Stored};

const TOKENIZER: [u8; 32] = [3; 32];

fn scope() -> Arc<ModelScope> {
    Arc::new(ModelScope { version: "1".into(), tokenizer_hash: TOKENIZER })
}

fn view(duplicates: Duplicates, limits: Limits) -> View {
    View::new(scope(), duplicates, limits)
}

fn keys(adapter: &str, salt: &str, tokens: &[u32]) -> Vec<Key> {
    let scope = Scope { model_version: "1", tokenizer_hash: &TOKENIZER, adapter, salt };
    let mut keys = Vec::new();
    Chain::new(&scope).push(tokens, |fingerprint| keys.push(fingerprint.key()));
    keys
}

/// What a reader of the changes knows.
#[derive(Default)]
struct Reader(BTreeMap<u32, BTreeSet<Key>>);

impl Reader {
    fn read(&mut self, changes: &mut Changes) {
        for change in changes.take().into_iter().flat_map(|blocks| blocks.changes) {
            let held = self.0.entry(change.slot).or_default();
            for key in change.lost.as_chunks().0 {
                assert!(held.remove(&Key(*key)), "lost what was not held");
            }
            for key in change.held.as_chunks().0 {
                assert!(held.insert(Key(*key)), "held twice");
            }
        }
    }

    fn keys(&self) -> BTreeSet<Key> {
        self.keys_of(0)
    }

    fn keys_of(&self, slot: u32) -> BTreeSet<Key> {
        self.0.get(&slot).cloned().unwrap_or_default()
    }
}

fn h(i: u64) -> EngineHash {
    EngineHash::from_int(i)
}

fn stored(hashes: &[u64], parent: Option<u64>, tokens: std::ops::Range<u32>, size: u32) -> Stored {
    Stored {
        hashes: hashes.iter().map(|&i| h(i)).collect(),
        parent: parent.map(h),
        tokens: tokens.collect(),
        block_size: size,
        ..Stored::default()
    }
}

fn removed(hashes: &[u64]) -> Event {
    Event::Removed(Removed { hashes: hashes.iter().map(|&i| h(i)).collect(), ..Removed::default() })
}

struct Bench {
    view: View,
    changes: Changes,
    reader: Reader,
}

impl Bench {
    fn new(duplicates: Duplicates) -> Self {
        Self::with(duplicates, Limits::default())
    }

    fn with(duplicates: Duplicates, limits: Limits) -> Self {
        Self {
            view: view(duplicates, limits),
            changes: Changes::default(),
            reader: Reader::default(),
        }
    }

    fn apply(&mut self, event: &Event) {
        if let Some(medium) = self.view.unopened(event) {
            self.view.open(medium, slot_of(medium), &mut self.changes);
        }
        if self.view.lacks_ends(event) {
            self.view.open_ends(ENDS, &mut self.changes);
        }
        self.view.apply(event, 0, &mut self.changes);
        if matches!(event, Event::Cleared) {
            self.reader = Reader::default();
        }
        self.reader.read(&mut self.changes);
        for medium in [Medium::Gpu, Medium::Cpu, Medium::Disk] {
            let view: BTreeSet<Key> = self.view.keys_in(medium).collect();
            let told = self.reader.keys_of(slot_of(medium));
            assert_eq!(told, view, "the changes tell what the view holds");
        }
        let ends: BTreeSet<Key> = self.view.end_keys().collect();
        assert_eq!(self.reader.keys_of(ENDS), ends, "the changes tell where hits may end");
    }

    fn store(&mut self, stored: Stored) {
        self.apply(&Event::Stored(stored));
    }

    fn assert_holds(&self, expected: &[Key]) {
        self.assert_holds_in(Medium::Gpu, expected);
    }

    fn assert_holds_in(&self, medium: Medium, expected: &[Key]) {
        let expected: BTreeSet<Key> = expected.iter().copied().collect();
        assert_eq!(self.reader.keys_of(slot_of(medium)), expected, "{medium:?}");
    }
}

/// The slot of where hits may end.
const ENDS: u32 = 9;

const MEDIA: [Medium; 3] = [Medium::Gpu, Medium::Cpu, Medium::Disk];

fn slot_of(medium: Medium) -> u32 {
    match medium {
        Medium::Gpu => 0,
        Medium::Cpu => 1,
        Medium::Disk => 2,
        Medium::Other => 3,
    }
}

#[test]
fn blocks_of_any_size_name_the_same_prefixes() {
    let tokens: Vec<u32> = (0..2048).collect();
    for size in [1, 2, 5, 8, 16, 24, 32, 33, 128, 256, 1000, 1024] {
        let mut bench = Bench::new(Duplicates::Doubt);
        let blocks = 2048 / size;
        let hashes: Vec<u64> = (1..=u64::from(blocks)).collect();
        // Half of them in a second event, so that a chain crosses events.
        let (head, tail) = hashes.split_at(hashes.len() / 2);
        let cut = head.len() as u32 * size;
        bench.store(stored(head, None, 0..cut, size));
        bench.store(stored(tail, head.last().copied(), cut..blocks * size, size));
        let all = keys("", "", &tokens[..(blocks * size) as usize]);
        bench.assert_holds(&all);
        // The last block goes: what ends in it goes, what ends before stays.
        bench.apply(&removed(&[u64::from(blocks)]));
        bench.assert_holds(&all[..((blocks - 1) * size / 16) as usize]);
    }
}

#[test]
fn nothing_is_announced_before_its_chain_is_whole() {
    let mut bench = Bench::new(Duplicates::Doubt);
    bench.store(stored(&[3], Some(2), 64..96, 32));
    bench.store(stored(&[2], Some(1), 32..64, 32));
    bench.assert_holds(&[]);
    assert_eq!(bench.view.waiting_tokens(), 64);
    bench.store(stored(&[1], None, 0..32, 32));
    bench.assert_holds(&keys("", "", &(0..96).collect::<Vec<_>>()));
    assert_eq!(bench.view.waiting_tokens(), 0);
}

#[test]
fn a_hole_withdraws_what_follows_and_filling_it_brings_that_back() {
    let all = keys("", "", &(0..96).collect::<Vec<_>>());
    let mut bench = Bench::new(Duplicates::Doubt);
    bench.store(stored(&[1, 2, 3], None, 0..96, 32));
    bench.apply(&removed(&[1]));
    bench.assert_holds(&[]);
    assert_eq!(bench.view.held_blocks(), 2);
    bench.store(stored(&[1], None, 0..32, 32));
    bench.assert_holds(&all);
    bench.apply(&removed(&[2]));
    bench.assert_holds(&all[..2]);
    bench.apply(&removed(&[3]));
    bench.apply(&removed(&[1]));
    assert_eq!((bench.view.held_blocks(), bench.view.known_blocks()), (0, 0), "nothing leaks");
}

#[test]
fn one_removal_of_two_copies_leaves_the_block() {
    let all = keys("", "", &(0..64).collect::<Vec<_>>());
    // A copy in the middle of a prompt is a copy in any case.
    let mut bench = Bench::new(Duplicates::Doubt);
    bench.store(stored(&[1, 2], None, 0..64, 32));
    bench.store(stored(&[2], Some(1), 32..64, 32));
    bench.apply(&removed(&[2]));
    bench.assert_holds(&all);
    bench.apply(&removed(&[2]));
    bench.assert_holds(&all[..2]);
}

#[test]
fn a_repeated_store_from_the_start_counts_as_configured() {
    let all = keys("", "", &(0..64).collect::<Vec<_>>());
    for (duplicates, left) in [(Duplicates::Doubt, &all[..2]), (Duplicates::Count, &all[..])] {
        let mut bench = Bench::new(duplicates);
        bench.store(stored(&[1, 2], None, 0..64, 32));
        bench.store(stored(&[1, 2], None, 0..64, 32));
        bench.apply(&removed(&[2]));
        bench.assert_holds(left);
    }
}

#[test]
fn one_fingerprint_by_two_engine_chains_is_held_until_both_are_gone() {
    let all = keys("", "", &(0..32).collect::<Vec<_>>());
    let mut bench = Bench::new(Duplicates::Doubt);
    bench.store(stored(&[1], None, 0..32, 32));
    bench.store(stored(&[7, 8], None, 0..32, 16));
    bench.apply(&removed(&[1]));
    bench.assert_holds(&all);
    bench.apply(&removed(&[8]));
    bench.assert_holds(&all[..1]);
    bench.apply(&removed(&[7]));
    bench.assert_holds(&[]);
}

fn texts(list: &[&str]) -> ExtraKeys {
    ExtraKeys::Texts(list.iter().map(|text| (*text).to_owned()).collect())
}

#[test]
fn adapter_and_salt_make_the_scope() {
    let tokens: Vec<u32> = (0..64).collect();
    let base = stored(&[1, 2], None, 0..64, 32);
    let cases = [
        (None, None, vec![], Some(("", ""))),
        (None, None, vec![texts(&[]), texts(&[])], Some(("", ""))),
        (None, None, vec![texts(&["s"]), texts(&[])], Some(("", "s"))),
        (Some("a"), None, vec![texts(&["a"]), texts(&["a"])], Some(("a", ""))),
        (Some("a"), None, vec![texts(&["a", "s"]), texts(&["a"])], Some(("a", "s"))),
        (Some("a"), None, vec![texts(&["a", "a"]), texts(&["a"])], Some(("a", "a"))),
        (Some("a"), Some("s"), vec![], Some(("a", "s"))),
        (None, None, vec![texts(&["s", "t"]), texts(&[])], None),
        (None, None, vec![ExtraKeys::Other, texts(&[])], None),
    ];
    for (lora, salt, extra_keys, expected) in cases {
        let mut bench = Bench::new(Duplicates::Doubt);
        bench.store(Stored {
            has_lora_id: lora.is_some(),
            lora_name: lora.map(str::to_owned),
            cache_salt: salt.map(str::to_owned),
            extra_keys,
            ..base.clone()
        });
        let expected =
            expected.map_or_else(Vec::new, |(adapter, salt)| keys(adapter, salt, &tokens));
        bench.assert_holds(&expected);
    }
    let mut bench = Bench::new(Duplicates::Doubt);
    bench.store(Stored { has_lora_id: true, ..base });
    bench.assert_holds(&[]);
}

#[test]
fn what_follows_an_image_has_no_name() {
    let mut bench = Bench::new(Duplicates::Doubt);
    bench.store(Stored {
        extra_keys: vec![texts(&[]), ExtraKeys::Other, texts(&[])],
        ..stored(&[1, 2, 3], None, 0..96, 32)
    });
    bench.store(stored(&[4], Some(3), 96..128, 32));
    bench.assert_holds(&keys("", "", &(0..32).collect::<Vec<_>>()));
    assert_eq!(bench.view.seen().blocks_nameless, 3);
}

#[test]
fn only_groups_that_a_hit_depends_on_count() {
    let all = keys("", "", &(0..64).collect::<Vec<_>>());
    let mut bench = Bench::new(Duplicates::Doubt);
    let group =
        |group, kind| Stored { group: Some(group), kind, ..stored(&[1, 2], None, 0..64, 32) };
    bench.store(group(0, Kind::Window));
    bench.assert_holds(&[]);
    bench.store(group(1, Kind::Full));
    bench.assert_holds(&all);
    let gone = |group| {
        Event::Removed(Removed { hashes: vec![h(2)], group: Some(group), ..Removed::default() })
    };
    bench.apply(&gone(0));
    bench.assert_holds(&all);
    bench.apply(&gone(1));
    bench.assert_holds(&all[..2]);
}

/// Offloading names blocks only.
fn offloaded(hashes: &[u64], medium: Medium) -> Event {
    Event::Stored(Stored { medium, ..stored(hashes, None, 0..0, 32) })
}

fn dropped(hashes: &[u64], medium: Medium) -> Event {
    let Event::Removed(gone) = removed(hashes) else { panic!() };
    Event::Removed(Removed { medium, ..gone })
}

#[test]
fn a_copy_in_a_slower_tier_is_held_there_and_no_longer_on_the_gpu() {
    let all = keys("", "", &(0..64).collect::<Vec<_>>());
    let mut bench = Bench::new(Duplicates::Doubt);
    bench.store(stored(&[1, 2], None, 0..64, 32));
    assert_eq!(bench.view.tiers().count(), 0, "an engine that offloads nothing costs one slot");
    bench.apply(&offloaded(&[2], Medium::Cpu));
    // The tier holds what the GPU holds, too, so that its prefixes are closed.
    bench.assert_holds_in(Medium::Cpu, &all);
    bench.apply(&offloaded(&[1], Medium::Other));
    assert_eq!(bench.view.seen().other_medium, 1, "a shared tier isn't the engine's own");
    bench.apply(&removed(&[2]));
    bench.assert_holds(&all[..2]);
    bench.assert_holds_in(Medium::Cpu, &all);
    assert_eq!(bench.view.held_in(&all[3]), Some(Medium::Cpu));
    bench.apply(&removed(&[1]));
    bench.assert_holds(&[]);
    bench.assert_holds_in(Medium::Cpu, &[]);
    bench.apply(&offloaded(&[1], Medium::Disk));
    bench.assert_holds_in(Medium::Cpu, &[]);
    assert_eq!(bench.view.known_blocks(), 2);
    bench.apply(&dropped(&[1], Medium::Disk));
    bench.apply(&dropped(&[2], Medium::Cpu));
    assert_eq!((bench.view.held_blocks(), bench.view.known_blocks()), (0, 0), "nothing leaks");
}

#[test]
fn a_shared_store_holds_a_block_once_and_learns_its_name_from_the_engine() {
    let all = keys("", "", &(0..96).collect::<Vec<_>>());
    let mut engine = view(Duplicates::Doubt, Limits::default());
    let mut changes = Changes::default();
    engine.apply(&Event::Stored(stored(&[1, 2, 3], None, 0..96, 32)), 0, &mut changes);
    changes.take();
    let mut store = engine.shared_beside();
    let mut reader = Reader::default();
    let mut other = view(Duplicates::Doubt, Limits::default());
    let mut tell = |event: &Event, engine: &View, expected: &[Key]| {
        store.apply_from(event, engine, 3, &mut changes);
        reader.read(&mut changes);
        assert_eq!(reader.keys_of(3), expected.iter().copied().collect());
    };
    // Named by the engine that says it, whose GPU may have lost it meanwhile.
    tell(&offloaded(&[2], Medium::Other), &engine, &[]);
    tell(&offloaded(&[9], Medium::Other), &engine, &[]);
    tell(&offloaded(&[1], Medium::Other), &engine, &all[..4]);
    tell(&offloaded(&[3], Medium::Other), &other, &all[..4]);
    // With tokens it needs no engine's view, and a second store is no second copy.
    let whole = Stored { medium: Medium::Other, ..stored(&[1, 2, 3], None, 0..96, 32) };
    tell(&Event::Stored(whole), &other, &all);
    tell(&dropped(&[2], Medium::Other), &other, &all[..2]);
    // An engine's own tiers are none of the store's.
    tell(&removed(&[1]), &engine, &all[..2]);
    tell(&dropped(&[1, 3, 9], Medium::Other), &other, &[]);
    other.clear();
    assert_eq!((store.held_blocks(), store.known_blocks()), (0, 0), "nothing leaks");
}

#[test]
fn at_the_bound_the_oldest_leave_and_memory_stays() {
    let limits = Limits { blocks: 1024, waiting_tokens: 640 };
    let mut bench = Bench::with(Duplicates::Doubt, limits);
    for prompt in 0..200u32 {
        let first = u64::from(prompt) * 10 + 1;
        let hashes: Vec<u64> = (first..first + 10).collect();
        let start = prompt * 1000;
        bench.store(stored(&hashes, None, start..start + 320, 32));
        assert!(bench.view.known_blocks() <= 1024);
    }
    assert!(bench.view.seen().evicted >= 2000 - 1024);
    let last: Vec<u32> = (199_000..199_320).collect();
    assert!(keys("", "", &last).iter().all(|key| bench.view.holds(key)), "the newest stay");
    let first: Vec<u32> = (0..320).collect();
    assert!(!keys("", "", &first).iter().any(|key| bench.view.holds(key)), "the oldest left");

    for orphan in 0..100u32 {
        let id = 1_000_000 + u64::from(orphan) * 2;
        bench.store(stored(&[id], Some(id + 1), 0..32, 32));
        assert!(bench.view.waiting_tokens() <= 640);
    }
    assert_eq!(bench.view.seen().waiting_dropped, 80);
}

#[test]
fn a_circle_of_parents_does_no_harm() {
    let mut bench = Bench::with(Duplicates::Doubt, Limits { blocks: 1024, ..Limits::default() });
    bench.store(stored(&[1], Some(1), 0..32, 32));
    bench.store(stored(&[2], Some(3), 0..32, 32));
    bench.store(stored(&[3], Some(2), 0..32, 32));
    bench.store(stored(&[4, 4], Some(5), 0..64, 32));
    bench.store(stored(&[5, 6, 5], Some(4), 0..96, 32));
    for i in 0..2000 {
        bench.store(stored(&[100 + i], None, 0..32, 32));
    }
    bench.apply(&removed(&[1, 2, 3, 4, 4, 5, 5, 6]));
    assert!(bench.view.known_blocks() <= 1024);
}
