//! The end of an answer: of each piece that passes only the last bytes are kept, and `usage` is
//! looked for in them when the answer has ended.

use std::borrow::Cow;

use super::Usage;
use super::object::{is, member, object, read};

/// Bytes of the end of an answer that are kept. vLLM's `usage` is about 200 bytes long, with a few
/// short fields after it.
pub const TAIL_BYTES: usize = 2_048;

/// The last bytes of an answer.
#[derive(Clone, Debug, Default)]
pub struct Tail(Vec<u8>);

impl Tail {
    /// Takes the end of a piece; of a long one only its last [`TAIL_BYTES`] matter.
    pub fn push<'a>(&mut self, piece: impl Into<Cow<'a, [u8]>>) {
        let piece = piece.into();
        if self.0.is_empty() && piece.len() <= TAIL_BYTES {
            // Most answers come in one piece.
            self.0 = piece.into_owned();
            return;
        }
        let piece = piece.get(piece.len().saturating_sub(TAIL_BYTES)..).unwrap_or(&piece);
        let keep = TAIL_BYTES - piece.len();
        if self.0.len() > keep {
            self.0.drain(..self.0.len() - keep);
        }
        self.0.extend_from_slice(piece);
    }

    /// Looks for the last `usage`; `None` if there is none.
    pub fn usage(&self) -> Option<Usage> {
        let mut end = self.0.len();
        loop {
            let at = rfind(self.0.get(..end)?, b"\"usage\"")?;
            let rest = self.0.get(at + b"\"usage\"".len()..)?;
            // Chunks before the last say `"usage":null`.
            if let Some(fields) = member(rest).filter(|rest| rest.first() == Some(&b'{')) {
                return Some(read(object(fields)));
            }
            end = at;
        }
    }
}

fn rfind(bytes: &[u8], name: &[u8]) -> Option<usize> {
    bytes.windows(name.len()).rposition(|window| is(window, name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Reported;
    use super::super::answers::CHAT as ANSWER;
    use super::*;

    fn of(text: &str) -> Option<Usage> {
        let mut tail = Tail::default();
        tail.push(text.as_bytes());
        tail.usage()
    }

    #[test]
    fn answers_of_engines_are_read() {
        let all = Usage { prompt: Some(162), cached: Reported::Tokens(160) };
        assert_eq!(of(ANSWER), Some(all));
        let null = ANSWER.replace("{\"cached_tokens\":160}", "null");
        assert_eq!(of(&null), Some(Usage { cached: Reported::Null, ..all }));
        let absent = ANSWER.replace("\"prompt_tokens_details\":{\"cached_tokens\":160},", "");
        assert_eq!(of(&absent), Some(Usage { cached: Reported::Absent, ..all }));
        let spaced = ANSWER.replace("\":", "\" : ");
        assert_eq!(of(&spaced), Some(all));
        for nothing in ["", "{}", "\"usage\"", "\"usage\":", "\"usage\":{", "\"usage\":null"] {
            let usage = of(nothing).unwrap_or_default();
            assert_eq!(usage, Usage::default(), "{nothing}");
        }
        let sglang = r#""usage":{"prompt_tokens":5,"total_tokens":6,"completion_tokens":1,"prompt_tokens_details":{"audio_tokens":2,"cached_tokens":4294967296},"reasoning_tokens":0}}"#;
        assert_eq!(of(sglang), Some(Usage { prompt: Some(5), cached: Reported::Null }));
    }

    #[test]
    fn the_last_usage_of_a_stream_counts() {
        let stream = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"usage\":null}\n\n\
                      data: {\"choices\":[],\"usage\":{\"prompt_tokens\":40,\
                      \"prompt_tokens_details\":{\"cached_tokens\":32}}}\n\n\
                      data: {\"choices\":[],\"usage\":null}\n\ndata: [DONE]\n\n";
        assert_eq!(of(stream), Some(Usage { prompt: Some(40), cached: Reported::Tokens(32) }));
    }

    proptest! {
        /// However an answer is cut, the same is read of it, and no more than the window is kept.
        #[test]
        fn pieces_don_t_matter(
            cuts in proptest::collection::vec(1usize..300, 1..20), before in 0usize..5_000,
        ) {
            let text = format!("{}{ANSWER}", " ".repeat(before));
            let mut tail = Tail::default();
            let mut rest = text.as_bytes();
            for cut in cuts.iter().cycle() {
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                tail.push(piece);
                prop_assert!(tail.0.len() <= TAIL_BYTES);
                rest = after;
                if rest.is_empty() { break }
            }
            prop_assert_eq!(tail.usage(), of(&text));
            prop_assert_eq!(tail.usage().unwrap().cached, Reported::Tokens(160));
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..4_000)) {
            let mut tail = Tail::default();
            tail.push(&bytes);
            let _ = tail.usage();
        }

        #[test]
        fn any_json_like_bytes_are_read(text in "(\"usage\"|:|\\{|\\}|null|\"prompt_tokens\"|\"prompt_tokens_details\"|\"cached_tokens\"|[0-9]| ){0,60}") {
            let _ = of(&text);
        }
    }
}
