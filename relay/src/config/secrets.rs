//! What guards the side-stream: a token, certificates.

use std::fmt;

/// What a follower of the side-stream must show, kept as its BLAKE3: two hashes are compared in
/// constant time, and the secret is in no log and no dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(blake3::Hash);

impl Token {
    /// The token of this text.
    pub fn new(secret: &str) -> Self {
        Self(blake3::hash(secret.as_bytes()))
    }

    /// Whether a header `authorization` shows it.
    pub fn admits(&self, header: Option<&[u8]>) -> bool {
        let shown = header.and_then(|header| header.strip_prefix(b"Bearer "));
        shown.is_some_and(|shown| blake3::hash(shown) == self.0)
    }
}

/// Certificates, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Tls {
    /// The relay's own, with its chain.
    pub certificate: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// Those who sign the certificates that followers must show; none for any follower.
    pub client_ca: Option<Vec<u8>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("mutual", &self.client_ca.is_some()).finish_non_exhaustive()
    }
}
