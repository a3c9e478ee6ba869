//! What short texts came to lately: of most, all that is needed lies in one place here, one line of
//! the cache, instead of in three or more that are far apart in the vocabulary.

/// Tokens of texts that are kept.
const MOST_TOKENS: usize = 9;

/// Sets of two places: 256 KiB of them.
const SETS: usize = 1 << SET_BITS;
const SET_BITS: u32 = 11;

/// What a text is: what it comes to may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What the patterns split off: it is merged as it is.
    Word,
    /// What lies between two cuts: it is split, and its words are merged.
    Piece,
}

/// A text of up to 23 bytes as numbers: its bytes, and its length and kind in the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Short([u64; 3]);

impl Short {
    /// `None` for what isn't short.
    pub(crate) fn of(text: &[u8], kind: Kind) -> Option<Self> {
        let last = (text.len() as u64 | (kind as u64) << 7) << 56;
        let (whole, rest) = text.as_chunks();
        // Not copied: to copy a few bytes is a call in wasm.
        let rest = rest.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let number = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        match whole {
            [] => Some(Self([rest, 0, last])),
            [one] => Some(Self([number(one), rest, last])),
            [one, two] => Some(Self([number(one), number(two), rest | last])),
            _ => None,
        }
    }

    fn set(self) -> usize {
        let Self([one, two, three]) = self;
        let mixed = (one ^ two.rotate_left(23)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32 ^ three).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> (u64::BITS - SET_BITS)) as usize
    }
}

/// A text and its tokens.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Place {
    text: Short,
    ids: [u32; MOST_TOKENS],
    count: u32,
}

/// A table of one tokenizer's texts. What comes to a place drives what is there to the next one, and
/// that away.
#[derive(Default)]
pub(crate) struct Words {
    places: Vec<[Place; 2]>,
}

impl Words {
    /// Has the places of texts brought into the cache, all at once: where one lies in memory doesn't
    /// depend on the others, and one after the other is most of what they take.
    pub(crate) fn touch<'a>(&self, texts: impl Iterator<Item = &'a Short>) {
        let counts = texts.map(|text| self.places.get(text.set()).map_or(0, |[it, _]| it.count));
        std::hint::black_box(counts.fold(0, |all, count| all ^ count));
    }

    /// A text's tokens.
    pub(crate) fn get(&self, text: Short) -> Option<&[u32]> {
        let set = self.places.get(text.set())?;
        let place = set.iter().find(|place| place.text == text)?;
        place.ids.get(..place.count as usize)
    }

    /// Keeps a text's tokens, if they are few.
    pub(crate) fn put(&mut self, text: Short, tokens: &[u32]) {
        if self.places.is_empty() {
            self.places.resize(SETS, Default::default());
        }
        let mut ids = [0; MOST_TOKENS];
        let (Some(kept), Some(set)) =
            (ids.get_mut(..tokens.len()), self.places.get_mut(text.set()))
        else {
            return;
        };
        kept.copy_from_slice(tokens);
        let [first, second] = set;
        if first.text != text {
            *second = *first;
        }
        *first = Place { text, ids, count: tokens.len() as u32 };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_kept_is_what_was_put_last(
            puts in proptest::collection::vec(("[a-c\0]{0,24}", any::<bool>(), 0..11_u32), 0..3_000),
        ) {
            let mut words = Words::default();
            let mut all = std::collections::BTreeMap::new();
            for (text, word, count) in puts {
                let kind = if word { Kind::Word } else { Kind::Piece };
                let Some(number) = Short::of(text.as_bytes(), kind) else {
                    prop_assert_eq!(text.len(), 24);
                    continue;
                };
                let tokens: Vec<u32> = (0..count).map(|at| at + all.len() as u32).collect();
                words.put(number, &tokens);
                if count as usize <= MOST_TOKENS {
                    prop_assert_eq!(words.get(number), Some(tokens.as_slice()));
                    all.insert((text, word), tokens);
                }
            }
            for ((text, word), tokens) in &all {
                let kind = if *word { Kind::Word } else { Kind::Piece };
                let number = Short::of(text.as_bytes(), kind).unwrap();
                prop_assert!(words.get(number).is_none_or(|found| found == tokens));
            }
        }
    }

    #[test]
    fn no_two_texts_are_one_number() {
        let texts: [&[u8]; 8] = [b"", b"\0", b"\0\0", b"a", b"a\0", &[0; 16], &[0; 23], &[255; 23]];
        let numbers: Vec<_> = texts
            .iter()
            .flat_map(|text| [Kind::Word, Kind::Piece].map(|kind| Short::of(text, kind).unwrap().0))
            .collect();
        let set: std::collections::BTreeSet<_> = numbers.iter().collect();
        assert_eq!(set.len(), numbers.len());
        assert!(Short::of(&[0; 24], Kind::Word).is_none());
    }

    #[test]
    fn a_place_is_one_line_of_the_cache() {
        assert_eq!(size_of::<Place>(), 64);
    }
}
