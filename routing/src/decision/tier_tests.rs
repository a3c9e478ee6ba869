//! Tiers: what a prefix costs that is held, but not on the GPU.

use proptest::prelude::*;

use super::tests::{Held, ask, held, keys, policy, route, world};
use super::*;
use crate::cost::cached_tokens;
use crate::recent::Recent;
use crate::view::{Medium, ReplicaState, Tier};

const BLOCKS: u64 = 256;

fn tier(medium: Medium, slot: u16) -> Tier {
    Tier { medium, slot }
}

/// Replica 0 offloads to CPU (slot 10) and disk (11); both European ones share a store (12).
fn tiered() -> World {
    let mut world = world();
    let shared = tier(Medium::Shared, 12);
    world.replicas[0].tiers = vec![tier(Medium::Cpu, 10), tier(Medium::Disk, 11), shared];
    world.replicas[1].tiers = vec![shared];
    world
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

#[test]
fn what_only_a_slower_tier_holds_costs_its_way_in_and_counts_as_cached() {
    let (policy, world, keys) = (policy(), tiered(), keys(1, BLOCKS));
    let ask = ask("eu", &keys);
    let cost = &policy.cost;
    let map = held(&[(0, 64), (10, 128), (11, 192)]);
    let chosen = route(&policy, &world, &ask, &map);
    assert_eq!(chosen.replicas.first(), Some(&0));
    assert_eq!((chosen.reason, chosen.tier), (Reason::Warm, Some(Medium::Disk)));
    assert_eq!((chosen.cached_tokens, chosen.offloaded_tokens), (192 * 16, 128 * 16));
    let bringing = cost.load(Medium::Cpu, 64 * 16) + cost.load(Medium::Disk, 64 * 16);
    assert!(near(chosen.cost.load, bringing), "{:?}", chosen.cost);
    assert!(near(chosen.cost.prefill, cost.prefill(192 * 16, ask.prompt_tokens - 192 * 16)));
    let line = chosen.explain(&world);
    assert!(line.contains(r#"tier="disk", offloaded=2048, load_ms=76.8"#), "{line}");
    // A shared store that holds no more than the replica's own tiers adds nothing.
    let map = held(&[(0, 64), (10, 128), (12, 128)]);
    let chosen = route(&policy, &world, &ask, &map);
    assert_eq!((chosen.tier, chosen.offloaded_tokens), (Some(Medium::Cpu), 64 * 16));
    // Without tiers nothing is new.
    let chosen = route(&policy, &world, &ask, &held(&[(0, 64)]));
    assert_eq!((chosen.tier, chosen.offloaded_tokens, chosen.holders), (None, 0, 1));
    assert!(!chosen.explain(&world).contains("tier"));
}

#[test]
fn the_gpu_is_worth_more_than_the_disk_and_the_disk_more_than_nothing() {
    let (policy, world, keys) = (policy(), tiered(), keys(1, BLOCKS));
    let ask = ask("eu", &keys);
    let first = |map: &Held| route(&policy, &world, &ask, map).replicas.first().copied();
    assert_eq!(first(&held(&[(11, 256), (1, 256)])), Some(1));
    assert_eq!(first(&held(&[(11, 256)])), Some(0));
    assert_eq!(first(&held(&[(11, 256), (1, 16)])), Some(0));
    // The CPU's copy of all is cheaper than prefill of a quarter.
    assert_eq!(first(&held(&[(10, 256), (1, 192)])), Some(0));
}

#[test]
fn a_shared_store_serves_all_who_share_it_and_are_heard() {
    let (policy, mut world, keys) = (policy(), tiered(), keys(1, BLOCKS));
    let ask = ask("eu", &keys);
    let map = held(&[(12, 256)]);
    let chosen = route(&policy, &world, &ask, &map);
    assert_eq!((chosen.holders, chosen.tier), (2, Some(Medium::Shared)));
    world.replicas[0].state = ReplicaState::Suspect;
    let chosen = route(&policy, &world, &ask, &map);
    assert_eq!((chosen.holders, chosen.replicas.first()), (1, Some(&1)));
}

#[test]
fn what_was_sent_a_moment_ago_is_brought_in_once() {
    let (policy, world, keys) = (policy(), tiered(), keys(1, BLOCKS));
    let ask = ask("eu", &keys);
    let mut recent = Recent::default();
    recent.sent(&keys, 0, 0, 1_000);
    let local = Local { recent: Some(recent.at(1_001)), ..Local::default() };
    let map = held(&[(10, 256)]);
    let Outcome::Route(chosen) = decide_with(&policy, &world, &local, &ask, &map) else { panic!() };
    assert_eq!((chosen.cached_tokens, chosen.offloaded_tokens), (4096, 4096));
    assert!(near(chosen.cost.load, 0.0), "it is on its way already");
}

proptest! {
    /// Against a plain model: each tier's longest match, whatever of it the faster ones hold.
    #[test]
    fn a_replica_costs_what_its_tiers_say(
        blocks in proptest::array::uniform4(0u32..300), block_tokens in 0u32..70, drops: bool,
    ) {
        let (policy, mut world, keys) = (policy(), tiered(), keys(1, BLOCKS));
        world.replicas.truncate(1);
        world.loads.truncate(1);
        world.replicas[0].block_tokens = block_tokens;
        let dropped = if drops { block_tokens } else { 0 };
        world.replicas[0].dropped_tokens = dropped;
        let ask = ask("eu", &keys);
        let slots = [0, 10, 11, 12].into_iter().zip(blocks).filter(|(_, blocks)| *blocks > 0);
        let map = Held(slots.collect());
        let chosen = route(&policy, &world, &ask, &map);
        let tokens: Vec<u32> = blocks
            .iter()
            .map(|b| cached_tokens((*b).min(BLOCKS as u32), block_tokens, dropped, ask.prompt_tokens - 1))
            .collect();
        let mut reach = tokens[0];
        let mut bringing = 0.0;
        for (medium, held) in Medium::ALL.into_iter().zip(&tokens[1..]) {
            for _ in reach..*held {
                bringing += policy.cost.load(medium, 1);
            }
            reach = reach.max(*held);
        }
        prop_assert_eq!(chosen.cached_tokens, reach);
        prop_assert_eq!(chosen.offloaded_tokens, reach - tokens[0]);
        prop_assert!(near(chosen.cost.load, bringing), "{} {}", chosen.cost.load, bringing);
        prop_assert_eq!(chosen.holders, usize::from(blocks.iter().any(|b| *b > 0)));
    }
}
