//! Spaces as SentencePiece writes them, and where its text falls into words.
//!
//! Such a tokenizer writes a space as `▁`, puts one in front of a text by one of several rules,
//! and has no words: merging goes over the whole text. Here `▁` is kept as the plain space that it
//! stands for, so that text needs no copy; and text falls apart where no merge can ever join the
//! two characters, which changes nothing and keeps words short.

use std::borrow::Cow;

/// SentencePiece's sign for a space.
pub(crate) const SIGN: &str = "\u{2581}";

/// When a space is put in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prefix {
    /// Never.
    Never,
    /// In front of the text, unless it starts with one or with an added token (`Metaspace`,
    /// "first").
    First,
    /// In front of the text and after each added token, unless there is one ("always").
    Pieces,
    /// In front of the text and after each added token, whatever is there (`Prepend`).
    Always,
}

impl Prefix {
    #[cfg(feature = "preprocess")]
    pub(crate) fn code(rule: Option<Self>) -> u64 {
        match rule {
            None => 0,
            Some(Self::Never) => 1,
            Some(Self::First) => 2,
            Some(Self::Pieces) => 3,
            Some(Self::Always) => 4,
        }
    }

    /// The rule of a code.
    pub(crate) fn of_code(code: u64) -> Result<Option<Self>, String> {
        Ok(match code {
            0 => None,
            1 => Some(Self::Never),
            2 => Some(Self::First),
            3 => Some(Self::Pieces),
            4 => Some(Self::Always),
            _ => return Err(format!("the rule {code} for spaces, which is unknown")),
        })
    }

    /// Whether a space goes in front of `text`, which begins where `opening` says.
    pub(crate) fn applies(self, text: &str, opening: Opening) -> bool {
        match self {
            Self::Never => false,
            Self::First => opening == Opening::Text && !text.starts_with(' '),
            Self::Pieces => opening != Opening::None && !text.starts_with(' '),
            Self::Always => opening != Opening::None,
        }
    }
}

/// What begins where a part of a text begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// The whole text.
    Text,
    /// What is after an added token.
    Piece,
    /// Nothing: it goes on after a cut.
    None,
}

/// Text with its spaces as spaces, whoever wrote them as `▁`.
pub(crate) fn plain(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.contains(SIGN) { Cow::Owned(text.replace(SIGN, " ")) } else { text }
}

/// Which bytes may stand side by side inside a token, such as one that is made by merging.
#[derive(Debug, PartialEq)]
pub(crate) struct Joins {
    bits: Vec<u64>,
}

impl Joins {
    /// Its size, written down.
    pub(crate) const BYTES: usize = 256 * 256 / 8;

    pub(crate) fn none() -> Self {
        Self { bits: vec![0; 256 * 256 / 64] }
    }

    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        Self { bits: bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect() }
    }

    #[cfg(feature = "preprocess")]
    pub(crate) fn to_bytes(&self) -> impl Iterator<Item = u8> {
        self.bits.iter().flat_map(|word| word.to_le_bytes())
    }

    /// Notes the bytes of `token`.
    pub(crate) fn add(&mut self, token: &[u8]) {
        for (left, right) in token.iter().zip(token.iter().skip(1)) {
            let (word, bit) = place(*left, *right);
            if let Some(word) = self.bits.get_mut(word) {
                *word |= 1 << bit;
            }
        }
    }

    pub(crate) fn join(&self, left: u8, right: u8) -> bool {
        let (word, bit) = place(left, right);
        self.bits.get(word).is_none_or(|word| (word >> bit) & 1 == 1)
    }

    /// The end of the word that starts at `from`.
    pub(crate) fn word_end(&self, text: &[u8], from: usize) -> usize {
        let Some(rest) = text.get(from..) else { return text.len() };
        let mut before = rest.first().copied().unwrap_or(0);
        for (at, byte) in rest.iter().enumerate().skip(1) {
            // Bytes inside a character are never apart.
            if byte & 0xc0 != 0x80 && !self.join(before, *byte) {
                return from + at;
            }
            before = *byte;
        }
        text.len()
    }
}

fn place(left: u8, right: u8) -> (usize, u32) {
    (usize::from(left) << 2 | usize::from(right >> 6), u32::from(right & 63))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_end_where_nothing_joins() {
        let mut joins = Joins::none();
        for token in ["ab", " a", "  ", "é漢"] {
            joins.add(token.as_bytes());
        }
        let mut words = Vec::new();
        let text = "ab  ab é漢é a";
        let mut at = 0;
        while at < text.len() {
            let end = joins.word_end(text.as_bytes(), at);
            words.push(&text[at..end]);
            at = end;
        }
        assert_eq!(words, ["ab", "  ab", " ", "é漢", "é", " a"]);
    }

    #[test]
    fn rules_have_codes() {
        for rule in [
            None,
            Some(Prefix::Never),
            Some(Prefix::First),
            Some(Prefix::Pieces),
            Some(Prefix::Always),
        ] {
            #[cfg(feature = "preprocess")]
            assert_eq!(Prefix::of_code(Prefix::code(rule)), Ok(rule));
            let _ = rule;
        }
        assert!(Prefix::of_code(5).is_err());
    }
}
