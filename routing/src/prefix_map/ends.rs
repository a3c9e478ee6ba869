//! Hits of replicas that can't use every prefix that they hold.

use super::Match;
use crate::fingerprint::BLOCK_TOKENS;

/// Most buckets that one search reads in looking for ends.
pub(super) const MOST_READS: u32 = 128;

/// Most of them for replicas whose longest held prefixes are equally long. A hit that ends further
/// back is not seen.
const MOST_BACK: u32 = 64;

/// Where the hits of one replica may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Names the ends in the map.
    pub slot: u16,
    /// Tokens of which a hit's length is a multiple; 0 where that isn't known.
    pub every: u32,
    /// Tokens behind a hit that the replica must hold, and computes anew: an end is named where they
    /// end. Most replicas have none.
    pub beyond: u32,
    /// Blocks of 16 tokens that a hit has at most, those behind it included.
    pub most: u32,
}

impl Ends {
    /// The last block up to `at` at which a hit may end by its length; none before the first.
    fn last(&self, at: u32) -> Option<u32> {
        let block = BLOCK_TOKENS as u64;
        let every = u64::from(self.every).max(1);
        // The block in which the last whole length ends, or the one that it fills.
        let tokens = (u64::from(at.min(self.most)) + 1) * block - 1;
        let beyond = u64::from(self.beyond);
        let hit = tokens.saturating_sub(beyond) / every * every;
        let length = if hit > 0 { hit + beyond } else { 0 };
        u32::try_from(length / block).ok().filter(|blocks| *blocks > 0)
    }
}

/// Adds to `found` the hits of replicas of which all hold `at` blocks, looking back from there. `who`
/// tells who is named at a block, in order; `left` bounds how often it is asked.
pub(super) fn walk(
    mut replicas: Vec<(u16, Ends)>,
    mut at: u32,
    left: &mut u32,
    mut who: impl FnMut(usize, &mut Vec<u16>),
    found: &mut Vec<Match>,
) {
    let mut named = Vec::new();
    for _ in 0..MOST_BACK {
        if *left == 0 {
            break;
        }
        let Some(next) = replicas.iter().filter_map(|(_, ends)| ends.last(at)).max() else { break };
        *left -= 1;
        who(next as usize, &mut named);
        replicas.retain(|(slot, ends)| {
            let ends_here = next <= ends.most && named.binary_search(&ends.slot).is_ok();
            if ends_here {
                found.push(Match { slot: *slot, blocks: next });
            }
            !ends_here
        });
        at = next - 1;
    }
}
