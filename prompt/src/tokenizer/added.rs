//! Added tokens: texts such as `<|im_end|>` that are one token wherever they stand, also inside
//! what a user wrote. As `tokenizers` finds them: leftmost, then longest, with the strip flags.

use std::collections::BTreeSet;

use crate::tokenizer::spaces::Joins;
use crate::tokenizer::unicode::is_space;

/// An added token of a tokenizer.json.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AddedToken {
    pub(crate) id: u32,
    pub(crate) content: String,
    pub(crate) lstrip: bool,
    pub(crate) rstrip: bool,
    /// Looked for in the normalised text, not in the raw one.
    pub(crate) normalized: bool,
}

/// A match of an added token: where it starts and ends, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) id: u32,
    /// What follows its end can't change this match.
    pub(crate) certain: bool,
}

/// A finder for a set of added tokens.
pub(crate) struct AddedTokens {
    /// Sorted by content, so that a search narrows a range byte by byte.
    tokens: Vec<AddedToken>,
    certain: Vec<bool>,
    /// Which bytes a token starts with.
    first: [bool; 256],
    /// The tokens that start with each byte, as places in `tokens`.
    ranges: Vec<(u32, u32)>,
    /// The two bytes that each longer token starts with.
    pairs: Joins,
    few: Option<Few>,
}

/// The bytes that tokens start with where they are few, as with most models: vector code finds
/// these.
enum Few {
    One(u8),
    Two(u8, u8),
    Three(u8, u8, u8),
}

impl Few {
    fn of(first: &[bool; 256]) -> Option<Self> {
        let bytes: Vec<u8> = (0..=255u8).zip(first).filter_map(|(b, is)| is.then_some(b)).collect();
        match *bytes {
            [a] => Some(Self::One(a)),
            [a, b] => Some(Self::Two(a, b)),
            [a, b, c] => Some(Self::Three(a, b, c)),
            _ => None,
        }
    }

    fn find(&self, text: &[u8]) -> Option<usize> {
        match *self {
            Self::One(a) => memchr::memchr(a, text),
            Self::Two(a, b) => memchr::memchr2(a, b, text),
            Self::Three(a, b, c) => memchr::memchr3(a, b, c, text),
        }
    }
}

impl AddedTokens {
    pub(crate) fn new(mut tokens: Vec<AddedToken>) -> Self {
        tokens.sort_by(|a, b| a.content.cmp(&b.content));
        tokens.dedup_by(|a, b| a.content == b.content);
        let mut first = [false; 256];
        for token in &tokens {
            if let Some(place) =
                token.content.bytes().next().and_then(|b| first.get_mut(usize::from(b)))
            {
                *place = true;
            }
        }
        let ranges = (0..=255u8)
            .map(|byte| {
                let byte_of = |token: &AddedToken| token.content.as_bytes().first().copied();
                let low = tokens.partition_point(|token| byte_of(token) < Some(byte));
                let high = tokens.partition_point(|token| byte_of(token) <= Some(byte));
                (low as u32, high as u32)
            })
            .collect();
        let mut pairs = Joins::none();
        for token in &tokens {
            pairs.add(token.content.as_bytes().get(..2).unwrap_or_default());
        }
        let certain = certain(&tokens, &first);
        let few = Few::of(&first);
        Self { tokens, certain, first, ranges, pairs, few }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Bytes of the longest token.
    pub(crate) fn longest(&self) -> usize {
        self.tokens.iter().map(|token| token.content.len()).max().unwrap_or(0)
    }

    /// The first match in `text` that starts at `from` or later. White space that the strip flags
    /// take belongs to the match, but never what is before `from`.
    pub(crate) fn find(&self, text: &str, from: usize) -> Option<Found> {
        let mut at = from;
        loop {
            let rest = text.as_bytes().get(at..)?;
            at += match &self.few {
                Some(few) => few.find(rest)?,
                None => self.any(rest)?,
            };
            let Some((place, end)) = self.longest_at(text, at) else {
                at += 1;
                continue;
            };
            let token = self.tokens.get(place)?;
            let mut found = Found {
                start: at,
                end,
                id: token.id,
                certain: self.certain.get(place) == Some(&true),
            };
            if token.lstrip {
                let before = text.get(from..at)?;
                found.start = from + before.trim_end_matches(is_space).len();
            }
            if token.rstrip {
                let after = text.get(end..)?;
                found.end = text.len() - after.trim_start_matches(is_space).len();
            }
            return Some(found);
        }
    }

    /// Where the first byte is that a token may start with.
    fn any(&self, text: &[u8]) -> Option<usize> {
        let starts = |byte: &u8| self.first.get(usize::from(*byte)) == Some(&true);
        let (chunks, _) = text.as_chunks::<8>();
        // All eight at once, since most are none.
        let skipped = chunks
            .iter()
            .take_while(|chunk| !chunk.iter().fold(false, |any, byte| any | starts(byte)))
            .count()
            * 8;
        Some(skipped + text.get(skipped..)?.iter().position(starts)?)
    }

    /// The longest token that stands at `at`, and its end.
    fn longest_at(&self, text: &str, at: usize) -> Option<(usize, usize)> {
        let text = text.as_bytes().get(at..)?;
        let start = *text.first()?;
        let (low, high) = self.ranges.get(usize::from(start))?;
        let (mut low, mut high) = (*low as usize, *high as usize);
        let single = low < high && self.tokens.get(low)?.content.len() == 1;
        let mut best = single.then_some((low, at + 1));
        if text.get(1).is_none_or(|second| !self.pairs.join(start, *second)) {
            return best;
        }
        for (depth, byte) in text.iter().enumerate().skip(1) {
            let range = self.tokens.get(low..high)?;
            if let [only] = range {
                // The most frequent end.
                let is = text.starts_with(only.content.as_bytes());
                return if is { Some((low, at + only.content.len())) } else { best };
            }
            let byte_of = |token: &AddedToken| token.content.as_bytes().get(depth).copied();
            let start = range.partition_point(|token| byte_of(token) < Some(*byte));
            let end = range.partition_point(|token| byte_of(token) <= Some(*byte));
            high = low + end;
            low += start;
            if low >= high {
                break;
            }
            if self.tokens.get(low)?.content.len() == depth + 1 {
                best = Some((low, at + depth + 1));
            }
        }
        best
    }
}

/// Whether each token's match never depends on what follows it. Another token that holds it with
/// more after it could win once more is seen.
fn certain(tokens: &[AddedToken], first: &[bool; 256]) -> Vec<bool> {
    let place =
        |content: &str| tokens.binary_search_by(|token| token.content.as_str().cmp(content)).ok();
    let lengths: BTreeSet<usize> = tokens.iter().map(|token| token.content.len()).collect();
    let mut certain: Vec<bool> = tokens.iter().map(|token| !token.rstrip).collect();
    for holder in tokens {
        let content = holder.content.as_str();
        for (start, byte) in content.bytes().enumerate() {
            if first.get(usize::from(byte)) != Some(&true) {
                continue;
            }
            for length in lengths.range(..content.len() - start) {
                let Some(inner) = content.get(start..start + length) else { continue };
                if let Some(place) = place(inner).and_then(|place| certain.get_mut(place)) {
                    *place = false;
                }
            }
        }
    }
    certain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finder(tokens: &[(&str, &str)]) -> AddedTokens {
        AddedTokens::new(
            tokens
                .iter()
                .enumerate()
                .map(|(id, (content, flags))| AddedToken {
                    id: id as u32,
                    content: (*content).to_owned(),
                    lstrip: flags.contains('l'),
                    rstrip: flags.contains('r'),
                    normalized: false,
                })
                .collect(),
        )
    }

    fn found(tokens: &[(&str, &str)], text: &str) -> Vec<(usize, usize, u32)> {
        let finder = finder(tokens);
        let mut from = 0;
        let mut all = Vec::new();
        while let Some(found) = finder.find(text, from) {
            all.push((found.start, found.end, found.id));
            from = found.end;
        }
        all
    }

    #[test]
    fn leftmost_then_longest() {
        assert_eq!(
            found(&[("<a>", ""), ("<a><b>", ""), ("a", "")], "<a><b><a>a<"),
            [(0, 6, 1), (6, 9, 0), (9, 10, 2)]
        );
    }

    #[test]
    fn any_number_of_first_bytes_is_found() {
        let tokens = [("<a>", ""), ("[b]", ""), ("{c}", ""), ("(d)", "")];
        for count in 0..=tokens.len() {
            let all = found(&tokens[..count], "x(d) {c} [b] <a>");
            assert_eq!(all.len(), count, "{all:?}");
        }
    }

    #[test]
    fn strip_flags_take_white_space_but_not_twice() {
        assert_eq!(found(&[("<m>", "lr")], "a  <m> \n<m>b"), [(1, 8, 0), (8, 11, 0)]);
    }

    #[test]
    fn a_token_that_could_still_grow_is_not_certain() {
        let finder = finder(&[("<a>", ""), ("<a>b", ""), ("<c>", ""), ("xx", "")]);
        let certain: Vec<_> = finder
            .tokens
            .iter()
            .zip(&finder.certain)
            .map(|(t, c)| (t.content.as_str(), *c))
            .collect();
        assert_eq!(certain, [("<a>", false), ("<a>b", true), ("<c>", true), ("xx", true)]);
    }
}
