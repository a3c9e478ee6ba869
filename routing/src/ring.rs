//! Consistent hashing with bounded loads.
//!
//! The ring is rendezvous hashing: each replica has a place per key, and the keys of a replica that
//! leaves spread over the others while all other keys stay. A place depends on the replica's
//! endpoint and rank, not on its slot, so that it outlives the replica's cache.

use crate::mix;
use crate::policy::Ring;
use crate::view::Replica;

/// The replica's place for a key: the highest comes first. One of twice the weight is first for
/// twice as many keys, and a weight that changes moves no more keys than it must.
pub fn place(key: u128, replica: &Replica) -> u64 {
    const STEPS: f64 = (1_u64 << 53) as f64;
    let place = mix::place(key, &replica.endpoint, replica.rank);
    if replica.weight == Replica::PLAIN {
        return place;
    }
    // Weighted rendezvous hashing: of numbers drawn evenly from 0 to 1, each to the power of one
    // by its weight, the greatest.
    let even = ((place >> 11) as f64 + 0.5) / STEPS;
    let weight = f64::from(replica.weight.max(1)) / f64::from(Replica::PLAIN);
    ((even.powf(1.0 / weight) * STEPS) as u64) << 11
}

/// How many requests in flight fill a replica of this `weight` when `in_flight` are at all replicas
/// together, whose weights have this sum.
pub fn bound(ring: &Ring, in_flight: u64, weight: u16, sum: u64) -> u32 {
    let mean = (in_flight + 1) as f64 * f64::from(weight) / sum.max(1) as f64;
    let bound = (ring.load_factor * mean).ceil();
    (bound as u32).max(ring.load_floor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::ReplicaState;

    fn replica(n: usize) -> Replica {
        Replica {
            slot: n as u16,
            endpoint: format!("10.0.0.{n}:8000"),
            rank: None,
            pool: "p".into(),
            block_tokens: 16,
            dropped_tokens: 0,
            state: ReplicaState::Ready,
            weight: Replica::PLAIN,
            tiers: Vec::new(),
            ends: None,
            adapters: None,
        }
    }

    fn key(n: u32) -> u128 {
        u128::from_le_bytes(blake3::hash(&n.to_le_bytes()).as_bytes()[..16].try_into().unwrap())
    }

    fn first(key: u128, replicas: &[Replica]) -> &str {
        &replicas.iter().max_by_key(|r| place(key, r)).unwrap().endpoint
    }

    #[test]
    fn golden_places_never_change() {
        assert_eq!(place(1, &replica(1)), 0xcb7f_b02d_b259_0549);
        assert_eq!(place(key(7), &Replica { rank: Some(3), ..replica(2) }), 0x4180_c7cc_b559_d6a6);
    }

    #[test]
    fn keys_spread_evenly_and_move_only_when_they_must() {
        let all: Vec<Replica> = (0..8).map(replica).collect();
        let fewer: Vec<Replica> = all.iter().filter(|r| r.slot != 3).cloned().collect();
        let mut counts = std::collections::BTreeMap::<&str, u32>::new();
        for n in 0..8000 {
            let place = first(key(n), &all);
            *counts.entry(place).or_default() += 1;
            if place != all[3].endpoint {
                assert_eq!(first(key(n), &fewer), place);
            }
        }
        assert_eq!(counts.len(), 8);
        assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_weight_draws_its_share_and_moves_only_what_it_must() {
        let plain: Vec<Replica> = (0..8).map(replica).collect();
        let mut heavy = plain.clone();
        heavy[3].weight = 2 * Replica::PLAIN;
        let mut light = plain.clone();
        light[3].weight = Replica::PLAIN / 2;
        let third = plain[3].endpoint.as_str();
        let [mut before, mut more, mut fewer] = [0; 3];
        for n in 0..9000 {
            let (at, with, without) =
                (first(key(n), &plain), first(key(n), &heavy), first(key(n), &light));
            before += u32::from(at == third);
            more += u32::from(with == third);
            fewer += u32::from(without == third);
            assert!(with == at || with == third, "what moves goes to the heavier one");
            assert!(without == at || at == third, "what moves leaves the lighter one");
        }
        // An eighth, two ninths and a fifteenth.
        assert!((1025..1225).contains(&before), "{before}");
        assert!((1850..2150).contains(&more), "{more}");
        assert!((530..670).contains(&fewer), "{fewer}");
    }

    #[test]
    fn a_place_is_the_endpoints_and_ranks_whatever_the_slot() {
        let heavy = Replica { weight: 300, ..replica(1) };
        assert_eq!(heavy.name(), replica(1).name(), "a weight is no other replica");
        let a = replica(1);
        assert_ne!(place(5, &a), place(5, &Replica { rank: Some(0), ..a.clone() }));
        assert_eq!(place(5, &a), place(5, &Replica { slot: 99, ..a.clone() }), "a new cache");
    }

    #[test]
    fn the_bound_follows_the_mean_above_its_floor() {
        let ring = Ring { load_factor: 1.25, load_floor: 4, ..Ring::default() };
        assert_eq!(bound(&ring, 0, Replica::PLAIN, 400), 4);
        assert_eq!(bound(&ring, 399, Replica::PLAIN, 400), 125);
        assert_eq!((bound(&ring, 499, 200, 500), bound(&ring, 499, 100, 500)), (250, 125));
        assert_eq!(bound(&ring, 10, 0, 0), 4, "no replicas is no division by zero");
    }
}
