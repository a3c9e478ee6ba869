//! Which cuts are safe for a tokenizer.
//!
//! A cut is safe if nothing on one side of it can change the ids of the other. SentencePiece's kind
//! is safe where no token can be made across; the byte-level kind where words end, which its
//! patterns tell, and trials.

use unicode_normalization::UnicodeNormalization;

use crate::tokenizer::added::AddedToken;
use crate::tokenizer::{Cuts, Tokenizer};

/// What kinds of characters patterns tell apart.
const CHARS: [char; 11] = ['a', 'Z', ' ', '\n', '\r', '\t', '.', '\'', '7', 'é', '漢'];

/// A cut is safe if words end there, and if the words before it are the same when nothing comes after
/// it: by the patterns, as far as they tell, and on every short text of the characters that matter.
pub(crate) fn safe_cuts(tokenizer: &Tokenizer, added: &[AddedToken]) -> Cuts {
    // Those in the raw text are found before it is cut; these are not, and what is cut may be
    // written otherwise than they are: an `é` as an `e` and an accent.
    let written = |token: &AddedToken| {
        [token.content.clone(), token.content.nfd().collect()]
            .map(|content| AddedToken { content, ..token.clone() })
    };
    let normalized: Vec<AddedToken> =
        added.iter().filter(|token| token.normalized).flat_map(written).collect();
    let crosses = |cut: fn(&[u8]) -> bool| {
        normalized.iter().any(|token| token.content.as_bytes().windows(2).any(cut))
    };
    let words_crossed = crosses(|w| matches!(w, [a, b' '] if a.is_ascii_alphabetic()));
    let lines_crossed = crosses(|w| matches!(w, [b'\n', a] if a.is_ascii_alphabetic()));
    let spaces_crossed = crosses(|w| matches!(w, [a, b' '] if a.is_ascii_graphic()));
    // White space that a token takes beside it may be what a cut is at.
    let strips = |after: fn(&char) -> bool, before: fn(&char) -> bool| {
        normalized.iter().any(|token| {
            token.rstrip && token.content.ends_with(|char| after(&char))
                || token.lstrip && token.content.starts_with(|char| before(&char))
        })
    };
    let graphic_ends = strips(char::is_ascii_graphic, char::is_ascii_alphanumeric);
    let letter_ends = strips(char::is_ascii_alphabetic, char::is_ascii_alphabetic);
    if let Some(joins) = tokenizer.joins() {
        let apart = |left: fn(u8) -> u8, right: fn(u8) -> u8| {
            (b'A'..=b'z')
                .filter(u8::is_ascii_alphabetic)
                .all(|letter| !joins.join(left(letter), right(letter)))
        };
        return Cuts {
            words: !letter_ends && !words_crossed && apart(|letter| letter, |_| b' '),
            lines: !letter_ends && !lines_crossed && apart(|_| b'\n', |letter| letter),
            // Where words are only found by what can't be made across them there is no use for it.
            pieces: false,
        };
    }
    let holds = |before: &str, afters: &[&str]| {
        let cut = tokenizer.words(before);
        afters.iter().all(|after| {
            let all = tokenizer.words(&format!("{before}{after}"));
            let rest = tokenizer.words(after);
            let rest = rest.iter().map(|(start, end)| (start + before.len(), end + before.len()));
            all.into_iter().eq(cut.iter().copied().chain(rest))
        })
    };
    let mut befores = vec![String::new()];
    let mut from = 0;
    for _ in 0..3 {
        let to = befores.len();
        for at in from..to {
            for char in CHARS {
                let text = format!("{}{char}", befores.get(at).map_or("", String::as_str));
                befores.push(text);
            }
        }
        from = to;
    }
    // No short text tells of all others, but a pattern does of what it never holds.
    let space = |byte: &u8| *byte == b' ';
    let line = |byte: &u8| *byte == b'\n';
    Cuts {
        words: !letter_ends
            && !words_crossed
            && !tokenizer.may_join(u8::is_ascii_alphabetic, space)
            && befores.iter().all(|before| {
                ["", "'s"].iter().all(|end| {
                    let after_a = [" ab", " Ab", " a b", " a'", " aé", " a\n"];
                    holds(&format!("{before}a{end}"), &after_a)
                        && holds(&format!("{before}Z{end}"), &[" ab", " Z."])
                })
            }),
        lines: !letter_ends
            && !lines_crossed
            && !tokenizer.may_join(line, u8::is_ascii_alphabetic)
            && befores.iter().all(|before| {
                holds(&format!("{before}\n"), &["ab", "Ab", "a b", "a'", "aé", "a\n"])
            }),
        pieces: !graphic_ends
            && !spaces_crossed
            && !tokenizer.may_join(u8::is_ascii_graphic, space)
            && (b'0'..=b'z').filter(u8::is_ascii_alphanumeric).map(char::from).all(|first| {
                let mut texts = ["", "a", "B", "7", ".", " ", "\n", "é"].into_iter();
                texts.all(|more| tokenizer.begins_word(&format!(" {first}{more}")))
            })
            && befores.iter().all(|before| {
                let afters = [" ab", " Ab", " a'", " aé", " a\n", " 7a", " 77777", " 7 "];
                let mut lasts = ['a', 'Z', '7', '.', '\'', ','].into_iter();
                lasts.all(|last| holds(&format!("{before}{last}"), &afters))
            }),
    }
}
