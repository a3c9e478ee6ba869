//! Byte pair encoding, as `tokenizers` does it: merges are pairs of tokens, the pair that was
//! learned first goes first, the leftmost of its kind before others. It begins with bytes, or, in
//! SentencePiece's kind, with characters, and with the bytes of those that are no token.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashTable;

use super::spaces::Joins;

/// Words up to this many bytes are merged by scanning, longer ones with a heap.
const SCAN_BYTES: usize = 96;

/// No token.
pub(super) const NONE: u32 = u32::MAX;

/// Two tokens that become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MergeDefinition {
    pub(super) left: u32,
    pub(super) right: u32,
    pub(super) token: u32,
}

/// What a model file says about merging, in the order of the file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct BpeDefinition {
    /// Bytes of each token by id; empty where there is none.
    pub(super) tokens: Vec<Vec<u8>>,
    /// What is merged to what, by rank.
    pub(super) merges: Vec<MergeDefinition>,
    /// A word that is a token is that token, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Tokens that merging their own bytes doesn't give.
    pub(super) unreachable: Vec<u32>,
    /// The tokens of the 256 bytes, [`NONE`] where there is none, if words begin as characters;
    /// else empty.
    pub(super) fallback: Vec<u32>,
}

/// Mixes a pair of token ids; the tables never grow after loading, so nobody can aim at them.
#[derive(Default)]
pub(super) struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// A map from tokens' bytes to their ids.
pub(super) type TokenIds<'a> = HashMap<&'a [u8], u32, BuildHasherDefault<BytesHasher>>;

/// [`hash_bytes`] for maps; as little to aim at as [`PairHasher`].
#[derive(Default)]
pub(super) struct BytesHasher(u64);

impl Hasher for BytesHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 ^= hash_bytes(bytes);
    }
    // The length, which is in the hash already.
    fn write_usize(&mut self, _: usize) {}
}

fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hasher = PairHasher(bytes.len() as u64);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        hasher.write_u64(u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    for (place, byte) in last.iter_mut().zip(rest) {
        *place = *byte;
    }
    hasher.write_u64(u64::from_le_bytes(last));
    hasher.finish()
}

#[derive(Clone, Copy)]
struct Merge {
    rank: u32,
    token: u32,
}

/// A vocabulary with its merges, ready to encode.
pub(super) struct Bpe {
    bytes: Vec<u8>,
    /// Where each token's bytes start; one more at the end.
    starts: Vec<u32>,
    /// Ids of tokens that a whole word may be.
    words: HashTable<u32>,
    merges: HashMap<u64, Merge, BuildHasherDefault<PairHasher>>,
    /// The token of each single byte.
    singles: [u32; 256],
    /// Words begin as characters; `singles` are tokens of ASCII characters and else of bytes.
    characters: bool,
    longest: usize,
}

/// Why a vocabulary can't be used.
pub(super) type Refusal = String;

impl Bpe {
    pub(super) fn new(definition: &BpeDefinition) -> Result<Self, Refusal> {
        let mut bytes = Vec::with_capacity(definition.tokens.iter().map(Vec::len).sum());
        let mut starts = Vec::with_capacity(definition.tokens.len() + 1);
        let mut singles = [NONE; 256];
        let mut longest = 0;
        for (id, token) in definition.tokens.iter().enumerate() {
            starts.push(bytes.len() as u32);
            bytes.extend_from_slice(token);
            longest = longest.max(token.len());
            if let [byte] = token.as_slice()
                && let Some(place) = singles.get_mut(usize::from(*byte))
            {
                *place = id as u32;
            }
        }
        starts.push(bytes.len() as u32);
        let characters = !definition.fallback.is_empty();
        let mut fallback = [NONE; 256];
        for (place, id) in fallback.iter_mut().zip(&definition.fallback) {
            *place = *id;
        }
        for (byte, (single, fallback)) in singles.iter_mut().zip(&fallback).enumerate() {
            if *single == NONE || (characters && byte >= 128) {
                *single = *fallback;
            }
            // UTF-8 has no other bytes.
            let met = !characters || !matches!(byte, 0xc0 | 0xc1 | 0xf5..);
            if *single == NONE && met {
                return Err(format!("no token for the byte 0x{byte:02x}"));
            }
        }
        let mut bpe = Self {
            bytes,
            starts,
            words: HashTable::with_capacity(definition.tokens.len()),
            merges: HashMap::with_capacity_and_hasher(
                definition.merges.len(),
                BuildHasherDefault::default(),
            ),
            singles,
            characters,
            longest,
        };
        for id in 0..definition.tokens.len() as u32 {
            let token = bpe.token(id);
            if token.is_empty() {
                continue;
            }
            let hash = hash_bytes(token);
            if bpe.word(token, hash).is_some() {
                return Err(format!("two tokens with the bytes of token {id}"));
            }
            let Self { words, bytes, starts, .. } = &mut bpe;
            words.insert_unique(hash, id, |id| hash_bytes(slice(bytes, starts, *id)));
        }
        for (rank, merge) in definition.merges.iter().enumerate() {
            let entry = Merge { rank: rank as u32, token: merge.token };
            bpe.merges.insert(pair(merge.left, merge.right), entry);
        }
        if !definition.ignore_merges {
            for id in &definition.unreachable {
                let hash = hash_bytes(bpe.token(*id));
                if let Ok(entry) = bpe.words.find_entry(hash, |word| word == id) {
                    entry.remove();
                }
            }
        }
        Ok(bpe)
    }

    /// The ids, in order, of tokens that merging their own bytes doesn't give.
    #[cfg(feature = "preprocess")]
    pub(super) fn unreachable(&self) -> Vec<u32> {
        let mut scratch = Scratch::default();
        let mut out = Vec::new();
        let mut found = Vec::new();
        for id in 0..self.starts.len().saturating_sub(1) as u32 {
            let token = self.token(id);
            if token.len() > 1 {
                out.clear();
                self.merge(token, &mut scratch, &mut out);
                if out != [id] {
                    found.push(id);
                }
            }
        }
        found
    }

    fn token(&self, id: u32) -> &[u8] {
        slice(&self.bytes, &self.starts, id)
    }

    fn word(&self, word: &[u8], hash: u64) -> Option<u32> {
        self.words.find(hash, |id| self.token(*id) == word).copied()
    }

    /// Appends the tokens of one word.
    pub(super) fn encode(&self, word: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        if word.len() <= self.longest
            && let Some(id) = self.word(word, hash_bytes(word))
        {
            out.push(id);
            return;
        }
        self.merge(word, scratch, out);
    }

    fn merge(&self, word: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        if word.len() <= SCAN_BYTES {
            self.merge_by_scan(word, scratch, out);
        } else {
            self.merge_by_heap(word, scratch, out);
        }
    }

    /// Calls `push` with each token that a word begins as.
    fn begin(&self, word: &[u8], mut push: impl FnMut(u32)) {
        let single = |byte: &u8| self.singles.get(usize::from(*byte)).copied().unwrap_or(NONE);
        if !self.characters {
            word.iter().map(single).for_each(push);
            return;
        }
        let mut rest = word;
        while let Some(first) = rest.first() {
            let length = match first {
                0..=0x7f => 1,
                0x80..=0xdf => 2,
                0xe0..=0xef => 3,
                0xf0.. => 4,
            };
            let (char, after) = rest.split_at_checked(length).unwrap_or((rest, &[]));
            if length == 1 {
                push(single(first));
            } else if let Some(id) = self.word(char, hash_bytes(char)) {
                push(id);
            } else {
                char.iter().map(single).for_each(&mut push);
            }
            rest = after;
        }
    }

    /// Which bytes merging puts side by side.
    pub(super) fn joins(&self) -> Joins {
        let mut joins = Joins::none();
        for merge in self.merges.values() {
            joins.add(self.token(merge.token));
        }
        joins
    }

    fn merge_of(&self, left: u32, right: u32) -> Merge {
        self.merges.get(&pair(left, right)).copied().unwrap_or(Merge { rank: NONE, token: NONE })
    }

    fn merge_by_scan(&self, word: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        let parts = &mut scratch.parts;
        parts.clear();
        self.begin(word, |id| parts.push((id, Merge { rank: NONE, token: NONE })));
        let mut next = NONE;
        for place in parts.iter_mut().rev() {
            if next != NONE {
                place.1 = self.merge_of(place.0, next);
            }
            next = place.0;
        }
        loop {
            let mut best = NONE;
            let mut at = 0;
            for (place, (_, merge)) in parts.iter().enumerate() {
                if merge.rank < best {
                    best = merge.rank;
                    at = place;
                }
            }
            if best == NONE {
                break;
            }
            parts.remove(at + 1);
            let after = parts.get(at + 1).map(|part| part.0);
            let Some(part) = parts.get_mut(at) else { break };
            let token = part.1.token;
            part.0 = token;
            part.1 = after.map_or(Merge { rank: NONE, token: NONE }, |id| self.merge_of(token, id));
            if let Some(before) = at.checked_sub(1).and_then(|before| parts.get_mut(before)) {
                before.1 = self.merge_of(before.0, token);
            }
        }
        out.extend(parts.iter().map(|(id, _)| *id));
    }

    fn merge_by_heap(&self, word: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        let Scratch { links, heap, .. } = scratch;
        links.clear();
        heap.clear();
        self.begin(word, |token| {
            let at = links.len() as u32;
            links.push(Link { token, before: at.checked_sub(1).unwrap_or(NONE), after: at + 1 });
        });
        if let Some(last) = links.last_mut() {
            last.after = NONE;
        }
        for (at, (left, right)) in links.iter().zip(links.iter().skip(1)).enumerate() {
            let merge = self.merge_of(left.token, right.token);
            if merge.rank != NONE {
                heap.push(Reverse((merge.rank, at as u32, merge.token)));
            }
        }
        while let Some(Reverse((rank, at, token))) = heap.pop() {
            // What was merged meanwhile is stale: its tokens are others now.
            let Some(left) = links.get(at as usize).copied() else { continue };
            let Some(right) = links.get(left.after as usize).copied() else { continue };
            if left.token == NONE || self.merge_of(left.token, right.token).rank != rank {
                continue;
            }
            if let Some(gone) = links.get_mut(left.after as usize) {
                gone.token = NONE;
            }
            if let Some(link) = links.get_mut(at as usize) {
                link.token = token;
                link.after = right.after;
            }
            if let Some(next) = links.get_mut(right.after as usize) {
                next.before = at;
                let merge = self.merge_of(token, next.token);
                if merge.rank != NONE {
                    heap.push(Reverse((merge.rank, at, merge.token)));
                }
            }
            if let Some(before) = links.get(left.before as usize) {
                let merge = self.merge_of(before.token, token);
                if merge.rank != NONE {
                    heap.push(Reverse((merge.rank, left.before, merge.token)));
                }
            }
        }
        out.extend(links.iter().map(|link| link.token).filter(|token| *token != NONE));
    }
}

fn slice<'a>(bytes: &'a [u8], starts: &[u32], id: u32) -> &'a [u8] {
    let id = id as usize;
    match (starts.get(id), starts.get(id + 1)) {
        (Some(start), Some(end)) => bytes.get(*start as usize..*end as usize).unwrap_or(&[]),
        _ => &[],
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

#[derive(Clone, Copy)]
struct Link {
    token: u32,
    before: u32,
    after: u32,
}

/// Buffers that are kept from word to word.
#[derive(Default)]
pub(super) struct Scratch {
    parts: Vec<(u32, Merge)>,
    links: Vec<Link>,
    heap: BinaryHeap<Reverse<(u32, u32, u32)>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn definition() -> BpeDefinition {
        let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
        let mut merges = Vec::new();
        for (left, right) in
            [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "a"), ("aa", "aa"), ("c", "ab")]
        {
            let id = |text: &str| {
                tokens.iter().position(|token| token == text.as_bytes()).unwrap() as u32
            };
            let (left_id, right_id) = (id(left), id(right));
            let joined = format!("{left}{right}").into_bytes();
            if !tokens.contains(&joined) {
                tokens.push(joined.clone());
            }
            let token = tokens.iter().position(|token| *token == joined).unwrap() as u32;
            merges.push(MergeDefinition { left: left_id, right: right_id, token });
        }
        BpeDefinition { tokens, merges, ..BpeDefinition::default() }
    }

    fn text(bpe: &Bpe, ids: &[u32]) -> Vec<String> {
        ids.iter().map(|id| String::from_utf8(bpe.token(*id).to_vec()).unwrap()).collect()
    }

    #[test]
    fn the_first_learned_pair_goes_first_and_the_leftmost_before_others() {
        let bpe = Bpe::new(&definition()).unwrap();
        let mut out = Vec::new();
        bpe.encode(b"abcaaaaabc", &mut Scratch::default(), &mut out);
        assert_eq!(text(&bpe, &out), ["abc", "aaaa", "abc"]);
        out.clear();
        bpe.encode(b"aaa", &mut Scratch::default(), &mut out);
        assert_eq!(text(&bpe, &out), ["aa", "a"]);
    }

    #[test]
    fn a_vocabulary_without_a_byte_is_refused() {
        let mut definition = definition();
        definition.tokens[7].clear();
        assert_eq!(Bpe::new(&definition).err().unwrap(), "no token for the byte 0x07");
    }

    proptest! {
        #[test]
        fn heap_and_scan_agree(word in "[abcd]{1,80}") {
            let bpe = Bpe::new(&definition()).unwrap();
            let (mut scan, mut heap) = (Vec::new(), Vec::new());
            let mut scratch = Scratch::default();
            bpe.merge_by_scan(word.as_bytes(), &mut scratch, &mut scan);
            bpe.merge_by_heap(word.as_bytes(), &mut scratch, &mut heap);
            prop_assert_eq!(scan, heap);
        }
    }
}
