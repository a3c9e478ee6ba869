//! An engine's prefix cache, kept the plain way: what the relay and the filter must end up with.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use warmpath_routing::fingerprint::{Chain, Key, Scope};

pub const VERSION: &str = "1";
pub const TOKENIZER: [u8; 32] = [5; 32];
pub const ADAPTER: &str = "lora-a";

/// Prompts begin with one of so many texts, which engines share.
const ROOTS: u64 = 400;
/// Ways to go on after a block that prompts share.
const FAN_OUT: u64 = 3;

/// Splitmix64: small, seeded, and good enough to draw from.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What happened, before it is encoded.
pub enum Event {
    Stored { hashes: Vec<u64>, parent: Option<u64>, tokens: Vec<u32>, adapter: bool },
    Removed(u64),
    Cleared,
}

struct Block {
    parent: Option<u64>,
    chain: Chain,
    keys: Vec<Key>,
    copies: u32,
}

/// Blocks by hash, physical copies by age. A block's hash stands for all tokens up to its end, and
/// its own tokens are made of it.
pub struct Cache {
    block_tokens: usize,
    capacity: usize,
    blocks: HashMap<u64, Block>,
    /// The oldest copy first.
    ages: BTreeMap<u64, u64>,
    clock: u64,
}

impl Cache {
    pub fn new(block_tokens: usize, capacity: usize) -> Self {
        Self { block_tokens, capacity, blocks: HashMap::new(), ages: BTreeMap::new(), clock: 0 }
    }

    /// A prompt comes: what of it is cached is used, the rest is computed and stored, and what has
    /// to make room for it goes. Returns a key that nobody held before, where there is one.
    pub fn prompt(&mut self, random: &mut Random, events: &mut Vec<Event>) -> Option<Key> {
        let root = random.below(ROOTS).min(random.below(ROOTS));
        let adapter = root.is_multiple_of(10);
        let shared = 1 + random.below(6);
        let own = 1 + random.below(6);
        let mut hashes = Vec::new();
        let mut hash = mix(root + 1);
        for depth in 0..shared + own {
            hashes.push(hash);
            let step = if depth + 1 < shared { random.below(FAN_OUT) } else { random.next() };
            // A hash that another parent's block had too would be another engine's fault.
            hash = mix(mix(hash).wrapping_add(step));
        }
        // A hole in the middle is computed again with all that follows it, held or not.
        let hits = hashes.iter().take_while(|hash| self.blocks.contains_key(hash)).count();
        let (head, tail) = hashes.split_at(hits);
        let mut parent = head.last().copied();
        let from = parent;
        let mut tokens = Vec::new();
        let mut last = None;
        for &hash in tail {
            let own: Vec<u32> = (0..self.block_tokens as u64)
                .map(|i| (mix(hash.wrapping_add(i)) % 150_000) as u32)
                .collect();
            if let Some(block) = self.blocks.get_mut(&hash) {
                block.copies += 1;
            } else {
                let mut chain = match parent.and_then(|hash| self.blocks.get(&hash)) {
                    Some(block) => block.chain,
                    None => Chain::new(&Scope {
                        model_version: VERSION,
                        tokenizer_hash: &TOKENIZER,
                        adapter: if adapter { ADAPTER } else { "" },
                        salt: "",
                    }),
                };
                let mut keys = Vec::new();
                chain.push(&own, |fingerprint| keys.push(fingerprint.key()));
                last = keys.last().copied();
                self.blocks.insert(hash, Block { parent, chain, keys, copies: 1 });
            }
            self.ages.insert(self.clock, hash);
            self.clock += 1;
            tokens.extend(own);
            parent = Some(hash);
        }
        if !tail.is_empty() {
            events.push(Event::Stored { hashes: tail.to_vec(), parent: from, tokens, adapter });
        }
        while self.ages.len() > self.capacity {
            // The oldest goes, and now and then another, which leaves a hole.
            let from = if random.one_in(8) { self.clock - random.below(self.clock) } else { 0 };
            let age = self.ages.range(from..).chain(self.ages.iter()).next().map(|(age, _)| *age);
            events.extend(age.and_then(|age| self.ages.remove(&age)).map(|hash| self.remove(hash)));
        }
        last
    }

    fn remove(&mut self, hash: u64) -> Event {
        let block = self.blocks.get_mut(&hash).unwrap();
        block.copies -= 1;
        if block.copies == 0 {
            self.blocks.remove(&hash);
        }
        Event::Removed(hash)
    }

    pub fn clear(&mut self, events: &mut Vec<Event>) {
        *self = Self::new(self.block_tokens, self.capacity);
        events.push(Event::Cleared);
    }

    /// Every prefix that a request could hit: its block and all before it are there.
    pub fn keys(&self) -> BTreeSet<Key> {
        let mut whole: HashMap<u64, bool> = HashMap::new();
        let mut keys = BTreeSet::new();
        for &start in self.blocks.keys() {
            let mut way = Vec::new();
            let mut at = Some(start);
            let answer = loop {
                let Some(hash) = at else { break true };
                if let Some(&known) = whole.get(&hash) {
                    break known;
                }
                let Some(block) = self.blocks.get(&hash) else { break false };
                way.push(hash);
                at = block.parent;
            };
            for hash in way {
                whole.insert(hash, answer);
            }
        }
        for (hash, block) in &self.blocks {
            if whole[hash] {
                keys.extend(&block.keys);
            }
        }
        keys
    }
}
