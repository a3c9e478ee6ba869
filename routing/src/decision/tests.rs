//! Which replica comes first, by what is held, how busy it is, and what the gateway knows by itself.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::residency::Claim;
use super::*;
use crate::cost::CostModel;
use crate::fingerprint::Key;
use crate::policy::tests::two_regions;
use crate::prefix_map::{Match, Wanted};
use crate::recent::Recent;
use crate::view::{Load, Replica, ReplicaState};

/// A map of which each slot holds so many blocks of any prompt.
pub(crate) struct Held(pub(crate) BTreeMap<u16, u32>);

impl Lookup for Held {
    fn matches(&self, keys: &[Key], wanted: &dyn Wanted) -> Matches {
        let found = self
            .0
            .iter()
            .filter(|(slot, _)| wanted.wants(**slot))
            .map(|(slot, blocks)| Match { slot: *slot, blocks: (*blocks).min(keys.len() as u32) });
        Matches { found: found.filter(|m| m.blocks > 0).collect(), probes: 1, first: None }
    }
}

pub(crate) fn held(slots: &[(u16, u32)]) -> Held {
    Held(slots.iter().copied().collect())
}

pub(crate) fn policy() -> Policy {
    let policy: Policy = serde_json::from_value(two_regions()).unwrap();
    policy.check().unwrap();
    policy
}

/// Slots 0 and 1 in the EU, 2 and 3 in the US.
pub(crate) fn world() -> World {
    let replica = |slot: u16| Replica {
        slot,
        endpoint: format!("10.0.0.{slot}:8000"),
        rank: None,
        pool: if slot < 2 { "demo-eu-west" } else { "demo-us-east" }.into(),
        block_tokens: 16,
        dropped_tokens: 0,
        state: ReplicaState::Ready,
        weight: Replica::PLAIN,
        tiers: Vec::new(),
        ends: None,
        adapters: None,
    };
    World { replicas: (0..4).map(replica).collect(), loads: vec![Load::default(); 4], fresh: true }
}

pub(crate) fn keys(seed: u64, blocks: u64) -> Vec<Key> {
    (0..blocks)
        .map(|block| {
            let hash = blake3::hash(&[seed.to_le_bytes(), block.to_le_bytes()].concat());
            Key(*hash.as_bytes().first_chunk().unwrap())
        })
        .collect()
}

/// The model of all pools.
pub(crate) const DEMO: Wants<'static> = Wants::Model { name: "demo", adapter: "" };

pub(crate) fn ask<'a>(zone: &'a str, keys: &'a [Key]) -> Ask<'a> {
    Ask {
        zone: Claim::Zone(zone),
        model: DEMO,
        keys,
        prompt_tokens: keys.len() as u32 * 16 + 5,
        affinity: 7,
        left_out: None,
        degrade: None,
    }
}

pub(crate) fn route<'a>(
    policy: &'a Policy,
    world: &'a World,
    ask: &Ask<'a>,
    map: &Held,
) -> Route<'a> {
    match decide(policy, world, ask, map) {
        Outcome::Route(route) => route,
        Outcome::Refuse(refusal) => panic!("{refusal:?}"),
    }
}

pub(crate) fn refusal(policy: &Policy, world: &World, ask: &Ask<'_>) -> Refusal {
    match decide(policy, world, ask, &held(&[])) {
        Outcome::Refuse(refusal) => refusal,
        Outcome::Route(route) => panic!("{route:?}"),
    }
}

#[test]
fn the_replica_that_holds_the_prefix_gets_it() {
    let (policy, world, keys) = (policy(), world(), keys(1, 100));
    for slot in [0, 1] {
        let route = route(&policy, &world, &ask("eu", &keys), &held(&[(slot, 100)]));
        assert_eq!(route.replicas[0], usize::from(slot));
        assert_eq!((route.reason, route.cached_tokens), (Reason::Warm, 1600));
        assert_eq!((route.region, route.cluster), ("eu-west", "eu.demo-eu-west"));
        assert_eq!(route.replicas.len(), 2, "the other one of the zone for retries, no more");
    }
}

#[test]
fn holders_of_the_same_are_parted_by_what_was_left_out() {
    let (policy, world, keys) = (policy(), world(), keys(1, 100));
    let map = held(&[(0, 99), (1, 99), (2, 100)]);
    let first = |left_out| {
        let route = route(&policy, &world, &Ask { left_out, ..ask("eu", &keys) }, &map);
        assert_eq!((route.deepest, route.cached_tokens), (99, 99 * 16), "of those of the zone");
        route.replicas[0]
    };
    let hashes: Vec<u128> = self::keys(2, 64).iter().map(|key| key.number()).collect();
    let zeros = hashes.iter().filter(|hash| first(Some(**hash)) == 0).count();
    assert!((16..48).contains(&zeros), "{zeros} of 64");
}

#[test]
fn another_region_is_worth_it_only_when_it_saves_more_than_the_way() {
    let (policy, world) = (policy(), world());
    let short = keys(1, 10);
    let map = held(&[(2, 10)]);
    let near = route(&policy, &world, &ask("global", &short), &map);
    assert_eq!(near.region, "eu-west", "60 ms of prefill are not worth 79 ms of network");
    let long = keys(1, 20);
    let map = held(&[(2, 20)]);
    assert_eq!(route(&policy, &world, &ask("global", &long), &map).region, "us-east");
}

#[test]
fn cold_prefixes_meet_and_spread() {
    let (policy, world) = (policy(), world());
    let mut seen = [0; 2];
    for prefix in 0..200 {
        let mut long = keys(prefix, 16);
        let first = route(&policy, &world, &ask("eu", &long), &held(&[])).replicas[0];
        long.extend(keys(prefix + 1000, 30));
        let second = route(&policy, &world, &ask("eu", &long), &held(&[]));
        assert_eq!((second.reason, second.replicas[0]), (Reason::Cold, first));
        seen[first] += 1;
    }
    assert!(seen.iter().all(|n| (70..130).contains(n)), "{seen:?}");
}

#[test]
fn a_full_replica_is_passed_over() {
    let (policy, mut world, keys) = (policy(), world(), keys(1, 10));
    world.loads[0].in_flight = 30;
    world.loads[0].running = 30;
    let route = route(&policy, &world, &ask("eu", &keys), &held(&[(0, 10)]));
    assert_eq!((route.replicas[0], route.spilled), (1, true));
}

#[test]
fn a_long_queue_outweighs_a_short_prefix() {
    let (policy, mut world, keys) = (policy(), world(), keys(1, 4));
    world.loads[0].waiting = 3;
    let route = route(&policy, &world, &ask("eu", &keys), &held(&[(0, 4)]));
    assert_eq!((route.replicas[0], route.reason), (1, Reason::Cold));
}

#[test]
fn a_stale_map_is_not_asked() {
    let (policy, mut world, keys) = (policy(), world(), keys(1, 100));
    world.fresh = false;
    let map = held(&[(0, 100), (1, 100)]);
    let stale = route(&policy, &world, &ask("eu", &keys), &map);
    assert_eq!((stale.reason, stale.degrade), (Reason::Ring, Some(Degrade::StaleMap)));
    assert_eq!(stale.cached_tokens, 0);
    let place = stale.replicas[0];
    world.fresh = true;
    let ring = route(&policy, &world, &ask("eu", &keys), &held(&[]));
    assert_eq!(place, ring.replicas[0], "the same ring as for cold prefixes");
}

#[test]
fn a_replica_that_is_down_or_draining_gets_nothing_but_where_the_map_is_stale() {
    let (policy, mut world, keys) = (policy(), world(), keys(1, 100));
    world.replicas[0].state = ReplicaState::Down;
    let map = held(&[(0, 100)]);
    let other = route(&policy, &world, &ask("eu", &keys), &map);
    assert_eq!((other.replicas.as_slice(), other.reason), ([1].as_slice(), Reason::Cold));
    world.replicas[1].state = ReplicaState::Draining;
    let refused = refusal(&policy, &world, &ask("eu", &keys));
    assert_eq!((refused.status, refused.retry_after), (503, Some(1)));
    world.fresh = false;
    let tried = route(&policy, &world, &ask("eu", &keys), &map);
    assert_eq!(tried.replicas, [0], "a stale word that it is down is not believed");
    world.fresh = true;
    world.replicas[0].state = ReplicaState::Suspect;
    let suspect = route(&policy, &world, &ask("eu", &keys), &map);
    assert_eq!((suspect.replicas.as_slice(), suspect.cached_tokens), ([0].as_slice(), 0));
}

#[test]
fn what_comes_before_an_image_is_looked_up() {
    let (policy, mut world, keys) = (policy(), world(), keys(1, 100));
    let map = held(&[(0, 100)]);
    let media = |keys| Ask { degrade: Some(Degrade::Media), ..ask("eu", keys) };
    let known = route(&policy, &world, &media(&keys), &map);
    assert_eq!((known.reason, known.degrade), (Reason::Warm, Some(Degrade::Media)));
    assert_eq!(known.cached_tokens, route(&policy, &world, &ask("eu", &keys), &map).cached_tokens);
    let unknown = route(&policy, &world, &media(&[]), &map);
    assert_eq!((unknown.reason, unknown.degrade), (Reason::Ring, Some(Degrade::Media)));
    world.fresh = false;
    let stale = route(&policy, &world, &media(&keys), &map);
    assert_eq!((stale.reason, stale.degrade), (Reason::Ring, Some(Degrade::StaleMap)));
}

#[test]
fn what_is_not_known_degrades() {
    let (policy, mut world, keys) = (policy(), world(), keys(1, 100));
    let map = held(&[(0, 100)]);
    let bad = Ask { degrade: Some(Degrade::BadRequest), ..ask("eu", &[]) };
    assert_eq!(route(&policy, &world, &bad, &map).degrade, Some(Degrade::BadRequest));
    world.replicas.clear();
    let unplaced = route(&policy, &world, &ask("eu", &keys), &map);
    assert_eq!((unplaced.reason, unplaced.cluster), (Reason::Unplaced, "eu.demo-eu-west"));
    assert!(unplaced.replicas.is_empty());
}

#[test]
fn a_decision_explains_itself_in_one_line() {
    let (policy, world, keys) = (policy(), world(), keys(1, 3));
    let route = route(&policy, &world, &ask("eu", &keys), &held(&[(1, 2)]));
    // No name of a block: this line goes into logs.
    assert_eq!(
        route.explain(&world),
        "zone=\"eu\", region=\"eu-west\", pool=\"demo-eu-west\", replica=\"10.0.0.1:8000\", \
         reason=\"warm\", cached=32, prompt=53, blocks=3, holders=1, probes=1, \
         prefill_ms=28.0, network_ms=1.0, queue_ms=0.0"
    );
}

#[test]
fn ranks_of_one_endpoint_are_named_once() {
    let (policy, mut world, keys) = (policy(), world(), keys(1, 100));
    for rank in 0..2 {
        world.replicas[rank].endpoint = "10.0.0.9:8000".into();
        world.replicas[rank].rank = Some(rank as u32);
    }
    let route = route(&policy, &world, &ask("eu", &keys), &held(&[(1, 100)]));
    assert_eq!(route.replicas, [1]);
}

#[test]
fn retries_are_named_only_where_the_rank_is_the_first_ones() {
    let (policy, mut world, keys) = (policy(), world(), keys(1, 100));
    world.replicas[0].rank = Some(1);
    let names = |world: &World, degrade| {
        let ask = Ask { degrade, ..ask("eu", &keys) };
        let route = route(&policy, world, &ask, &held(&[(0, 100)]));
        assert_eq!(route.replicas.len(), 2);
        assert_eq!(route.cold_tokens(), 1_605 - route.hoped_tokens);
        route.named(world).map(|(at, _)| at).collect::<Vec<_>>()
    };
    assert_eq!(names(&world, None), [0]);
    assert_eq!(names(&world, Some(Degrade::UnknownResponse)).len(), 2, "it may be at any");
    world.replicas[1].rank = Some(1);
    assert_eq!(names(&world, None), [0, 1]);
}

fn route_with<'a>(
    policy: &'a Policy,
    world: &'a World,
    local: &Local<'a>,
    ask: &Ask<'a>,
    map: &Held,
) -> Route<'a> {
    match decide_with(policy, world, local, ask, map) {
        Outcome::Route(route) => route,
        Outcome::Refuse(refusal) => panic!("{refusal:?}"),
    }
}

#[test]
fn a_replica_that_fails_is_left_alone_but_never_the_last_of_a_zone() {
    let (policy, mut world, keys) = (policy(), world(), keys(1, 100));
    let map = held(&[(0, 100)]);
    let local = Local { ejected: &[true, false], ..Local::default() };
    let other = route_with(&policy, &world, &local, &ask("eu", &keys), &map);
    assert_eq!(other.replicas, [1], "not even for a retry");
    let local = Local { ejected: &[true, true], ..Local::default() };
    let last = route_with(&policy, &world, &local, &ask("eu", &keys), &map);
    assert_eq!(last.replicas, [0, 1], "as if none were ejected");
    world.replicas[1].state = ReplicaState::Draining;
    let local = Local { ejected: &[true], ..Local::default() };
    let last = route_with(&policy, &world, &local, &ask("eu", &keys), &map);
    assert_eq!(last.replicas, [0], "draining is no way out");
}

#[test]
fn a_burst_of_one_prefix_meets_within_its_bound() {
    let (policy, mut world) = (policy(), world());
    let mut recent = Recent::default();
    let mut counts = [0; 2];
    let mut first = None;
    for request in 0..20 {
        // A system prompt of six blocks, with tails of two: the ring alone would scatter them.
        let mut prompt = keys(1, 6);
        prompt.extend(keys(100 + request, 2));
        let local = Local { recent: Some(recent.at(1_000)), ..Local::default() };
        let route = route_with(&policy, &world, &local, &ask("eu", &prompt), &held(&[]));
        let at = route.replicas[0];
        if request == 0 {
            assert_eq!((route.reason, route.hoped_tokens), (Reason::Cold, 0));
            first = Some(at);
        } else if Some(at) == first {
            assert_eq!((route.reason, route.cached_tokens), (Reason::Recent, 0));
            assert_eq!(route.hoped_tokens, 96);
        }
        recent.sent(&prompt, 0, at as u16, 1_000);
        counts[at] += 1;
        // The engine takes them all into its batch at once.
        world.loads[at].in_flight += 1;
        world.loads[at].running += 1;
    }
    let there = counts[first.unwrap()];
    assert!((8..=16).contains(&there), "{counts:?}");
    world.fresh = false;
    let prompt = keys(1, 6);
    let local = Local { recent: Some(recent.at(1_000)), ..Local::default() };
    let stale = route_with(&policy, &world, &local, &ask("eu", &prompt), &held(&[]));
    assert_eq!((stale.reason, stale.hoped_tokens), (Reason::Ring, 0));
}

#[test]
fn a_replica_takes_only_so_many_cold_tokens() {
    let (mut policy, world, long) = (policy(), world(), keys(1, 400));
    policy.admission.cold_tokens = 10_000;
    let home = route(&policy, &world, &ask("eu", &long), &held(&[])).replicas[0];
    let sent_to = |under_way: u32, batch: bool, keys: &[Key], map: &[(u16, u32)]| {
        let mut cold_tokens = [0; 2];
        cold_tokens[home] = under_way;
        let local = Local { cold_tokens: &cold_tokens, batch, ..Local::default() };
        let route = route_with(&policy, &world, &local, &ask("eu", keys), &held(map));
        (route.replicas[0] == home, route.spilled)
    };
    assert_eq!(sent_to(3_000, false, &long, &[]), (true, false), "6,405 more make 9,405");
    assert_eq!(sent_to(4_000, false, &long, &[]), (false, true));
    assert_eq!(sent_to(3_000, true, &long, &[]), (false, true), "batch fills half");
    assert_eq!(sent_to(0, true, &long, &[]), (true, false), "one is taken however long");
    let warm = [(home as u16, 400)];
    assert_eq!(sent_to(90_000, false, &long, &warm), (true, false), "little is left to do");
    assert_eq!(sent_to(90_000, true, &long, &warm), (false, true));
    // Both have more than they may: the cheapest, and no refusal.
    let local = Local { cold_tokens: &[90_000; 2], ..Local::default() };
    let mut busy = world.clone();
    busy.loads[home].waiting = 1;
    let route = route_with(&policy, &busy, &local, &ask("eu", &long), &held(&[]));
    assert!(route.spilled && route.replicas[0] != home);
    // Which is a reason to wait; one that has room is none, nor is a full share of what is in flight.
    assert!(route.crowded);
    let crowded = |cold_tokens: &[u32], batch: bool, busy: u32| {
        let mut world = world.clone();
        world.loads[home].in_flight = busy;
        let local = Local { cold_tokens, batch, ..Local::default() };
        route_with(&policy, &world, &local, &ask("eu", &long), &held(&[])).crowded
    };
    assert!(!crowded(&[90_000, 0], false, 0) && !crowded(&[0, 90_000], false, 0));
    assert!(!crowded(&[0, 0], false, 50));
    assert!(crowded(&[3_000; 2], true, 0) && !crowded(&[3_000; 2], false, 0), "batch waits first");
}

#[test]
fn a_standby_gets_its_share_of_new_prefixes() {
    let (mut policy, world) = (policy(), world());
    policy.regions.get_mut("eu-west").unwrap().weight = 90.0;
    policy.regions.get_mut("us-east").unwrap().weight = 10.0;
    let region = |policy: &Policy, world: &World, prefix: u64| {
        route(policy, world, &ask("global", &keys(prefix, 20)), &held(&[])).region.to_owned()
    };
    let abroad = |policy: &Policy, world: &World| -> Vec<u64> {
        (0..1_000).filter(|prefix| region(policy, world, *prefix) == "us-east").collect()
    };
    let standby = abroad(&policy, &world);
    assert!((70..130).contains(&standby.len()), "{}", standby.len());
    // A zone without the standby is as it was, and a standby that is gone is no loss.
    for prefix in &standby {
        let keys = keys(*prefix, 20);
        assert_eq!(route(&policy, &world, &ask("eu", &keys), &held(&[])).region, "eu-west");
    }
    let mut gone = world.clone();
    gone.replicas[2].state = ReplicaState::Down;
    gone.replicas[3].state = ReplicaState::Down;
    assert!(abroad(&policy, &gone).is_empty());
    // More weight moves keys to it, and none away.
    policy.regions.get_mut("us-east").unwrap().weight = 20.0;
    let more = abroad(&policy, &world);
    assert!(more.len() > standby.len() && standby.iter().all(|prefix| more.contains(prefix)));
}

#[test]
fn holders_of_the_same_share_its_requests() {
    let (policy, world) = (policy(), world());
    let mut counts = [0; 2];
    for tail in 0..200 {
        let mut prompt = keys(1, 20);
        prompt.extend(keys(1_000 + tail, 2));
        let route = route(&policy, &world, &ask("eu", &prompt), &held(&[(0, 20), (1, 20)]));
        assert_eq!(route.reason, Reason::Warm);
        counts[route.replicas[0]] += 1;
    }
    assert!(counts.iter().all(|n| (70..130).contains(n)), "{counts:?}");
}

#[test]
fn learned_prices_are_those_of_their_pool() {
    let (policy, world, keys) = (policy(), world(), keys(1, 20));
    let cheap = CostModel { prefill_ms_per_1k_tokens: 1.0, ..CostModel::default() };
    let prices = [("demo-eu-west".to_owned(), cheap)].into();
    let local = Local { prices: &prices, ..Local::default() };
    let map = held(&[(2, 20)]);
    assert_eq!(route(&policy, &world, &ask("global", &keys), &map).region, "us-east");
    let here = route_with(&policy, &world, &local, &ask("global", &keys), &map);
    assert_eq!(here.region, "eu-west", "computing it here is cheaper than the way");
}

prop_compose! {
    pub(crate) fn any_load()(waiting in 0u32..50, running in 0u32..50, in_flight in 0u32..50, kv in 0f32..1.0)
        -> Load {
        Load { waiting, running, in_flight, kv_usage: kv, rtt_us: 0 }
    }
}

proptest! {
    /// The first choice never stands above its bound while another stands below.
    #[test]
    fn no_replica_is_buried(
        loads in proptest::collection::vec(any_load(), 4),
        blocks in proptest::collection::btree_map(0u16..4, 0u32..60, 0..4),
    ) {
        let (policy, mut world, keys) = (policy(), world(), keys(3, 60));
        world.loads = loads;
        let route = route(&policy, &world, &ask("eu", &keys), &Held(blocks));
        let busy = |i: usize| {
            let load = &world.loads[i];
            load.in_flight.max(load.waiting + load.running)
        };
        let bound = crate::ring::bound(&policy.ring, u64::from(busy(0)) + u64::from(busy(1)), Replica::PLAIN, 200);
        prop_assert!(busy(route.replicas[0]) < bound);
    }
}
