//! Candidates: the replicas that may serve a request, and what each would cost.

use super::local::Local;
use super::residency::{AdmittedPool, pools_of};
use crate::cost::{Cost, CostModel, Way};
use crate::policy::{Policy, Zone};
use crate::prefix_map::Matches;
use crate::view::{Load, Medium, Replica, ReplicaState, World};

/// A pool of the request's zone and model.
pub(super) struct CandidatePool<'a> {
    pub(super) name: &'a str,
    pub(super) region: &'a str,
    pub(super) cluster: &'a str,
    pub(super) way: Way,
    pub(super) prices: &'a CostModel,
    pub(super) weight: f64,
}

impl<'a> CandidatePool<'a> {
    /// Region, name and cluster.
    pub(super) fn parts(&self) -> [&'a str; 3] {
        [self.region, self.name, self.cluster]
    }
}

/// The zone's pools that serve the model, the nearest first.
pub(super) fn candidate_pools<'a>(
    policy: &'a Policy,
    local: &Local<'a>,
    rule: &'a Zone,
    model: &str,
) -> Vec<CandidatePool<'a>> {
    let serving = pools_of(policy, rule).filter(|it| it.pool.model == model);
    let mut pools: Vec<CandidatePool<'a>> = serving
        .map(|AdmittedPool { name, pool, region, cluster }| CandidatePool {
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

/// A replica that may serve the request.
pub(super) struct Candidate<'a> {
    pub(super) index: usize,
    pub(super) replica: &'a Replica,
    pub(super) load: Load,
    pub(super) pool: usize,
    /// Tokens held in whatever tier, by the map's word: engines report those as cached.
    pub(super) cached: u32,
    /// Those of them that only slower tiers hold, and the slowest that has some.
    pub(super) offloaded: u32,
    pub(super) tier: Option<Medium>,
    /// Tokens held, those included that are only on their way there.
    pub(super) hoped: u32,
    pub(super) cost: Cost,
    /// The part of its prefill that no cache saves, in milliseconds.
    pub(super) base: f64,
    /// Tokens that it has in prefill.
    pub(super) under_way: u32,
    /// It has as much to prefill as it may.
    pub(super) held_back: bool,
    /// That, or more in flight than its share.
    pub(super) full: bool,
}

impl Candidate<'_> {
    pub(super) fn busy(&self) -> u32 {
        self.load.in_flight.max(self.load.waiting.saturating_add(self.load.running))
    }

    /// Tokens that it is spared if it holds so many blocks.
    pub(super) fn tokens(&self, blocks: u32, prompt_tokens: u32) -> u32 {
        self.replica.cached_tokens(blocks, prompt_tokens)
    }

    /// Its cost if it is spared so many tokens.
    pub(super) fn cost_of(&self, pool: &CandidatePool<'_>, prompt_tokens: u32, hoped: u32) -> Cost {
        pool.prices.cost(hoped, prompt_tokens.saturating_sub(hoped), pool.way, &self.load)
    }

    /// Gives it its cost, by what it holds of the prefix and what is on its way there; whether it
    /// holds something.
    fn price(
        &mut self,
        pool: &CandidatePool<'_>,
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

/// The replicas of these pools that may serve a request for the adapter.
pub(super) fn candidates<'a>(
    world: &'a World,
    local: &Local<'_>,
    pools: &[CandidatePool<'_>],
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
            let reported = world.loads.get(index).copied().unwrap_or_default();
            // What engines reported is as old as the silence; what was sent is known.
            let load = if world.fresh {
                reported
            } else {
                Load { in_flight: reported.in_flight, ..Load::default() }
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
pub(super) fn believed(candidates: &[Candidate<'_>]) -> Vec<(u16, usize)> {
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
pub(super) fn price(
    pools: &[CandidatePool<'_>],
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
