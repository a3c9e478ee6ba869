//! An answer, followed byte by byte for its `usage`, wherever it stands.
//!
//! What a client sent comes back in an answer (`tools`, `metadata`, `user` …), and may have a `usage`
//! of its own in it. So it counts where the engine writes it only: in the answer itself, and in a
//! stream also in the `response` or `message` that an event brings. Nothing of a client's is there.

use super::Usage;
use super::object::read;

/// Bytes of a `usage` that are looked at. vLLM's takes 300, and some for each call of a built-in tool.
const MOST_BYTES: usize = 2_048;

const NAME: &[u8] = b"usage";

/// An answer up to where it has come.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Server-sent events: each line begins anew.
    stream: bool,
    depth: u32,
    place: Place,
    /// An object that is named `usage`, from its opening brace on, and the depth around it.
    object: Vec<u8>,
    around: Option<u32>,
    last: Option<Usage>,
}

/// Between which bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Outside,
    /// In a string that is the name's so many first bytes till now; `None` for any other.
    Inside(Option<usize>),
    /// After a backslash in one.
    Escaped,
    /// After the name; then after its colon.
    Named,
    Colon,
}

impl Scan {
    /// Of an answer that has just begun; `stream`: it comes as server-sent events.
    pub fn new(stream: bool) -> Self {
        Self { stream, ..Self::default() }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, piece: &[u8]) {
        let mut rest = piece;
        while !rest.is_empty() {
            if self.place == Place::Inside(None) && self.around.is_none() {
                // Most bytes are in strings that are of no interest.
                let end = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | b'\n'));
                let Some(end) = end else { return };
                rest = rest.get(end..).unwrap_or_default();
            }
            let Some((byte, after)) = rest.split_first() else { return };
            self.next(*byte);
            rest = after;
        }
    }

    /// The last `usage` that told of the prompt; `None` if there was none.
    pub fn usage(&self) -> Option<Usage> {
        self.last
    }

    fn next(&mut self, byte: u8) {
        if self.stream && byte == b'\n' {
            self.begin_line();
            return;
        }
        if self.around.is_some() {
            self.object.push(byte);
            if self.object.len() >= MOST_BYTES {
                self.around = None;
            }
        }
        self.place = match (self.place, byte) {
            (Place::Inside(_), b'\\') => Place::Escaped,
            (Place::Inside(Some(5)), b'"') if self.counts() => Place::Named,
            (Place::Inside(_), b'"') => Place::Outside,
            (Place::Inside(Some(at)), byte) if NAME.get(at) == Some(&byte) => {
                Place::Inside(Some(at + 1))
            }
            (Place::Inside(_) | Place::Escaped, _) => Place::Inside(None),
            (Place::Named, b':') => Place::Colon,
            (Place::Named | Place::Colon, b' ' | b'\t' | b'\r' | b'\n') => self.place,
            (Place::Colon, b'{') => {
                self.object.clear();
                self.object.push(byte);
                self.around = Some(self.depth);
                self.depth = self.depth.saturating_add(1);
                Place::Outside
            }
            (_, b'"') => Place::Inside(Some(0)),
            (_, b'{' | b'[') => {
                self.depth = self.depth.saturating_add(1);
                Place::Outside
            }
            (_, b'}' | b']') => {
                self.depth = self.depth.saturating_sub(1);
                if self.around == Some(self.depth) {
                    self.end_object();
                }
                Place::Outside
            }
            _ => Place::Outside,
        };
    }

    /// Whether a name that stands here is the engine's.
    fn counts(&self) -> bool {
        self.around.is_none() && (self.depth == 1 || self.stream && self.depth == 2)
    }

    fn end_object(&mut self) {
        self.around = None;
        let usage = read(&self.object);
        if usage.prompt.is_some() {
            self.last = Some(usage);
        }
    }

    // JSON in events has no line feeds, so that whatever was broken off is over here.
    fn begin_line(&mut self) {
        self.depth = 0;
        self.place = Place::Outside;
        self.around = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::answers::{
        CHAT, MESSAGE, MESSAGES_STREAM, SGLANG_MESSAGES_STREAM, responses_stream, sglang_response,
        vllm_response,
    };
    use super::super::{Reported, TAIL_BYTES};
    use super::*;

    fn of(stream: bool, text: &str) -> Option<Usage> {
        let mut scan = Scan::new(stream);
        scan.push(text.as_bytes());
        scan.usage()
    }

    const WARM: Option<Usage> = Some(Usage { prompt: Some(964), cached: Reported::Tokens(960) });

    #[test]
    fn usage_is_found_wherever_engines_put_it_and_not_where_clients_do() {
        let long = "long \\\"usage\\\":{ ".repeat(TAIL_BYTES / 4);
        for client in ["short", &long] {
            for response in [vllm_response(client), sglang_response(client)] {
                assert_eq!(of(false, &response), WARM, "{response}");
                assert_eq!(of(true, &responses_stream(&response)), WARM, "{response}");
                let spaced = response.replace("\":", "\" :\t");
                assert_eq!(of(false, &spaced), WARM, "{spaced}");
            }
        }
        assert_eq!(of(false, MESSAGE), WARM);
        assert_eq!(of(true, MESSAGES_STREAM), WARM);
        assert_eq!(of(true, SGLANG_MESSAGES_STREAM), WARM);
        let chat = Usage { prompt: Some(162), cached: Reported::Tokens(160) };
        assert_eq!(of(false, CHAT), Some(chat));
    }

    #[test]
    fn what_was_broken_off_says_nothing() {
        let response = vllm_response("x");
        let end = response.find("\"output_tokens\"").unwrap();
        assert_eq!(of(false, &response[..end]), None);
        let begun =
            response.replace("\"usage\":{\"input_tokens\":964", "\"usage\":null,\"a\":{\"b\":1");
        assert_eq!(of(false, &begun), None);
        // A line that ends amidst a string doesn't hide the next one.
        let stream = format!("data: {{\"a\":\"b\n{}", responses_stream(&response));
        assert_eq!(of(true, &stream), WARM);
        let huge = format!(
            "{{\"usage\":{{\"input_tokens\":1,\"x\":\"{}\"}}}}",
            "y".repeat(2 * MOST_BYTES)
        );
        assert_eq!(of(false, &huge), None);
    }

    proptest! {
        /// However an answer is cut, the same is read of it, and little is kept.
        #[test]
        fn pieces_don_t_matter(
            cuts in proptest::collection::vec(1usize..300, 1..20), which in 0usize..6,
        ) {
            let client = "long ".repeat(600);
            let (stream, text) = match which {
                0 => (false, vllm_response(&client)),
                1 => (false, sglang_response(&client)),
                2 => (true, responses_stream(&vllm_response(&client))),
                3 => (true, responses_stream(&sglang_response(&client))),
                4 => (true, MESSAGES_STREAM.to_owned()),
                _ => (true, SGLANG_MESSAGES_STREAM.to_owned()),
            };
            let mut scan = Scan::new(stream);
            let mut rest = text.as_bytes();
            for cut in cuts.iter().cycle() {
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                scan.push(piece);
                prop_assert!(scan.object.len() <= MOST_BYTES);
                rest = after;
                if rest.is_empty() { break }
            }
            prop_assert_eq!(scan.usage(), WARM);
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..4_000), stream: bool) {
            let mut scan = Scan::new(stream);
            scan.push(&bytes);
            let _ = scan.usage();
        }

        /// Byte by byte or whole.
        #[test]
        fn json_is_followed(
            text in "(\"usage\"|:|\\{|\\}|\\[|\\]|,|null|\"input_tokens\"|\"input_tokens_details\"|\"cached_tokens\"|\"a\\\\\"|[0-9]| |\n){0,60}",
            stream: bool,
        ) {
            let (whole, mut pieces) = (of(stream, &text), Scan::new(stream));
            text.as_bytes().chunks(1).for_each(|piece| pieces.push(piece));
            prop_assert_eq!(pieces.usage(), whole);
            prop_assert!(pieces.object.len() <= MOST_BYTES);
        }
    }
}
