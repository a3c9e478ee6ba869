//! What a simulated engine answers: filler text, whose token ids are those that the tokenizer
//! gives to the same text when a client sends it back in the next turn.

use super::counters::Finish;
use super::tokens::Tokenizer;

const OPENING: &str = "This is a simulated answer, no model was run:";
const WORDS: &str = "the quick brown fox jumps over the lazy dog and then one small bird looks \
    down from an old tree by the river where the water is cold and clear and long days go by \
    with little to say about them but that each of them was like the one before";

/// Pieces of text and their token ids.
pub(crate) struct Filler {
    opening: Vec<Piece>,
    words: Vec<Piece>,
}

struct Piece {
    text: String,
    ids: Vec<u32>,
}

/// One generated token: its id, and the text that it completes (empty inside a word).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) id: u32,
    pub(crate) text: String,
}

/// What will be generated.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<Token>,
    pub(crate) finish: Finish,
}

impl Filler {
    /// Finds the ids of each word where it stands.
    pub(crate) fn new(tokenizer: &Tokenizer) -> Self {
        let mut filler = Self { opening: Vec::new(), words: Vec::new() };
        let mut text = String::new();
        let mut ids: Vec<u32> = Vec::new();
        let mut add = |word: &str, pieces: &mut Vec<Piece>| {
            let piece = if text.is_empty() { word.to_owned() } else { format!(" {word}") };
            let longer = format!("{text}{piece}");
            let all = tokenizer.text(&longer, false).unwrap_or_default();
            // A word that changes the ids before it, or has none, is left out.
            if let Some(new) = all.strip_prefix(ids.as_slice()).filter(|new| !new.is_empty()) {
                pieces.push(Piece { text: piece, ids: new.to_vec() });
                (text, ids) = (longer, all);
            }
        };
        for word in OPENING.split_ascii_whitespace() {
            add(word, &mut filler.opening);
        }
        for word in WORDS.split_ascii_whitespace() {
            add(word, &mut filler.words);
        }
        filler
    }

    /// An answer of `natural` tokens, or of `most` if that is less. The words after the opening
    /// depend on `seed`.
    pub(crate) fn answer(&self, seed: u64, natural: usize, most: usize) -> Answer {
        let start = seed.checked_rem(self.words.len() as u64).unwrap_or(0) as usize;
        let words = self.words.iter().cycle().skip(start);
        let finish = if natural < most { Finish::Stop } else { Finish::Length };
        let mut tokens: Vec<Token> = Vec::with_capacity(natural.min(most));
        tokens.extend(
            self.opening.iter().chain(words).flat_map(Piece::tokens).take(natural.min(most)),
        );
        // A tokenizer without a single usable word.
        tokens.resize(natural.min(most), Token { id: 0, text: ".".to_owned() });
        Answer { tokens, finish }
    }
}

impl Piece {
    fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        let last = self.ids.len().saturating_sub(1);
        self.ids.iter().enumerate().map(move |(index, &id)| {
            let text = if index == last { self.text.clone() } else { String::new() };
            Token { id, text }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_reads_back_to_its_own_ids() {
        let tokenizer = crate::engine::tokens::tests::tokenizer();
        let filler = Filler::new(&tokenizer);
        let answer = filler.answer(7, 60, 60);
        let ids: Vec<u32> = answer.tokens.iter().map(|token| token.id).collect();
        let text: String = answer.tokens.iter().map(|token| token.text.as_str()).collect();
        assert!(text.starts_with("This is a simulated answer"), "{text}");
        let read = tokenizer.text(&text, false).unwrap();
        // A word that was cut at the end has no text.
        assert_eq!(read, &ids[..read.len()]);
        assert!(ids.len() - read.len() < 12);
    }

    #[test]
    fn an_answer_ends_where_it_should() {
        let filler = Filler::new(&crate::engine::tokens::tests::tokenizer());
        let short = filler.answer(0, 64, 4);
        assert_eq!((short.tokens.len(), short.finish), (4, Finish::Length));
        let long = filler.answer(0, 64, 1000);
        assert_eq!((long.tokens.len(), long.finish), (64, Finish::Stop));
    }
}
