//! Which replica holds which block: a fixed number of buckets in a key/value store.
//!
//! The store is Envoy's shared data: one lock, values copied, keys never removed. So a bucket is
//! one value under one of a fixed set of keys, written by one service and read by every worker.
//! Held prefixes are closed (whoever holds a block holds all before it), so that the longest match
//! of every replica is found by binary search. Where not every held prefix is a hit, the blocks at
//! which hits may end are told under a slot of their own, and looked for from the longest match back.

mod bucket;
mod ends;
mod hints;
mod lookup;
mod matches;
mod writer;

pub use bucket::Layout;
pub use ends::Ends;
pub use hints::{Hint, Hints};
pub use lookup::{Lookup, Wanted, find};
pub use matches::{First, Match, Matches};
pub use writer::{Applied, Writer};

/// Where buckets lie.
pub trait Store {
    /// Why a bucket could not be read or written.
    type Error;

    /// The bucket's bytes; `None` if it was never written.
    ///
    /// # Errors
    /// When the store can't be read: a search then takes the bucket for empty.
    fn get(&self, bucket: u32) -> Result<Option<Vec<u8>>, Self::Error>;

    /// Replaces the bucket.
    ///
    /// # Errors
    /// When the store can't be written: the bucket is as it was.
    fn set(&mut self, bucket: u32, value: &[u8]) -> Result<(), Self::Error>;
}

#[cfg(test)]
mod tests;
