//! The one function: a request and a view of the world in, a decision with its reasons out.
//!
//! Residency comes before everything ([`residency`]): only pools that the zone admits are looked at, and
//! nothing that follows can add one. Then the model (`model.rs`): only its pools are. The replicas of those
//! that may serve are the candidates (`candidate.rs`), each with its cost; which of them comes first
//! says `order.rs`. Whatever else is missing (a prompt that could not be read, a stale map) costs warmth,
//! not service.

mod ask;
mod candidate;
mod explain;
mod local;
mod model;
mod order;
mod outcome;
pub(crate) mod refusal;
pub mod residency;
mod stored;
mod worth;

pub use ask::Ask;
pub use local::Local;
pub use model::refuse_model;
pub use outcome::{Degrade, Outcome, Reason, Route};
pub use refusal::Refusal;
pub use stored::{MOST_SOUGHT, decide_stored};

use std::cell::OnceCell;

use candidate::Candidate;
use residency::zone_of;
use worth::Worth;

use crate::catalogue::Wants;
use crate::policy::Policy;
use crate::prefix_map::{Lookup, Matches};
use crate::view::World;

/// Decides where a request goes, by what the relay says alone.
pub fn decide<'a>(
    policy: &'a Policy,
    world: &'a World,
    ask: &Ask<'a>,
    map: &dyn Lookup,
) -> Outcome<'a> {
    decide_with(policy, world, &Local::default(), ask, map)
}

/// Decides where a request goes.
pub fn decide_with<'a>(
    policy: &'a Policy,
    world: &'a World,
    local: &Local<'a>,
    ask: &Ask<'a>,
    map: &dyn Lookup,
) -> Outcome<'a> {
    let (zone, rule) = match zone_of(&policy.zones, policy.zone_source.default.as_deref(), ask.zone)
    {
        Ok(found) => found,
        Err(why) => return Outcome::Refuse(why.into()),
    };
    let Wants::Model { name, adapter } = ask.model else {
        return Outcome::Refuse(model::no_model(policy, rule, ask.model));
    };
    let mut degrade = ask.degrade;
    // Of a prompt that is known up to an image that much is looked up.
    let part = degrade == Some(Degrade::Media) && !ask.keys.is_empty();
    let pools = candidate::candidate_pools(policy, local, rule, name);
    let Some(nearest) = pools.first() else {
        let refusal = refuse_model(policy, zone, rule, ask.model);
        return Outcome::Refuse(refusal.unwrap_or_else(|| Refusal::no_replica(zone, name)));
    };
    let part = part && world.fresh;
    if !world.fresh {
        degrade = degrade.filter(|why| *why != Degrade::Media).or(Some(Degrade::StaleMap));
    }
    let of_pools =
        || world.replicas.iter().filter(|r| pools.iter().any(|pool| pool.name == r.pool));
    if of_pools().next().is_none() {
        return Outcome::Route(Route::unplaced(
            zone,
            nearest.parts(),
            degrade,
            ask.ring_key(&policy.ring),
        ));
    }

    if !of_pools().any(|replica| replica.has_adapter(adapter)) {
        return Outcome::Refuse(Refusal::adapter_not_loaded(zone, adapter));
    }

    let mut candidates = candidate::candidates(world, local, &pools, adapter);
    if candidates.is_empty() {
        return Outcome::Refuse(Refusal::no_replica(zone, name));
    }
    let believed = candidate::believed(&candidates);
    let wanted = |slot: u16| believed.binary_search_by_key(&slot, |(slot, _)| *slot).is_ok();
    let hoped = match local.recent {
        // Slots mean something only while the view is the map's.
        Some(recent) if world.fresh => recent.matches(ask.keys, &wanted),
        _ => Matches::default(),
    };
    order::bound(policy, local, pools.len(), &mut candidates);
    let matches = match degrade.filter(|_| !part) {
        None => {
            let batch = local.batch;
            let worth = Worth {
                policy,
                pools: &pools,
                candidates: &candidates,
                believed: &believed,
                batch,
                prompt_tokens: ask.prompt_tokens,
                hoped: &hoped,
                limit: OnceCell::new(),
            };
            map.matches(ask.keys, &worth)
        }
        Some(_) => Matches::default(),
    };
    let key = ask.ring_key(&policy.ring);
    let holders = candidate::price(&pools, ask.prompt_tokens, [&matches, &hoped], &mut candidates);
    order::hold_back(policy, local.batch, ask.prompt_tokens, &mut candidates);
    let home = order::weighted_home(key, &pools);
    let last = ask.keys.last().map_or(ask.affinity, |key| key.number());
    // What is left out parts prompts, too.
    let spread = last ^ ask.left_out.unwrap_or_default();
    let order = order::order(policy, home, [key, spread], &candidates);
    let best = order.first().and_then(|at| candidates.get(at));
    let Some((best, pool)) = best.and_then(|best| Some((best, pools.get(best.pool)?))) else {
        return Outcome::Refuse(Refusal::no_replica(zone, name));
    };
    let reason = match degrade.filter(|_| !part) {
        Some(_) => Reason::Ring,
        None if best.cached > 0 => Reason::Warm,
        None if best.hoped > 0 => Reason::Recent,
        None => Reason::Cold,
    };
    Outcome::Route(Route {
        zone,
        region: pool.region,
        pool: pool.name,
        cluster: pool.cluster,
        spilled: order.spilled,
        replicas: named(most_named(policy, degrade), world, &candidates, order),
        reason,
        degrade,
        crowded: candidates.iter().all(|candidate| candidate.held_back),
        cached_tokens: best.cached,
        offloaded_tokens: best.offloaded,
        tier: best.tier,
        hoped_tokens: best.hoped,
        prompt_tokens: ask.prompt_tokens,
        blocks: ask.keys.len(),
        last_key: ask.keys.last().copied(),
        cost: best.cost,
        ring_key: key,
        holders,
        deepest: [&matches, &hoped].map(Matches::deepest).into_iter().max().unwrap_or_default(),
        probes: matches.probes,
    })
}

/// How many endpoints are named: a response of which nobody knows where it is may be at any.
fn most_named(policy: &Policy, degrade: Option<Degrade>) -> usize {
    if degrade == Some(Degrade::UnknownResponse) { MOST_SOUGHT } else { policy.endpoints }
}

/// The endpoints for Envoy, best first, each once.
fn named(
    most: usize,
    world: &World,
    candidates: &[Candidate<'_>],
    order: impl Iterator<Item = usize>,
) -> Vec<usize> {
    let mut named = Vec::with_capacity(most);
    for candidate in order.filter_map(|at| candidates.get(at)) {
        if named.len() >= most {
            break;
        }
        let endpoint = &candidate.replica.endpoint;
        let is_it = |at: &usize| world.replicas.get(*at).is_some_and(|r| r.endpoint == *endpoint);
        if !named.iter().any(is_it) {
            named.push(candidate.index);
        }
    }
    named
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod residency_tests;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod tier_tests;
