//! A summary of the state, as the admin endpoint shows it.

use std::collections::{BTreeMap, BTreeSet};

use crate::index::{GroupSummary, Judged, Seen};

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

/// A pool of this relay whose replicas get no requests from some gateways.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct PoolMismatch {
    /// The pool.
    pub pool: String,
    /// The model of its replicas here.
    pub model: String,
    /// `not_in_policy`, or `other_model`.
    pub problem: &'static str,
    /// What the policies call its model, at most a few.
    pub policy_models: BTreeSet<String>,
    /// How many gateways' policies say so.
    pub gateways: usize,
    /// Their nodes, at most a few.
    pub nodes: BTreeSet<String>,
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
