//! Requests that refer to a response which one replica holds: there, or nowhere else.

use super::ask::Ask;
use super::outcome::{Outcome, Reason, Route};
use super::residency::{AdmittedPool, pools_of, zone_of};
use crate::catalogue::Wants;
use crate::cost::Cost;
use crate::policy::Policy;
use crate::view::{ReplicaState, World};

/// How many replicas are named where nobody knows which of them holds a response.
pub const MOST_SOUGHT: usize = 16;

/// Sends a request to the replica at a place of the world, which holds the response that it refers to.
/// `None` where it can't go there: the zone admits no pool of it, it is down, or of another model than
/// the request names. A full one takes it all the same, as does one that drains: no other can.
pub fn decide_stored<'a>(
    policy: &'a Policy,
    world: &World,
    ask: &Ask<'a>,
    at: usize,
) -> Option<Outcome<'a>> {
    let default = policy.zone_source.default.as_deref();
    let (zone, rule) = zone_of(&policy.zones, default, ask.zone).ok()?;
    let replica = world.replicas.get(at)?;
    let AdmittedPool { name, pool, region, cluster } =
        pools_of(policy, rule).find(|it| it.name == replica.pool)?;
    let of_model = match ask.model {
        Wants::Model { name, .. } => name == pool.model,
        // The engine has it from the response, or takes its own.
        Wants::Unnamed | Wants::Unreadable => true,
        Wants::Unknown { .. } => false,
    };
    let serves = match replica.state {
        ReplicaState::Ready | ReplicaState::Suspect | ReplicaState::Draining => true,
        // A silent relay may have said so long ago.
        ReplicaState::Down => !world.fresh,
        ReplicaState::Misfiled => false,
    };
    if !(of_model && serves) {
        return None;
    }
    let parts = [pool.region.as_str(), name, cluster];
    Some(Outcome::Route(Route {
        replicas: vec![at],
        reason: Reason::Response,
        prompt_tokens: ask.prompt_tokens,
        cost: Cost { network: region.rtt_ms, ..Cost::default() },
        ..Route::unplaced(zone, parts, None, ask.ring_key(&policy.ring))
    }))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ask, held, policy, route, world};
    use super::super::{Degrade, decide};
    use super::*;

    #[test]
    fn it_goes_where_the_response_is_if_the_zone_has_that() {
        let (policy, mut world) = (policy(), world());
        for (zone, at, goes) in [
            ("eu", 0, true),
            ("eu", 1, true),
            ("eu", 2, false),
            ("global", 2, true),
            ("no", 0, false),
        ] {
            let decided = decide_stored(&policy, &world, &ask(zone, &[]), at);
            let there = decided.as_ref().and_then(Outcome::route);
            assert_eq!(there.map(|it| it.replicas.clone()), goes.then(|| vec![at]), "{zone} {at}");
            if let Some(route) = there {
                assert_eq!((route.reason, route.degrade), (Reason::Response, None));
                assert_eq!(route.pool, world.replicas[at].pool);
                assert!(route.cluster.starts_with(zone));
            }
        }
        let goes = |world: &World, ask: &Ask<'_>| decide_stored(&policy, world, ask, 1).is_some();
        let eu = ask("eu", &[]);
        for (state, fresh, stale) in [
            (ReplicaState::Suspect, true, true),
            (ReplicaState::Draining, true, true),
            (ReplicaState::Down, false, true),
            (ReplicaState::Misfiled, false, false),
        ] {
            world.replicas[1].state = state;
            world.fresh = true;
            assert_eq!(goes(&world, &eu), fresh, "{state:?}");
            world.fresh = false;
            assert_eq!(goes(&world, &eu), stale, "{state:?}, stale");
        }
        world.replicas[1].state = ReplicaState::Ready;
        for (model, there) in [
            (Wants::Unnamed, true),
            (Wants::Unreadable, true),
            (Wants::Model { name: "other", adapter: "" }, false),
            (Wants::Unknown { name: "x", certain: true }, false),
        ] {
            assert_eq!(goes(&world, &Ask { model, ..eu }), there, "{model:?}");
        }
        assert!(decide_stored(&policy, &world, &eu, 99).is_none());
    }

    #[test]
    fn one_that_nobody_knows_is_sought_at_all_of_the_zone() {
        let (mut policy, world) = (policy(), world());
        policy.endpoints = 1;
        let degrade = Some(Degrade::UnknownResponse);
        for (zone, all) in [("eu", vec![0, 1]), ("global", vec![0, 1, 2, 3])] {
            let ask = Ask { degrade, ..ask(zone, &[]) };
            let mut found = route(&policy, &world, &ask, &held(&[])).replicas;
            found.sort_unstable();
            assert_eq!(found, all);
            let stale = World { fresh: false, ..world.clone() };
            let outcome = decide(&policy, &stale, &ask, &held(&[]));
            let route = outcome.route().unwrap();
            assert_eq!((route.degrade, route.replicas.len()), (degrade, all.len()));
        }
    }
}
