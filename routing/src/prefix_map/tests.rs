//! What searches find, and what writers change.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::fingerprint::Key;

#[derive(Default)]
struct Memory {
    buckets: BTreeMap<u32, Vec<u8>>,
    reads: Cell<u32>,
}

impl Store for Memory {
    type Error = std::convert::Infallible;

    fn get(&self, bucket: u32) -> Result<Option<Vec<u8>>, Self::Error> {
        self.reads.set(self.reads.get() + 1);
        Ok(self.buckets.get(&bucket).cloned())
    }

    fn set(&mut self, bucket: u32, value: &[u8]) -> Result<(), Self::Error> {
        self.buckets.insert(bucket, value.to_vec());
        Ok(())
    }
}

const LAYOUT: Layout = Layout { buckets: 64, bucket_bytes: 8 << 10 };

/// Keys of one prompt, evenly spread as fingerprints are.
fn prompt(name: u64, blocks: u64) -> Vec<Key> {
    (0..blocks)
        .map(|block| {
            let hash = blake3::hash(&[name.to_le_bytes(), block.to_le_bytes()].concat());
            Key(*hash.as_bytes().first_chunk().unwrap())
        })
        .collect()
}

fn bytes(keys: &[Key]) -> Vec<u8> {
    keys.iter().flat_map(|key| key.0).collect()
}

fn hold(store: &mut Memory, generation: u32, slot: u16, keys: &[Key]) -> Applied {
    let mut writer = Writer::new(LAYOUT, generation);
    let Ok(()) = writer.change(store, slot, &[], &bytes(keys));
    let Ok(applied) = writer.flush(store);
    applied
}

/// A prompt of 512 blocks that three replicas hold in part.
fn held_by_three() -> (Memory, Vec<Key>) {
    let mut store = Memory::default();
    let keys = prompt(1, 512);
    for (slot, blocks) in [(9, 480), (4, 300), (200, 480)] {
        hold(&mut store, 1, slot, &keys[..blocks]);
    }
    (store, keys)
}

fn all(store: &Memory, keys: &[Key]) -> Vec<(u16, u32)> {
    find(store, LAYOUT, 1, keys, Hint::default(), &|_: u16| true)
        .found
        .iter()
        .map(|m| (m.slot, m.blocks))
        .collect()
}

#[test]
fn a_golden_bucket_never_changes() {
    let mut store = Memory::default();
    let key = Key(*b"\x01\x02\x03\x04\x05\x06\x07\x08\x2a\0\0\0\0\0\0\0");
    hold(&mut store, 7, 3, &[key]);
    hold(&mut store, 7, 258, &[key]);
    assert_eq!(LAYOUT.bucket(key), 42);
    assert_eq!(
        store.buckets[&42],
        b"\x01\x07\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08\x02\0\x03\0\x02\x01"
    );
}

#[test]
fn each_replica_matches_as_far_as_it_holds() {
    let mut store = Memory::default();
    let keys = prompt(1, 512);
    for (slot, blocks) in [(9, 512), (4, 1), (200, 300), (5, 301)] {
        hold(&mut store, 1, slot, &keys[..blocks]);
    }
    assert_eq!(all(&store, &keys), [(4, 1), (5, 301), (9, 512), (200, 300)]);
    assert_eq!(all(&store, &prompt(2, 512)), []);
    assert_eq!(all(&store, &[]), []);
    let only = find(&store, LAYOUT, 1, &keys, Hint::default(), &|slot: u16| slot == 200);
    assert_eq!((only.blocks(200), only.blocks(9)), (300, 0));
}

#[test]
fn a_search_is_logarithmic_and_bounded() {
    let mut store = Memory::default();
    let keys = prompt(1, 8192);
    hold(&mut store, 1, 1, &keys[..5000]);
    let one = find(&store, LAYOUT, 1, &keys, Hint::default(), &|_: u16| true);
    assert_eq!(one.blocks(1), 5000);
    assert!(one.probes <= 15, "{} probes for 8192 blocks", one.probes);
    for slot in 2..500 {
        hold(&mut store, 1, slot, &keys[..usize::from(slot) * 16]);
    }
    store.reads.set(0);
    let many = find(&store, LAYOUT, 1, &keys, Hint::default(), &|_: u16| true);
    assert!(store.reads.get() <= 97);
    for m in many.found.iter().filter(|m| m.slot > 1) {
        assert!(m.blocks <= u32::from(m.slot) * 16, "more than slot {} holds", m.slot);
    }
}

#[test]
fn a_hint_saves_probes_and_never_changes_what_is_found() {
    let (store, keys) = held_by_three();
    let found = |blocks| find(&store, LAYOUT, 1, &keys, Hint::at(blocks), &|slot: u16| slot != 4);
    let without = found(0);
    assert!(without.probes >= 10, "{}", without.probes);
    assert_eq!(found(480).probes, 3, "the hint, the first, and the one after the hint");
    for hint in [0, 1, 2, 299, 300, 301, 479, 480, 481, 511, 512, 513, u32::MAX] {
        assert_eq!(found(hint).found, without.found, "hint {hint}");
        assert_eq!(
            find(&store, LAYOUT, 1, &keys, Hint::at(hint), &|_: u16| true).found,
            find(&store, LAYOUT, 1, &keys, Hint::default(), &|_: u16| true).found,
            "hint {hint}"
        );
    }
}

#[test]
fn who_holds_the_first_block_is_read_once_where_somebody_holds_more() {
    let (store, keys) = held_by_three();
    let found =
        |blocks, first| find(&store, LAYOUT, 1, &keys, Hint { blocks, first }, &|_: u16| true);
    let all = found(480, None);
    assert_eq!(all.first.unwrap().slots(), [4, 9, 200]);
    let again = found(480, all.first);
    assert_eq!((&again.found, again.probes, again.first), (&all.found, all.probes - 1, None));
    // Only for those who hold less than the hint.
    let less = found(480, First::of(&[9, 200]));
    assert_eq!(less.found, all.found.iter().filter(|m| m.slot != 4).copied().collect::<Vec<_>>());
    assert_eq!(found(480, First::of(&[])).found, less.found);
    // Where nobody holds what a like prompt's match ended with, it is read.
    for blocks in [0, 1, 481, 600] {
        let wrong = found(blocks, First::of(&[7]));
        assert_eq!((&wrong.found, wrong.first), (&all.found, None), "{blocks}");
    }
    assert_eq!(First::of(&[1; 9]), None);
}

#[test]
fn hints_are_of_like_prompts() {
    let mut hints = Hints::default();
    let (one, other) = (prompt(1, 40), prompt(2, 40));
    let matches = |blocks, first: &[u16]| Matches {
        found: vec![Match { slot: 3, blocks: 2 }, Match { slot: 5, blocks }],
        probes: 3,
        first: First::of(first),
    };
    hints.put(&one, 1, 1_000, &matches(30, &[3, 5]));
    let longer = [&one[..20], &other[..]].concat();
    let told = |hints: &Hints, keys: &[Key], generation, now_ms| {
        let hint = hints.get(keys, generation, now_ms);
        (hint.blocks, hint.first.map(|first| first.slots().to_vec()))
    };
    let known = (30, Some(vec![3, 5]));
    assert_eq!(told(&hints, &one, 1, 1_000), known);
    assert_eq!(told(&hints, &longer, 1, 1_099), known);
    assert_eq!(told(&hints, &other, 1, 1_000), (0, None));
    // Slots mean something in their own map only, and for a moment.
    for (generation, now_ms) in [(2, 1_000), (1, 1_100), (1, 999), (1, 0), (1, u64::MAX)] {
        assert_eq!(told(&hints, &one, generation, now_ms), (30, None), "{generation} {now_ms}");
    }
    // What a search that knew them found doesn't make them younger.
    hints.put(&one, 1, 1_090, &Matches { first: None, ..matches(31, &[]) });
    assert_eq!(told(&hints, &one, 1, 1_095), (31, Some(vec![3, 5])));
    assert_eq!(told(&hints, &one, 1, 1_100), (31, None));
    hints.put(&one, 1, 2_000, &Matches::default());
    assert_eq!(told(&hints, &one, 1, 2_000), (31, None), "nothing found says nothing");
    hints.put(&one[..15], 1, 1_000, &matches(9, &[5]));
    assert_eq!(told(&hints, &one[..15], 1, 1_000), (0, None), "too short to be like another");
}

/// Replicas whose slot is below 100 have their ends under that slot and 100.
struct Hybrid {
    every: u32,
    beyond: u32,
    most: u32,
}

impl Wanted for Hybrid {
    fn wants(&self, slot: u16) -> bool {
        slot < 100
    }

    fn ends(&self, slot: u16) -> Option<Ends> {
        let Self { every, beyond, most } = *self;
        (slot != 9).then_some(Ends { slot: slot + 100, every, beyond, most })
    }

    fn has_ends(&self) -> bool {
        true
    }
}

fn end_at(store: &mut Memory, slot: u16, keys: &[Key], blocks: &[usize]) {
    let ends: Vec<Key> = blocks.iter().map(|blocks| keys[blocks - 1]).collect();
    hold(store, 1, slot + 100, &ends);
}

#[test]
fn an_end_is_named_behind_what_is_dropped() {
    let mut store = Memory::default();
    let keys = prompt(1, 64);
    hold(&mut store, 1, 4, &keys[..60]);
    // Hits of 64 tokens' multiples, behind which 32 are dropped.
    end_at(&mut store, 4, &keys, &[2, 24, 34, 36]);
    let hit = |store: &Memory, most| {
        let wanted = Hybrid { every: 64, beyond: 32, most };
        find(store, LAYOUT, 1, &keys, Hint::default(), &wanted).blocks(4)
    };
    assert_eq!(hit(&store, 64), 34);
    assert_eq!(
        hit(&store, 33),
        0,
        "24 blocks are no multiple and a half, 2 are nothing but dropped"
    );
    end_at(&mut store, 4, &keys, &[6]);
    assert_eq!(hit(&store, 33), 6);
    assert_eq!(hit(&store, 5), 0);
}

#[test]
fn a_hit_ends_where_it_may() {
    let mut store = Memory::default();
    let keys = prompt(1, 512);
    for (slot, blocks, ends) in [(9, 480, &[][..]), (4, 480, &[40, 400]), (5, 300, &[300, 290])] {
        hold(&mut store, 1, slot, &keys[..blocks]);
        end_at(&mut store, slot, &keys, ends);
    }
    let hits = |store: &Memory, every, most| {
        let found =
            find(store, LAYOUT, 1, &keys, Hint::default(), &Hybrid { every, most, beyond: 0 });
        (found.blocks(4), found.blocks(5), found.blocks(9))
    };
    // Of 480 blocks the 400th is too far back for the bound on reads, in strides of one block.
    assert_eq!(hits(&store, 16, 512), (0, 300, 480));
    assert_eq!(hits(&store, 32, 512), (400, 300, 480));
    assert_eq!(hits(&store, 1_152, 512), (0, 0, 480), "no end at a multiple of 72 blocks");
    end_at(&mut store, 4, &keys, &[432]);
    assert_eq!(hits(&store, 1_152, 512), (432, 0, 480));
    // The prompt's last token is always computed.
    assert_eq!(hits(&store, 32, 299), (0, 290, 480));
    assert_eq!(hits(&store, 32, 41), (40, 0, 480));
    assert_eq!(hits(&store, 0, 40), (40, 0, 480), "an unknown length may end anywhere");
}

struct Plain;

impl Wanted for Plain {
    fn wants(&self, _: u16) -> bool {
        true
    }
}

#[test]
fn replicas_whose_hits_end_anywhere_cost_no_more_reads() {
    let (store, keys) = held_by_three();
    let plain = find(&store, LAYOUT, 1, &keys, Hint::default(), &|_: u16| true);
    let same = find(&store, LAYOUT, 1, &keys, Hint::default(), &Plain);
    assert_eq!(plain, same);
    let bounded = find(
        &store,
        LAYOUT,
        1,
        &keys,
        Hint::default(),
        &Hybrid { every: 16, beyond: 0, most: 512 },
    );
    assert!(bounded.probes <= plain.probes + 128, "{} and {}", bounded.probes, plain.probes);
}

#[test]
fn another_generation_is_void() {
    let mut store = Memory::default();
    let keys = prompt(1, 8);
    hold(&mut store, 1, 1, &keys);
    assert_eq!(find(&store, LAYOUT, 2, &keys, Hint::default(), &|_: u16| true).found, []);
    hold(&mut store, 2, 2, &keys[..1]);
    let found = find(&store, LAYOUT, 2, &keys, Hint::default(), &|_: u16| true).found;
    assert_eq!(found, [Match { slot: 2, blocks: 1 }]);
}

#[test]
fn a_full_bucket_loses_its_oldest() {
    let mut store = Memory::default();
    let layout = Layout { buckets: 1, bucket_bytes: 5 + 12 * 4 };
    let keys = prompt(1, 6);
    let mut writer = Writer::new(layout, 1);
    let Ok(()) = writer.change(&store, 1, &[], &bytes(&keys[..4]));
    let Ok(()) = writer.change(&store, 1, &[], &bytes(&keys[..1]));
    let Ok(()) = writer.change(&store, 1, &[], &bytes(&keys[4..]));
    let Ok(applied) = writer.flush(&mut store);
    assert_eq!(applied.evicted, 2);
    let held: Vec<bool> = keys
        .iter()
        .map(|key| {
            !find(&store, layout, 1, &[*key], Hint::default(), &|_: u16| true).found.is_empty()
        })
        .collect();
    assert_eq!(held, [true, false, false, true, true, true], "1 was refreshed; 2 and 3 left");
}

#[test]
fn a_sweep_frees_dead_slots_only() {
    let mut store = Memory::default();
    let keys = prompt(1, 20);
    hold(&mut store, 1, 1, &keys);
    hold(&mut store, 1, 2, &keys[..10]);
    let Ok(()) = Writer::new(LAYOUT, 1).sweep(&mut store, 0..64, |slot| slot != 1);
    assert_eq!(all(&store, &keys), [(2, 10)]);
    let entries: usize = store.buckets.values().map(|b| bucket::entries(b, 1).count()).sum();
    assert_eq!(entries, 10);
}

#[test]
fn a_held_block_costs_no_more_than_48_bytes() {
    let mut store = Memory::default();
    let keys = prompt(1, 10_000);
    hold(&mut store, 1, 1, &keys);
    let total: usize = store.buckets.values().map(Vec::len).sum();
    assert!(total <= 48 * 10_000, "{total}");
}

proptest! {
    /// The map against plain sets: any closed holdings, in any order of growing and shrinking.
    #[test]
    fn the_map_says_what_was_told(
        steps in proptest::collection::vec((0u16..6, 0u64..3, 0u32..40), 1..60),
    ) {
        let mut store = Memory::default();
        let mut truth: BTreeMap<(u16, u64), u32> = BTreeMap::new();
        for (slot, name, to) in steps {
            let keys = prompt(name, 40);
            let from = truth.insert((slot, name), to).unwrap_or(0);
            let (from, to) = (from as usize, to as usize);
            let mut writer = Writer::new(LAYOUT, 1);
            let Ok(()) = if to < from {
                writer.change(&store, slot, &bytes(&keys[to..from]), &[])
            } else {
                writer.change(&store, slot, &[], &bytes(&keys[from..to]))
            };
            let Ok(_) = writer.flush(&mut store);
        }
        for name in 0..3 {
            let expected: Vec<(u16, u32)> = truth
                .iter()
                .filter(|((_, n), blocks)| *n == name && **blocks > 0)
                .map(|((slot, _), blocks)| (*slot, *blocks))
                .collect();
            let keys = prompt(name, 40);
            prop_assert_eq!(&all(&store, &keys), &expected);
            // Where nobody holds the last block that is asked for, more of them tell no more.
            for asked in 1..40 {
                let found = all(&store, &keys[..asked]);
                if found.iter().all(|(_, blocks)| (*blocks as usize) < asked) {
                    prop_assert_eq!(found, expected.as_slice());
                }
            }
        }
    }

    /// The longest hit of each replica, against a search of all of its ends.
    #[test]
    fn hits_are_the_longest_that_the_ends_allow(
        replicas in proptest::collection::vec(
            (0usize..120, proptest::collection::btree_set(1usize..60, 0..6)), 1..6),
        every in prop_oneof![Just(16u32), Just(32), Just(48), Just(24)],
        drops in 0u32..3,
        most in 0u32..130,
        hint in 0u32..130,
    ) {
        let mut store = Memory::default();
        let keys = prompt(1, 120);
        let beyond = [0, 16, every][drops as usize];
        let place = |n: &usize| (n * every as usize + beyond as usize) / 16;
        for (slot, (held, ends)) in (0u16..).zip(&replicas) {
            hold(&mut store, 1, slot, &keys[..*held]);
            let ends: Vec<usize> = ends.iter().map(place).collect();
            end_at(&mut store, slot, &keys, &ends.into_iter().filter(|n| (1..=120).contains(n)).collect::<Vec<_>>());
        }
        let found = find(&store, LAYOUT, 1, &keys, Hint::at(hint), &Hybrid { every, beyond, most });
        for (slot, (held, ends)) in (0u16..).zip(&replicas) {
            let fits = |end: &usize| *end <= *held && *end as u32 <= most;
            let hits = ends.iter().map(place).filter(fits);
            let expected = hits.max().unwrap_or(0) as u32;
            let claimed = found.blocks(slot);
            prop_assert!(claimed <= expected);
            // The bound is shared, and was not reached where little was read.
            if found.probes < 60 {
                prop_assert_eq!(claimed, expected, "slot {}", slot);
            }
        }
    }

    /// Whatever lies in shared data, a search neither fails nor invents replicas it can't have read.
    /// A bucket that is full loses blocks amidst a prefix: what is held then looks like less, and never
    /// like more.
    #[test]
    fn full_buckets_never_claim_too_much(
        steps in proptest::collection::vec((0u16..6, 0u64..6, 0u32..40), 1..60),
        bucket_bytes in 20_usize..200,
    ) {
        let layout = Layout { buckets: 4, bucket_bytes };
        let mut store = Memory::default();
        let mut truth: BTreeMap<(u16, u64), u32> = BTreeMap::new();
        for (slot, name, to) in steps {
            let keys = prompt(name, 40);
            let from = truth.insert((slot, name), to).unwrap_or(0);
            let (from, to) = (from as usize, to as usize);
            let mut writer = Writer::new(layout, 1);
            let Ok(()) = if to < from {
                writer.change(&store, slot, &bytes(&keys[to..from]), &[])
            } else {
                writer.change(&store, slot, &[], &bytes(&keys[from..to]))
            };
            let Ok(_) = writer.flush(&mut store);
            prop_assert!(store.buckets.values().all(|bucket| bucket.len() <= bucket_bytes));
        }
        for name in 0..6 {
            for hint in [0, 7, 23] {
                let keys = prompt(name, 40);
                let found = find(&store, layout, 1, &keys, Hint::at(hint), &|_: u16| true).found;
                for Match { slot, blocks } in found {
                    let holds = truth.get(&(slot, name)).copied().unwrap_or(0);
                    prop_assert!(blocks <= holds, "{} of {}", blocks, holds);
                }
            }
        }
    }

    #[test]
    fn damaged_buckets_do_no_harm(garbage in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut store = Memory::default();
        for bucket in 0..64 {
            store.buckets.insert(bucket, garbage.clone());
        }
        let _ = all(&store, &prompt(1, 30));
        hold(&mut store, 1, 5, &prompt(1, 3));
        let slots: BTreeSet<u16> =
            all(&store, &prompt(1, 30)).iter().map(|(slot, _)| *slot).collect();
        prop_assert!(slots.contains(&5));
    }
}
