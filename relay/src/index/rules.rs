//! What a view is told about its engine, and its bounds.

/// What a replica's fingerprints are rooted in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelScope {
    /// The model version as configured.
    pub version: String,
    /// Hash over tokenizer and chat template.
    pub tokenizer_hash: [u8; 32],
}

/// How a store of a block that is held already is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Duplicates {
    /// A store that begins at a prompt's start is no copy but a report, so that after one removal
    /// nothing is claimed. Other stores count as further copies. It never claims too much, and loses
    /// a prefix that is still cached wherever one was computed twice.
    Doubt,
    /// Every store is one more physical copy, as it is in the engine. What may be a report (see
    /// `View`) is believed until the block is computed anew.
    #[default]
    Count,
    /// There is one copy at most, however often it is stored: a store that many engines write to.
    #[serde(skip)]
    Same,
}

/// Which KV cache groups give back the last block of what they find cached: those of an engine that
/// speculates by the model's own hidden states.
///
/// vLLM 0.32.0 (`v1/core/kv_cache_coordinator.py`, `eagle_group_ids`): the groups that hold layers of
/// the draft, or all where none is known to (`v1/core/kv_cache_utils.py`, `_annotate_eagle_groups`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BlockDrop {
    /// None does.
    #[default]
    None,
    /// That of the draft's layers, which is full attention's: MTP.
    Draft,
    /// All, but for states (Mamba), which never do.
    All,
}

/// Bounds of one view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Engine blocks that are remembered; the oldest leave first.
    pub blocks: usize,
    /// Token ids kept for blocks whose parent isn't known yet; the oldest leave first.
    pub waiting_tokens: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { blocks: 1_000_000, waiting_tokens: 4_000_000 }
    }
}
