//! What the prefix map says of the simulated engines.

use warmpath_routing::fingerprint::Key;
use warmpath_routing::prefix_map::{Lookup, Match, Matches, Wanted};

use super::fleet::Fleet;
use super::trace::{ID_TOKENS, Request};

/// Blocks of 16 tokens in one id.
const ID_BLOCKS: usize = (ID_TOKENS / 16) as usize;

/// The keys of a request, and who has announced how much of it.
pub(super) struct Announced<'a> {
    pub(super) fleet: &'a Fleet,
    pub(super) request: &'a Request,
}

impl Lookup for Announced<'_> {
    fn matches(&self, keys: &[Key], wanted: &dyn Wanted) -> Matches {
        let mut found = Vec::new();
        for (slot, engine) in (0..).zip(&self.fleet.engines) {
            if !wanted.wants(slot) {
                continue;
            }
            let ids = self.request.whole().iter();
            let held = ids.take_while(|id| engine.announced.contains(id)).count();
            let blocks = (held * ID_BLOCKS).min(keys.len()) as u32;
            if blocks > 0 {
                found.push(Match { slot, blocks });
            }
        }
        Matches { found, ..Matches::default() }
    }
}

/// A key per block. An id names all before it too, as a fingerprint does.
pub(super) fn keys(request: &Request, most: usize) -> Vec<Key> {
    let ids = request.whole().iter();
    let blocks = ids.flat_map(|id| (0..ID_BLOCKS as u64).map(move |block| (*id, block)));
    blocks
        .take(most)
        .map(|(id, block)| {
            let number = u128::from(id) << 64 | u128::from(block);
            // Spread as a hash is: two odd multipliers, mixed.
            let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            Key((mixed ^ (mixed >> 64)).to_le_bytes())
        })
        .collect()
}
