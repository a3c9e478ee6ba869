//! A BPE model's tokens and merges, in tables that were laid out when the model was prepared.
//!
//! A worker looks things up in the artefact's own bytes: nothing is built when it loads, and
//! nothing is held twice.
//!
//! Layout (numbers are little-endian): ten u32 (tokens, bytes of all tokens, slots for words,
//! merges, slots for merges, length of the longest token, 1 if words begin as characters, three
//! zeros), then
//! - the token of each of the 256 bytes, u32;
//! - if words begin as characters: which bytes may stand side by side in a token, 8 KiB of bits;
//! - where each token's bytes start and where the last ends, u32;
//! - the tokens' bytes;
//! - the words that are tokens, by hash: u32, the low 20 bits the id, the high 12 of the hash;
//! - the merges, by hash: u64, left and right id of 20 bits each, then the rank of 24;
//! - what each merge becomes, by rank: u32.
//!
//! In both hashed tables a place that is taken moves an entry to the next; all ones is empty.

use crate::tokenizer::spaces::Joins;

/// No token, no rank.
pub(crate) const NONE: u32 = u32::MAX;

const HEAD: usize = 10;
pub(crate) const ID_BITS: u32 = 20;
pub(crate) const RANK_BITS: u32 = 24;

/// Why a vocabulary can't be used.
pub(crate) type Refusal = String;

/// Tokens and merges, ready to be looked up.
#[derive(Debug, PartialEq)]
pub(crate) struct Vocabulary {
    data: Vec<u8>,
    /// Where the tables start and end in `data`.
    from: usize,
    to: usize,
    tokens: usize,
    merges: usize,
    starts: usize,
    bytes: usize,
    words: Slots,
    pairs: Slots,
    merged: usize,
    longest: usize,
    characters: bool,
    joins: Joins,
    singles: [u32; 256],
}

/// A hashed table: where it is, and how many places it has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Slots {
    pub(crate) at: usize,
    pub(crate) count: usize,
}

impl Slots {
    fn first(self, hash: u64) -> usize {
        (((hash >> 32) * self.count as u64) >> 32) as usize
    }

    /// The places where an entry of this hash may be, in order, each with where it is.
    pub(crate) fn places(self, hash: u64, width: usize) -> impl Iterator<Item = usize> {
        let first = self.first(hash);
        (first..self.count).chain(0..first).map(move |place| self.at + place * width)
    }
}

impl Vocabulary {
    /// Takes the tables that start at `from`; what follows them isn't looked at.
    pub(crate) fn read(data: Vec<u8>, from: usize) -> Result<Self, Refusal> {
        let early = || "its tables end too early".to_owned();
        let mut head = [0; HEAD];
        for (place, number) in head.iter_mut().enumerate() {
            *number = u32_at(&data, from + 4 * place).ok_or_else(early)? as usize;
        }
        let [tokens, bytes, words, merges, pairs, longest, characters, ..] = head;
        let mut end = from + 4 * HEAD;
        let mut table = |count: usize, width: usize| -> Result<usize, Refusal> {
            let at = end;
            let length = count.checked_mul(width).ok_or_else(early)?;
            end = end.checked_add(length).filter(|end| *end <= data.len()).ok_or_else(early)?;
            Ok(at)
        };
        let characters = characters != 0;
        let singles_at = table(256, 4)?;
        let joins_at = table(if characters { Joins::BYTES } else { 0 }, 1)?;
        let starts = table(tokens.checked_add(1).ok_or_else(early)?, 4)?;
        let bytes = table(bytes, 1)?;
        let words = Slots { at: table(words, 4)?, count: words };
        let pairs = Slots { at: table(pairs, 8)?, count: pairs };
        let merged = table(merges, 4)?;
        let mut singles = [NONE; 256];
        for (byte, single) in singles.iter_mut().enumerate() {
            *single = u32_at(&data, singles_at + 4 * byte).unwrap_or(NONE);
        }
        let joins = Joins::of_bytes(data.get(joins_at..starts).unwrap_or_default());
        Ok(Self {
            to: end,
            data,
            from,
            tokens,
            merges,
            starts,
            bytes,
            words,
            pairs,
            merged,
            longest,
            characters,
            joins,
            singles,
        })
    }

    /// Where the tables end.
    pub(crate) fn end(&self) -> usize {
        self.to
    }

    /// The tables, to be written down.
    #[cfg(feature = "preprocess")]
    pub(crate) fn tables(&self) -> &[u8] {
        self.data.get(self.from..self.to).unwrap_or_default()
    }

    /// Ids, with and without a token.
    #[cfg(feature = "preprocess")]
    pub(crate) fn ids(&self) -> u32 {
        self.tokens as u32
    }

    /// Words begin as characters, in SentencePiece's kind.
    pub(crate) fn characters(&self) -> bool {
        self.characters
    }

    /// Which bytes merging puts side by side, in SentencePiece's kind.
    pub(crate) fn joins(&self) -> &Joins {
        &self.joins
    }

    /// The token of a byte. Where words begin as characters: of an ASCII character, and of a byte
    /// of any other that is no token.
    pub(crate) fn single(&self, byte: u8) -> u32 {
        self.singles.get(usize::from(byte)).copied().unwrap_or(NONE)
    }

    /// The bytes of a token; none of what isn't one.
    pub(crate) fn token(&self, id: u32) -> &[u8] {
        let id = id as usize;
        if id >= self.tokens {
            return &[];
        }
        let place =
            |id: usize| Some(self.bytes + u32_at(&self.data, self.starts + 4 * id)? as usize);
        match (place(id), place(id + 1)) {
            (Some(start), Some(end)) if end <= self.words.at => {
                self.data.get(start..end).unwrap_or_default()
            }
            _ => &[],
        }
    }

    /// The token that a whole word is.
    pub(crate) fn word(&self, word: &[u8]) -> Option<u32> {
        if word.len() > self.longest {
            return None;
        }
        let hash = hash_of_word(word);
        for at in self.words.places(hash, 4) {
            let entry = u32_at(&self.data, at)?;
            if entry == NONE {
                return None;
            }
            let id = entry & ((1 << ID_BITS) - 1);
            if entry >> ID_BITS == tag(hash) && self.token(id) == word {
                return Some(id);
            }
        }
        None
    }

    /// The rank of the merge of two tokens, [`NONE`] if they don't merge.
    pub(crate) fn rank(&self, left: u32, right: u32) -> u32 {
        let key = pair(left, right);
        for at in self.pairs.places(hash_of_pair(key), 8) {
            let entry = self.data.get(at..).and_then(<[u8]>::first_chunk);
            let entry = entry.map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
            if entry == u64::MAX {
                return NONE;
            }
            if entry >> RANK_BITS == key {
                return (entry & ((1 << RANK_BITS) - 1)) as u32;
            }
        }
        NONE
    }

    /// What the merge of this rank becomes.
    pub(crate) fn merged(&self, rank: u32) -> u32 {
        let rank = rank as usize;
        let known = (rank < self.merges).then(|| u32_at(&self.data, self.merged + 4 * rank));
        known.flatten().unwrap_or(NONE)
    }
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..).and_then(<[u8]>::first_chunk).map(|bytes| u32::from_le_bytes(*bytes))
}

pub(crate) fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << ID_BITS | u64::from(right)
}

// The tables never change after they are laid out, so nobody can aim at these hashes; they are part
// of the layout.

fn mix(hash: u64, number: u64) -> u64 {
    let mixed = (hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 32)
}

pub(crate) fn hash_of_pair(key: u64) -> u64 {
    // The high half is what places it.
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(crate) fn hash_of_word(word: &[u8]) -> u64 {
    let mut hash = word.len() as u64;
    let (numbers, rest) = word.as_chunks::<8>();
    for number in numbers {
        hash = mix(hash, u64::from_le_bytes(*number));
    }
    let mut last = [0; 8];
    for (place, byte) in last.iter_mut().zip(rest) {
        *place = *byte;
    }
    mix(hash, u64::from_le_bytes(last))
}

/// What a word's entry keeps of its hash: low bits, which don't place it.
pub(crate) fn tag(hash: u64) -> u32 {
    (hash as u32) & ((1 << (32 - ID_BITS)) - 1)
}
