//! A picture of the state, for those who look at it.

use std::collections::BTreeMap;

use super::{Known, Listener, PoolMismatch, Replica, State, Store};
use crate::events::Medium;
use crate::gauges::Sleep;
use crate::index::{GroupSummary, Judged, Seen};
use crate::message::ReplicaId;
use crate::ranks::Problem;

/// A picture for the admin endpoint.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Summary {
    /// Side-streams open now.
    pub streams: usize,
    /// Side-streams opened so far.
    pub streams_opened: u64,
    /// Side-streams ended because they didn't keep up.
    pub streams_too_slow: u64,
    /// Each replica.
    pub replicas: Vec<ReplicaSummary>,
    /// Each shared store that was heard of.
    pub stores: Vec<StoreSummary>,
    /// Each pool whose replicas get no requests from a gateway, by the gateway's policy.
    pub pool_mismatches: Vec<PoolMismatch>,
}

/// A picture of a store that several engines share.
#[derive(Debug, Clone, serde::Serialize)]
#[allow(missing_docs, reason = "the names are the keys of the admin endpoint's JSON")]
pub struct StoreSummary {
    pub store: String,
    pub slot: u32,
    pub held_blocks: usize,
    pub announced_prefixes: usize,
    pub view_cleared: u64,
    pub events: Seen,
}

/// A picture of a replica's slower tier. One of its own holds what the faster ones hold, too.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[allow(missing_docs, reason = "the names are the keys of the admin endpoint's JSON")]
pub struct TierSummary {
    pub tier: &'static str,
    pub slot: u32,
    pub announced_prefixes: usize,
}

/// Where hits may end, of an engine of several KV cache groups.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[allow(missing_docs, reason = "the names are the keys of the admin endpoint's JSON")]
pub struct EndsSummary {
    pub slot: u32,
    pub announced: usize,
}

/// A picture of one replica.
#[allow(clippy::struct_excessive_bools, reason = "they are independent of each other")]
#[derive(Debug, Clone, serde::Serialize)]
#[allow(missing_docs, reason = "the names are the keys of the admin endpoint's JSON")]
pub struct ReplicaSummary {
    pub endpoint: String,
    pub rank: Option<u32>,
    /// The data-parallel rank that its batches carry.
    pub events_rank: Option<u32>,
    /// The data-parallel ranks that its engine's API has, as far as its metrics tell.
    pub engine_ranks: Vec<u32>,
    /// What its engine is, by its metrics.
    pub engine_kind: Option<&'static str>,
    /// The same, if the model's prompts are made for another kind.
    pub other_engine: Option<&'static str>,
    /// Why its ranks can't be right.
    pub rank_problem: Option<&'static str>,
    pub pool: String,
    pub model: String,
    pub slot: u32,
    pub state: &'static str,
    pub hears_events: bool,
    pub silent_under_load: bool,
    pub drained_by_hand: bool,
    /// How deep it sleeps; nothing of one that is awake.
    pub asleep: Option<&'static str>,
    pub wrong_model: Option<String>,
    /// Where its engine has its model from, as far as it says.
    pub root: Option<String>,
    /// Another replica of its model has it from elsewhere.
    pub other_root: bool,
    /// Its engine says that it keeps no prefix cache.
    pub caches_nothing: bool,
    /// Its engine speculates, and its model doesn't say how: it may drop a block of each hit.
    pub speculates_unsaid: bool,
    /// The LoRA adapters that are loaded there, where that is known.
    pub adapters: Option<Vec<String>>,
    pub last_sequence: Option<u64>,
    pub block_tokens: u32,
    /// What its engine drops behind a hit.
    pub dropped_tokens: u32,
    /// What it can take beside others; 1 is a plain replica.
    pub weight: f64,
    pub held_engine_blocks: usize,
    pub known_engine_blocks: usize,
    pub announced_prefixes: usize,
    /// Its events were not heard from the first one on, so that it may hold more.
    pub joined_late: bool,
    /// Prefixes that answers taught for that reason.
    pub taught_prefixes: usize,
    pub taught: Judged,
    pub tiers: Vec<TierSummary>,
    /// The KV cache groups that it told of.
    pub groups: Vec<GroupSummary>,
    /// Where hits may end, of an engine of several groups.
    pub ends: Option<EndsSummary>,
    pub waiting_tokens: usize,
    pub requests_waiting: Option<u32>,
    pub requests_running: Option<u32>,
    pub kv_usage: Option<f32>,
    /// The network's round trip to it, in milliseconds.
    pub rtt_ms: Option<f64>,
    pub batches: u64,
    pub connects: u64,
    pub disconnects: u64,
    pub gaps: u64,
    pub restarts: u64,
    pub replays: u64,
    pub replays_failed: u64,
    pub polls_failed: u64,
    pub frames_skipped: BTreeMap<&'static str, u64>,
    pub view_cleared: BTreeMap<&'static str, u64>,
    pub events: Seen,
}

/// A replica that holds a prefix, and the fastest tier that does.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[allow(missing_docs, reason = "the names are the keys of the admin endpoint's JSON")]
pub struct Holder {
    pub endpoint: String,
    pub rank: Option<u32>,
    pub pool: String,
    pub model: String,
    pub slot: u32,
    pub state: &'static str,
    pub tier: &'static str,
}

impl State {
    pub(super) fn summary(&self) -> Summary {
        let open = |listener: &&Listener| !listener.sender.is_closed();
        Summary {
            streams: self.listeners.iter().filter(open).count(),
            streams_opened: self.streams_opened,
            streams_too_slow: self.streams_too_slow,
            replicas: self.replicas.iter().map(|(id, r)| self.replica_summary(*id, r)).collect(),
            stores: self.stores.iter().map(|((name, _), store)| store.summary(name)).collect(),
            pool_mismatches: self.pool_mismatches(),
        }
    }
}

impl State {
    fn replica_summary(&self, id: ReplicaId, replica: &Replica) -> ReplicaSummary {
        let mut summary = replica.summary();
        summary.other_root = self.has_other_root(replica);
        let store = self.store_of(id).and_then(|key| self.stores.get(&key));
        summary.tiers.extend(
            store.map(|store| TierSummary::new((Medium::Other, store.slot, store.view.len()))),
        );
        summary
    }
}

impl Store {
    fn summary(&self, name: &str) -> StoreSummary {
        StoreSummary {
            store: name.to_owned(),
            slot: self.slot,
            held_blocks: self.view.held_blocks(),
            announced_prefixes: self.view.len(),
            view_cleared: self.clears,
            events: *self.view.seen(),
        }
    }
}

impl TierSummary {
    fn new((medium, slot, announced_prefixes): (Medium, u32, usize)) -> Self {
        Self { tier: medium.name(), slot, announced_prefixes }
    }
}

impl Replica {
    pub(super) fn holder(&self, medium: Medium) -> Holder {
        let Known { endpoint, rank, pool, model, .. } = &self.known;
        Holder {
            endpoint: endpoint.clone(),
            rank: *rank,
            pool: pool.clone(),
            model: model.clone(),
            slot: self.slot,
            state: self.state().as_str_name(),
            tier: medium.name(),
        }
    }

    pub(super) fn summary(&self) -> ReplicaSummary {
        let Known { endpoint, rank, pool, model, view, counters, .. } = &self.known;
        ReplicaSummary {
            endpoint: endpoint.clone(),
            rank: *rank,
            events_rank: self.known.events_rank,
            engine_ranks: self.engines.ranks.clone(),
            engine_kind: self.engines.kind,
            other_engine: self.other_engine(),
            rank_problem: self.rank_problem.map(Problem::name),
            pool: pool.clone(),
            model: model.clone(),
            slot: self.slot,
            state: self.state().as_str_name(),
            hears_events: self.heard,
            silent_under_load: self.mute,
            drained_by_hand: self.drained,
            asleep: self.sleep.map(Sleep::name),
            wrong_model: self.wrong.clone(),
            root: self.root.clone(),
            other_root: false,
            caches_nothing: self.caches_nothing,
            speculates_unsaid: self.speculates_unsaid(),
            adapters: self.adapters.as_ref().map(|adapters| adapters.names().to_vec()),
            last_sequence: self.sequence,
            block_tokens: self.block_tokens,
            dropped_tokens: self.dropped_tokens,
            weight: f64::from(self.known.weight) / 100.0,
            held_engine_blocks: view.held_blocks(),
            known_engine_blocks: view.known_blocks(),
            announced_prefixes: view.len(),
            joined_late: self.late,
            taught_prefixes: self.taught.len(),
            taught: *self.taught.judged(),
            tiers: view.tiers().map(TierSummary::new).collect(),
            groups: view.groups(),
            ends: view.ends().map(|slot| EndsSummary { slot, announced: view.end_keys().count() }),
            waiting_tokens: view.waiting_tokens(),
            requests_waiting: self.load.map(|load| load.waiting),
            requests_running: self.load.map(|load| load.running),
            kv_usage: self.load.map(|load| load.kv_usage),
            rtt_ms: self.round_trip.map(|trip| trip.as_secs_f64() * 1e3),
            batches: counters.batches.get(),
            connects: counters.connects.get(),
            disconnects: counters.disconnects.get(),
            gaps: counters.gaps.get(),
            restarts: counters.restarts.get(),
            replays: counters.replays.get(),
            replays_failed: counters.replays_failed.get(),
            polls_failed: counters.polls_failed.get(),
            frames_skipped: counters.skipped_by_reason(),
            view_cleared: self.clears.clone(),
            events: *view.seen(),
        }
    }
}
