//! The laws of the block cache.

use std::collections::HashMap;

use proptest::prelude::*;

use super::cache::{Cache, Prompt, Sequence};
use super::event::Event;
use super::hash::{BlockHash, Keys, Lora};

fn prompt(tokens: impl IntoIterator<Item = u32>, block: usize) -> Prompt {
    Prompt::new(tokens.into_iter().collect(), Keys::default(), block)
}

fn serve(cache: &mut Cache, prompt: Prompt) -> usize {
    let mut sequence = cache.admit(prompt, 1, false).unwrap();
    let hit = sequence.hit_tokens();
    cache.release(&mut sequence);
    hit
}

fn hashes(events: &[Event]) -> (Vec<BlockHash>, Vec<BlockHash>) {
    let (mut stored, mut removed) = (Vec::new(), Vec::new());
    for event in events {
        match event {
            Event::Stored { hashes, .. } => stored.extend(hashes),
            Event::Removed(hash) => removed.push(*hash),
            Event::Cleared => {}
        }
    }
    (stored, removed)
}

#[test]
fn without_a_prefix_cache_nothing_is_found_and_nothing_told() {
    let mut cache = Cache::new(4, 100).without_prefixes();
    assert!(!cache.finds_prefixes());
    for _ in 0..3 {
        let prompt = Prompt::new((0..40).collect(), Keys::default(), 4);
        let mut sequence = cache.admit(prompt, 4, true).unwrap();
        assert_eq!(sequence.hit_tokens(), 0);
        cache.append(&mut sequence, 7);
        cache.release(&mut sequence);
        assert!(cache.take_events().is_empty());
        assert_eq!(cache.used(), 0);
    }
}

#[test]
fn a_followers_prefix_is_a_hit_in_full_blocks_and_never_its_last_token() {
    let mut cache = Cache::new(4, 100);
    assert_eq!(serve(&mut cache, prompt(0..10, 4)), 0);
    assert_eq!(serve(&mut cache, prompt(0..10, 4)), 8);
    assert_eq!(serve(&mut cache, prompt(0..9, 4)), 8, "8 of 9: the last token is left");
    assert_eq!(serve(&mut cache, prompt(0..8, 4)), 4, "the block of the last token is anew");
    assert_eq!(serve(&mut cache, prompt((0..6).chain([99, 100, 101]), 4)), 4);
}

#[test]
fn one_that_drops_computes_the_last_block_of_a_hit_anew() {
    let mut cache = Cache::new(4, 100).dropping_last();
    assert_eq!(serve(&mut cache, prompt(0..13, 4)), 0);
    cache.take_events();
    assert_eq!(serve(&mut cache, prompt(0..13, 4)), 8, "12 are cached");
    assert_eq!(hashes(&cache.take_events()).0.len(), 1, "a copy of the third block");
    assert_eq!(serve(&mut cache, prompt(0..12, 4)), 4, "the block of the last token, and one");
    assert_eq!(serve(&mut cache, prompt(0..6, 4)), 0);
}

#[test]
fn a_hit_emits_nothing_and_a_tail_names_its_parent() {
    let mut cache = Cache::new(4, 100);
    serve(&mut cache, prompt(0..9, 4));
    let first = cache.take_events();
    serve(&mut cache, prompt(0..9, 4));
    assert_eq!(cache.take_events(), []);
    serve(&mut cache, prompt(0..17, 4));
    let second = cache.take_events();
    let [Event::Stored { parent, tokens, hashes: new, .. }] = second.as_slice() else {
        panic!("one event: {second:?}")
    };
    assert_eq!(parent.as_ref(), hashes(&first).0.last());
    assert_eq!(*tokens, (8..16).collect::<Vec<u32>>());
    assert_eq!(new.len(), 2);
}

#[test]
fn the_last_block_goes_first_and_before_the_store() {
    let mut cache = Cache::new(4, 4);
    serve(&mut cache, prompt(0..16, 4));
    let (stored, _) = hashes(&cache.take_events());
    serve(&mut cache, prompt(100..108, 4));
    let events = cache.take_events();
    assert_eq!(hashes(&events).1, [stored[3], stored[2]]);
    assert!(matches!(events.last(), Some(Event::Stored { .. })), "{events:?}");
    assert_eq!(serve(&mut cache, prompt(0..16, 4)), 8);
}

#[test]
fn a_prompt_that_comes_while_another_computes_it_hits_what_was_scheduled() {
    let mut cache = Cache::new(4, 10);
    let mut a = cache.admit(prompt(0..9, 4), 1, false).unwrap();
    let mut b = cache.admit(prompt(0..9, 4), 1, false).unwrap();
    assert_eq!((a.hit_tokens(), b.hit_tokens()), (0, 8));
    assert_eq!(hashes(&cache.take_events()).0.len(), 2);
    cache.release(&mut a);
    cache.release(&mut b);
    assert!(cache.held().values().all(|copies| *copies == 1));
}

#[test]
fn what_is_computed_twice_is_there_twice_and_goes_copy_by_copy() {
    // The last token is always computed, and with it the block that it ends.
    let mut cache = Cache::new(4, 4);
    serve(&mut cache, prompt(0..8, 4));
    serve(&mut cache, prompt(0..8, 4));
    let (stored, _) = hashes(&cache.take_events());
    assert_eq!(stored[1..], [stored[1], stored[1]]);
    assert_eq!(cache.held()[&stored[1]], 2);
    serve(&mut cache, prompt(50..58, 4));
    assert_eq!(hashes(&cache.take_events()).1, [stored[1]], "one copy");
    assert_eq!(cache.held()[&stored[1]], 1);
}

#[test]
fn blocks_in_use_stay_and_what_does_not_fit_waits() {
    let mut cache = Cache::new(4, 4);
    let mut a = cache.admit(prompt(0..8, 4), 5, false).unwrap();
    assert_eq!(cache.used(), 2);
    assert!(
        cache.admit(prompt(50..58, 4), 1, false).is_err(),
        "a third block is reserved for a's answer"
    );
    let mut b = cache.admit(prompt(50..54, 4), 1, false).unwrap();
    cache.release(&mut a);
    cache.release(&mut b);
    assert_eq!(cache.used(), 0);
    assert!(cache.admit(prompt(50..58, 4), 1, false).is_ok());
}

#[test]
fn generated_tokens_are_stored_block_by_block() {
    let mut cache = Cache::new(4, 10);
    let mut a = cache.admit(prompt(0..6, 4), 8, false).unwrap();
    assert_eq!(hashes(&cache.take_events()).0.len(), 1);
    for token in 6..13 {
        cache.append(&mut a, token);
    }
    let events = cache.take_events();
    assert_eq!(events.len(), 2, "an event for each block that got full: {events:?}");
    cache.release(&mut a);
    assert_eq!(serve(&mut cache, prompt(0..13, 4)), 12, "the next turn finds them");
}

#[test]
fn adapter_and_salt_part_prompts_and_are_told() {
    let lora = Some(Lora { name: "lora-a".into(), id: 1 });
    let keys = |lora: &Option<Lora>, salt: Option<&str>| Keys {
        lora: lora.clone(),
        salt: salt.map(Into::into),
    };
    let mut cache = Cache::new(4, 100);
    for keys in [
        keys(&None, None),
        keys(&lora, None),
        keys(&None, Some("t1")),
        keys(&lora, Some("t1")),
        keys(&None, Some("lora-a")),
    ] {
        assert_eq!(serve(&mut cache, Prompt::new((0..9).collect(), keys, 4)), 0);
    }
    let events = cache.take_events();
    let Event::Stored { extra_keys, lora, .. } = &events[3] else { panic!("{events:?}") };
    assert_eq!(*extra_keys, [vec!["lora-a".into(), "t1".into()], vec!["lora-a".into()]]);
    assert_eq!(lora.as_ref().unwrap().id, 1);
}

#[test]
fn a_full_report_tells_hits_once_more_and_apart_from_what_is_new() {
    let mut cache = Cache::new(4, 100);
    serve(&mut cache, prompt(0..9, 4));
    let first = cache.take_events();
    let mut again = cache.admit(prompt(0..9, 4), 1, true).unwrap();
    assert_eq!(cache.take_events(), first);
    let mut longer = cache.admit(prompt(0..17, 4), 1, true).unwrap();
    let events = cache.take_events();
    assert_eq!(events[..1], first);
    let [_, Event::Stored { parent, hashes: new, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((parent.as_ref(), new.len()), (hashes(&first).0.last(), 2));
    cache.release(&mut again);
    cache.release(&mut longer);
    assert!(cache.held().values().all(|copies| *copies == 1), "a report is no copy");
}

#[test]
fn a_reset_forgets_unless_blocks_are_in_use() {
    let mut cache = Cache::new(4, 100);
    serve(&mut cache, prompt(0..9, 4));
    let mut running = cache.admit(prompt(0..9, 4), 1, false).unwrap();
    assert!(!cache.reset());
    cache.release(&mut running);
    assert!(cache.reset());
    assert_eq!(serve(&mut cache, prompt(0..9, 4)), 0);
    let events = cache.take_events();
    assert!(matches!(events[1], Event::Cleared), "the next request's batch brings it: {events:?}");
}

/// What a follower of the events believes: copies per hash, as vLLM counts them.
#[derive(Default)]
struct Follower {
    copies: HashMap<BlockHash, usize>,
    parents: HashMap<BlockHash, Option<BlockHash>>,
}

impl Follower {
    fn follow(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Stored { hashes, parent, tokens, block_size, extra_keys, .. } => {
                    assert_eq!(tokens.len(), hashes.len() * block_size);
                    assert_eq!(extra_keys.len(), hashes.len());
                    let mut parent = parent;
                    for hash in hashes {
                        *self.copies.entry(hash).or_default() += 1;
                        self.parents.insert(hash, parent);
                        parent = Some(hash);
                    }
                }
                Event::Removed(hash) => {
                    let copies = self.copies.get_mut(&hash).expect("removed but never stored");
                    *copies -= 1;
                    if *copies == 0 {
                        self.copies.remove(&hash);
                    }
                }
                Event::Cleared => self.copies.clear(),
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Which of a few prompts, how long, how many tokens it may generate.
    Admit(u32, usize, usize),
    Append(usize, u32),
    Release(usize),
    Reset,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..3u32, 1..40usize, 1..12usize).prop_map(|(p, l, g)| Step::Admit(p, l, g)),
        6 => (any::<usize>(), 0..3u32).prop_map(|(i, t)| Step::Append(i, t)),
        4 => any::<usize>().prop_map(Step::Release),
        1 => Just(Step::Reset),
    ];
    proptest::collection::vec(step, 1..200)
}

/// A running request and what it may still generate.
struct Live {
    sequence: Sequence,
    left: usize,
}

/// Prompts that share beginnings: token `i` is the same for all, until every eighth one differs.
fn family(which: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| if i % 8 == 7 { which } else { 1000 + i }).collect()
}

proptest! {
    #[test]
    fn events_tell_the_cache_exactly(steps in steps(), blocks in 10usize..24, block in 1usize..6) {
        let mut cache = Cache::new(block, blocks);
        let mut follower = Follower::default();
        let mut live: Vec<Live> = Vec::new();
        for step in steps {
            match step {
                Step::Admit(which, len, generated) => {
                    let tokens = family(which, len);
                    let held = cache.held();
                    let asked = prompt(tokens, block);
                    if let Ok(sequence) = cache.admit(asked.clone(), generated, false) {
                        // The hit is the longest closed prefix that is held, short of the last token.
                        let most = (len - 1) / block;
                        let chain = asked.hashes().iter().take(most);
                        let longest = chain.take_while(|hash| held.contains_key(hash)).count();
                        prop_assert_eq!(sequence.hit_tokens(), longest * block);
                        live.push(Live { sequence, left: generated - 1 });
                    }
                }
                Step::Append(at, token) if !live.is_empty() => {
                    let at = at % live.len();
                    if live[at].left > 0 {
                        cache.append(&mut live[at].sequence, token);
                        live[at].left -= 1;
                    }
                }
                Step::Release(at) if !live.is_empty() => {
                    let at = at % live.len();
                    cache.release(&mut live.swap_remove(at).sequence);
                }
                Step::Reset => {
                    prop_assert_eq!(cache.reset(), live.is_empty());
                }
                _ => {}
            }
            follower.follow(cache.take_events());
            let held = cache.held();
            prop_assert_eq!(&follower.copies, &held);
            prop_assert!(held.values().sum::<usize>() <= blocks);
            prop_assert!(cache.used() <= blocks);
            for hash in held.keys() {
                if let Some(parent) = follower.parents[hash] {
                    prop_assert!(held.contains_key(&parent), "a block outlived its parent");
                }
            }
        }
        for mut live in live {
            cache.release(&mut live.sequence);
        }
        prop_assert_eq!(cache.used(), 0, "all blocks come back");
        prop_assert_eq!(cache.reserved(), 0, "all reservations too");
    }
}
