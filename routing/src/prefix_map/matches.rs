//! What a search finds: how far each replica holds a prefix.

/// Holders of a first block that are remembered.
const MOST_FIRST: usize = 8;

/// How far one replica holds a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The replica.
    pub slot: u16,
    /// Blocks of 16 tokens from the start of the prompt.
    pub blocks: u32,
}

/// What a search found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matches {
    /// Replicas that hold at least the first block, by slot.
    pub found: Vec<Match>,
    /// Buckets read.
    pub probes: u32,
    /// Who holds the first block, wanted or not, where that was read beside a deeper one and they are
    /// few.
    pub first: Option<First>,
}

impl Matches {
    /// Blocks that the replica holds.
    pub fn blocks(&self, slot: u16) -> u32 {
        self.found
            .binary_search_by_key(&slot, |m| m.slot)
            .ok()
            .and_then(|at| self.found.get(at))
            .map_or(0, |m| m.blocks)
    }

    /// Blocks that the replica holds that holds most.
    pub fn deepest(&self) -> u32 {
        self.found.iter().map(|m| m.blocks).max().unwrap_or(0)
    }
}

/// A few replicas' slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct First {
    slots: [u16; MOST_FIRST],
    count: u32,
}

impl First {
    /// `None` for too many.
    pub fn of(slots: &[u16]) -> Option<Self> {
        let mut first = Self { count: slots.len() as u32, ..Self::default() };
        first.slots.get_mut(..slots.len())?.copy_from_slice(slots);
        Some(first)
    }

    /// In the order in which they were given.
    pub fn slots(&self) -> &[u16] {
        self.slots.get(..self.count as usize).unwrap_or_default()
    }
}
