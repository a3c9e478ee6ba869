//! Gateways whose policy can't use this relay's replicas: a pool that the policy hasn't, or has for
//! another model, gets no requests, and nobody would notice but by what is missing.
//!
//! A pool of a policy without replicas here is none of that: several relays may share the pools.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::hash::BuildHasher;

use tracing::warn;

use super::message::ReplicaId;
use super::policy_pools::{Mismatch, PolicyPools};
use super::{Listener, PoolMismatch, Replica, State};

/// Bytes that the policies of all gateways take here, about; those of more aren't looked at.
const MOST_BYTES: usize = 16 << 20;
/// Warnings that are remembered, so that they come once.
const MOST_WARNED: usize = 4096;
/// Names of gateways and of models that a summary shows of each mismatch.
const SHOWN: usize = 4;

/// What a gateway told of itself.
#[derive(Debug)]
pub(super) struct Gateway {
    node: String,
    pools: PolicyPools,
}

/// What was warned of, by a hash, the latest of it.
#[derive(Debug, Default)]
pub(super) struct Warned {
    hasher: RandomState,
    all: HashSet<u64>,
    order: VecDeque<u64>,
    /// That there are more policies, and more adapters, than are kept.
    too_many_policies: bool,
    pub(super) too_many_adapters: bool,
}

impl Warned {
    /// Whether this is new.
    fn first(&mut self, node: &str, pool: &str, problem: &str) -> bool {
        let hash = self.hasher.hash_one((node, pool, problem));
        if !self.all.insert(hash) {
            return false;
        }
        self.order.push_back(hash);
        if self.order.len() > MOST_WARNED
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
        true
    }

    fn compare(&mut self, Gateway { node, pools }: &Gateway, pool: &str, model: &str) {
        let Some(mismatch) = pools.mismatch(pool, model) else { return };
        if !self.first(node, pool, mismatch.name()) {
            return;
        }
        match mismatch {
            Mismatch::NotInPolicy => warn!(
                node,
                pool,
                model,
                "the gateway's policy has no such pool, so its filter never names these replicas: \
                 name it in the policy's `pools`, or the replicas' `pool` as it is there"
            ),
            Mismatch::OtherModel(policy_model) => warn!(
                node,
                pool,
                model,
                policy_model,
                "in the gateway's policy this pool is for another model than its replicas serve, \
                 so its filter never uses them: give the model one name in both"
            ),
        }
    }
}

/// Pools and models of replicas, each once.
fn pools_of(replicas: &BTreeMap<ReplicaId, Replica>) -> BTreeSet<(&str, &str)> {
    let known = replicas.values().map(|replica| &replica.known);
    known.map(|known| (known.pool.as_str(), known.model.as_str())).collect()
}

impl State {
    /// A gateway tells the pools of its policy.
    pub(super) fn policy(&mut self, stream: u64, node: String, pools: PolicyPools) {
        let other = |listener: &&Listener| listener.id != stream;
        let others = self.listeners.iter().filter(other).filter_map(|l| l.gateway.as_ref());
        let taken: usize = others.map(|gateway| gateway.pools.bytes()).sum();
        let mut listeners = self.listeners.iter_mut();
        let Some(listener) = listeners.find(|listener| listener.id == stream) else { return };
        if listener.gateway.as_ref().is_some_and(|gateway| gateway.pools == pools) {
            return;
        }
        if taken + pools.bytes() > MOST_BYTES {
            listener.gateway = None;
            if !std::mem::replace(&mut self.warned.too_many_policies, true) {
                warn!(
                    node,
                    "gateways tell more than {MOST_BYTES} bytes of policies' pools: those of this \
                     one and of others beyond that aren't compared with the replicas'"
                );
            }
            return;
        }
        let gateway = listener.gateway.insert(Gateway { node, pools });
        for (pool, model) in pools_of(&self.replicas) {
            self.warned.compare(gateway, pool, model);
        }
    }

    /// A replica of this pool and model joins.
    pub(super) fn compare_pool(&mut self, pool: &str, model: &str) {
        for gateway in self.listeners.iter().filter_map(|listener| listener.gateway.as_ref()) {
            self.warned.compare(gateway, pool, model);
        }
    }

    /// What is so now.
    pub(super) fn pool_mismatches(&self) -> Vec<PoolMismatch> {
        let own = pools_of(&self.replicas);
        let open = self.listeners.iter().filter(|listener| !listener.sender.is_closed());
        let mut all: BTreeMap<(&str, &str, &str), PoolMismatch> = BTreeMap::new();
        for Gateway { node, pools } in open.filter_map(|listener| listener.gateway.as_ref()) {
            for &(pool, model) in &own {
                let Some(mismatch) = pools.mismatch(pool, model) else { continue };
                let problem = mismatch.name();
                let row = all.entry((pool, model, problem)).or_insert_with(|| PoolMismatch {
                    pool: pool.to_owned(),
                    model: model.to_owned(),
                    problem,
                    policy_models: BTreeSet::new(),
                    gateways: 0,
                    nodes: BTreeSet::new(),
                });
                row.gateways += 1;
                if row.nodes.len() < SHOWN {
                    row.nodes.insert(node.clone());
                }
                if let Mismatch::OtherModel(of) = mismatch
                    && row.policy_models.len() < SHOWN
                {
                    row.policy_models.insert(of.to_owned());
                }
            }
        }
        all.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_warned_of_is_remembered_within_bounds() {
        let mut warned = Warned::default();
        assert!(warned.first("n", "p", "a"));
        assert!(!warned.first("n", "p", "a"));
        assert!(warned.first("n", "p", "b") && warned.first("n", "q", "a"));
        assert!(warned.first("m", "p", "a"));
        for node in 0..2 * MOST_WARNED {
            warned.first(&node.to_string(), "p", "a");
        }
        assert_eq!((warned.all.len(), warned.order.len()), (MOST_WARNED, MOST_WARNED));
        assert!(!warned.first(&(2 * MOST_WARNED - 1).to_string(), "p", "a"), "the latest stay");
    }
}
