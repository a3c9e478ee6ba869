//! Engines' KV cache events, in one form whatever the engine and its version.
//!
//! vLLM: `vllm/distributed/kv_events.py`; SGLang: `sglang/srt/disaggregation/kv_events.py`. A batch
//! is a msgpack array `[time, events, data-parallel rank]`. An event is an array (vLLM up to 0.23,
//! SGLang up to 0.5.18) or a map with the key `type`. Fields came with time: missing ones and nils
//! take their defaults, unknown ones are skipped.

mod decode;
mod error;
mod reader;

pub use decode::decode;
pub use error::DecodeError;

/// Events in one batch that are believed. Engines send some per scheduler step; a frame with more
/// is not theirs.
const MAX_EVENTS: usize = 1 << 18;

/// An engine's own name of one of its blocks.
///
/// Only equality matters here: an integer is kept as it is (signed ones by their two's complement,
/// so that SGLang's and vLLM's ways to write the same 64 bits agree), bytes by 16 bytes of their
/// BLAKE3, which can't be mistaken for an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineHash([u64; 2]);

impl EngineHash {
    /// A hash sent as an integer.
    pub const fn from_int(value: u64) -> Self {
        Self([0, value])
    }

    /// A hash sent as bytes.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let hash = blake3::hash(bytes);
        let mut words = [0; 2];
        for (word, chunk) in words.iter_mut().zip(hash.as_bytes().chunks_exact(8)) {
            *word = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
        }
        let [high, low] = words;
        // Never zero, which is where integers live.
        Self([high | 1 << 63, low])
    }
}

impl std::fmt::Display for EngineHash {
    /// As 16 hexadecimal digits what was an integer, as 32 what was bytes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            [0, value] => write!(f, "{value:016x}"),
            [high, low] => write!(f, "{high:016x}{low:016x}"),
        }
    }
}

/// One published batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Seconds since the Unix epoch, by the engine's clock.
    pub time: f64,
    /// The data-parallel rank that it comes from.
    pub rank: Option<u32>,
    /// In the order in which they happened.
    pub events: Vec<Event>,
}

/// What happened to an engine's cache.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Blocks came into the cache.
    Stored(Stored),
    /// Physical copies of blocks left the cache.
    Removed(Removed),
    /// All of the cache is gone.
    Cleared,
    /// A kind of event that this version doesn't know; skipped.
    Unknown,
    /// A known kind that can't be used, with the reason. Leaving a store out is safe: what isn't
    /// known to be held isn't claimed.
    Unusable(&'static str),
}

impl Event {
    /// Whether it is about a tier that isn't the engine's own.
    pub fn is_shared(&self) -> bool {
        match self {
            Self::Stored(Stored { medium, .. }) | Self::Removed(Removed { medium, .. }) => {
                *medium == Medium::Other
            }
            _ => false,
        }
    }
}

/// Blocks that came into the cache, each the child of the one before it.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Stored {
    /// The blocks, in order of the prompt.
    pub hashes: Vec<EngineHash>,
    /// The block before the first one; none where it begins the prompt.
    pub parent: Option<EngineHash>,
    /// `hashes.len() * block_size` token ids; or none, where the engine names blocks only (copies
    /// into another tier).
    pub tokens: Vec<u32>,
    /// Some of the blocks that the tokens fill are not among the hashes, and which isn't told: a group
    /// that keeps only what a hit may need (vLLM 0.32.0, `v1/core/block_pool.py`, `cache_full_blocks`
    /// with a mask). Then the tokens name no block.
    pub sparse: bool,
    /// Tokens of one block, 1 or more; or 0, where the engine names blocks only and doesn't say.
    pub block_size: u32,
    /// An adapter is in play, by number (older engines give no name).
    pub has_lora_id: bool,
    /// The adapter's name.
    pub lora_name: Option<String>,
    /// Where the blocks are.
    pub medium: Medium,
    /// What else than tokens went into the blocks' hashes, one entry per block; empty where the
    /// engine doesn't say.
    pub extra_keys: Vec<ExtraKeys>,
    /// The KV cache group, in models with several kinds of layers.
    pub group: Option<u32>,
    /// What the group's layers are.
    pub kind: Kind,
    /// Tokens that a layer of a sliding window sees, itself included.
    pub window: Option<u32>,
    /// SGLang's way to give the salt.
    pub cache_salt: Option<String>,
}

/// Blocks of which one physical copy each left the cache.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Removed {
    /// The blocks.
    pub hashes: Vec<EngineHash>,
    /// Where they were.
    pub medium: Medium,
    /// The KV cache group.
    pub group: Option<u32>,
}

/// The extra keys of one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtraKeys {
    /// Untagged strings: the salt on a prompt's first block, the adapter's name, or the identifiers
    /// of images in older engines. Empty for none.
    Texts(Vec<String>),
    /// Something that isn't plain text, such as an image with its offset.
    Other,
}

/// Where an engine keeps a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Medium {
    /// The accelerator's memory ("GPU", on CPU engines too), also where the engine doesn't say.
    #[default]
    Gpu,
    /// The host's memory ("CPU", "CPU_PINNED").
    Cpu,
    /// A local disk ("DISK").
    Disk,
    /// Anything else: a shared tier, which isn't this replica's own.
    Other,
}

impl Medium {
    /// For people who read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::Cpu => "CPU",
            Self::Disk => "disk",
            Self::Other => "shared",
        }
    }

    fn from_name(name: &str) -> Self {
        match name {
            "GPU" => Self::Gpu,
            "CPU" | "CPU_PINNED" | "CPU_TIER1" => Self::Cpu,
            "DISK" | "CPU_TIER2" => Self::Disk,
            _ => Self::Other,
        }
    }

    /// As vLLM names it from 0.26 on (`MEDIUM_STORAGE` in `distributed/kv_events.py`; `Locality` in
    /// `v1/kv_offload/base.py`): storage is a disk of the engine's own where it is said to be local,
    /// and what is remote is nobody's own.
    fn placed(self, storage: bool, locality: Locality) -> Self {
        match (locality, self) {
            (_, Self::Gpu) => Self::Gpu,
            (Locality::Remote, _) => Self::Other,
            (Locality::Local, Self::Other) if storage => Self::Disk,
            _ => self,
        }
    }
}

/// Where a tier is, seen from the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Locality {
    #[default]
    Unsaid,
    Local,
    Remote,
}

/// The kind of a KV cache group's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kind {
    /// The engine doesn't say.
    #[default]
    Unsaid,
    /// Attention over the whole prefix: what a prefix hit depends on.
    Full,
    /// Attention over the last tokens alone, `Stored::window` of them.
    Window,
    /// The state of a state space or of linear attention, at the end of a block.
    State,
    /// Chunked local attention and others, of which events don't tell what a hit needs.
    Other,
}

impl Kind {
    fn from_name(name: &str) -> Self {
        match name {
            "full_attention" | "mla_attention" | "sink_full_attention" => Self::Full,
            "sliding_window" | "sliding_window_mla" => Self::Window,
            "mamba" => Self::State,
            _ => Self::Other,
        }
    }
}
