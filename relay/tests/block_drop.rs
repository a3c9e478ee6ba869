//! What vLLM's own code says that it has cached where it drops a block of each hit, against the
//! relay's view.
//!
//! `fixtures/block_drop.txt` is of vLLM 0.32.0's `Scheduler` and `KVCacheManager` with no model behind
//! them and `use_eagle` set, asked one prompt after the other by a seeded generator: new prompts, such
//! as go on from others, repeat or cut them, some that end with a block. A line each:
//!
//! - `case <name> <all|full>`: the groups in which `is_eagle_group` is set; none makes it all.
//! - `ask <cached tokens> <seed>:<length>…`: a prompt, of tokens that count up from 1000 × seed.
//! - `kept <group> <f|w<window>|s> <block size> <parent|-> <from>+<length> <hashes>`: `BlockStored` of
//!   those tokens of the last prompt, by full attention, a sliding window or a state; hashes are
//!   numbered in the order in which they were seen, and none where a window keeps nothing.
//! - `gone <group> <hashes>`: `BlockRemoved`.

#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;

use warmpath_relay::events::{EngineHash, Event, Kind, Removed, Stored};
use warmpath_relay::index::{BlockDrop, Changes, Duplicates, Limits, ModelScope, View};
use warmpath_routing::fingerprint::{Chain, Key, Scope};
use warmpath_routing::view::{Replica, ReplicaState};

const CASES: &str = include_str!("fixtures/block_drop.txt");
const TOKENIZER: [u8; 32] = [0; 32];

fn view(drop: BlockDrop) -> View {
    let scope = ModelScope { version: "1".into(), tokenizer_hash: TOKENIZER };
    View::new(scope.into(), Duplicates::Count, Limits::default()).dropping(drop)
}

fn hashes(text: &str) -> Vec<EngineHash> {
    let run = |run: &str| {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        first.parse::<u64>().unwrap()..=last.parse().unwrap()
    };
    text.split(',').filter(|run| !run.is_empty()).flat_map(run).map(EngineHash::from_int).collect()
}

fn stored(words: &[&str], prompt: &[u32]) -> Event {
    let &[group, what, size, parent, range, ref kept @ ..] = words else { panic!("{words:?}") };
    let kept = kept.first().copied().unwrap_or_default();
    let (from, length) = range.split_once('+').unwrap();
    let from: usize = from.parse().unwrap();
    let tokens = prompt[from..from + length.parse::<usize>().unwrap()].to_vec();
    let (hashes, block_size) = (hashes(kept), size.parse().unwrap());
    Event::Stored(Stored {
        sparse: hashes.len() * (block_size as usize) < tokens.len(),
        hashes,
        parent: parent.parse().ok().map(EngineHash::from_int),
        tokens,
        block_size,
        group: group.parse().ok(),
        kind: match &what[..1] {
            "f" => Kind::Full,
            "w" => Kind::Window,
            _ => Kind::State,
        },
        window: what[1..].parse().ok(),
        ..Stored::default()
    })
}

fn gone(words: &[&str]) -> Event {
    let group = words[0].parse().ok();
    Event::Removed(Removed { hashes: hashes(words[1]), group, ..Removed::default() })
}

fn expected(view: &View, tokens: &[u32]) -> u32 {
    let scope = Scope { model_version: "1", tokenizer_hash: &TOKENIZER, adapter: "", salt: "" };
    let mut keys: Vec<Key> = Vec::new();
    Chain::new(&scope).push(tokens, |fingerprint| keys.push(fingerprint.key()));
    let held = keys.iter().take_while(|key| view.holds(key)).count();
    let replica = Replica {
        slot: 1,
        endpoint: "10.0.0.1:8000".into(),
        rank: None,
        pool: "p".into(),
        block_tokens: view.block_tokens(),
        dropped_tokens: view.dropped_tokens(),
        state: ReplicaState::Ready,
        weight: Replica::PLAIN,
        tiers: Vec::new(),
        ends: view.ends().map(|_| 2),
        adapters: None,
    };
    let blocks = match view.ends() {
        None => held,
        // The longest; the filter's way to it has a test of its own.
        Some(_) => (1..=held).rev().find(|n| view.ends_at(&keys[n - 1])).unwrap_or(0),
    };
    replica.cached_tokens(blocks as u32, tokens.len() as u32)
}

/// Of each case: prompts, exact, more expected than cached.
fn replay(drop: impl Fn(&str) -> BlockDrop) -> BTreeMap<String, [usize; 3]> {
    let mut counts: BTreeMap<String, [usize; 3]> = BTreeMap::new();
    let (mut case, mut prompt) = (String::new(), Vec::new());
    let mut view = view(BlockDrop::None);
    let mut changes = Changes::default();
    for line in CASES.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let event = match words[0] {
            "case" => {
                case = words[1..].join(" ");
                view = self::view(drop(words[2]));
                continue;
            }
            "ask" => {
                let tokens = |part: &&str| {
                    let (seed, length) = part.split_once(':').unwrap();
                    let from = seed.parse::<u32>().unwrap() * 1000;
                    from..from + length.parse::<u32>().unwrap()
                };
                prompt = words[2..].iter().flat_map(tokens).collect();
                let (cached, expected) = (words[1].parse().unwrap(), expected(&view, &prompt));
                let of = counts.entry(case.clone()).or_default();
                of[0] += 1;
                of[1] += usize::from(expected == cached);
                of[2] += usize::from(expected > cached);
                continue;
            }
            "kept" => stored(&words[1..], &prompt),
            _ => gone(&words[1..]),
        };
        if view.lacks_ends(&event) {
            view.open_ends(1, &mut changes);
        }
        view.apply(&event, 0, &mut changes);
        changes.take();
    }
    counts
}

#[test]
fn hits_are_those_of_vllm() {
    let counts = replay(|groups| match groups {
        "full" => BlockDrop::Draft,
        _ => BlockDrop::All,
    });
    assert!(counts.len() >= 9, "{counts:?}");
    for (case, [all, exact, over]) in &counts {
        assert_eq!(*over, 0, "{case}");
        // Where a window's blocks are smaller than full attention's, no event tells of the block
        // behind a hit.
        assert!(exact == all || case == "small all", "{case}: {exact} of {all}");
    }
    // Without the setting it is no accident that all are right.
    for (case, [all, exact, _]) in replay(|_| BlockDrop::None) {
        assert!(exact < all, "{case}: {exact} of {all}");
    }
}
