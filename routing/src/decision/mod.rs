//! The one function: a request and a view of the world in, a decision with its reasons out.
//!
//! Residency comes before everything: only pools that the zone admits are looked at, and nothing
//! that follows can add one. Whatever else is missing (a prompt that could not be read, a stale
//! map, a model nobody knows) costs warmth, not service.

mod explain;
mod outcome;

pub use outcome::{Degrade, Outcome, Reason, Refusal, Route};

use crate::cost::{Cost, cached_tokens};
use crate::fingerprint::Key;
use crate::policy::{Policy, Zone};
use crate::prefix_map::{Lookup, Matches};
use crate::ring;
use crate::view::{Load, Replica, ReplicaState, World};

/// What the request says.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The zone, from the configured source; `None` if it says nothing.
    pub zone: Option<&'a str>,
    /// The model, by the name that pools use; `None` if unknown.
    pub model: Option<&'a str>,
    /// Keys of the prompt's blocks, from its start.
    pub keys: &'a [Key],
    /// Tokens of the whole prompt (estimated where it was not read to its end).
    pub prompt_tokens: u32,
    /// Keeps requests together whose prompt has no key: any hash of what they share.
    pub affinity: u128,
    /// Why the prompt is not known, if it is not.
    pub degrade: Option<Degrade>,
}

/// A replica that may serve the request.
struct Candidate<'a> {
    index: usize,
    replica: &'a Replica,
    load: Load,
    pool: usize,
    cached: u32,
    cost: Cost,
    place: u64,
    full: bool,
}

impl Candidate<'_> {
    fn busy(&self) -> u32 {
        self.load.in_flight.max(self.load.waiting.saturating_add(self.load.running))
    }
}

/// A pool that the zone admits.
struct Reachable<'a> {
    name: &'a str,
    region: &'a str,
    cluster: &'a str,
    rtt_ms: f64,
}

/// Decides where a request goes.
pub fn decide<'a>(
    policy: &'a Policy,
    world: &'a World,
    ask: &Ask<'a>,
    map: &dyn Lookup,
) -> Outcome<'a> {
    let (zone, rule) = match zone(policy, ask.zone) {
        Ok(found) => found,
        Err(refusal) => return Outcome::Refuse(refusal),
    };
    let mut degrade = ask.degrade;
    let mut pools = reachable(policy, rule, ask.model);
    if pools.is_empty() {
        degrade = degrade.or(Some(Degrade::UnknownModel));
        pools = reachable(policy, rule, None);
    }
    let Some(nearest) = pools.first() else {
        return Outcome::Refuse(Refusal::no_replica(zone));
    };
    if !world.fresh {
        degrade = degrade.or(Some(Degrade::StaleMap));
    }
    if !world.replicas.iter().any(|r| pools.iter().any(|pool| pool.name == r.pool)) {
        return Outcome::Route(Route::unplaced(
            zone,
            nearest.parts(),
            degrade,
            ring_key(policy, ask),
        ));
    }

    let mut candidates = candidates(policy, world, &pools);
    if candidates.is_empty() {
        return Outcome::Refuse(Refusal::no_replica(zone));
    }
    let matches = match degrade {
        None => {
            let believed = believed(&candidates);
            map.matches(ask.keys, &|slot| believed.binary_search(&slot).is_ok())
        }
        Some(_) => Matches::default(),
    };
    let key = ring_key(policy, ask);
    price(policy, &pools, ask.prompt_tokens, &matches, key, &mut candidates);
    fill(policy, pools.len(), &mut candidates);
    let (chosen, spilled) = choose(policy, &candidates);

    let Some(best) = chosen.first() else {
        return Outcome::Refuse(Refusal::no_replica(zone));
    };
    let Some(pool) = pools.get(best.pool) else {
        return Outcome::Refuse(Refusal::no_replica(zone));
    };
    let reason = match degrade {
        Some(_) => Reason::Ring,
        None if best.cached > 0 => Reason::Warm,
        None => Reason::Cold,
    };
    Outcome::Route(Route {
        zone,
        region: pool.region,
        pool: pool.name,
        cluster: pool.cluster,
        replicas: chosen.iter().map(|candidate| candidate.index).collect(),
        reason,
        degrade,
        spilled,
        cached_tokens: best.cached,
        prompt_tokens: ask.prompt_tokens,
        blocks: ask.keys.len(),
        last_key: ask.keys.last().copied(),
        cost: best.cost,
        ring_key: key,
        holders: matches.found.len(),
        probes: matches.probes,
    })
}

fn zone<'a>(policy: &'a Policy, asked: Option<&str>) -> Result<(&'a str, &'a Zone), Refusal> {
    let name = match (asked, &policy.zone_source.default) {
        (Some(name), _) => name,
        (None, Some(name)) => name,
        (None, None) => return Err(Refusal::zone_missing()),
    };
    let found = policy.zones.get_key_value(name).ok_or_else(Refusal::zone_unknown)?;
    Ok((found.0, found.1))
}

/// The zone's pools that serve the model, the nearest first.
fn reachable<'a>(policy: &'a Policy, rule: &'a Zone, model: Option<&str>) -> Vec<Reachable<'a>> {
    let mut pools: Vec<Reachable<'a>> = rule
        .clusters
        .iter()
        .filter_map(|(name, cluster)| {
            let pool = policy.pools.get(name)?;
            let region = policy.regions.get(&pool.region)?;
            // Checked when the policy was loaded; residency is worth asking twice.
            let inside = rule.admits(&pool.region, region);
            let serves = model.is_none_or(|model| pool.model == model);
            (inside && serves).then_some(Reachable {
                name,
                region: &pool.region,
                cluster,
                rtt_ms: region.rtt_ms,
            })
        })
        .collect();
    pools.sort_by(|a, b| {
        let abroad = |pool: &Reachable<'_>| pool.region != policy.region;
        abroad(a).cmp(&abroad(b)).then(a.rtt_ms.total_cmp(&b.rtt_ms)).then(a.name.cmp(b.name))
    });
    pools
}

fn candidates<'a>(
    policy: &Policy,
    world: &'a World,
    pools: &[Reachable<'_>],
) -> Vec<Candidate<'a>> {
    let able = |fresh_only: bool| -> Vec<Candidate<'a>> {
        let able = |state| match state {
            ReplicaState::Ready | ReplicaState::Suspect => true,
            ReplicaState::Draining => false,
            ReplicaState::Down => !fresh_only,
        };
        let with_index = world.replicas.iter().enumerate();
        with_index
            .filter(|(_, replica)| able(replica.state))
            .filter_map(|(index, replica)| {
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
                    cost: policy.cost.cost(0, 0.0, &load),
                    place: 0,
                    full: false,
                })
            })
            .collect()
    };
    let ready = able(true);
    // A stale view's word that all are down is no reason to refuse: Envoy's own checks know better.
    if ready.is_empty() && !world.fresh { able(false) } else { ready }
}

/// Slots whose entries in the map are believed, sorted.
fn believed(candidates: &[Candidate<'_>]) -> Vec<u16> {
    let ready = candidates.iter().filter(|c| c.replica.state == ReplicaState::Ready);
    let mut slots: Vec<u16> = ready.map(|c| c.replica.slot).collect();
    slots.sort_unstable();
    slots
}

fn price(
    policy: &Policy,
    pools: &[Reachable<'_>],
    prompt_tokens: u32,
    matches: &Matches,
    key: u128,
    candidates: &mut [Candidate<'_>],
) {
    for candidate in candidates {
        let replica = candidate.replica;
        let blocks = matches.blocks(replica.slot);
        candidate.cached = cached_tokens(blocks, replica.block_tokens, prompt_tokens);
        let rtt_ms = pools.get(candidate.pool).map_or(0.0, |pool| pool.rtt_ms);
        let uncached = prompt_tokens.saturating_sub(candidate.cached);
        candidate.cost = policy.cost.cost(uncached, rtt_ms, &candidate.load);
        candidate.place = ring::place(key, replica);
    }
}

/// Marks the replicas that are above their pool's bound.
fn fill(policy: &Policy, pools: usize, candidates: &mut [Candidate<'_>]) {
    for pool in 0..pools {
        let members = candidates.iter().filter(|c| c.pool == pool);
        let (count, busy) =
            members.fold((0, 0), |(n, busy), c| (n + 1, busy + u64::from(c.busy())));
        let bound = ring::bound(&policy.ring, busy, count);
        for candidate in candidates.iter_mut().filter(|c| c.pool == pool) {
            candidate.full = candidate.busy() >= bound;
        }
    }
}

/// The best, at most one per endpoint and as many as are named to Envoy, the very best first. Says
/// too whether a better one was passed over because it was full.
fn choose<'c, 'a>(
    policy: &Policy,
    candidates: &'c [Candidate<'a>],
) -> (Vec<&'c Candidate<'a>>, bool) {
    let cost = |c: &&Candidate<'_>| c.cost.total();
    let open = || candidates.iter().filter(|c| !c.full);
    let Some(cheapest) = open().min_by(|a, b| cost(a).total_cmp(&cost(b))) else {
        // Never so: a bound lies above the mean. But if it were, one is better than none.
        return (candidates.iter().take(1).collect(), false);
    };
    let limit = cost(&cheapest) + policy.cost.tie_ms;
    let warm = open().any(|c| c.cost.total() <= limit && c.cached > 0);
    // Where nobody that is worth it holds anything, the ring of the cheapest pool says where the
    // prefix shall live, so that those who share it meet. That is worth a wait as long as the
    // prefill that it saves the next of them.
    let home = cheapest.pool;
    let wait = limit.max(cost(&cheapest) + cheapest.cost.prefill - policy.cost.prefill_base_ms);
    let far = move |c: &Candidate<'_>| {
        if warm { c.cost.total() > limit } else { c.pool != home || c.cost.total() > wait }
    };
    // Equals are parted by how full their KV cache is, in steps too coarse to flap.
    let fill = move |c: &Candidate<'_>| if warm { (c.load.kv_usage * 8.0) as u32 } else { 0 };
    let order = move |a: &Candidate<'_>, b: &Candidate<'_>| {
        let by_cost = if far(a) && far(b) {
            a.cost.total().total_cmp(&b.cost.total())
        } else {
            std::cmp::Ordering::Equal
        };
        far(a)
            .cmp(&far(b))
            .then(by_cost)
            .then(fill(a).cmp(&fill(b)))
            .then(b.place.cmp(&a.place))
            .then(a.index.cmp(&b.index))
    };
    let spilled = candidates.iter().min_by(|a, b| order(a, b)).is_some_and(|c| c.full);
    // Few are named: looking for the best some times is less work than sorting all.
    let most = policy.endpoints.max(1);
    let mut chosen: Vec<&Candidate<'_>> = Vec::with_capacity(most);
    while chosen.len() < most {
        let endpoint = |c: &Candidate<'a>| &c.replica.endpoint;
        let fresh = |c: &&Candidate<'a>| chosen.iter().all(|seen| endpoint(seen) != endpoint(c));
        let left = candidates.iter().filter(fresh);
        let Some(next) = left.min_by(|a, b| a.full.cmp(&b.full).then_with(|| order(a, b))) else {
            break;
        };
        chosen.push(next);
    }
    (chosen, spilled)
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
mod tests;
