//! What is announced of one layer of tiers.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use warmpath_routing::fingerprint::Key;

use super::changes::Changes;

/// Layers of one view: GPU; GPU or CPU; GPU, CPU or disk. Each is a closed set of prefixes of its
/// own, and holds what the faster ones hold.
pub(super) const LAYERS: usize = 3;

/// What is announced of one layer.
#[derive(Debug, Default)]
pub(super) struct Layer {
    pub(super) slot: u32,
    /// Nothing is announced of a tier that the engine doesn't use.
    pub(super) open: bool,
    /// Announced keys, with the number of blocks that they end in.
    pub(super) keys: HashMap<Key, u32, RandomState>,
}

impl Layer {
    /// One more block ends in the key.
    pub(super) fn hold(&mut self, key: Key, changes: &mut Changes) {
        let count = self.keys.entry(key).or_insert(0);
        *count += 1;
        if *count == 1 && self.open {
            changes.held(self.slot, key);
        }
    }

    /// One block less ends in the key.
    pub(super) fn lose(&mut self, key: Key, changes: &mut Changes) {
        let Some(count) = self.keys.get_mut(&key) else { return };
        *count -= 1;
        if *count == 0 {
            self.keys.remove(&key);
            if self.open {
                changes.lost(self.slot, key);
            }
        }
    }
}
