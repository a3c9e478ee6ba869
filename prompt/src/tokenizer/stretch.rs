//! A text falls into stretches: from one safe cut to the next.
//!
//! Up to a safe cut the ids depend on nothing that comes after it, and after it on nothing that
//! came before. So a text can be tokenized stretch by stretch, can stop early, and what is known
//! up to a cut can be kept. Where cuts are depends on the text before them only, and on the two
//! bytes after: texts that start alike are cut alike.

use crate::tokenizer::Tokenizer;
use crate::tokenizer::added::Found;
use crate::tokenizer::part::Part;
use crate::tokenizer::spaces::Opening;

/// A stretch ends at the first safe cut between words after this many bytes,
const STRETCH_BYTES: usize = 512;

/// or at the end of the first added token after this many.
const ADDED_STRETCH_BYTES: usize = 192;

/// Goes over a text stretch by stretch.
pub(crate) struct Stretches<'a> {
    text: &'a str,
    at: usize,
    /// The next added token at or after `at`, if it was `looked` for.
    next: Option<Found>,
    looked: bool,
    /// What begins at `at`.
    opening: Opening,
    /// The parts of the stretch that [`Stretches::advance`] found last.
    pub(crate) parts: Vec<Part>,
}

impl<'a> Stretches<'a> {
    /// Of a text that begins as `opening` says.
    pub(crate) fn new(text: &'a str, opening: Opening) -> Self {
        Self { text, at: 0, next: None, looked: false, opening, parts: Vec::new() }
    }

    /// What begins at the position.
    pub(crate) fn opening(&self) -> Opening {
        self.opening
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Finds the next stretch: the text it covers, and whether it ends at a safe cut.
    pub(crate) fn advance(&mut self, tokenizer: &Tokenizer) -> Option<(&'a str, bool)> {
        let start = self.at;
        if start >= self.text.len() {
            return None;
        }
        self.parts.clear();
        loop {
            let found =
                if self.looked { self.next } else { tokenizer.raw.find(self.text, self.at) };
            let text_end = found.map_or(self.text.len(), |found| found.start);
            if let Some(cut) = self.cut(tokenizer, start, text_end) {
                self.next = found;
                self.looked = true;
                self.text_part(cut);
                self.opening = Opening::None;
                return Some((self.text.get(start..cut)?, true));
            }
            if self.at < text_end {
                self.text_part(text_end);
            }
            self.looked = false;
            let Some(found) = found else {
                self.at = self.text.len();
                return Some((self.text.get(start..)?, false));
            };
            self.parts.push(Part {
                start: found.start,
                end: found.end,
                added: Some(found.id),
                opening: Opening::None,
            });
            self.at = found.end;
            self.opening = Opening::Piece;
            if found.certain && self.at - start >= ADDED_STRETCH_BYTES {
                return Some((self.text.get(start..self.at)?, true));
            }
            if self.at >= self.text.len() {
                return Some((self.text.get(start..)?, found.certain));
            }
        }
    }

    /// The text up to `end` is a part.
    fn text_part(&mut self, end: usize) {
        let opening = self.opening;
        self.parts.push(Part { start: self.at, end, added: None, opening });
        self.at = end;
    }

    /// The first safe cut before `to` that is far enough from the stretch's start.
    fn cut(&self, tokenizer: &Tokenizer, start: usize, to: usize) -> Option<usize> {
        let first = (start + STRETCH_BYTES).max(self.at + 1);
        let bytes = self.text.as_bytes().get(..to)?;
        (first..to).find(|at| tokenizer.cuts.is_cut(bytes, *at))
    }
}

#[cfg(all(test, feature = "preprocess"))]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)] // Helpers too.
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::artefact::Definition;
    use crate::prepare::files::ModelFiles;
    use crate::prepare::preprocess;
    use crate::tokenizer::bpe::Scratch;
    use crate::tokenizer::{Cuts, MAX_WORD_BYTES, Stop};

    /// Each model that is there, with its safe cuts and with none.
    static MODELS: LazyLock<Vec<(String, Tokenizer, Tokenizer)>> = LazyLock::new(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut folders = vec![root.join("tests/fixtures/models/demo")];
        let small = std::fs::read_dir(root.join("tests/fixtures/conformance/models")).unwrap();
        folders.extend(small.map(|entry| entry.unwrap().path()));
        // Further model directories, separated by colons.
        let more = std::env::var_os("WARMPATH_CONFORMANCE").unwrap_or_default();
        folders.extend(std::env::split_paths(&more).filter(|path| path.is_dir()));
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
                let tokenizer = |cuts: Option<Cuts>| {
                    let read = Definition::read(artefact.bytes.clone()).unwrap();
                    let mut rules = read.tokenizer;
                    rules.cuts = cuts.unwrap_or(rules.cuts);
                    Tokenizer::new(&rules, read.vocabulary).unwrap()
                };
                let (with, without) = (tokenizer(None), tokenizer(Some(Cuts::default())));
                (folder.display().to_string(), with, without)
            })
            .collect()
    });

    fn encode(tokenizer: &Tokenizer, text: &str, limit: usize) -> (Vec<u32>, usize, Stop) {
        encode_with(tokenizer, text, limit, &mut Scratch::default())
    }

    fn encode_with(
        tokenizer: &Tokenizer,
        text: &str,
        limit: usize,
        scratch: &mut Scratch,
    ) -> (Vec<u32>, usize, Stop) {
        let mut stretches = Stretches::new(text, Opening::Text);
        let mut out = Vec::new();
        let mut count = 0;
        let mut stop = Stop::End;
        while stop == Stop::End && stretches.advance(tokenizer).is_some() {
            count += 1;
            stop = tokenizer.encode_parts(text, &stretches.parts, limit, scratch, &mut out);
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
            1 => "[ ]?[!-~]{1,6}",
            1 => "[éßс漢字かe\u{301}\u{300}ſ🙂]{1,4}",
            1 => Just("'s".to_owned()),
            1 => Just("</s>".to_owned()),
            1 => Just("<s> ".to_owned()),
            1 => Just("\u{2581}".to_owned()),
            1 => any::<char>().prop_map(String::from),
        ];
        proptest::collection::vec(piece, 0..700).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn stretch_by_stretch_is_as_in_one(text in text(), before in text()) {
            for (name, with, without) in MODELS.iter() {
                let (pieces, _, _) = encode(with, &text, usize::MAX);
                let (whole, _, _) = encode(without, &text, usize::MAX);
                prop_assert_eq!(&pieces, &whole, "{}", name);
                // And with what is known of texts that came before.
                let mut scratch = Scratch::default();
                encode_with(with, &before, usize::MAX, &mut scratch);
                for _ in 0..2 {
                    let (again, _, _) = encode_with(with, &text, usize::MAX, &mut scratch);
                    prop_assert_eq!(&again, &whole, "{}", name);
                }
            }
        }

        #[test]
        fn ids_up_to_a_safe_cut_do_not_depend_on_what_follows(
            head in text(), one in text(), other in text(),
        ) {
            for (name, tokenizer, _) in MODELS.iter() {
                let texts = [format!("{head}{one}"), format!("{head}{other}")];
                let ends = texts.each_ref().map(|text| {
                    let mut stretches = Stretches::new(text, Opening::Text);
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
                let mut scratch = Scratch::default();
                encode_with(tokenizer, &text, usize::MAX, &mut scratch);
                let (known, _, stop) = encode_with(tokenizer, &text, limit, &mut scratch);
                prop_assert!(all.starts_with(&known) && known.starts_with(&first), "{}", name);
                prop_assert_eq!(stop == Stop::End, known.len() == all.len());
            }
        }
    }

    #[test]
    fn all_known_models_have_safe_cuts() {
        for (name, tokenizer, _) in MODELS.iter() {
            let pieces = tokenizer.joins().is_none();
            assert_eq!(tokenizer.cuts, Cuts { words: true, lines: true, pieces }, "{name}");
            let text = "You may keep the item for some days and then bring it back. ".repeat(100);
            let (_, count, _) = encode(tokenizer, &text, usize::MAX);
            assert!((10..=12).contains(&count), "{name}: {count} stretches");
        }
    }

    #[test]
    fn a_word_too_long_ends_the_known_part() {
        let text = format!("one {} two", "x".repeat(MAX_WORD_BYTES));
        for (name, tokenizer, _) in MODELS.iter() {
            if tokenizer.joins().is_some_and(|joins| !joins.join(b'x', b'x')) {
                continue; // That is no word there.
            }
            let (ids, _, stop) = encode(tokenizer, &text, usize::MAX);
            assert_eq!((ids.len() < 4, stop), (true, Stop::Word), "{name}");
        }
    }
}
