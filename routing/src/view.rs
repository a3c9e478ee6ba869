//! What is known of the world when a decision is taken.

use crate::cost::cached_tokens;
use crate::fingerprint::Scope;

/// One place that a request can be sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Names the replica in the prefix map, for the life of its cache.
    pub slot: u16,
    /// `ip:port`, as Envoy knows the host.
    pub endpoint: String,
    /// Data-parallel rank behind that endpoint.
    pub rank: Option<u32>,
    /// The pool: a key of the policy's `pools`.
    pub pool: String,
    /// Tokens of one engine block; 0 while unknown.
    pub block_tokens: u32,
    /// Tokens at the end of what it finds cached that it computes anew, speculating by the model's
    /// own hidden states (EAGLE, MTP): a block; 0 if it uses all that it finds.
    pub dropped_tokens: u32,
    /// Whether it may be used.
    pub state: ReplicaState,
    /// What it can take beside others, in hundredths of a plain replica: twice as much at 200.
    pub weight: u16,
    /// Slower tiers of its KV cache that have slots of their own, the fastest first.
    pub tiers: Vec<Tier>,
    /// Names the blocks in the prefix map at which its hits may end, where not every prefix that it
    /// holds is a hit: an engine of several KV cache groups. `block_tokens` is then what the lengths
    /// of hits are multiples of.
    pub ends: Option<u16>,
    /// The LoRA adapters that are loaded there; `None` where nothing tells.
    pub adapters: Option<Vec<String>>,
}

/// A place of the KV cache behind the GPU. What it is said to hold includes what the replica's own
/// faster tiers hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tier {
    /// What it is.
    pub medium: Medium,
    /// Names it in the prefix map; that of a shared store names it for all who share it.
    pub slot: u16,
}

/// Where KV blocks lie that are not on the GPU, the fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Medium {
    /// The host's memory.
    Cpu,
    /// A local disk.
    Disk,
    /// A store that several engines share.
    Shared,
}

impl Medium {
    /// All of them, for those who count them.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Disk, Self::Shared];

    /// The name in metrics, headers and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Disk => "disk",
            Self::Shared => "shared",
        }
    }
}

impl Replica {
    /// The weight of a plain replica.
    pub const PLAIN: u16 = 100;

    /// Whether a request for the adapter (empty: none) can be served there, as far as is known.
    pub fn has_adapter(&self, adapter: &str) -> bool {
        let loaded = |all: &Vec<String>| all.iter().any(|loaded| loaded == adapter);
        adapter.is_empty() || self.adapters.as_ref().is_none_or(loaded)
    }

    /// The tokens of a prompt that its engine will really find cached, holding the first `blocks`
    /// blocks of 16 of it: see [`cached_tokens`].
    pub fn cached_tokens(&self, blocks: u32, prompt_tokens: u32) -> u32 {
        // vLLM 0.32.0 (`v1/core/kv_cache_coordinator.py`): with several groups the block that is
        // dropped may be the prompt's last, whole one.
        let drops_last = self.ends.is_some() && self.dropped_tokens > 0;
        let most = prompt_tokens.saturating_sub(u32::from(!drops_last));
        cached_tokens(blocks, self.block_tokens, self.dropped_tokens, most)
    }

    /// Names the place that serves, whatever its cache's life: what is known of its health and of
    /// requests in flight outlives a restart of the engine and of the relay.
    pub fn name(&self) -> u64 {
        crate::mix::place(0, &self.endpoint, self.rank)
    }
}

/// Whether a replica may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaState {
    /// Takes requests.
    Ready,
    /// Takes requests; its events are missing, so its cache is not believed.
    Suspect,
    /// Finishes what it has.
    Draining,
    /// Does not answer.
    Down,
    /// Is filed under a pool of another model, or under none of the policy's: never used.
    Misfiled,
}

/// How busy a replica is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Requests waiting at the engine.
    pub waiting: u32,
    /// Requests running at the engine.
    pub running: u32,
    /// Share of its KV cache in use, 0 to 1.
    pub kv_usage: f32,
    /// The network's round trip to it in microseconds, as the relay measured it; 0 if it isn't known.
    pub rtt_us: u32,
    /// Requests that this gateway sent and that have not ended.
    pub in_flight: u32,
}

/// A model that requests can name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The name that pools refer to.
    pub name: String,
    /// Names in requests that mean it.
    pub served_names: Vec<String>,
    /// Names in requests that mean a LoRA adapter on it.
    pub adapters: Vec<String>,
    /// The version that its prefixes are rooted in.
    pub version: String,
    /// Hash over tokenizer and chat template.
    pub tokenizer_hash: [u8; 32],
}

impl Model {
    /// The adapter that a request's model name stands for (empty: none); `None` if the name is not
    /// this model's.
    pub fn adapter<'a>(&self, requested: &'a str) -> Option<&'a str> {
        if self.served_names.iter().any(|name| name == requested) {
            Some("")
        } else {
            self.adapters.iter().any(|name| name == requested).then_some(requested)
        }
    }

    /// What the fingerprints of a request for the adapter (empty: none) with the salt are rooted in.
    pub fn scope<'a>(&'a self, adapter: &'a str, salt: &'a str) -> Scope<'a> {
        Scope { model_version: &self.version, tokenizer_hash: &self.tokenizer_hash, adapter, salt }
    }
}

/// Replicas and their loads, as of one moment.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// The replicas, in a stable order.
    pub replicas: Vec<Replica>,
    /// Their loads, in the same order.
    pub loads: Vec<Load>,
    /// Whether the prefix map (and the replicas' states) can be believed.
    pub fresh: bool,
}
