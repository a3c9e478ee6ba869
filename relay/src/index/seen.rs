//! What a view saw, counted.

/// What a view saw, since the relay's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[allow(missing_docs, reason = "the names are the metrics' names")]
pub struct Seen {
    pub blocks_stored: u64,
    pub blocks_removed: u64,
    pub clears: u64,
    /// Stores of held blocks that were taken for reports, not copies.
    pub stores_repeated: u64,
    /// Removals of blocks that weren't held.
    pub removals_unknown: u64,
    /// Blocks with an image, an unnamed adapter or other things that fingerprints don't cover.
    pub blocks_nameless: u64,
    /// Blocks that waited too long for their parent.
    pub waiting_dropped: u64,
    /// Blocks that left because the view was full.
    pub evicted: u64,
    /// Events of groups that don't say what a prefix hit is.
    pub other_group: u64,
    /// Events of tiers that aren't the replica's own.
    pub other_medium: u64,
    pub events_unknown: u64,
    pub events_unusable: u64,
}
