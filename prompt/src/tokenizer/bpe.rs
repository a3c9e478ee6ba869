//! Byte pair encoding, as `tokenizers` does it: merges are pairs of tokens, the pair that was
//! learned first goes first, the leftmost of its kind before others. It begins with bytes, or, in
//! SentencePiece's kind, with characters, and with the bytes of those that are no token.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::tokenizer::vocabulary::{NONE, Vocabulary};
use crate::tokenizer::words::{Kind, Short, Words};

/// Words up to this many bytes are merged by scanning, longer ones with a heap.
const SCAN_BYTES: usize = 96;

/// Two tokens that become one.
#[cfg(feature = "preprocess")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MergeDefinition {
    pub(crate) left: u32,
    pub(crate) right: u32,
    pub(crate) token: u32,
}

/// What a model file says about merging, in the order of the file.
#[cfg(feature = "preprocess")]
#[derive(Debug, Default, PartialEq)]
pub(crate) struct BpeDefinition {
    /// Bytes of each token by id; empty where there is none.
    pub(crate) tokens: Vec<Vec<u8>>,
    /// What is merged to what, by rank.
    pub(crate) merges: Vec<MergeDefinition>,
    /// A word that is a token is that token, whatever the merges say.
    pub(crate) ignore_merges: bool,
    /// Tokens that merging their own bytes doesn't give, in order.
    pub(crate) unreachable: Vec<u32>,
    /// The tokens of the 256 bytes, [`NONE`] where there is none, if words begin as characters;
    /// else empty.
    pub(crate) fallback: Vec<u32>,
}

/// Merges words by a vocabulary.
pub(crate) struct Bpe(Vocabulary);

impl Bpe {
    pub(crate) fn new(vocabulary: Vocabulary) -> Self {
        Self(vocabulary)
    }

    pub(crate) fn vocabulary(&self) -> &Vocabulary {
        &self.0
    }

    /// The ids, in order, of tokens that merging their own bytes doesn't give.
    #[cfg(feature = "preprocess")]
    pub(crate) fn unreachable(&self) -> Vec<u32> {
        let mut scratch = Scratch::default();
        let mut out = Vec::new();
        let mut found = Vec::new();
        for id in 0..self.0.ids() {
            let token = self.0.token(id);
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

    /// Appends the tokens of one word.
    pub(crate) fn encode(&self, word: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        let short = Short::of(word, Kind::Word);
        if short.is_some_and(|short| scratch.recall(short, out)) {
            return;
        }
        let start = out.len();
        match self.0.word(word) {
            Some(id) => out.push(id),
            None => self.merge(word, scratch, out),
        }
        if let Some(short) = short {
            scratch.keep(short, out.get(start..).unwrap_or_default());
        }
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
        let single = |byte: &u8| self.0.single(*byte);
        if !self.0.characters() {
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
            } else if let Some(id) = self.0.word(char) {
                push(id);
            } else {
                char.iter().map(single).for_each(&mut push);
            }
            rest = after;
        }
    }

    fn merge_by_scan(&self, word: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        // Each token with the rank of its merge with the next.
        let parts = &mut scratch.parts;
        parts.clear();
        self.begin(word, |id| parts.push((id, NONE)));
        let mut next = NONE;
        for place in parts.iter_mut().rev() {
            if next != NONE {
                place.1 = self.0.rank(place.0, next);
            }
            next = place.0;
        }
        loop {
            let mut best = NONE;
            let mut at = 0;
            for (place, (_, rank)) in parts.iter().enumerate() {
                if *rank < best {
                    best = *rank;
                    at = place;
                }
            }
            if best == NONE {
                break;
            }
            parts.remove(at + 1);
            let after = parts.get(at + 1).map(|part| part.0);
            let Some(part) = parts.get_mut(at) else { break };
            let token = self.0.merged(best);
            part.0 = token;
            part.1 = after.map_or(NONE, |id| self.0.rank(token, id));
            if let Some(before) = at.checked_sub(1).and_then(|before| parts.get_mut(before)) {
                before.1 = self.0.rank(before.0, token);
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
            let rank = self.0.rank(left.token, right.token);
            if rank != NONE {
                heap.push(Reverse((rank, at as u32)));
            }
        }
        while let Some(Reverse((rank, at))) = heap.pop() {
            // What was merged meanwhile is stale: its tokens are others now.
            let Some(left) = links.get(at as usize).copied() else { continue };
            let Some(right) = links.get(left.after as usize).copied() else { continue };
            if left.token == NONE || self.0.rank(left.token, right.token) != rank {
                continue;
            }
            if let Some(gone) = links.get_mut(left.after as usize) {
                gone.token = NONE;
            }
            let token = self.0.merged(rank);
            if let Some(link) = links.get_mut(at as usize) {
                link.token = token;
                link.after = right.after;
            }
            if let Some(next) = links.get_mut(right.after as usize) {
                next.before = at;
                let rank = self.0.rank(token, next.token);
                if rank != NONE {
                    heap.push(Reverse((rank, at)));
                }
            }
            if let Some(before) = links.get(left.before as usize) {
                let rank = self.0.rank(before.token, token);
                if rank != NONE {
                    heap.push(Reverse((rank, left.before)));
                }
            }
        }
        out.extend(links.iter().map(|link| link.token).filter(|token| *token != NONE));
    }
}

#[derive(Clone, Copy)]
struct Link {
    token: u32,
    before: u32,
    after: u32,
}

/// Buffers that are kept from word to word, and what short texts came to, of one tokenizer.
#[derive(Default)]
pub(crate) struct Scratch {
    words: Words,
    parts: Vec<(u32, u32)>,
    links: Vec<Link>,
    heap: BinaryHeap<Reverse<(u32, u32)>>,
}

impl Scratch {
    /// These will be recalled one by one.
    pub(crate) fn expect(&self, texts: &[Option<Short>]) {
        self.words.touch(texts.iter().flatten());
    }

    /// Appends a text's tokens, if they are known.
    pub(crate) fn recall(&self, text: Short, out: &mut Vec<u32>) -> bool {
        let Some(tokens) = self.words.get(text) else { return false };
        // Mostly one; and to copy a few is a call in wasm.
        for token in tokens {
            out.push(*token);
        }
        true
    }

    /// Keeps them.
    pub(crate) fn keep(&mut self, text: Short, tokens: &[u32]) {
        self.words.put(text, tokens);
    }
}

#[cfg(all(test, feature = "preprocess"))]
#[allow(clippy::unwrap_used)] // Helpers too.
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
        ids.iter().map(|id| String::from_utf8(bpe.0.token(*id).to_vec()).unwrap()).collect()
    }

    #[test]
    fn the_first_learned_pair_goes_first_and_the_leftmost_before_others() {
        let bpe = Bpe::new(definition().lay_out().unwrap());
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
        assert_eq!(definition.lay_out().err().unwrap(), "no token for the byte 0x07");
    }

    proptest! {
        #[test]
        fn heap_and_scan_agree(word in "[abcd]{1,80}") {
            let bpe = Bpe::new(definition().lay_out().unwrap());
            let (mut scan, mut heap) = (Vec::new(), Vec::new());
            let mut scratch = Scratch::default();
            bpe.merge_by_scan(word.as_bytes(), &mut scratch, &mut scan);
            bpe.merge_by_heap(word.as_bytes(), &mut scratch, &mut heap);
            prop_assert_eq!(scan, heap);
        }
    }
}
