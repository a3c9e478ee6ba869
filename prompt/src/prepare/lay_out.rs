//! A vocabulary's tables, laid out once when a model is prepared.

use crate::tokenizer::bpe::BpeDefinition;
use crate::tokenizer::spaces::Joins;
use crate::tokenizer::vocabulary::{
    ID_BITS, NONE, RANK_BITS, Refusal, Slots, Vocabulary, hash_of_pair, hash_of_word, pair, tag,
};

/// Ids are below this, so that none looks like an empty place.
const MOST_IDS: usize = (1 << ID_BITS) - 1;
/// Ranks are below this, for the same reason.
const MOST_MERGES: usize = (1 << RANK_BITS) - 1;

impl BpeDefinition {
    /// Lays the tables out.
    pub(crate) fn lay_out(&self) -> Result<Vocabulary, Refusal> {
        let tokens = self.tokens.len();
        if tokens > MOST_IDS {
            return Err(format!("a vocabulary of {tokens} ids, over {MOST_IDS}"));
        }
        if self.merges.len() > MOST_MERGES {
            return Err(format!("{} merges, over {MOST_MERGES}", self.merges.len()));
        }
        let characters = !self.fallback.is_empty();
        let words = self.words()?;
        let pairs = self.pairs();
        let bytes: usize = self.tokens.iter().map(Vec::len).sum();
        let longest = self.tokens.iter().map(Vec::len).max().unwrap_or(0);
        let head = [
            tokens,
            bytes,
            words.len(),
            self.merges.len(),
            pairs.len(),
            longest,
            usize::from(characters),
            0,
            0,
            0,
        ];
        let mut out: Vec<u8> = Vec::new();
        let numbers = |out: &mut Vec<u8>, all: &mut dyn Iterator<Item = u32>| {
            out.extend(all.flat_map(u32::to_le_bytes));
        };
        numbers(&mut out, &mut head.into_iter().map(|number| number as u32));
        numbers(&mut out, &mut self.singles(characters)?.into_iter());
        if characters {
            let mut joins = Joins::none();
            for merge in &self.merges {
                joins.add(self.bytes(merge.token));
            }
            out.extend(joins.to_bytes());
        }
        let mut end = 0;
        let ends = self.tokens.iter().map(|token| {
            end += token.len() as u32;
            end
        });
        numbers(&mut out, &mut std::iter::once(0).chain(ends));
        out.extend(self.tokens.iter().flatten());
        numbers(&mut out, &mut words.into_iter());
        out.extend(pairs.into_iter().flat_map(u64::to_le_bytes));
        numbers(&mut out, &mut self.merges.iter().map(|merge| merge.token));
        Vocabulary::read(out, 0)
    }

    fn bytes(&self, id: u32) -> &[u8] {
        self.tokens.get(id as usize).map_or(&[], Vec::as_slice)
    }

    fn singles(&self, characters: bool) -> Result<[u32; 256], Refusal> {
        let mut singles = [NONE; 256];
        for (id, token) in self.tokens.iter().enumerate() {
            if let [byte] = token.as_slice()
                && let Some(place) = singles.get_mut(usize::from(*byte))
            {
                *place = id as u32;
            }
        }
        for (byte, single) in singles.iter_mut().enumerate() {
            if *single == NONE || (characters && byte >= 128) {
                *single = self.fallback.get(byte).copied().unwrap_or(NONE);
            }
            // UTF-8 has no other bytes.
            let met = !characters || !matches!(byte, 0xc0 | 0xc1 | 0xf5..);
            if *single == NONE && met {
                return Err(format!("no token for the byte 0x{byte:02x}"));
            }
        }
        Ok(singles)
    }

    /// The tokens that a whole word may be, three places for two.
    fn words(&self) -> Result<Vec<u32>, Refusal> {
        let mut table = vec![NONE; self.tokens.len() * 3 / 2 + 1];
        let slots = Slots { at: 0, count: table.len() };
        for (id, token) in self.tokens.iter().enumerate() {
            let id = id as u32;
            let skipped = !self.ignore_merges && self.unreachable.binary_search(&id).is_ok();
            if token.is_empty() || skipped {
                continue;
            }
            let hash = hash_of_word(token);
            for place in slots.places(hash, 1) {
                let Some(entry) = table.get_mut(place) else { break };
                if *entry == NONE {
                    *entry = tag(hash) << ID_BITS | id;
                    break;
                }
                if self.bytes(*entry & ((1 << ID_BITS) - 1)) == token {
                    return Err(format!("two tokens with the bytes of token {id}"));
                }
            }
        }
        Ok(table)
    }

    /// The merges, four places for three. Of two of the same pair the later one counts.
    fn pairs(&self) -> Vec<u64> {
        let mut table = vec![u64::MAX; self.merges.len() * 4 / 3 + 1];
        let slots = Slots { at: 0, count: table.len() };
        for (rank, merge) in self.merges.iter().enumerate() {
            let key = pair(merge.left, merge.right);
            for place in slots.places(hash_of_pair(key), 1) {
                let Some(entry) = table.get_mut(place) else { break };
                if *entry == u64::MAX || *entry >> RANK_BITS == key {
                    *entry = key << RANK_BITS | rank as u64;
                    break;
                }
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::tokenizer::bpe::MergeDefinition;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_laid_out_is_found_and_nothing_else(
            words in prop::collection::btree_set("[a-d]{2,5}", 0..60),
            others in prop::collection::vec("[a-e]{1,6}", 20),
            pairs in prop::collection::vec((0..300u32, 0..300u32, 0..300u32), 0..200),
            ignore_merges in any::<bool>(),
        ) {
            let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
            tokens.extend(words.iter().map(|word| word.clone().into_bytes()));
            // Every third of the longer ones can't be reached.
            let unreachable: Vec<u32> = (256..tokens.len() as u32).step_by(3).collect();
            let merges: Vec<_> = pairs
                .iter()
                .map(|&(left, right, token)| MergeDefinition { left, right, token })
                .collect();
            let definition = BpeDefinition {
                tokens: tokens.clone(),
                merges: merges.clone(),
                ignore_merges,
                unreachable: unreachable.clone(),
                fallback: Vec::new(),
            };
            let vocabulary = definition.lay_out().unwrap();
            let skipped: BTreeSet<u32> =
                if ignore_merges { BTreeSet::new() } else { unreachable.into_iter().collect() };
            for (id, token) in tokens.iter().enumerate() {
                let id = id as u32;
                prop_assert_eq!(vocabulary.token(id), token.as_slice());
                prop_assert_eq!(vocabulary.word(token), (!skipped.contains(&id)).then_some(id));
            }
            for other in others.iter().filter(|other| other.len() > 1 && !words.contains(*other)) {
                prop_assert_eq!(vocabulary.word(other.as_bytes()), None);
            }
            let mut last = BTreeMap::new();
            for (rank, merge) in merges.iter().enumerate() {
                last.insert((merge.left, merge.right), (rank as u32, merge.token));
            }
            for left in 0..300 {
                for right in [left, 299 - left, (left * 7) % 300] {
                    let found = vocabulary.rank(left, right);
                    let wanted = last.get(&(left, right)).map_or(NONE, |(rank, _)| *rank);
                    prop_assert_eq!(found, wanted);
                }
            }
            for (pair, (rank, token)) in &last {
                prop_assert_eq!(vocabulary.rank(pair.0, pair.1), *rank);
                prop_assert_eq!(vocabulary.merged(*rank), *token);
            }
        }
    }

    #[test]
    fn a_vocabulary_that_ids_cannot_name_is_refused() {
        let tokens = vec![Vec::new(); MOST_IDS + 1];
        let definition = BpeDefinition { tokens, ..BpeDefinition::default() };
        assert_eq!(definition.lay_out().unwrap_err(), "a vocabulary of 1048576 ids, over 1048575");
    }
}
