//! No request leaves its zone, whatever is held, loaded, down, stale or asked.

use proptest::prelude::*;

use super::residency::Claim;
use super::tests::{Held, any_load, ask, held, keys, policy, refusal, route, world};
use super::*;
use crate::recent::Recent;
use crate::view::{Replica, ReplicaState};

#[test]
fn a_zone_is_never_left_however_warm_it_is_elsewhere() {
    let (policy, world, keys) = (policy(), world(), keys(1, 500));
    let map = held(&[(2, 500), (3, 500)]);
    let there = route(&policy, &world, &ask("global", &keys), &map);
    assert_eq!((there.reason, there.region), (Reason::Warm, "us-east"), "8,000 tokens for 79 ms");
    let here = route(&policy, &world, &ask("eu", &keys), &map);
    assert_eq!((here.reason, here.region), (Reason::Cold, "eu-west"));
    assert!(here.replicas.iter().all(|r| *r < 2));
}

#[test]
fn a_policy_that_nobody_checked_lets_nothing_out_either() {
    let (mut policy, world, keys) = (policy(), world(), keys(1, 500));
    let eu = policy.zones.get_mut("eu").unwrap();
    eu.clusters.insert("demo-us-east".into(), "eu.demo-us-east".into());
    let route = route(&policy, &world, &ask("eu", &keys), &held(&[(2, 500), (3, 500)]));
    assert_eq!(route.region, "eu-west");
    assert!(route.replicas.iter().all(|r| *r < 2));
}

#[test]
fn without_a_zone_a_request_is_refused_unless_configured() {
    let (mut policy, world, keys) = (policy(), world(), keys(1, 4));
    let nowhere = Ask { zone: Claim::Silent, ..ask("eu", &keys) };
    let refused = refusal(&policy, &world, &nowhere);
    assert_eq!((refused.status, refused.code), (403, "zone_missing"));
    assert_eq!(refusal(&policy, &world, &ask("mars", &keys)).code, "zone_unknown");
    policy.zone_source.default = Some("eu".into());
    assert_eq!(route(&policy, &world, &nowhere, &held(&[])).zone, "eu");
    let refused = refusal(&policy, &world, &ask("mars", &keys));
    assert_eq!(refused.code, "zone_unknown", "a default is for none, not for a wrong one");
    assert!(
        serde_json::from_str::<serde_json::Value>(&refused.body()).unwrap()["error"].is_object()
    );
}

proptest! {
    /// Residency has no exception, whatever is held, loaded, down, stale or asked.
    #[test]
    fn nothing_leaves_its_zone(
        loads in proptest::collection::vec(any_load(), 4),
        blocks in proptest::collection::btree_map(0u16..4, 0u32..60, 0..4),
        states in proptest::collection::vec(0u8..5, 4),
        fresh in any::<bool>(),
        degraded in any::<bool>(),
        ejected in proptest::collection::vec(any::<bool>(), 4),
        cold_tokens in proptest::collection::vec(0u32..400_000, 4),
        weights in (0u8..3, 0u8..3),
        sent in proptest::collection::vec(0u16..4, 0..4),
    ) {
        let (mut policy, mut world, keys) = (policy(), world(), keys(3, 60));
        world.loads = loads;
        world.fresh = fresh;
        policy.regions.get_mut("eu-west").unwrap().weight = f64::from(weights.0);
        policy.regions.get_mut("us-east").unwrap().weight = f64::from(weights.1);
        for (replica, state) in world.replicas.iter_mut().zip(states) {
            replica.state = [
                ReplicaState::Ready, ReplicaState::Suspect, ReplicaState::Draining,
                ReplicaState::Down, ReplicaState::Misfiled,
            ][usize::from(state)];
        }
        let asked = Ask {
            degrade: degraded.then_some(Degrade::BadRequest),
            ..ask("eu", &keys)
        };
        let map = Held(blocks);
        let mut recent = Recent::default();
        for slot in sent {
            recent.sent(&keys, 0, slot, 1_000);
        }
        let local = Local {
            ejected: &ejected, cold_tokens: &cold_tokens, recent: Some(recent.at(1_000)),
            ..Local::default()
        };
        let outcome = decide_with(&policy, &world, &local, &asked, &map);
        let again = decide_with(&policy, &world, &local, &asked, &map);
        prop_assert_eq!(&outcome, &again, "deterministic");
        if let Outcome::Route(route) = outcome {
            prop_assert_eq!(route.region, "eu-west");
            prop_assert_eq!(route.cluster, "eu.demo-eu-west");
            prop_assert!(route.replicas.iter().all(|r| *r < 2), "{:?}", route.replicas);
            let usable = |r: &usize| !matches!(
                world.replicas[*r].state, ReplicaState::Draining | ReplicaState::Misfiled
            );
            prop_assert!(route.replicas.iter().all(usable));
        } else {
            let serves = |r: &Replica| matches!(
                r.state, ReplicaState::Ready | ReplicaState::Suspect
            );
            prop_assert!(!world.replicas[..2].iter().any(serves), "refused though one could serve");
        }
    }
}
