//! Request bodies: chats with one of some long system prompts and a short question that nobody
//! asked before.

use std::fmt::Write;

use bytes::Bytes;
use fastrand::Rng;

/// System prompts that requests share.
pub const PREFIXES: usize = 100;

/// The model that requests name.
pub const MODEL: &str = "demo";

/// Words in a question.
const QUESTION_WORDS: usize = 24;

/// Comes before a system prompt's label; the upstream knows prompts by it.
const LABEL: &str = "You are assistant ";

/// Digits of a label.
const LABEL_DIGITS: usize = 16;

/// Which system prompt a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One of [`PREFIXES`].
    Shared,
    /// One of its own, which differs from all others from its first words on.
    Unique,
}

/// Bodies of about one size.
#[derive(Clone, Debug)]
pub struct Bodies {
    words: Vec<&'static str>,
    bytes: usize,
    /// System prompts after their labels.
    prompts: Vec<String>,
}

impl Bodies {
    /// Bodies of about `bytes`: the same ones for the same size, in every process.
    pub fn new(bytes: usize) -> Self {
        let plain =
            |word: &&str| word.bytes().all(|b| b.is_ascii_graphic() && !br#""\"#.contains(&b));
        let words: Vec<&str> =
            include_str!("../../LICENSE").split_whitespace().filter(plain).collect();
        let mut this = Self { words, bytes, prompts: Vec::new() };
        let mut rng = Rng::with_seed(bytes as u64);
        // What is around the prompt takes about this much.
        let room = bytes.saturating_sub(330);
        this.prompts = (0..PREFIXES)
            .map(|_| {
                let mut prompt = String::from(".");
                while prompt.len() < room {
                    this.word(&mut rng, &mut prompt);
                }
                prompt
            })
            .collect();
        this
    }

    /// The size that was asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn word(&self, rng: &mut Rng, text: &mut String) {
        if let Some(word) = rng.choice(&self.words) {
            text.push(' ');
            text.push_str(word);
        }
    }

    /// A body like no other.
    pub fn any(&self, kind: Kind, rng: &mut Rng) -> Bytes {
        let prefix = rng.usize(..PREFIXES);
        let label = match kind {
            Kind::Shared => label(self.bytes, prefix),
            Kind::Unique => format!("{:016x}", rng.u64(..)),
        };
        Bytes::from(self.body(&label, prefix, rng))
    }

    /// A body with the system prompt of this number.
    pub fn shared(&self, prefix: usize, rng: &mut Rng) -> Vec<u8> {
        self.body(&label(self.bytes, prefix), prefix, rng)
    }

    fn body(&self, label: &str, prefix: usize, rng: &mut Rng) -> Vec<u8> {
        let prompt = self.prompts.get(prefix).map_or("", String::as_str);
        let mut body = String::with_capacity(self.bytes + 512);
        for part in [
            r#"{"model":""#,
            MODEL,
            r#"","max_tokens":1,"messages":[{"role":"system","content":""#,
            LABEL,
            label,
            prompt,
            r#""},{"role":"user","content":"Tell me about"#,
        ] {
            body.push_str(part);
        }
        for _ in 0..QUESTION_WORDS {
            self.word(rng, &mut body);
        }
        let _ = write!(body, " {}", rng.u32(..));
        body.push_str(r#""}]}"#);
        body.into_bytes()
    }
}

/// The label of a shared system prompt.
pub fn label(bytes: usize, prefix: usize) -> String {
    format!("{bytes:010}-{prefix:05}")
}

/// The label in a body, however a router may have written it anew.
pub fn label_in(body: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(body).ok()?;
    let at = text.find(LABEL)? + LABEL.len();
    text.get(at..at + LABEL_DIGITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_json_of_their_size_and_know_their_label() {
        let mut rng = Rng::with_seed(1);
        for bytes in [8 << 10, 64 << 10] {
            let bodies = Bodies::new(bytes);
            for kind in [Kind::Shared, Kind::Unique] {
                let body = bodies.any(kind, &mut rng);
                assert!(body.len().abs_diff(bytes) < 256, "{}", body.len());
                serde_json::from_slice::<serde_json::Value>(&body).unwrap();
                assert_ne!(body, bodies.any(kind, &mut rng));
            }
            let body = bodies.shared(7, &mut rng);
            assert_eq!(label_in(&body), Some(label(bytes, 7).as_str()));
        }
    }
}
