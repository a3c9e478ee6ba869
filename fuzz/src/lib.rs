//! What is fuzzed, as functions of bytes. They panic when a law is broken.

use std::path::Path;
use std::sync::LazyLock;

use warmpath_prompt::{Api, Model, ModelFiles, ModelFinder, Prompter, Request, Search, preprocess};
use warmpath_routing::fingerprint::Fingerprint;

const ROOT: Fingerprint = Fingerprint([7; 32]);
const APIS: [Api; 4] = [Api::Chat, Api::Completions, Api::Responses, Api::Messages];

static ARTEFACT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/demo");
    preprocess(&ModelFiles::read_dir(&dir).unwrap()).unwrap().bytes
});

/// The demo model's artefact with another chat template. Preparing the model anew each time would
/// leave four runs a second.
fn with_template(source: &str) -> Vec<u8> {
    // Magic, version and hash; then that there is a template, its length as LEB128, and itself.
    let at = 8 + 1 + 32;
    assert_eq!(ARTEFACT[at], 1);
    let (mut length, mut end) = (0, at + 1);
    for shift in (0..).step_by(7) {
        let byte = usize::from(ARTEFACT[end]);
        end += 1;
        length |= (byte & 127) << shift;
        if byte < 128 {
            break;
        }
    }
    let mut out = ARTEFACT[..=at].to_vec();
    let mut number = source.len();
    while number >= 128 {
        out.push((number & 127) as u8 | 128);
        number >>= 7;
    }
    out.push(number as u8);
    out.extend_from_slice(source.as_bytes());
    out.extend_from_slice(&ARTEFACT[end + length..]);
    out
}

/// A prompter for the demo model.
pub fn demo(memo_bytes: usize) -> Prompter {
    Prompter::new(Model::load(ARTEFACT.clone()).unwrap(), memo_bytes)
}

/// Any body is answered, of whatever API; a memo that knows it changes nothing; the first tokens
/// are the first of all; memory keeps its bound.
pub fn body(warm: &mut Prompter, cold: &mut Prompter, memo_bytes: usize, body: &[u8]) {
    for api in APIS {
        let Ok(request) = Request::parse(api, body) else { continue };
        let Ok(tokens) = cold.tokens(&request, None, 0) else { continue };
        for limit in [64, usize::MAX, 64] {
            let one = cold.prefix(&request, ROOT, limit, 0).unwrap();
            assert_eq!(one.tokens, tokens.ids.len().min(limit));
            for _ in 0..2 {
                let other = warm.prefix(&request, ROOT, limit, 0).unwrap();
                assert_eq!(other, one, "{api:?}, limit {limit}");
            }
        }
        assert!(warm.memo_bytes() <= memo_bytes);
    }
}

/// A template out of a model's files, and a body for it, apart by a zero byte. It is refused or
/// renders or fails; it never panics. Without the template engine it renders what it does with it.
pub fn template(data: &[u8]) {
    let (source, body) = match data.iter().position(|byte| *byte == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, br#"{"messages":[{"role":"user","content":"Hi"}]}"#.as_slice()),
    };
    let Ok(source) = std::str::from_utf8(source) else { return };
    let load = || Model::load(with_template(source));
    let (Ok(model), Ok(interpreted)) = (load(), load()) else { return };
    let mut prompter = Prompter::new(model, 1 << 16);
    let mut interpreted = Prompter::new(interpreted.interpreted(), 1 << 16);
    for api in APIS {
        if let Ok(request) = Request::parse(api, body) {
            let prefix = prompter.prefix(&request, ROOT, 64, 0);
            assert_eq!(prefix, interpreted.prefix(&request, ROOT, 64, 0), "{api:?}");
        }
    }
}

/// The demo model's artefact with some bytes changed: six bytes of `data` for each change, of
/// which the first three say where, then what. It is refused, or loads and then tokenizes anything.
pub fn artefact(data: &[u8]) {
    let mut bytes = ARTEFACT.clone();
    for change in data.chunks_exact(6) {
        let at = change[..3].iter().fold(0, |at, byte| at << 8 | usize::from(*byte));
        // Most of it is vocabulary; half of the changes go to the head.
        let at = at % if change[3] & 1 == 0 { bytes.len().min(4096) } else { bytes.len() };
        match change[3] >> 1 & 3 {
            0 => bytes[at] = change[4],
            1 => bytes[at] ^= 1 << (change[4] & 7),
            2 => bytes.insert(at, change[5]),
            _ => bytes.truncate(at.max(1)),
        }
    }
    load(&bytes);
    load(data);
}

fn load(bytes: &[u8]) {
    let Ok(model) = Model::load(bytes.to_vec()) else { return };
    let mut prompter = Prompter::new(model, 1 << 16);
    for body in [
        r#"{"messages":[{"role":"user","content":"Héllo 漢字 <|im_end|> 123"}]}"#,
        r#"{"prompt":"The night train opens the broken clock.\n\nOn Monday 🙂 \u0000"}"#,
    ] {
        let api = Api::of_body(body.as_bytes()).unwrap();
        let request = Request::parse(api, body.as_bytes()).unwrap();
        let _ = prompter.prefix(&request, ROOT, 4096, 0);
    }
}

/// The name of the model in a body: the same however it is split, and what a parser finds. The
/// first byte says whether it is a form, the second how long its pieces are.
pub fn model_name(data: &[u8]) {
    let [form, length, body @ ..] = data else { return };
    let form = form & 1 == 1;
    let content_type = if form { "multipart/form-data; boundary=B" } else { "application/json" };
    let search = |length: usize| {
        let mut finder = ModelFinder::new(Some(content_type.as_bytes()));
        for piece in body.chunks(length) {
            finder.feed(piece);
        }
        finder.end()
    };
    let said = search(body.len().max(1));
    assert_ne!(said, Search::More);
    for length in [1, usize::from(*length).max(1)] {
        assert_eq!(search(length), said, "in pieces of {length}");
    }
    if !form && let Ok(members) = serde_json::from_slice::<Members>(body) {
        assert_eq!(said, members.model());
    }
}

/// An object's members in their order, those that come twice, too.
struct Members(Vec<(String, serde_json::Value)>);

impl Members {
    fn model(self) -> Search {
        for (_, value) in self.0.into_iter().filter(|(key, _)| key == "model") {
            match value {
                serde_json::Value::Null => {}
                serde_json::Value::String(name) if name.is_empty() => {}
                serde_json::Value::String(name) if name.len() <= 1024 => {
                    return Search::Found(name);
                }
                _ => return Search::Unreadable,
            }
        }
        Search::Absent
    }
}

impl<'de> serde::Deserialize<'de> for Members {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Members;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}
