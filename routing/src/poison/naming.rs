//! What a prompt is called: a keyed digest of the request's body, which tells nothing of its text and
//! which nobody outside can aim at. Prompts that only begin alike differ in it, unlike in the names of
//! their prefixes.

use crate::digest::{Digest, secret};

/// What all workers of an Envoy have to name things with, to mean the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub(super) [u8; 32]);

impl Secret {
    /// A new one.
    pub fn random() -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice([secret(), secret()].as_flattened());
        Self(bytes)
    }
}

/// It belongs into no log.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// A prompt by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prompt {
    /// The digest.
    pub id: u128,
    /// The body was read to its end.
    pub whole: bool,
}

/// Names things under a secret.
pub struct Naming {
    secret: Secret,
    digest: Digest,
}

impl Naming {
    /// Takes some microseconds: to be kept.
    pub fn new(secret: Secret) -> Self {
        let halves = secret.0.as_chunks().0;
        let half = |at: usize| halves.get(at).copied().unwrap_or_default();
        Self { secret, digest: Digest::with(half(0), half(1)) }
    }

    /// The secret.
    pub fn secret(&self) -> Secret {
        self.secret
    }

    /// A request whose body is known to its end.
    pub fn whole(&self, body: &[u8]) -> Prompt {
        Prompt { id: self.digest.of(body), whole: true }
    }

    /// One of whose body only the start is looked at, and its length where the client tells it.
    pub fn start(&self, start: &[u8], length: Option<u64>) -> Prompt {
        let known = [u8::from(length.is_some())];
        let length = length.unwrap_or(0).to_le_bytes();
        let parts = [&self.digest.of(start).to_le_bytes()[..], &known, &length].concat();
        Prompt { id: self.digest.of(&parts), whole: false }
    }

    /// Anything that has a text as its name: an engine's endpoint, a client's address.
    pub fn text(&self, text: &str) -> u64 {
        self.digest.of(text.as_bytes()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_named_by_all_of_it_and_by_the_secret() {
        let naming = Naming::new(Secret([7; 32]));
        let again = Naming::new(naming.secret());
        let (a, b) = (naming.whole(b"a prompt"), naming.whole(b"a prompt."));
        assert_eq!(a, again.whole(b"a prompt"));
        assert_ne!(a.id, b.id);
        assert_ne!(a.id, Naming::new(Secret([8; 32])).whole(b"a prompt").id);
        let cut = [None, Some(0), Some(1)].map(|length| naming.start(b"a prompt", length));
        assert!(a.whole && cut.iter().all(|prompt| !prompt.whole));
        let mut ids = cut.map(|prompt| prompt.id).to_vec();
        ids.extend([a.id, naming.start(b"b prompt", None).id]);
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 5);
        assert_ne!(Secret::random(), Secret::random());
        assert_eq!(format!("{:?}", Secret([7; 32])), "Secret", "not in a log");
        // Both halves count.
        let mut other = [7; 32];
        other[31] = 8;
        assert_ne!(Naming::new(Secret(other)).text("x"), naming.text("x"));
        other = [7; 32];
        other[0] = 8;
        assert_ne!(Naming::new(Secret(other)).whole(&[1; 64]), naming.whole(&[1; 64]));
    }

    /// Pinned: workers of one Envoy that run two builds share the table.
    #[test]
    fn names_stay_what_they_are() {
        let mut secret = [0; 32];
        (0..).zip(&mut secret).for_each(|(at, byte)| *byte = at);
        let naming = Naming::new(Secret(secret));
        let body: Vec<u8> = (0..2_100_u32).map(|at| (at % 251) as u8).collect();
        let names = [naming.whole(&body).id, naming.start(&body, Some(4_000)).id];
        assert_eq!(
            names.map(|id| format!("{id:032x}")),
            ["f8e435cb28a0231c29eedacafc9724bb", "13940be8eaee9fdda9a798b88c2184cf"]
        );
        assert_eq!(format!("{:016x}", naming.text("10.0.0.1:8000")), "2ceb01a9d92efe41");
    }
}
