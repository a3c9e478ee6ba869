//! Text → token ids, exactly as the model's tokenizer.json says.
//!
//! Added tokens first, then normalisation, then words, then byte pairs, as `tokenizers` does it.

pub(crate) mod added;
pub(crate) mod bpe;
pub(crate) mod categories;
pub(crate) mod part;
pub(crate) mod pattern;
pub(crate) mod spaces;
pub(crate) mod stretch;
pub(crate) mod unicode;
pub(crate) mod vocabulary;
pub(crate) mod words;

use std::borrow::Cow;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::tokenizer::added::{AddedToken, AddedTokens};
use crate::tokenizer::bpe::{Bpe, Scratch};
use crate::tokenizer::part::Part;
use crate::tokenizer::pattern::Pattern;
use crate::tokenizer::spaces::{Joins, Opening, Prefix, plain};
use crate::tokenizer::unicode::CharTable;
use crate::tokenizer::vocabulary::Vocabulary;
use crate::tokenizer::words::{Kind, Short};

/// Pieces of a text that are looked up together.
const PIECES: usize = 16;

/// Words longer than this are not followed: merging one holds a worker up for too long.
pub(crate) const MAX_WORD_BYTES: usize = 128 * 1024;

/// A tokenizer's rules as data: what an artefact holds beside the vocabulary.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct TokenizerDefinition {
    pub(crate) added: Vec<AddedToken>,
    /// Patterns that split text one after the other.
    pub(crate) splits: Vec<String>,
    /// Text is brought to Unicode's normal form C first.
    pub(crate) nfc: bool,
    /// Ids put before and after a text that isn't a rendered chat.
    pub(crate) before: Vec<u32>,
    pub(crate) after: Vec<u32>,
    pub(crate) cuts: Cuts,
    /// SentencePiece's kind: when a space is put in front. None for the byte-level kind.
    pub(crate) spaces: Option<Prefix>,
}

/// Which cuts are safe for a tokenizer; found out when it is prepared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cuts {
    /// Between an ASCII letter and a space that an ASCII letter follows.
    pub(crate) words: bool,
    /// Between a newline and an ASCII letter.
    pub(crate) lines: bool,
    /// Between an ASCII character that is to be seen and a space that an ASCII letter or digit
    /// follows.
    pub(crate) pieces: bool,
}

impl Cuts {
    /// Whether `text` may be cut at `at`, which is neither its start nor its end.
    pub(crate) fn is_cut(self, text: &[u8], at: usize) -> bool {
        let (Some(before), Some(here)) =
            (at.checked_sub(1).and_then(|i| text.get(i)), text.get(at))
        else {
            return false;
        };
        match here {
            b' ' => {
                self.words
                    && before.is_ascii_alphabetic()
                    && text.get(at + 1).is_some_and(u8::is_ascii_alphabetic)
            }
            here => self.lines && *before == b'\n' && here.is_ascii_alphabetic(),
        }
    }
}

impl Cuts {
    /// Where the first cut between pieces after `start` is, or the text's end.
    fn piece_end(self, text: &[u8], start: usize) -> usize {
        let is_cut = |at: &usize| {
            text.get(at - 1).is_some_and(u8::is_ascii_graphic)
                && text.get(at + 1).is_some_and(u8::is_ascii_alphanumeric)
        };
        let rest = text.get(start + 1..).filter(|_| self.pieces).unwrap_or_default();
        let mut spaces = memchr::memchr_iter(b' ', rest).map(|space| start + 1 + space);
        spaces.find(is_cut).unwrap_or(text.len())
    }
}

/// Why a text's tokens end where they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    End,
    Limit,
    /// A word too long to be followed.
    Word,
}

/// A tokenizer, ready to encode.
pub(crate) struct Tokenizer {
    table: &'static CharTable,
    splits: Vec<Pattern>,
    nfc: bool,
    pub(crate) raw: AddedTokens,
    normalized: AddedTokens,
    bpe: Bpe,
    pub(crate) before: Vec<u32>,
    pub(crate) after: Vec<u32>,
    pub(crate) cuts: Cuts,
    spaces: Option<Prefix>,
}

impl Tokenizer {
    /// Builds the tables; says what can't be used.
    pub(crate) fn new(
        definition: &TokenizerDefinition,
        vocabulary: Vocabulary,
    ) -> Result<Self, String> {
        let table = CharTable::shared();
        let splits = definition
            .splits
            .iter()
            .map(|source| {
                Pattern::compile(source, table)
                    .map_err(|reason| format!("the pattern {source:?}: {reason}"))
            })
            .collect::<Result<_, _>>()?;
        let (normalized, raw) =
            definition.added.iter().cloned().partition(|token| token.normalized);
        Ok(Self {
            spaces: definition.spaces,
            table,
            splits,
            nfc: definition.nfc,
            raw: AddedTokens::new(raw),
            normalized: AddedTokens::new(normalized),
            bpe: Bpe::new(vocabulary),
            before: definition.before.clone(),
            after: definition.after.clone(),
            cuts: definition.cuts,
        })
    }

    #[cfg(feature = "preprocess")]
    pub(crate) fn bpe(&self) -> &Bpe {
        &self.bpe
    }

    /// Which characters may be one token, if there are no words.
    #[cfg(feature = "preprocess")]
    pub(crate) fn joins(&self) -> Option<&Joins> {
        self.spaces.map(|_| self.bpe.vocabulary().joins())
    }

    /// The last safe cut after `from`, itself one, of a text that goes on; and what begins there. The
    /// text's last `ahead` bytes may belong to an added token that ends after it.
    pub(crate) fn last_cut(
        &self,
        text: &str,
        from: usize,
        ahead: usize,
    ) -> Option<(usize, Opening)> {
        let sure = text.len().checked_sub(ahead)?;
        let mut last = None;
        let mut at = from;
        loop {
            let found = self.raw.find(text, at);
            let end = found.map_or(text.len(), |found| found.start);
            let words = text.as_bytes().get(..end)?;
            let cut = (at + 1..end.min(sure)).rev().find(|at| self.cuts.is_cut(words, *at));
            last = cut.map(|cut| (cut, Opening::None)).or(last);
            let Some(found) = found else { return last };
            at = found.end;
            if found.certain {
                last = Some((at, Opening::Piece));
            }
        }
    }

    /// Whether normalising makes another text of it, which may be many times as long.
    pub(crate) fn lengthens(&self, text: &str) -> bool {
        self.nfc && matches!(nfc(text), Cow::Owned(_))
    }

    /// Appends the ids of the parts of one stretch, until `out` holds `limit`.
    pub(crate) fn encode_parts(
        &self,
        text: &str,
        parts: &[Part],
        limit: usize,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Stop {
        for part in parts {
            if out.len() >= limit {
                return Stop::Limit;
            }
            let stop = if let Some(id) = part.added {
                out.push(id);
                Stop::End
            } else {
                let text = text.get(part.start..part.end).unwrap_or_default();
                self.encode_text(text, part.opening, limit, scratch, out)
            };
            if stop != Stop::End {
                return stop;
            }
        }
        Stop::End
    }

    fn encode_text(
        &self,
        text: &str,
        mut opening: Opening,
        limit: usize,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Stop {
        let mut text = if self.nfc { nfc(text) } else { Cow::Borrowed(text) };
        if let Some(prefix) = self.spaces {
            text = plain(text);
            // This rule is the normaliser's, which goes before the search for added tokens.
            if prefix == Prefix::Always && !self.normalized.is_empty() {
                if prefix.applies(&text, opening) {
                    text = Cow::Owned(format!(" {text}"));
                }
                opening = Opening::None;
            }
        }
        if self.normalized.is_empty() {
            return self.encode_segment(&text, opening, limit, scratch, out);
        }
        let later =
            if self.spaces == Some(Prefix::Pieces) { Opening::Piece } else { Opening::None };
        let mut at = 0;
        while at < text.len() {
            let found = self.normalized.find(&text, at);
            let end = found.map_or(text.len(), |found| found.start);
            let words = text.get(at..end).unwrap_or_default();
            let stop = self.encode_segment(words, opening, limit, scratch, out);
            if stop != Stop::End {
                return stop;
            }
            let Some(found) = found else { break };
            if out.len() >= limit {
                return Stop::Limit;
            }
            out.push(found.id);
            at = found.end;
            opening = later;
        }
        Stop::End
    }

    /// A text without added tokens.
    fn encode_segment(
        &self,
        text: &str,
        opening: Opening,
        limit: usize,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Stop {
        let Some(prefix) = self.spaces else {
            return self.encode_pieces(text, limit, scratch, out);
        };
        let joins = self.bpe.vocabulary().joins();
        let mut at = 0;
        if !text.is_empty() && prefix.applies(text, opening) {
            at = joins.word_end(text.as_bytes(), 0);
            let first = format!(" {}", text.get(..at).unwrap_or_default());
            let stop = self.encode_joined(joins, &first, limit, scratch, out);
            if stop != Stop::End {
                return stop;
            }
        }
        self.encode_joined(joins, text.get(at..).unwrap_or_default(), limit, scratch, out)
    }

    /// Cut into pieces, most of a text is words that came before.
    fn encode_pieces(
        &self,
        text: &str,
        limit: usize,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Stop {
        let mut at = 0;
        let mut pieces = [""; PIECES];
        let mut shorts = [None; PIECES];
        while at < text.len() {
            // A piece has a token at least.
            let most = limit.saturating_sub(out.len()).max(1);
            let mut count = 0;
            for (piece, short) in pieces.iter_mut().zip(&mut shorts).take(most) {
                let start = at;
                at = self.cuts.piece_end(text.as_bytes(), start);
                *piece = text.get(start..at).unwrap_or_default();
                *short = Short::of(piece.as_bytes(), Kind::Piece);
                count += usize::from(at > start);
            }
            scratch.expect(shorts.get(..count).unwrap_or_default());
            for (piece, short) in pieces.iter().zip(shorts).take(count) {
                if out.len() >= limit {
                    return Stop::Limit;
                }
                if short.is_some_and(|short| scratch.recall(short, out)) {
                    continue;
                }
                let from = out.len();
                let stop = self.encode_words(&self.splits, piece, limit, scratch, out);
                if stop != Stop::End {
                    return stop;
                }
                if let Some(short) = short {
                    scratch.keep(short, out.get(from..).unwrap_or_default());
                }
            }
        }
        Stop::End
    }

    fn encode_joined(
        &self,
        joins: &Joins,
        text: &str,
        limit: usize,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Stop {
        let mut at = 0;
        while at < text.len() {
            let end = joins.word_end(text.as_bytes(), at);
            let word = text.get(at..end).unwrap_or_default();
            let stop = self.encode_words(&[], word, limit, scratch, out);
            if stop != Stop::End {
                return stop;
            }
            at = end;
        }
        Stop::End
    }

    fn encode_words(
        &self,
        splits: &[Pattern],
        text: &str,
        limit: usize,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Stop {
        let Some((split, rest)) = splits.split_first() else {
            if text.is_empty() {
                return Stop::End;
            }
            if out.len() >= limit {
                return Stop::Limit;
            }
            if text.len() > MAX_WORD_BYTES {
                return Stop::Word;
            }
            self.bpe.encode(text.as_bytes(), scratch, out);
            return Stop::End;
        };
        let mut stop = Stop::End;
        split.split(self.table, text, |start, end| {
            let word = text.get(start..end).unwrap_or_default();
            stop = self.encode_words(rest, word, limit, scratch, out);
            stop == Stop::End
        });
        stop
    }

    /// Whether a word may hold an ASCII character of the first kind and right after it one of the
    /// second, as far as patterns tell.
    #[cfg(feature = "preprocess")]
    pub(crate) fn may_join(&self, first: fn(&u8) -> bool, second: fn(&u8) -> bool) -> bool {
        self.splits.iter().any(|split| split.may_join(first, second))
    }

    /// Whether a word begins with this text in whatever text it stands.
    #[cfg(feature = "preprocess")]
    pub(crate) fn begins_word(&self, text: &str) -> bool {
        self.splits.last().is_some_and(|last| last.match_at(self.table, text, 0).is_some())
    }

    /// The words that a text without added tokens falls into.
    #[cfg(feature = "preprocess")]
    pub(crate) fn words(&self, text: &str) -> Vec<(usize, usize)> {
        fn level(
            splits: &[Pattern],
            table: &CharTable,
            text: &str,
            base: usize,
            out: &mut Vec<(usize, usize)>,
        ) {
            let Some((split, rest)) = splits.split_first() else {
                out.push((base, base + text.len()));
                return;
            };
            split.split(table, text, |start, end| {
                level(rest, table, text.get(start..end).unwrap_or_default(), base + start, out);
                true
            });
        }
        let mut out = Vec::new();
        level(&self.splits, self.table, text, 0, &mut out);
        out
    }
}

/// Unicode's normal form C; most text has it already.
pub(crate) fn nfc(text: &str) -> Cow<'_, str> {
    if text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(text.nfc().collect())
    }
}
