//! The one function: a request and a view of the world in, a decision with its reasons out.
//!
//! Residency comes before everything: only pools that the zone admits are looked at, and nothing
//! that follows can add one. Then the model: only its pools are. Whatever else is missing (a prompt
//! that could not be read, a stale map) costs warmth, not service.

mod explain;
mod local;
mod order;
mod outcome;
mod stored;
mod worth;

pub use local::Local;
pub use outcome::{Degrade, Outcome, Reason, Refusal, Route};
pub use stored::{MOST_SOUGHT, decide_stored};

use std::cell::OnceCell;

use worth::Worth;

use crate::catalogue::{Wants, of_zone};
use crate::cost::{Cost, CostModel, Way};
use crate::fingerprint::Key;
use crate::policy::{Policy, Zone};
use crate::prefix_map::{Lookup, Matches};
use crate::residency::{Claim, zone_of};
use crate::view::{Load, Medium, Replica, ReplicaState, World};

/// What the request says.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The zone, by the configured sources.
    pub zone: Claim<'a>,
    /// The model and the adapter on it.
    pub model: Wants<'a>,
    /// Keys of the prompt's blocks, from its start.
    pub keys: &'a [Key],
    /// Tokens of the whole prompt (estimated where it was not read to its end).
    pub prompt_tokens: u32,
    /// Keeps requests together whose prompt has no key: any hash of what they share.
    pub affinity: u128,
    /// A hash of what comes after the keys, where that was not read, being little and most likely
    /// held by nobody.
    pub left_out: Option<u128>,
    /// Why the prompt is not known, if it is not.
    pub degrade: Option<Degrade>,
}

/// A replica that may serve the request.
struct Candidate<'a> {
    index: usize,
    replica: &'a Replica,
    load: Load,
    pool: usize,
    /// Tokens held in whatever tier, by the map's word: engines report those as cached.
    cached: u32,
    /// Those of them that only slower tiers hold, and the slowest that has some.
    offloaded: u32,
    tier: Option<Medium>,
    /// Tokens held, those included that are only on their way there.
    hoped: u32,
    cost: Cost,
    /// The part of its prefill that no cache saves, in milliseconds.
    base: f64,
    /// Tokens that it has in prefill.
    under_way: u32,
    /// It has as much to prefill as it may.
    held_back: bool,
    /// That, or more in flight than its share.
    full: bool,
}

impl Candidate<'_> {
    fn busy(&self) -> u32 {
        self.load.in_flight.max(self.load.waiting.saturating_add(self.load.running))
    }

    /// Tokens that it is spared if it holds so many blocks.
    fn tokens(&self, blocks: u32, prompt_tokens: u32) -> u32 {
        self.replica.cached_tokens(blocks, prompt_tokens)
    }

    /// Its cost if it is spared so many tokens.
    fn cost_of(&self, pool: &Reachable<'_>, prompt_tokens: u32, hoped: u32) -> Cost {
        pool.prices.cost(hoped, prompt_tokens.saturating_sub(hoped), pool.way, &self.load)
    }

    /// Gives it its cost, by what it holds of the prefix and what is on its way there; whether it
    /// holds something.
    fn price(
        &mut self,
        pool: &Reachable<'_>,
        prompt_tokens: u32,
        [matches, hoped]: [&Matches; 2],
    ) -> bool {
        let (replica, prices) = (self.replica, pool.prices);
        let tokens = |blocks: u32| replica.cached_tokens(blocks, prompt_tokens);
        let on_gpu = matches.blocks(replica.slot);
        self.cached = tokens(on_gpu);
        // What was sent there a moment ago is on the GPU by now, or on its way to it.
        let soon = self.cached.max(tokens(hoped.blocks(replica.slot)));
        let mut holds = on_gpu > 0;
        let mut bringing = 0.0;
        // A shared store is believed for the sake of others too: not where events are missing.
        let tiers = replica.tiers.iter().filter(|_| replica.state == ReplicaState::Ready);
        for tier in tiers {
            let blocks = matches.blocks(tier.slot);
            holds |= blocks > 0;
            let held = tokens(blocks);
            if held > self.cached {
                bringing += prices.load(tier.medium, held.saturating_sub(soon.max(self.cached)));
                self.offloaded += held - self.cached;
                self.tier = Some(tier.medium);
                self.cached = held;
            }
        }
        self.hoped = self.cached.max(soon);
        self.cost = self.cost_of(pool, prompt_tokens, self.hoped);
        self.cost.load = bringing;
        self.base = prices.prefill_base_ms;
        holds
    }
}

/// A pool that the zone admits.
struct Reachable<'a> {
    name: &'a str,
    region: &'a str,
    cluster: &'a str,
    way: Way,
    prices: &'a CostModel,
    weight: f64,
}

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
    let Wants::Model { name: model, adapter } = ask.model else {
        return Outcome::Refuse(no_model(policy, rule, ask.model));
    };
    let mut degrade = ask.degrade;
    // Of a prompt that is known up to an image that much is looked up.
    let part = degrade == Some(Degrade::Media) && !ask.keys.is_empty();
    let pools = reachable(policy, local, rule, model);
    let Some(nearest) = pools.first() else {
        let refusal = refuse_model(policy, zone, rule, ask.model);
        return Outcome::Refuse(refusal.unwrap_or_else(|| Refusal::no_replica(zone, model)));
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
            ring_key(policy, ask),
        ));
    }

    if !of_pools().any(|replica| replica.has_adapter(adapter)) {
        return Outcome::Refuse(Refusal::adapter_not_loaded(zone, adapter));
    }

    let mut candidates = candidates(world, local, &pools, adapter);
    if candidates.is_empty() {
        return Outcome::Refuse(Refusal::no_replica(zone, model));
    }
    let believed = believed(&candidates);
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
    let key = ring_key(policy, ask);
    let holders = price(&pools, ask.prompt_tokens, [&matches, &hoped], &mut candidates);
    order::hold_back(policy, local.batch, ask.prompt_tokens, &mut candidates);
    let home = order::weighted_home(key, &pools);
    let last = ask.keys.last().map_or(ask.affinity, |key| key.number());
    // What is left out parts prompts, too.
    let spread = last ^ ask.left_out.unwrap_or_default();
    let order = order::order(policy, home, [key, spread], &candidates);
    let best = order.first().and_then(|at| candidates.get(at));
    let Some((best, pool)) = best.and_then(|best| Some((best, pools.get(best.pool)?))) else {
        return Outcome::Refuse(Refusal::no_replica(zone, model));
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

/// Why a request for this can't be served in the zone, whatever its replicas do; `None` if it may be.
pub fn refuse_model(policy: &Policy, zone: &str, rule: &Zone, wants: Wants<'_>) -> Option<Refusal> {
    let Wants::Model { name: model, .. } = wants else {
        return Some(no_model(policy, rule, wants));
    };
    if policy.pools_of(rule).any(|(_, pool, ..)| pool.model == model) {
        return None;
    }
    Some(if policy.pools.values().any(|pool| pool.model == model) {
        Refusal::model_not_in_zone(zone, &names_of(policy, rule))
    } else {
        no_model(policy, rule, Wants::Unknown { name: model, certain: true })
    })
}

/// Names that can be asked for in the zone, by the policy alone: which further ones the relay tells,
/// `GET /v1/models` says.
fn names_of<'a>(policy: &'a Policy, rule: &'a Zone) -> Vec<&'a str> {
    let none = std::iter::empty();
    of_zone(policy, &none, rule).iter().map(|entry| entry.id).collect()
}

/// The answer to a request whose model is none.
fn no_model(policy: &Policy, rule: &Zone, wants: Wants<'_>) -> Refusal {
    let names = names_of(policy, rule);
    match wants {
        Wants::Unknown { certain: false, .. } => Refusal::model_unknown(),
        Wants::Unknown { name, .. } => Refusal::model_not_found(Some(name), &names),
        Wants::Unreadable => Refusal::model_unreadable(&names),
        Wants::Unnamed | Wants::Model { .. } => Refusal::model_not_found(None, &names),
    }
}

/// The zone's pools that serve the model, the nearest first.
fn reachable<'a>(
    policy: &'a Policy,
    local: &Local<'a>,
    rule: &'a Zone,
    model: &str,
) -> Vec<Reachable<'a>> {
    let serving = policy.pools_of(rule).filter(|(_, pool, ..)| pool.model == model);
    let mut pools: Vec<Reachable<'a>> = serving
        .map(|(name, pool, region, cluster)| Reachable {
            name,
            region: &pool.region,
            cluster,
            way: Way { rtt_ms: region.rtt_ms, abroad: pool.region != policy.region },
            prices: local.prices.get(name).unwrap_or(&policy.cost),
            weight: region.weight,
        })
        .collect();
    pools.sort_by(|a, b| {
        a.way
            .abroad
            .cmp(&b.way.abroad)
            .then(a.way.rtt_ms.total_cmp(&b.way.rtt_ms))
            .then(a.name.cmp(b.name))
    });
    pools
}

fn candidates<'a>(
    world: &'a World,
    local: &Local<'_>,
    pools: &[Reachable<'_>],
    adapter: &str,
) -> Vec<Candidate<'a>> {
    let able = |usable: &dyn Fn(usize, ReplicaState) -> bool| -> Vec<Candidate<'a>> {
        let with_index = world.replicas.iter().enumerate();
        let usable = with_index.filter(|(index, replica)| {
            usable(*index, replica.state) && replica.has_adapter(adapter)
        });
        let mut able = Vec::with_capacity(world.replicas.len());
        able.extend(usable.filter_map(|(index, replica)| {
            let pool = pools.iter().position(|pool| pool.name == replica.pool)?;
            let told = world.loads.get(index).copied().unwrap_or_default();
            // What engines reported is as old as the silence; what was sent is known.
            let load = if world.fresh {
                told
            } else {
                Load { in_flight: told.in_flight, ..Load::default() }
            };
            Some(Candidate {
                index,
                replica,
                load,
                pool,
                cached: 0,
                offloaded: 0,
                tier: None,
                hoped: 0,
                cost: Cost::default(),
                base: 0.0,
                under_way: 0,
                held_back: false,
                full: false,
            })
        }));
        able
    };
    let serves = |state| matches!(state, ReplicaState::Ready | ReplicaState::Suspect);
    let well = able(&|index, state| serves(state) && !local.is_ejected(index));
    // Ejection never empties a zone: what fails here may still serve, and nothing else does.
    let ready = if well.is_empty() { able(&|_, state| serves(state)) } else { well };
    if ready.is_empty() && !world.fresh {
        // A stale view's word that all are down is no reason to refuse: Envoy's own checks know
        // better.
        return able(&|_, state| !matches!(state, ReplicaState::Draining | ReplicaState::Misfiled));
    }
    ready
}

/// Slots whose entries in the map are believed, sorted, and a candidate whose that is.
fn believed(candidates: &[Candidate<'_>]) -> Vec<(u16, usize)> {
    let mut slots = Vec::with_capacity(candidates.len());
    for (at, Candidate { replica, .. }) in candidates.iter().enumerate() {
        if replica.state == ReplicaState::Ready {
            slots.push((replica.slot, at));
            slots.extend(replica.tiers.iter().map(|tier| (tier.slot, at)));
        }
    }
    slots.sort_unstable();
    slots
}

/// Gives each candidate its cost; how many of them hold something of the prefix.
fn price(
    pools: &[Reachable<'_>],
    prompt_tokens: u32,
    held: [&Matches; 2],
    candidates: &mut [Candidate<'_>],
) -> usize {
    let mut holders = 0;
    for (at, pool) in pools.iter().enumerate() {
        for candidate in candidates.iter_mut().filter(|candidate| candidate.pool == at) {
            holders += usize::from(candidate.price(pool, prompt_tokens, held));
        }
    }
    holders
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

fn ring_key(policy: &Policy, ask: &Ask<'_>) -> u128 {
    let depth = ask.keys.len().min(policy.ring.blocks);
    depth.checked_sub(1).and_then(|at| ask.keys.get(at)).map_or(ask.affinity, |key| key.number())
}

impl<'a> Reachable<'a> {
    fn parts(&self) -> [&'a str; 3] {
        [self.region, self.name, self.cluster]
    }
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tier_tests;
