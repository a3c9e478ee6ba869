//! The law, against a model.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

/// An engine for the law: chains over few tokens, so that prefixes are shared often.
#[derive(Default)]
struct Model {
    /// Hash and tier → copies.
    held: BTreeMap<(u64, u32), u32>,
    /// Hash → parent and all tokens up to its end.
    content: BTreeMap<u64, (Option<u64>, Vec<u32>)>,
}

impl Model {
    fn holds(&self, hash: u64, slowest: u32) -> bool {
        (0..=slowest).any(|tier| self.held.contains_key(&(hash, tier)))
    }

    /// What is held in the tier or in a faster one.
    fn expected(&self, slowest: u32) -> BTreeSet<Key> {
        let mut expected = BTreeSet::new();
        'blocks: for &(hash, _) in self.held.keys() {
            let mut at = Some(hash);
            while let Some(hash) = at {
                if !self.holds(hash, slowest) {
                    continue 'blocks;
                }
                at = self.content[&hash].0;
            }
            expected.extend(keys("", "", &self.content[&hash].1));
        }
        expected
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A path through a tree of prefixes; blocks from..to of it are stored in one event.
    Store {
        flavour: u64,
        path: Vec<u8>,
        from: usize,
        medium: Medium,
    },
    Remove {
        pick: usize,
    },
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u64..2, prop::collection::vec(0u8..3, 1..6), 0usize..6, 0u8..6).prop_map(
            |(flavour, path, from, medium)| {
                let medium = match medium {
                    4 => Medium::Cpu,
                    5 => Medium::Disk,
                    _ => Medium::Gpu,
                };
                Step::Store { flavour, path, from, medium }
            }
        ),
        6 => any::<usize>().prop_map(|pick| Step::Remove { pick }),
        1 => Just(Step::Clear),
    ]
}

fn hash_of(flavour: u64, path: &[u8]) -> u64 {
    path.iter().fold(flavour + 1, |hash, &step| hash * 4 + 1 + u64::from(step))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_announced_is_the_closed_set_of_what_is_held(
        size in prop::sample::select(vec![1u32, 3, 8, 16, 20, 32, 48]),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut bench = Bench::new(Duplicates::Count);
        let mut model = Model::default();
        let mut used = BTreeSet::from([0]);
        for step in steps {
            match step {
                Step::Store { flavour, path, from, medium } => {
                    let from = from.min(path.len() - 1);
                    let tokens_of = |depth: usize| -> Vec<u32> {
                        path[..depth]
                            .iter()
                            .enumerate()
                            .flat_map(|(i, &step)| {
                                // Flavours differ in their hashes only: the same tokens.
                                (0..size).map(move |t| i as u32 * 1000 + u32::from(step) * 100 + t)
                            })
                            .collect()
                    };
                    let hashes: Vec<u64> =
                        (from..path.len()).map(|i| hash_of(flavour, &path[..=i])).collect();
                    let parent = (from > 0).then(|| hash_of(flavour, &path[..from]));
                    for (i, &hash) in (from..).zip(&hashes) {
                        let parent = (i > 0).then(|| hash_of(flavour, &path[..i]));
                        model.content.insert(hash, (parent, tokens_of(i + 1)));
                        *model.held.entry((hash, slot_of(medium))).or_default() += 1;
                        used.insert(slot_of(medium));
                    }
                    bench.store(Stored {
                        hashes: hashes.into_iter().map(h).collect(),
                        parent: parent.map(h),
                        tokens: tokens_of(path.len())[from * size as usize..].to_vec(),
                        block_size: size,
                        medium,
                        ..Stored::default()
                    });
                }
                Step::Remove { pick } => {
                    let Some(&copy) = model.held.keys().nth(pick % model.held.len().max(1)) else {
                        continue;
                    };
                    let copies = model.held.get_mut(&copy).unwrap();
                    *copies -= 1;
                    if *copies == 0 {
                        model.held.remove(&copy);
                    }
                    bench.apply(&dropped(&[copy.0], MEDIA[copy.1 as usize]));
                }
                Step::Clear => {
                    model.held.clear();
                    used = BTreeSet::from([0]);
                    bench.apply(&Event::Cleared);
                }
            }
            for tier in 0..3 {
                let expected =
                    if used.contains(&tier) { model.expected(tier) } else { BTreeSet::new() };
                prop_assert_eq!(bench.reader.keys_of(tier), expected, "tier {}", tier);
            }
            let held: BTreeSet<u64> = model.held.keys().map(|(hash, _)| *hash).collect();
            prop_assert_eq!(bench.view.held_blocks(), held.len());
        }
        for (&(hash, tier), &copies) in &model.held {
            bench.apply(&dropped(&vec![hash; copies as usize], MEDIA[tier as usize]));
        }
        prop_assert_eq!(bench.view.known_blocks(), 0, "nothing leaks");
        prop_assert_eq!(bench.view.waiting_tokens(), 0);
    }

    #[test]
    fn in_doubt_less_is_claimed_never_more(
        steps in prop::collection::vec(step(), 1..120),
        limit in prop::option::of(4usize..40),
    ) {
        let limits = Limits { blocks: limit.unwrap_or(1000), ..Limits::default() };
        let mut exact = Bench::new(Duplicates::Count);
        let mut doubting = Bench::with(Duplicates::Doubt, limits);
        let mut hashes = HashSet::new();
        for step in steps {
            let event = match step {
                Step::Store { flavour, path, .. } => {
                    let list: Vec<u64> =
                        (0..path.len()).map(|i| hash_of(flavour, &path[..=i])).collect();
                    hashes.extend(list.iter().copied());
                    let tokens = path.iter().flat_map(|&step| {
                        (0..16).map(move |t| u32::from(step) * 100 + t)
                    });
                    Event::Stored(Stored {
                        hashes: list.into_iter().map(h).collect(),
                        tokens: tokens.collect(),
                        block_size: 16,
                        ..Stored::default()
                    })
                }
                Step::Remove { pick } => {
                    let mut all: Vec<u64> = hashes.iter().copied().collect();
                    all.sort_unstable();
                    let Some(&hash) = all.get(pick % all.len().max(1)) else { continue };
                    removed(&[hash])
                }
                Step::Clear => Event::Cleared,
            };
            exact.apply(&event);
            doubting.apply(&event);
            prop_assert!(doubting.reader.keys().is_subset(&exact.reader.keys()));
        }
    }
}
