//! One engine block in a replica's view, and the slab that holds them.

use warmpath_routing::fingerprint::{BLOCK_TOKENS, Chain, Fingerprint, Key};

use super::groups::bit;
use crate::events::{EngineHash, Medium};

/// A node's place in the forest.
pub(super) type Id = u32;

/// No node.
pub(super) const NONE: Id = u32::MAX;

/// One engine block. Nodes form a forest: a node's children are the blocks that follow it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) hash: EngineHash,
    pub(super) parent: Id,
    pub(super) first_child: Id,
    pub(super) next_sibling: Id,
    pub(super) previous_sibling: Id,
    /// Neighbours in the order of the last store.
    pub(super) older: Id,
    pub(super) newer: Id,
    /// Physical copies by tier: GPU, CPU, disk.
    copies: [u16; 3],
    /// Copies on the GPU that may have been reports of the others.
    doubtful: u16,
    /// A bit for each layer in which its keys are in the map: it and all before it are held there
    /// and named.
    announced: u8,
    pub(super) name: Name,
    /// What engines with several KV cache groups tell beside.
    further: Option<Box<Further>>,
}

/// What is known of a block in KV cache groups beside the main one, and what follows from it.
#[derive(Debug, Default)]
pub(super) struct Further {
    /// The groups that have it, as bits.
    pub(super) held: u64,
    /// Copies beside the first one, by the group's place.
    more: Vec<(u8, u16)>,
    /// Blocks of the main group up to its end; 0 where not all of them are held.
    pub(super) depth: u32,
    /// How many blocks in a row up to it each need has, as far as that matters.
    pub(super) runs: Vec<u32>,
    /// Hits may end here.
    pub(super) end: bool,
    /// Children at or after which a hit may end.
    pub(super) live_children: u32,
}

impl Further {
    /// Whether a hit may end here or later.
    pub(super) fn is_live(&self) -> bool {
        self.end || self.live_children > 0
    }

    /// One more copy in a group; whether it is the first.
    fn add(&mut self, at: usize) -> bool {
        if self.held & bit(at) == 0 {
            self.held |= bit(at);
            return true;
        }
        match self.more.iter_mut().find(|(group, _)| usize::from(*group) == at) {
            Some((_, more)) => *more = more.saturating_add(1),
            None => self.more.push((at as u8, 1)),
        }
        false
    }

    /// One copy less in a group: whether there was one, and whether it was the last.
    fn take(&mut self, at: usize) -> (bool, bool) {
        if self.held & bit(at) == 0 {
            return (false, false);
        }
        match self.more.iter().position(|(group, _)| usize::from(*group) == at) {
            None => {
                self.held &= !bit(at);
                (true, true)
            }
            Some(place) => {
                if let Some((_, more)) = self.more.get_mut(place) {
                    *more = more.saturating_sub(1);
                    if *more == 0 {
                        self.more.swap_remove(place);
                    }
                }
                (true, false)
            }
        }
    }
}

/// What is known of a block's place in prompts.
#[derive(Debug)]
pub(super) enum Name {
    /// Its hash only: a parent or a copy whose own store was not seen.
    Unknown,
    /// Its tokens, but not yet what comes before them.
    Waiting(Box<[u32]>),
    /// All: where the chain stands at its end, and which fingerprints end in it.
    Named(Named),
    /// That something beside tokens (an image, say) goes into it, so it has no fingerprint.
    Nameless,
}

#[derive(Clone, Debug)]
pub(super) struct Named {
    end: End,
    /// Fingerprints that end in this block, but for the last one, which is `end`'s.
    earlier: Box<[Key]>,
    /// Whether any fingerprint ends in this block.
    fills: bool,
}

#[derive(Clone, Debug)]
enum End {
    /// The chain ends at a fingerprint, as all do where 16 divides the block size.
    Aligned(Fingerprint),
    /// Tokens are left over for the next block.
    Within(Box<Chain>),
}

impl Named {
    /// The block of these tokens after `chain`.
    pub(super) fn new(mut chain: Chain, tokens: &[u32]) -> Self {
        let mut keys = Vec::with_capacity(tokens.len() / BLOCK_TOKENS + 1);
        chain.push(tokens, |fingerprint| keys.push(fingerprint.key()));
        let fills = keys.pop().is_some();
        let aligned = chain.tokens().is_multiple_of(BLOCK_TOKENS);
        let end = if aligned { End::Aligned(chain.last()) } else { End::Within(Box::new(chain)) };
        Self { end, earlier: keys.into_boxed_slice(), fills }
    }

    /// The chain for a child to go on from.
    pub(super) fn chain(&self) -> Chain {
        match &self.end {
            End::Aligned(last) => Chain::from_root(*last),
            End::Within(chain) => **chain,
        }
    }

    /// The fingerprints that end in this block, in order.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        let last = match &self.end {
            End::Aligned(last) => last.key(),
            End::Within(chain) => chain.last().key(),
        };
        self.earlier.iter().copied().chain(self.fills.then_some(last))
    }
}

impl Node {
    pub(super) fn new(hash: EngineHash) -> Self {
        Self {
            hash,
            parent: NONE,
            first_child: NONE,
            next_sibling: NONE,
            previous_sibling: NONE,
            older: NONE,
            newer: NONE,
            copies: [0; 3],
            doubtful: 0,
            announced: 0,
            name: Name::Unknown,
            further: None,
        }
    }

    /// Whether the engine has the block in a tier of its own.
    pub(super) fn held(&self) -> bool {
        self.doubtful > 0
            || self.copies.iter().any(|&n| n > 0)
            || self.further().is_some_and(|further| further.held != 0)
    }

    pub(super) fn further(&self) -> Option<&Further> {
        self.further.as_deref()
    }

    pub(super) fn further_mut(&mut self) -> &mut Further {
        self.further.get_or_insert_default()
    }

    /// One more copy in a further group; whether it is the first.
    pub(super) fn add_further(&mut self, at: usize) -> bool {
        self.further_mut().add(at)
    }

    /// One copy less in a further group: whether there was one, and whether it was the last.
    pub(super) fn take_further(&mut self, at: usize) -> (bool, bool) {
        self.further.as_deref_mut().map_or((false, false), |further| further.take(at))
    }

    /// Whether the engine has the block in a tier of the layer: in the layer's own or a faster one.
    pub(super) fn held_in(&self, layer: usize) -> bool {
        // The GPU is part of every layer.
        self.doubtful > 0 || self.copies.iter().take(layer + 1).any(|&n| n > 0)
    }

    /// Whether it is announced in a layer.
    pub(super) fn announced(&self, layer: usize) -> bool {
        self.announced & (1 << layer) != 0
    }

    /// Notes whether it is announced in a layer.
    pub(super) fn set_announced(&mut self, layer: usize, announced: bool) {
        self.announced = (self.announced & !(1 << layer)) | (u8::from(announced) << layer);
    }

    /// Whether a tier has it.
    pub(super) fn has(&mut self, medium: Medium) -> bool {
        *self.copies(medium) > 0
    }

    /// Whether the GPU has a copy that is no mere report.
    pub(super) fn sure(&self) -> bool {
        let [gpu, ..] = self.copies;
        gpu > 0
    }

    /// What was stored on the GPU may be a copy, or a report of the one that is there.
    pub(super) fn doubt(&mut self) {
        self.doubtful = self.doubtful.saturating_add(1);
    }

    /// One that was in doubt is a copy.
    pub(super) fn believe(&mut self) {
        if self.doubtful > 0 {
            self.doubtful -= 1;
            let gpu = self.copies(Medium::Gpu);
            *gpu = gpu.saturating_add(1);
        }
    }

    /// One more copy. Where none is sure, those in doubt were reports: the engine would have used
    /// them in place of computing the block anew.
    pub(super) fn add(&mut self, medium: Medium) {
        if matches!(medium, Medium::Gpu | Medium::Other) && !self.sure() {
            self.doubtful = 0;
        }
        let copies = self.copies(medium);
        *copies = copies.saturating_add(1);
    }

    /// One copy less, if there is any: first those that are sure.
    pub(super) fn take(&mut self, medium: Medium) -> bool {
        let copies = self.copies(medium);
        let copies = match (*copies, medium) {
            (0, Medium::Gpu) => &mut self.doubtful,
            _ => copies,
        };
        let any = *copies > 0;
        *copies = copies.saturating_sub(1);
        any
    }

    /// The count of a tier's copies. What isn't an engine's own is in the view of a shared store
    /// alone, which has nothing else, and counts in the first place there.
    fn copies(&mut self, medium: Medium) -> &mut u16 {
        let [gpu, cpu, disk] = &mut self.copies;
        match medium {
            Medium::Gpu | Medium::Other => gpu,
            Medium::Cpu => cpu,
            Medium::Disk => disk,
        }
    }

    pub(super) fn forget_copies(&mut self) {
        self.copies = [0; 3];
        self.doubtful = 0;
        if let Some(further) = self.further.as_deref_mut() {
            further.held = 0;
            further.more.clear();
        }
    }
}
