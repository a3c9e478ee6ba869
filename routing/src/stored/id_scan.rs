//! The id of a response, found in the answer's bytes as they pass.

use super::bucket::MOST_ID;

/// Bytes of an answer that are looked at. Both engines write the id first, so that this is far more
/// than it takes.
const MOST_LOOKED: usize = 16 << 10;

/// The longest string that is kept as it is written: an id of which each byte is escaped.
const MOST_STRING: usize = 2 + 6 * MOST_ID;

/// An answer up to where it has come. An id counts where the engine writes its own: in the answer
/// itself, or in the `response` of a stream's event; those of items lie elsewhere, and what a client
/// sent lies deeper or in strings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdScan {
    /// Server-sent events: each line begins anew.
    stream: bool,
    looked: usize,
    depth: u32,
    /// The object around is a `response`, at depth 2.
    in_response: bool,
    place: Place,
    /// The last string as it is written, with its quotes.
    string: Vec<u8>,
    /// The name of the value that comes.
    name: Name,
    id: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Outside,
    Inside,
    /// After a backslash in a string.
    Escaped,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Name {
    #[default]
    None,
    Id,
    Response,
}

impl IdScan {
    /// Of an answer that has just begun; `stream`: it comes as server-sent events.
    pub fn new(stream: bool) -> Self {
        Self { stream, ..Self::default() }
    }

    /// How many of the bytes that come next are worth bringing; 0 where it is over.
    pub fn wants(&self) -> usize {
        if self.id.is_some() { 0 } else { MOST_LOOKED.saturating_sub(self.looked) }
    }

    /// Takes the next bytes. Gives the id, once.
    pub fn push(&mut self, piece: &[u8]) -> Option<String> {
        for byte in piece.iter().take(self.wants()) {
            self.looked += 1;
            self.next(*byte);
            if self.id.is_some() {
                return self.id.clone();
            }
        }
        None
    }

    fn next(&mut self, byte: u8) {
        if self.stream && byte == b'\n' {
            // JSON in events has no line feeds.
            *self = Self { looked: self.looked, ..Self::new(true) };
            return;
        }
        match (self.place, byte) {
            (Place::Inside | Place::Escaped, _) => {
                if self.string.len() < MOST_STRING {
                    self.string.push(byte);
                }
                self.place = match (self.place, byte) {
                    (Place::Inside, b'\\') => Place::Escaped,
                    (Place::Inside, b'"') => Place::Outside,
                    _ => Place::Inside,
                };
                if self.place == Place::Outside && self.name == Name::Id && self.counts() {
                    self.id = serde_json::from_slice(&self.string).ok();
                }
            }
            (Place::Outside, b'"') => {
                self.string.clear();
                self.string.push(byte);
                self.place = Place::Inside;
            }
            (Place::Outside, b':') => {
                self.name = match self.string.as_slice() {
                    b"\"id\"" => Name::Id,
                    b"\"response\"" => Name::Response,
                    _ => Name::None,
                };
            }
            (Place::Outside, b'{' | b'[') => {
                self.depth = self.depth.saturating_add(1);
                if self.depth == 2 {
                    self.in_response = byte == b'{' && self.name == Name::Response;
                }
                self.name = Name::None;
            }
            (Place::Outside, b'}' | b']') => {
                self.depth = self.depth.saturating_sub(1);
                self.name = Name::None;
            }
            (Place::Outside, b',') => self.name = Name::None,
            (Place::Outside, _) => {}
        }
    }

    fn counts(&self) -> bool {
        if self.stream { self.depth == 2 && self.in_response } else { self.depth == 1 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(stream: bool, text: &str) -> Option<String> {
        let mut whole = IdScan::new(stream);
        let found = whole.push(text.as_bytes());
        let mut bytes = IdScan::new(stream);
        let all: Vec<_> = text.bytes().filter_map(|byte| bytes.push(&[byte])).collect();
        assert_eq!(all.first(), found.as_ref(), "in pieces: {text}");
        assert!(all.len() <= 1);
        found
    }

    #[test]
    fn the_engine_s_own_id_is_found_and_no_other() {
        let id = Some("resp_1".to_owned());
        for text in [
            r#"{"id":"resp_1","created_at":1,"output":[{"id":"msg_1"}]}"#,
            "{ \"object\" :\t\"response\",\r\n \"id\" : \"resp_1\" }",
            r#"{"metadata":{"id":"no"},"tools":[{"id":"no"}],"instructions":"\"id\":\"no\"","id":"resp_1"}"#,
            r#"{"a":"id","b":"no","id":"resp_1"}"#,
        ] {
            assert_eq!(of(false, text), id, "{text}");
        }
        let stream = "event: response.created\ndata: {\"response\":{\"id\":\"resp_1\",\"output\":[]},\
            \"sequence_number\":0,\"type\":\"response.created\"}\n\n";
        assert_eq!(of(true, stream), id);
        assert_eq!(of(true, &format!("data: {{\"item\":{{\"id\":\"msg_1\"}}}}\n\n{stream}")), id);
        assert_eq!(of(true, &format!("data: {{\"delta\":\"cut off\n\n{stream}")), id);
        let typed = "data: {\"type\":\"response.created\",\"response\":{\"metadata\":{\"id\":\"no\"},\"id\":\"resp_1\"}}\n\n";
        assert_eq!(of(true, typed), id);
        assert_eq!(of(false, r#"{"id":"a\"\u0062\\"}"#).as_deref(), Some("a\"b\\"));
        for (stream, text) in [
            (false, r#"{"error":{"id":"no","message":"\"id\":\"no\""}}"#),
            (false, r#"{"id":7,"x":"no"}"#),
            (false, r#"{"id":{"id":"no"}}"#),
            (false, r#"["id","no"]"#),
            (true, "data: {\"id\":\"no\",\"response\":[{\"id\":\"no\"}]}\n\n"),
            (true, "data: {\"response\":1,\"x\":{\"id\":\"no\"}}\n\n"),
            (true, "data: [DONE]\n\n"),
        ] {
            assert_eq!(of(stream, text), None, "{text}");
        }
    }

    #[test]
    fn it_looks_so_far_and_no_further() {
        let far = format!("{{\"instructions\":\"{}\",\"id\":\"resp_1\"}}", "x".repeat(MOST_LOOKED));
        let mut scan = IdScan::new(false);
        assert_eq!(scan.push(far.as_bytes()), None);
        assert_eq!((scan.wants(), scan.string.capacity() <= 2 * MOST_STRING), (0, true));
        let long = format!("{{\"id\":\"{}\"}}", "x".repeat(2 * MOST_STRING));
        assert_eq!(of(false, &long), None, "cut off, it is no string");
    }

    proptest! {
        #[test]
        fn any_bytes_are_no_trouble(stream: bool, bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            IdScan::new(stream).push(&bytes);
        }
    }
}
