//! What short words came to lately: of most, all that is needed lies in one place here, instead of
//! in three or more that are far apart in the vocabulary.

/// Bytes of words that are kept.
const MOST_BYTES: usize = 15;

/// Tokens of words that are kept.
const MOST_TOKENS: usize = 3;

/// 16 KiB of them.
const PLACES: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 9;

/// A word, its length in the last byte; and its tokens.
#[derive(Clone, Copy, Default)]
struct Place {
    word: u128,
    ids: [u32; MOST_TOKENS],
    count: u32,
}

/// A table of one vocabulary's words. What comes to the place of another takes it.
#[derive(Default)]
pub(super) struct Words {
    places: Vec<Place>,
}

impl Words {
    /// The number of a short word, no two of the same; `None` for others.
    pub(super) fn number(word: &[u8]) -> Option<u128> {
        let mut bytes = [0; MOST_BYTES + 1];
        bytes.get_mut(..word.len()).filter(|_| word.len() <= MOST_BYTES)?.copy_from_slice(word);
        Some(u128::from_le_bytes(bytes) | (word.len() as u128) << (8 * MOST_BYTES))
    }

    fn at(number: u128) -> usize {
        let mixed = (number as u64 ^ (number >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (u64::BITS - PLACE_BITS)) as usize
    }

    /// The tokens of a word's number.
    pub(super) fn get(&self, number: u128) -> Option<&[u32]> {
        let place = self.places.get(Self::at(number)).filter(|place| place.word == number)?;
        place.ids.get(..place.count as usize)
    }

    /// Keeps a word's tokens, if they are few.
    pub(super) fn put(&mut self, number: u128, tokens: &[u32]) {
        if self.places.is_empty() {
            self.places.resize(PLACES, Place::default());
        }
        let mut ids = [0; MOST_TOKENS];
        let (Some(kept), Some(place)) =
            (ids.get_mut(..tokens.len()), self.places.get_mut(Self::at(number)))
        else {
            return;
        };
        kept.copy_from_slice(tokens);
        *place = Place { word: number, ids, count: tokens.len() as u32 };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_kept_is_what_was_put_last(
            puts in proptest::collection::vec(("[a-c\0]{0,16}", 0usize..5), 0..900),
        ) {
            let mut words = Words::default();
            let mut all = std::collections::BTreeMap::new();
            for (word, count) in puts {
                let Some(number) = Words::number(word.as_bytes()) else {
                    prop_assert_eq!(word.len(), 16);
                    continue;
                };
                let tokens: Vec<u32> = (0..count as u32).map(|at| at + all.len() as u32).collect();
                words.put(number, &tokens);
                if count <= MOST_TOKENS {
                    prop_assert_eq!(words.get(number), Some(tokens.as_slice()));
                    all.insert(word, tokens);
                }
            }
            for (word, tokens) in &all {
                let number = Words::number(word.as_bytes()).unwrap();
                prop_assert!(words.get(number).is_none_or(|found| found == tokens));
            }
        }
    }

    #[test]
    fn no_two_words_have_one_number() {
        let words: [&[u8]; 6] = [b"", b"\0", b"\0\0", b"a", b"a\0", &[0; 15]];
        let numbers: std::collections::BTreeSet<_> =
            words.iter().map(|word| Words::number(word).unwrap()).collect();
        assert_eq!(numbers.len(), words.len());
        assert!(Words::number(&[0; 16]).is_none());
    }
}
