//! Text → token ids, exactly as the model's tokenizer.json says.
//!
//! A text falls into stretches: from one safe cut to the next. Up to a safe cut the ids depend on
//! nothing that comes after it, and after it on nothing that came before. So a text can be
//! tokenized stretch by stretch, can stop early, and what is known up to a cut can be kept.

use std::borrow::Cow;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::added::{AddedToken, AddedTokens, Found};
use super::bpe::{Bpe, BpeDefinition, Scratch};
use super::pattern::Pattern;
use super::unicode::CharTable;

/// Words longer than this are not followed: merging one holds a worker up for too long.
const MAX_WORD_BYTES: usize = 128 * 1024;

/// A stretch ends at the first safe cut between words after this many bytes,
const STRETCH_BYTES: usize = 512;

/// or at the end of the first added token after this many.
const ADDED_STRETCH_BYTES: usize = 192;

/// A tokenizer as data: what an artefact holds.
#[derive(Debug, Default, PartialEq)]
pub(super) struct TokenizerDefinition {
    pub(super) bpe: BpeDefinition,
    pub(super) added: Vec<AddedToken>,
    /// Patterns that split text one after the other.
    pub(super) splits: Vec<String>,
    /// Text is brought to Unicode's normal form C first.
    pub(super) nfc: bool,
    /// Ids put before and after a text that isn't a rendered chat.
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
    pub(super) cuts: Cuts,
}

/// Which cuts are safe for a tokenizer; found out when it is prepared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cuts {
    /// Between an ASCII letter and a space that an ASCII letter follows.
    pub(super) words: bool,
    /// Between a newline and an ASCII letter.
    pub(super) lines: bool,
}

impl Cuts {
    /// Whether `text` may be cut at `at`, which is neither its start nor its end.
    fn is_cut(self, text: &[u8], at: usize) -> bool {
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

/// Why a text's tokens end where they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    End,
    Limit,
    /// A word too long to be followed.
    Word,
}

/// A part of a text: an added token, or text between such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) added: Option<u32>,
}

/// Goes over a text stretch by stretch.
pub(super) struct Stretches<'a> {
    text: &'a str,
    at: usize,
    /// The next added token at or after `at`, if it was `looked` for.
    next: Option<Found>,
    looked: bool,
    /// The parts of the stretch that [`Stretches::advance`] found last.
    pub(super) parts: Vec<Part>,
}

impl<'a> Stretches<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, next: None, looked: false, parts: Vec::new() }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Finds the next stretch: the text it covers, and whether it ends at a safe cut.
    pub(super) fn advance(&mut self, tokenizer: &Tokenizer) -> Option<(&'a str, bool)> {
        let start = self.at;
        if start >= self.text.len() {
            return None;
        }
        self.parts.clear();
        loop {
            let found =
                if self.looked { self.next } else { tokenizer.raw.find(self.text, self.at) };
            let text_end = found.map_or(self.text.len(), |found| found.start);
            if let Some(cut) = tokenizer.cut_in(self.text, start, self.at, text_end) {
                self.next = found;
                self.looked = true;
                self.parts.push(Part { start: self.at, end: cut, added: None });
                self.at = cut;
                return Some((self.text.get(start..cut)?, true));
            }
            if self.at < text_end {
                self.parts.push(Part { start: self.at, end: text_end, added: None });
            }
            self.looked = false;
            let Some(found) = found else {
                self.at = self.text.len();
                return Some((self.text.get(start..)?, false));
            };
            self.parts.push(Part { start: found.start, end: found.end, added: Some(found.id) });
            self.at = found.end;
            if found.certain && self.at - start >= ADDED_STRETCH_BYTES {
                return Some((self.text.get(start..self.at)?, true));
            }
            if self.at >= self.text.len() {
                return Some((self.text.get(start..)?, found.certain));
            }
        }
    }
}

/// A tokenizer, ready to encode.
pub(super) struct Tokenizer {
    table: CharTable,
    splits: Vec<Pattern>,
    nfc: bool,
    raw: AddedTokens,
    normalized: AddedTokens,
    bpe: Bpe,
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
    pub(super) cuts: Cuts,
}

impl Tokenizer {
    /// Builds the tables; says what can't be used.
    pub(super) fn new(definition: &TokenizerDefinition) -> Result<Self, String> {
        let table = CharTable::new();
        let splits = definition
            .splits
            .iter()
            .map(|source| {
                Pattern::compile(source, &table)
                    .map_err(|reason| format!("the pattern {source:?}: {reason}"))
            })
            .collect::<Result<_, _>>()?;
        let (normalized, raw) =
            definition.added.iter().cloned().partition(|token| token.normalized);
        Ok(Self {
            table,
            splits,
            nfc: definition.nfc,
            raw: AddedTokens::new(raw),
            normalized: AddedTokens::new(normalized),
            bpe: Bpe::new(&definition.bpe)?,
            before: definition.before.clone(),
            after: definition.after.clone(),
            cuts: definition.cuts,
        })
    }

    #[cfg(feature = "preprocess")]
    pub(super) fn bpe(&self) -> &Bpe {
        &self.bpe
    }

    /// The first safe cut in `text[from..to]` that is far enough from the stretch's start.
    fn cut_in(&self, text: &str, start: usize, from: usize, to: usize) -> Option<usize> {
        let first = (start + STRETCH_BYTES).max(from + 1);
        let bytes = text.as_bytes().get(..to)?;
        (first..to).find(|at| self.cuts.is_cut(bytes, *at))
    }

    /// The last safe cut of a text whose end isn't one.
    pub(super) fn last_cut(&self, text: &str) -> usize {
        let mut last = 0;
        let mut from = 0;
        while let Some(found) = self.raw.find(text, from) {
            from = found.end;
            if found.certain {
                last = found.end;
            }
        }
        let bytes = text.as_bytes();
        (last + 1..text.len()).rev().find(|at| self.cuts.is_cut(bytes, *at)).unwrap_or(last)
    }

    /// Appends the ids of the parts of one stretch, until `out` holds `limit`.
    pub(super) fn encode_parts(
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
                self.encode_text(text, limit, scratch, out)
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
        limit: usize,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Stop {
        let text = if self.nfc { nfc(text) } else { Cow::Borrowed(text) };
        if self.normalized.is_empty() {
            return self.encode_words(&self.splits, &text, limit, scratch, out);
        }
        let mut at = 0;
        while at < text.len() {
            let found = self.normalized.find(&text, at);
            let end = found.map_or(text.len(), |found| found.start);
            let words = text.get(at..end).unwrap_or_default();
            let stop = self.encode_words(&self.splits, words, limit, scratch, out);
            if stop != Stop::End {
                return stop;
            }
            let Some(found) = found else { break };
            if out.len() >= limit {
                return Stop::Limit;
            }
            out.push(found.id);
            at = found.end;
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
        split.split(&self.table, text, |start, end| {
            let word = text.get(start..end).unwrap_or_default();
            stop = self.encode_words(rest, word, limit, scratch, out);
            stop == Stop::End
        });
        stop
    }

    /// The words that a text without added tokens falls into.
    #[cfg(feature = "preprocess")]
    pub(super) fn words(&self, text: &str) -> Vec<(usize, usize)> {
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
        level(&self.splits, &self.table, text, 0, &mut out);
        out
    }
}

/// Unicode's normal form C; most text has it already.
pub(super) fn nfc(text: &str) -> Cow<'_, str> {
    if text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(text.nfc().collect())
    }
}

#[cfg(all(test, feature = "preprocess"))]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)] // Helpers too.
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::super::artefact::Definition;
    use super::super::preprocess::{ModelFiles, preprocess};
    use super::*;

    /// Each model that is there, with its safe cuts and with none.
    static MODELS: LazyLock<Vec<(String, Tokenizer, Tokenizer)>> = LazyLock::new(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut folders = vec![root.join("tests/fixtures/models/demo")];
        let shared =
            std::env::var_os("WARMPATH_SHARED").map_or(root.join("../shared"), PathBuf::from);
        match std::fs::read_dir(shared.join("tokenizers")) {
            Ok(entries) => folders.extend(entries.map(|entry| entry.unwrap().path())),
            Err(_) => eprintln!("SKIPPED: no tokenizers in {}", shared.display()),
        }
        folders
            .into_iter()
            .map(|folder| {
                let artefact = preprocess(&ModelFiles::read_dir(&folder).unwrap()).unwrap();
                let mut definition = Definition::read(&artefact.bytes).unwrap();
                let with = Tokenizer::new(&definition.tokenizer).unwrap();
                definition.tokenizer.cuts = Cuts::default();
                let without = Tokenizer::new(&definition.tokenizer).unwrap();
                (folder.display().to_string(), with, without)
            })
            .collect()
    });

    fn encode(tokenizer: &Tokenizer, text: &str, limit: usize) -> (Vec<u32>, usize, Stop) {
        let mut stretches = Stretches::new(text);
        let mut out = Vec::new();
        let mut count = 0;
        let mut stop = Stop::End;
        while stop == Stop::End && stretches.advance(tokenizer).is_some() {
            count += 1;
            stop = tokenizer.encode_parts(
                text,
                &stretches.parts,
                limit,
                &mut Scratch::default(),
                &mut out,
            );
        }
        (out, count, stop)
    }

    /// Texts of what makes tokenizers differ, and words enough for cuts.
    fn text() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            4 => "[ ]?[a-zA-Z]{1,9}",
            1 => Just("<|im_end|>".to_owned()),
            1 => Just("<|eot_id|>".to_owned()),
            1 => Just("<｜Assistant｜>".to_owned()),
            1 => Just("[INST]".to_owned()),
            1 => "[ \n\r\t]{1,4}",
            1 => "['.!?/-]{1,3}",
            1 => "[0-9]{1,5}",
            1 => "[éßс漢字かe\u{301}\u{300}ſ🙂]{1,4}",
            1 => Just("'s".to_owned()),
            1 => any::<char>().prop_map(String::from),
        ];
        proptest::collection::vec(piece, 0..700).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn stretch_by_stretch_is_as_in_one(text in text()) {
            for (name, with, without) in MODELS.iter() {
                let (pieces, _, _) = encode(with, &text, usize::MAX);
                let (whole, _, _) = encode(without, &text, usize::MAX);
                prop_assert_eq!(pieces, whole, "{}", name);
            }
        }

        #[test]
        fn ids_up_to_a_safe_cut_do_not_depend_on_what_follows(
            head in text(), one in text(), other in text(),
        ) {
            for (name, tokenizer, _) in MODELS.iter() {
                let texts = [format!("{head}{one}"), format!("{head}{other}")];
                let ends = texts.each_ref().map(|text| {
                    let mut stretches = Stretches::new(text);
                    let mut ids = Vec::new();
                    let mut ends = Vec::new();
                    while let Some((_, safe)) = stretches.advance(tokenizer) {
                        tokenizer.encode_parts(
                            text,
                            &stretches.parts,
                            usize::MAX,
                            &mut Scratch::default(),
                            &mut ids,
                        );
                        if safe {
                            ends.push((stretches.position(), ids.clone()));
                        }
                    }
                    ends
                });
                let [one, other] = ends;
                for ((one_at, one_ids), (other_at, other_ids)) in one.into_iter().zip(other) {
                    // The same text up to a cut means the same ids, whatever comes then.
                    if one_at == other_at && texts[0][..one_at] == texts[1][..other_at] {
                        prop_assert_eq!(one_ids, other_ids, "{}", name);
                    }
                }
            }
        }

        #[test]
        fn the_first_tokens_are_the_first_of_all(text in text(), limit in 0usize..300) {
            for (name, tokenizer, _) in MODELS.iter() {
                let (all, _, _) = encode(tokenizer, &text, usize::MAX);
                let (first, _, stop) = encode(tokenizer, &text, limit);
                prop_assert!(all.starts_with(&first), "{}", name);
                prop_assert!(first.len() >= limit.min(all.len()));
                prop_assert_eq!(stop == Stop::End, first.len() == all.len());
            }
        }
    }

    #[test]
    fn all_known_models_have_safe_cuts() {
        for (name, tokenizer, _) in MODELS.iter() {
            assert_eq!(tokenizer.cuts, Cuts { words: true, lines: true }, "{name}");
            let text = "You may keep the item for some days and then bring it back. ".repeat(100);
            let (_, count, _) = encode(tokenizer, &text, usize::MAX);
            assert!((10..=12).contains(&count), "{name}: {count} stretches");
        }
    }

    #[test]
    fn a_word_too_long_ends_the_known_part() {
        let text = format!("one {} two", "x".repeat(MAX_WORD_BYTES));
        for (name, tokenizer, _) in MODELS.iter() {
            let (ids, _, stop) = encode(tokenizer, &text, usize::MAX);
            assert_eq!((ids.len() < 4, stop), (true, Stop::Word), "{name}");
        }
    }
}
