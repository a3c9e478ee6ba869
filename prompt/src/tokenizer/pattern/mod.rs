//! The regular expressions that tokenizers split text with.
//!
//! Only what these files use is understood: alternatives of character classes with repeats,
//! groups of literals, and `(?!\S)` after white space. Anything else is refused when the model is
//! prepared. In return there is no regex engine in the filter, and matching is exact and bounded:
//! leftmost, first alternative, greedy with backtracking, as Oniguruma does it.
//! The syntax is Oniguruma's (`doc/RE` in its sources), as `tokenizers` uses it.

mod parser;

use self::parser::Parser;
use crate::tokenizer::unicode::{Categories, CharTable, char_at, is_space};

/// A set of characters.
#[derive(Clone, Debug, Default, PartialEq)]
struct Class {
    negated: bool,
    space: bool,
    categories: Categories,
    ranges: Vec<(char, char)>,
    /// Membership of the first 128 characters, `negated` included. Halves, as to shift 128 bits is a
    /// call in wasm.
    ascii: [u64; 2],
}

impl Class {
    fn holds(&self, table: &CharTable, char: char) -> bool {
        if char.is_ascii() {
            return self.holds_ascii(char as u8);
        }
        self.negated
            != ((self.categories.0 != 0 && self.categories.has(table.category(char)))
                || (self.space && is_space(char))
                || self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&char)))
    }

    /// The same for a byte below 128.
    fn holds_ascii(&self, byte: u8) -> bool {
        let [low, high] = self.ascii;
        let half = if byte < 64 { low } else { high };
        half >> (byte & 63) & 1 == 1
    }

    #[cfg(feature = "preprocess")]
    fn has(&self, kind: fn(&u8) -> bool) -> bool {
        (0..128).any(|byte| kind(&byte) && self.holds_ascii(byte))
    }

    fn finish(mut self, table: &CharTable) -> Self {
        for byte in 0..128u8 {
            let char = char::from(byte);
            let inside = self.categories.has(table.category(char))
                || (self.space && is_space(char))
                || self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&char));
            if inside != self.negated {
                let [low, high] = &mut self.ascii;
                *(if byte < 64 { low } else { high }) |= 1 << (byte & 63);
            }
        }
        self
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Atom {
    Class(Class),
    /// One of these, each a row of sets of characters: `(?i:'s|'t)`.
    Words(Vec<Vec<Vec<char>>>),
    /// The next character, if any, is white space: `(?!\S)`.
    NoWordNext,
}

#[derive(Clone, Debug, PartialEq)]
struct Item {
    atom: Atom,
    min: usize,
    max: usize,
    possessive: bool,
}

#[cfg(feature = "preprocess")]
impl Item {
    fn may_be_nothing(&self) -> bool {
        self.min == 0 || matches!(self.atom, Atom::NoWordNext)
    }

    /// Whether it may begin or end with such a character.
    fn edges(&self, kind: fn(&u8) -> bool) -> bool {
        match &self.atom {
            Atom::Class(class) => class.has(kind),
            Atom::Words(words) => words.iter().any(|word| word.iter().any(|set| has(set, kind))),
            Atom::NoWordNext => false,
        }
    }

    /// Whether it may hold one and then the other.
    fn joins(&self, first: fn(&u8) -> bool, second: fn(&u8) -> bool) -> bool {
        match &self.atom {
            Atom::Class(class) => self.max > 1 && class.has(first) && class.has(second),
            Atom::Words(words) => words.iter().any(|word| {
                self.max > 1 && word.iter().any(|set| has(set, first) || has(set, second))
                    || word.windows(2).any(|pair| match pair {
                        [one, other] => has(one, first) && has(other, second),
                        _ => false,
                    })
            }),
            Atom::NoWordNext => false,
        }
    }
}

#[cfg(feature = "preprocess")]
fn has(set: &[char], kind: fn(&u8) -> bool) -> bool {
    set.iter().any(|char| u8::try_from(*char).is_ok_and(|byte| byte.is_ascii() && kind(&byte)))
}

/// A compiled pattern.
#[derive(Debug)]
pub(crate) struct Pattern {
    alternatives: Vec<Vec<Item>>,
    /// Per ASCII first character, a bit for each alternative that may match there.
    first: Vec<u32>,
}

/// Why a pattern is not understood.
pub(crate) type Refusal = String;

impl Pattern {
    pub(crate) fn compile(source: &str, table: &CharTable) -> Result<Self, Refusal> {
        let alternatives = Parser::new(source, table).alternatives()?;
        if alternatives.len() > 32 {
            return Err(format!("{} alternatives, 32 are understood", alternatives.len()));
        }
        if alternatives.iter().any(|items| items.iter().all(|item| item.min == 0)) {
            return Err("an alternative that matches nothing".into());
        }
        let first = (0..128u8)
            .map(|byte| {
                let mut bits = 0;
                for (number, items) in alternatives.iter().enumerate() {
                    if may_start(items, char::from(byte), table) {
                        bits |= 1 << number;
                    }
                }
                bits
            })
            .collect();
        Ok(Self { alternatives, first })
    }

    /// Whether a match may hold an ASCII character of the first kind and right after it one of the
    /// second. It goes by the pattern alone, so that some of those that may never do.
    #[cfg(feature = "preprocess")]
    pub(crate) fn may_join(&self, first: fn(&u8) -> bool, second: fn(&u8) -> bool) -> bool {
        self.alternatives.iter().any(|items| {
            items.iter().enumerate().any(|(at, item)| {
                let mut next = items.iter().skip(at + 1);
                item.joins(first, second)
                    || item.edges(first)
                        && next
                            .find_map(|next| {
                                let meets = next.edges(second);
                                (meets || !next.may_be_nothing()).then_some(meets)
                            })
                            .unwrap_or(false)
            })
        })
    }

    /// The end of the match that starts at `at`, if one does.
    pub(crate) fn match_at(&self, table: &CharTable, text: &str, at: usize) -> Option<usize> {
        let byte = *text.as_bytes().get(at)?;
        let mut bits = self.first.get(usize::from(byte)).copied().unwrap_or(u32::MAX);
        while bits != 0 {
            let number = bits.trailing_zeros() as usize;
            let Some(items) = self.alternatives.get(number) else { break };
            if let Some(end) = match_items(items, table, text, at) {
                return Some(end);
            }
            bits &= bits - 1;
        }
        None
    }

    /// Calls `piece` with the start and end of each match and of each gap between matches, in
    /// order, until it returns false. Returns whether it came to the end.
    pub(crate) fn split(
        &self,
        table: &CharTable,
        text: &str,
        mut piece: impl FnMut(usize, usize) -> bool,
    ) -> bool {
        let mut gap = 0;
        let mut at = 0;
        while at < text.len() {
            if let Some(end) = self.match_at(table, text, at) {
                if (gap < at && !piece(gap, at)) || !piece(at, end) {
                    return false;
                }
                at = end;
                gap = end;
            } else {
                at += char_at(text, at).map_or(1, char::len_utf8);
            }
        }
        gap >= text.len() || piece(gap, text.len())
    }
}

fn may_start(items: &[Item], char: char, table: &CharTable) -> bool {
    for item in items {
        let starts = match &item.atom {
            Atom::Class(class) => class.holds(table, char),
            Atom::Words(words) => {
                words.iter().any(|word| word.first().is_some_and(|set| set.contains(&char)))
            }
            Atom::NoWordNext => true,
        };
        if starts {
            return true;
        }
        if item.min > 0 {
            return false;
        }
    }
    true
}

fn match_items(items: &[Item], table: &CharTable, text: &str, at: usize) -> Option<usize> {
    let Some((item, rest)) = items.split_first() else { return Some(at) };
    match &item.atom {
        Atom::NoWordNext => match char_at(text, at) {
            Some(char) if !is_space(char) => None,
            _ => match_items(rest, table, text, at),
        },
        Atom::Words(words) => {
            for word in words {
                if let Some(end) = match_word(word, text, at)
                    && let Some(end) = match_items(rest, table, text, end)
                {
                    return Some(end);
                }
            }
            if item.min == 0 { match_items(rest, table, text, at) } else { None }
        }
        Atom::Class(class) => {
            let mut end = at;
            let mut count = 0;
            let bytes = text.as_bytes();
            while count < item.max {
                match bytes.get(end) {
                    Some(byte) if *byte < 128 => {
                        if !class.holds_ascii(*byte) {
                            break;
                        }
                        end += 1;
                    }
                    Some(_) => match char_at(text, end) {
                        Some(char) if class.holds(table, char) => end += char.len_utf8(),
                        _ => break,
                    },
                    None => break,
                }
                count += 1;
            }
            loop {
                if count < item.min {
                    return None;
                }
                if let Some(end) = match_items(rest, table, text, end) {
                    return Some(end);
                }
                if item.possessive || count == 0 {
                    return None;
                }
                end -=
                    text.get(..end).and_then(|t| t.chars().next_back()).map_or(1, char::len_utf8);
                count -= 1;
            }
        }
    }
}

fn match_word(word: &[Vec<char>], text: &str, mut at: usize) -> Option<usize> {
    for set in word {
        let char = char_at(text, at)?;
        if !set.contains(&char) {
            return None;
        }
        at += char.len_utf8();
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    fn split(pattern: &str, text: &str) -> Vec<String> {
        let table = CharTable::shared();
        let pattern = Pattern::compile(pattern, table).unwrap();
        let mut pieces = Vec::new();
        pattern.split(table, text, |start, end| {
            pieces.push(text[start..end].to_owned());
            true
        });
        pieces
    }

    #[test]
    fn text_is_split_as_llama_does() {
        assert_eq!(
            split(LLAMA, "It'ſ  12345 days,\n\n  \n x\u{a0}漢字!  "),
            [
                "It",
                "'ſ",
                " ",
                " ",
                "123",
                "45",
                " days",
                ",\n\n",
                "  \n",
                " x",
                "\u{a0}漢字",
                "!",
                "  "
            ]
        );
    }

    #[test]
    fn gaps_are_pieces_too() {
        assert_eq!(split(r"\p{N}{1,3}", "ab1234c"), ["ab", "123", "4", "c"]);
    }

    #[test]
    fn possessive_repeats_do_not_give_back() {
        assert_eq!(split(r"[ab]++b|c", "aabc"), ["aab", "c"]);
    }

    #[cfg(feature = "preprocess")]
    #[test]
    fn what_a_match_may_join_is_told_by_the_pattern() {
        let joins = |pattern: &str| {
            let pattern = Pattern::compile(pattern, CharTable::shared()).unwrap();
            pattern.may_join(u8::is_ascii_graphic, |byte| *byte == b' ')
        };
        assert!(!joins(LLAMA));
        assert!(!joins(r" ?\p{L}+| +|\s+(?!\S)"));
        for crossing in [
            "[xyz] [xyz]",
            r"(?:z z|of the)",
            r"[a-z]{5,} [a-z]+",
            r"--[ ]\p{L}+",
            r"\p{P}{5,} ?",
            r"\p{L}++[0-9]* ?",
            r"[^a]+",
            r"\p{Lm}\p{L}* ?",
            r"[^\s\p{L}\p{N}]+(?!\S) ",
        ] {
            assert!(joins(crossing), "{crossing}");
            assert!(joins(&format!("{LLAMA}|{crossing}")), "{crossing}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        let table = CharTable::shared();
        for (pattern, reason) in [
            (r"\p{Han}+", "Han"),
            (r"a*", "matches nothing"),
            (r"(?<=a)b", "group"),
            (r"a.b", "'.'"),
            (r"[a&&b]", "intersection"),
            (r"a+?", "lazy"),
            (r"\w+", "\\w"),
            (r"[a", "too early"),
        ] {
            let refusal = Pattern::compile(pattern, table).unwrap_err();
            assert!(refusal.contains(reason), "{pattern}: {refusal}");
        }
    }
}
