//! The block cache: vLLM's prefix cache without the tensors.
//!
//! Blocks that a request uses can't go; the others wait in the order in which they were freed, the
//! last block of a prompt before the first, and stay usable until their place is needed. A hash
//! may be held by several physical copies: a block is named when it is scheduled, also where its name
//! is there already, as the last one of a prompt that ends with it, or one that is generated twice.

use std::collections::{BTreeMap, HashMap};

use super::event::Event;
use super::hash::{BlockHash, Keys, block_hash};

/// A prompt, hashed once and outside the cache's lock.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    tokens: Vec<u32>,
    keys: Keys,
    /// One per full block.
    hashes: Vec<BlockHash>,
    block_size: usize,
    /// How many of `tokens` the request brought; the others were generated.
    asked: usize,
    /// Nothing that is cached of it is used.
    anew: bool,
}

impl Prompt {
    pub(crate) fn new(tokens: Vec<u32>, keys: Keys, block_size: usize) -> Self {
        let asked = tokens.len();
        let mut prompt = Self { tokens, keys, hashes: Vec::new(), block_size, asked, anew: false };
        prompt.hash_full_blocks();
        prompt
    }

    /// The same, to be computed whole whatever is cached of it.
    pub(crate) fn read_anew(self) -> Self {
        Self { anew: true, ..self }
    }

    pub(crate) fn len(&self) -> usize {
        self.asked
    }

    pub(crate) fn block_size(&self) -> usize {
        self.block_size
    }

    pub(crate) fn tokens(&self) -> &[u32] {
        self.tokens.get(..self.asked).unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    fn hash_full_blocks(&mut self) {
        let known = self.hashes.len();
        let mut parent = self.hashes.last().copied();
        let blocks = self.tokens.chunks_exact(self.block_size).enumerate().skip(known);
        for (index, tokens) in blocks {
            let hash = block_hash(parent.as_ref(), tokens, &self.keys, index);
            self.hashes.push(hash);
            parent = Some(hash);
        }
    }

    /// The event that says blocks `from..to` are stored.
    fn stored(&self, from: usize, to: usize) -> Event {
        let size = self.block_size;
        Event::Stored {
            hashes: self.hashes.get(from..to).unwrap_or_default().to_vec(),
            parent: from.checked_sub(1).and_then(|last| self.hashes.get(last)).copied(),
            tokens: self.tokens.get(from * size..to * size).unwrap_or_default().to_vec(),
            block_size: size,
            lora: self.keys.lora.clone(),
            extra_keys: (from..to).map(|index| self.keys.of_block(index)).collect(),
        }
    }
}

/// A prompt that was let in: it holds its blocks until [`Cache::release`].
#[derive(Debug)]
pub(crate) struct Sequence {
    prompt: Prompt,
    blocks: Vec<usize>,
    /// Blocks found in the cache.
    hit_blocks: usize,
    /// Blocks that the cache knows by name by now.
    named: usize,
    /// Blocks kept free for what it will generate.
    reserved: usize,
}

impl Sequence {
    /// Prompt tokens found in the cache.
    pub(crate) fn hit_tokens(&self) -> usize {
        self.hit_blocks * self.prompt.block_size
    }

    pub(crate) fn prompt(&self) -> &Prompt {
        &self.prompt
    }
}

#[derive(Clone, Debug, Default)]
struct Block {
    hash: Option<BlockHash>,
    users: usize,
    /// Its key in `Cache::free`, when nobody uses it.
    freed: u64,
}

/// A fixed number of blocks and what is in them.
#[derive(Debug)]
pub(crate) struct Cache {
    block_size: usize,
    /// Blocks get names, by which they are found again.
    names: bool,
    /// Blocks at the end of a hit that are computed anew.
    dropped: usize,
    blocks: Vec<Block>,
    /// Blocks that nobody uses, the one to go next first.
    free: BTreeMap<u64, usize>,
    held: HashMap<BlockHash, Vec<usize>>,
    clock: u64,
    reserved: usize,
    events: Vec<Event>,
}

impl Cache {
    pub(crate) fn new(block_size: usize, blocks: usize) -> Self {
        Self {
            block_size,
            names: true,
            dropped: 0,
            blocks: (0..blocks)
                .map(|index| Block { freed: index as u64, ..Block::default() })
                .collect(),
            free: (0..blocks).map(|index| (index as u64, index)).collect(),
            held: HashMap::new(),
            clock: blocks as u64,
            reserved: 0,
            events: Vec::new(),
        }
    }

    /// The same without a prefix cache: as in vLLM (0.32.0, `v1/core/kv_cache_manager.py`,
    /// `enable_caching`) no block gets a name, so that nothing is found again and no event comes.
    pub(crate) fn without_prefixes(self) -> Self {
        Self { names: false, ..self }
    }

    /// The same for an engine that speculates by hidden states (EAGLE, MTP): as in vLLM (0.32.0,
    /// `v1/core/single_type_kv_cache_manager.py`, `drop_eagle_block`) the last block that is found is
    /// computed anew.
    pub(crate) fn dropping_last(self) -> Self {
        Self { dropped: 1, ..self }
    }

    /// Whether prefixes are found again.
    pub(crate) fn finds_prefixes(&self) -> bool {
        self.names
    }

    /// Blocks in use by running requests.
    pub(crate) fn used(&self) -> usize {
        self.blocks.len() - self.free.len()
    }

    /// All blocks.
    pub(crate) fn size(&self) -> usize {
        self.blocks.len()
    }

    /// Lets a prompt in that will be followed by `generated` tokens: its cached prefix is taken,
    /// the rest gets blocks, which may push out others. Gives the prompt back when there is no
    /// room now.
    ///
    /// At least the last prompt token is computed anew, so the block that it ends is never a hit. As
    /// in vLLM 0.32.0 (`v1/core/kv_cache_manager.py`, `allocate_slots`) the new full blocks get their
    /// names now and not when they are computed, which is before those of any later prompt. With
    /// `report`, the blocks that were hits are told once more, before there is room for the others
    /// and so each time that it is tried (`get_computed_blocks`, `kv_cache_report_mode: full`).
    pub(crate) fn admit(
        &mut self,
        prompt: Prompt,
        generated: usize,
        report: bool,
    ) -> Result<Sequence, Prompt> {
        let reusable =
            if prompt.anew { 0 } else { prompt.asked.saturating_sub(1) / self.block_size };
        let mut blocks: Vec<usize> = Vec::with_capacity(prompt.asked.div_ceil(self.block_size));
        for hash in prompt.hashes.iter().take(reusable) {
            let Some(&copy) = self.held.get(hash).and_then(|copies| copies.first()) else { break };
            blocks.push(copy);
        }
        let hit_blocks = blocks.len().saturating_sub(self.dropped);
        blocks.truncate(hit_blocks);
        if report && hit_blocks > 0 {
            self.events.push(prompt.stored(0, hit_blocks));
        }
        let prompt_blocks = prompt.asked.div_ceil(self.block_size);
        // The last generated token is never computed, so it needs no place.
        let all_blocks = (prompt.asked + generated.saturating_sub(1)).div_ceil(self.block_size);
        let reserved = all_blocks.saturating_sub(prompt_blocks);
        let idle_hits = blocks.iter().filter(|&&index| self.is_free(index)).count();
        let room = self.free.len().saturating_sub(self.reserved + idle_hits);
        if prompt_blocks - hit_blocks + reserved > room {
            return Err(prompt);
        }
        for &index in &blocks {
            self.hold(index);
        }
        for _ in hit_blocks..prompt_blocks {
            blocks.extend(self.take_free());
        }
        self.reserved += reserved;
        let mut sequence = Sequence { prompt, blocks, hit_blocks, named: hit_blocks, reserved };
        self.name_full_blocks(&mut sequence);
        Ok(sequence)
    }

    /// A generated token is computed, and follows the sequence.
    pub(crate) fn append(&mut self, sequence: &mut Sequence, token: u32) {
        if sequence.prompt.tokens.len() == sequence.blocks.len() * self.block_size {
            let due = sequence.reserved.min(1);
            sequence.reserved -= due;
            self.reserved -= due;
            sequence.blocks.extend(self.take_free());
        }
        sequence.prompt.tokens.push(token);
        sequence.prompt.hash_full_blocks();
        self.name_full_blocks(sequence);
    }

    /// The request is over: its blocks stay until their place is needed, the last goes first.
    pub(crate) fn release(&mut self, sequence: &mut Sequence) {
        self.reserved -= std::mem::take(&mut sequence.reserved);
        for index in std::mem::take(&mut sequence.blocks).into_iter().rev() {
            let Some(block) = self.blocks.get_mut(index) else { continue };
            block.users = block.users.saturating_sub(1);
            if block.users == 0 {
                block.freed = self.clock;
                self.free.insert(self.clock, index);
                self.clock += 1;
            }
        }
    }

    /// Forgets everything, unless a request still uses a block. As in vLLM, the event goes out
    /// with the next request's.
    pub(crate) fn reset(&mut self) -> bool {
        if self.used() > 0 {
            return false;
        }
        self.held.clear();
        for block in &mut self.blocks {
            block.hash = None;
        }
        self.events.push(Event::Cleared);
        true
    }

    /// What happened since the last call, in order.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Copies per hash.
    #[cfg(test)]
    pub(super) fn held(&self) -> HashMap<BlockHash, usize> {
        self.held.iter().map(|(hash, copies)| (*hash, copies.len())).collect()
    }

    #[cfg(test)]
    pub(super) fn reserved(&self) -> usize {
        self.reserved
    }

    fn name_full_blocks(&mut self, sequence: &mut Sequence) {
        let full = sequence.prompt.hashes.len();
        let from = sequence.named;
        if !self.names {
            return;
        }
        for (hash, &index) in sequence.prompt.hashes.iter().zip(&sequence.blocks).skip(from) {
            if let Some(block) = self.blocks.get_mut(index) {
                block.hash = Some(*hash);
                self.held.entry(*hash).or_default().push(index);
            }
        }
        sequence.named = full;
        if from < full {
            self.events.push(sequence.prompt.stored(from, full));
        }
    }

    fn is_free(&self, index: usize) -> bool {
        self.blocks.get(index).is_some_and(|block| block.users == 0)
    }

    fn hold(&mut self, index: usize) {
        if let Some(block) = self.blocks.get_mut(index) {
            if block.users == 0 {
                self.free.remove(&block.freed);
            }
            block.users += 1;
        }
    }

    /// The block freed longest ago; what it held is gone.
    fn take_free(&mut self) -> Option<usize> {
        let (_, index) = self.free.pop_first()?;
        let block = self.blocks.get_mut(index)?;
        block.users = 1;
        if let Some(hash) = block.hash.take() {
            if let Some(copies) = self.held.get_mut(&hash) {
                copies.retain(|&copy| copy != index);
                if copies.is_empty() {
                    self.held.remove(&hash);
                }
            }
            self.events.push(Event::Removed(hash));
        }
        Some(index)
    }
}
