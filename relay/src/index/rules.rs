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
    /// A store that begins at a prompt's start may be no copy but a report: vLLM repeats the stores
    /// of a request that asks for `kv_cache_report_mode: full`, and the two look alike. It doesn't
    /// count, so that after one removal nothing is claimed. Other stores count as further copies.
    #[default]
    Doubt,
    /// Every store is one more physical copy. Exact, as long as no request asks for full reports.
    Count,
    /// There is one copy at most, however often it is stored: a store that many engines write to.
    #[serde(skip)]
    Same,
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
