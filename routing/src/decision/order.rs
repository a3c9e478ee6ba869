//! Which of the candidates comes first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::candidate::{Candidate, CandidatePool};
use super::local::Local;
use crate::policy::Policy;
use crate::{mix, ring};

/// Marks the replicas that are above their pool's bound.
pub(super) fn bound(
    policy: &Policy,
    local: &Local<'_>,
    pools: usize,
    candidates: &mut [Candidate<'_>],
) {
    for pool in 0..pools {
        let members = candidates.iter().filter(|c| c.pool == pool);
        let (weights, busy) = members.fold((0, 0), |(weights, busy), c| {
            (weights + u64::from(c.replica.weight), busy + u64::from(c.busy()))
        });
        for candidate in candidates.iter_mut().filter(|c| c.pool == pool) {
            let bound = ring::bound(&policy.ring, busy, candidate.replica.weight, weights);
            candidate.under_way = local.cold_tokens(candidate.index);
            candidate.full = candidate.busy() >= bound;
        }
    }
}

/// Marks those, too, that have as much to prefill as they may.
pub(super) fn hold_back(
    policy: &Policy,
    batch: bool,
    prompt_tokens: u32,
    candidates: &mut [Candidate<'_>],
) {
    for candidate in candidates {
        let cold = prompt_tokens.saturating_sub(candidate.hoped);
        candidate.held_back = !admits(policy, batch, candidate.under_way, cold);
        candidate.full |= candidate.held_back;
    }
}

/// Whether a replica with so many tokens in prefill takes so many more.
pub(super) fn admits(policy: &Policy, batch: bool, under_way: u32, cold: u32) -> bool {
    // What is little beside the limit doesn't make it worse, and its cache may be there alone.
    const LITTLE: f64 = 1.0 / 32.0;
    let limit = f64::from(policy.admission.cold_tokens);
    let share = if batch { policy.admission.batch_share } else { 1.0 };
    let (under_way, cold) = (f64::from(under_way), f64::from(cold));
    limit == 0.0
        || under_way == 0.0
        || under_way + cold <= limit * share
        || (!batch && cold <= limit * LITTLE)
}

/// The pool where a new prefix lives by the weights of regions; `None` where there are none.
///
/// Weighted rendezvous hashing: each pool draws a number from the key, and no key moves but those
/// that a changed weight makes move.
pub(super) fn weighted_home(key: u128, pools: &[CandidatePool<'_>]) -> Option<usize> {
    let drawn = pools.iter().enumerate().filter(|(_, pool)| pool.weight > 0.0);
    let score = |pool: &CandidatePool<'_>| {
        // From 0 to 1, neither included.
        let uniform = (mix::named_place(key, pool.name) >> 12) as f64 + 0.5;
        -(uniform / (1_u64 << 52) as f64).ln() / pool.weight
    };
    drawn.min_by(|(_, a), (_, b)| score(a).total_cmp(&score(b))).map(|(at, _)| at)
}

/// Candidates by their places, the best first. Only a few are ever asked for: a heap of many gives those
/// for less than sorting takes.
pub(super) struct Order {
    heap: BinaryHeap<Reverse<Rank>>,
    /// Whether a better one was passed over because it was full.
    pub(super) spilled: bool,
}

/// The less the better: full, far, cost, hopes, fill, place on the ring, which candidate it is.
type Rank = (bool, bool, i64, bool, u32, Reverse<u64>, usize);

impl Iterator for Order {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.heap.pop().map(|Reverse((.., at))| at)
    }
}

impl Order {
    /// The best.
    pub(super) fn first(&self) -> Option<usize> {
        self.heap.peek().map(|Reverse((.., at))| *at)
    }

    fn of(ranks: Vec<Rank>, spilled: bool) -> Self {
        Self { heap: ranks.into_iter().map(Reverse).collect(), spilled }
    }
}

/// Puts the candidates in order.
pub(super) fn order(
    policy: &Policy,
    home: Option<usize>,
    [key, spread]: [u128; 2],
    candidates: &[Candidate<'_>],
) -> Order {
    let cheapest = |of: &dyn Fn(&Candidate<'_>) -> bool| {
        let open = candidates.iter().filter(|c| !c.full && of(c));
        let first = open.min_by_key(|c| total_order(c.cost.total()));
        first.map(|c| (c.pool, c.cost, c.base))
    };
    let Some((nearest, least, base)) = cheapest(&|_| true) else {
        return order_full(key, candidates);
    };
    let limit = least.total() + policy.cost.tie_ms;
    let warm = candidates.iter().any(|c| !c.full && c.cost.total() <= limit && c.hoped > 0);
    // Where nobody that is worth it holds anything, the ring of one pool says where the prefix
    // shall live, so that those who share it meet: the pool that its weight gives it to, or the
    // cheapest. That is worth a wait as long as the prefill that it saves the next of them.
    let (home, start, base) =
        home.and_then(|home| cheapest(&|c| c.pool == home)).unwrap_or((nearest, least, base));
    let wait = start.total() + (start.prefill - base).max(policy.cost.tie_ms);
    let far = |c: &Candidate<'_>| {
        if warm { c.cost.total() > limit } else { c.pool != home || c.cost.total() > wait }
    };
    // Those who hold the same are parted by the whole prompt: were it by their first blocks, all who share a
    // prefix would crowd at the first of its holders.
    let key = if warm { spread } else { key };
    // And before that by how full their KV cache is, in steps too coarse to flap.
    let fill = |c: &Candidate<'_>| if warm { (c.load.kv_usage * 8.0) as u32 } else { 0 };
    let rank = |(at, c): (usize, &Candidate<'_>)| {
        let far = far(c);
        let cost = if far { total_order(c.cost.total()) } else { 0 };
        // What is there before what is only on its way.
        let hopes = c.hoped > c.cached;
        (c.full, far, cost, hopes, fill(c), Reverse(ring::place(key, c.replica)), at)
    };
    let ranks: Vec<Rank> = candidates.iter().enumerate().map(rank).collect();
    let spilled = ranks
        .iter()
        .min_by_key(|(_, far, cost, hopes, fill, place, at)| (far, cost, hopes, fill, place, at));
    let spilled = spilled.is_some_and(|rank| rank.0);
    Order::of(ranks, spilled)
}

/// All are full: the cheapest has the shortest queue.
fn order_full(key: u128, candidates: &[Candidate<'_>]) -> Order {
    let rank = |(at, c): (usize, &Candidate<'_>)| {
        let place = Reverse(ring::place(key, c.replica));
        (true, false, total_order(c.cost.total()), false, 0, place, at)
    };
    Order::of(candidates.iter().enumerate().map(rank).collect(), !candidates.is_empty())
}

/// A number that is ordered as `f64::total_cmp` orders.
fn total_order(cost: f64) -> i64 {
    let bits = cost.to_bits().cast_signed();
    bits ^ (((bits >> 63).cast_unsigned()) >> 1).cast_signed()
}
