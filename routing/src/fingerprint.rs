//! What a prompt prefix is called.
//!
//! `root = BLAKE3.derive_key("warmpath prefix v1", scope)`, then per block of 16 tokens
//! `F_i = BLAKE3(F_{i-1} ‖ tokens as u32 LE)`. Two prefixes have one name only if model version,
//! tokenizer, adapter, salt and every token before their end are equal. The golden vectors below
//! pin the bytes: gateways and relays of different versions talk to each other in these names.

use std::fmt;

/// Tokens in a block, whatever block size an engine uses.
pub const BLOCK_TOKENS: usize = 16;

/// Bytes of a [`Key`].
pub const KEY_BYTES: usize = 16;

const CONTEXT: &str = "warmpath prefix v1";

/// The 32-byte name of a prompt prefix that ends at a block boundary.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// The first 16 bytes: what the side-stream carries and the prefix map files it under.
    pub fn key(&self) -> Key {
        let mut key = [0; KEY_BYTES];
        key.copy_from_slice(self.0.first_chunk::<KEY_BYTES>().unwrap_or(&[0; KEY_BYTES]));
        Key(key)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A fingerprint's first 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub [u8; KEY_BYTES]);

impl Key {
    /// The key as a number, which is evenly spread: for buckets, tags and rings.
    pub fn number(self) -> u128 {
        u128::from_le_bytes(self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a fingerprint is rooted in: prompts of different scopes never share a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scope<'a> {
    /// The model version as the operator names it.
    pub model_version: &'a str,
    /// Hash over tokenizer.json and chat template.
    pub tokenizer_hash: &'a [u8; 32],
    /// The LoRA adapter's name; empty for the base model.
    pub adapter: &'a str,
    /// The request's `cache_salt`; empty for none.
    pub salt: &'a str,
}

impl Scope<'_> {
    /// The name of the empty prefix of this scope.
    pub fn root(&self) -> Fingerprint {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        for field in [
            self.model_version.as_bytes(),
            self.tokenizer_hash.as_slice(),
            self.adapter.as_bytes(),
            self.salt.as_bytes(),
        ] {
            hasher.update(&(field.len() as u64).to_le_bytes());
            hasher.update(field);
        }
        Fingerprint(*hasher.finalize().as_bytes())
    }
}

/// The name of the prefix that ends one block after `parent`.
pub fn extend(parent: &Fingerprint, block: &[u32; BLOCK_TOKENS]) -> Fingerprint {
    let mut bytes = [0; 32 + 4 * BLOCK_TOKENS];
    let (head, tail) = bytes.split_at_mut(32);
    head.copy_from_slice(&parent.0);
    for (place, token) in tail.chunks_exact_mut(4).zip(block) {
        place.copy_from_slice(&token.to_le_bytes());
    }
    Fingerprint(*blake3::hash(&bytes).as_bytes())
}

/// A prefix under construction: its last full block's name and the tokens after that.
///
/// Copying one is cheap, so that children can go on from any parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    last: Fingerprint,
    blocks: u32,
    tail: [u32; BLOCK_TOKENS],
    tail_len: u8,
}

impl Chain {
    /// The empty prefix of a scope.
    pub fn new(scope: &Scope<'_>) -> Self {
        Self::from_root(scope.root())
    }

    /// The empty prefix under a root that is known already.
    pub fn from_root(root: Fingerprint) -> Self {
        Self { last: root, blocks: 0, tail: [0; BLOCK_TOKENS], tail_len: 0 }
    }

    /// Appends tokens; calls `block` with the name of each block that they fill.
    pub fn push(&mut self, tokens: &[u32], mut block: impl FnMut(Fingerprint)) {
        for &token in tokens {
            if let Some(place) = self.tail.get_mut(usize::from(self.tail_len)) {
                *place = token;
            }
            self.tail_len += 1;
            if usize::from(self.tail_len) == BLOCK_TOKENS {
                self.last = extend(&self.last, &self.tail);
                self.blocks += 1;
                self.tail_len = 0;
                block(self.last);
            }
        }
    }

    /// Full blocks so far.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Tokens so far.
    pub fn tokens(&self) -> usize {
        self.blocks as usize * BLOCK_TOKENS + usize::from(self.tail_len)
    }

    /// The name of the last full block, or the root.
    pub fn last(&self) -> Fingerprint {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HASH: [u8; 32] = [7; 32];

    fn scope<'a>(version: &'a str, adapter: &'a str, salt: &'a str) -> Scope<'a> {
        Scope { model_version: version, tokenizer_hash: &HASH, adapter, salt }
    }

    fn names(root: Fingerprint, tokens: &[u32]) -> Vec<Fingerprint> {
        let mut out = Vec::new();
        Chain::from_root(root).push(tokens, |name| out.push(name));
        out
    }

    #[test]
    fn golden_vectors_never_change() {
        let root = scope("llama-3.1-8b@1", "", "").root();
        assert_eq!(
            root.to_string(),
            "a3c95102bcbb6d1fe1dbeac50e6112e8d6fc5b4ed7d9985352d17a8e94c1507b"
        );
        let tokens: Vec<u32> = (0..40).map(|i| i * 3001).collect();
        let names = names(root, &tokens);
        assert_eq!(names.len(), 2, "40 tokens are two full blocks");
        assert_eq!(
            names[0].to_string(),
            "6849de6edb60ba71f88be831d8026fadc24b9cb1f6f589fd6fb705c5a23471c2"
        );
        assert_eq!(
            names[1].to_string(),
            "82760ff357f11d1d53c18e18342ba5b94d52d15095e8cd4fa97e77b1d7b3f680"
        );
        assert_eq!(
            scope("llama-3.1-8b@1", "support-lora", "tenant-a").root().to_string(),
            "b8b5f30bc777ea36df2bc619e5b554ebd1f41a3704e8aa80e8cde65cb0e9ce09"
        );
    }

    #[test]
    fn fields_of_a_scope_do_not_run_into_each_other() {
        assert_ne!(scope("ab", "c", "").root(), scope("a", "bc", "").root());
        assert_ne!(scope("a", "b", "").root(), scope("a", "", "b").root());
    }

    proptest! {
        #[test]
        fn pushing_in_pieces_changes_nothing(
            tokens in proptest::collection::vec(any::<u32>(), 0..200),
            cut in 0usize..200,
        ) {
            let root = scope("m", "", "").root();
            let cut = cut.min(tokens.len());
            let mut pieces = Vec::new();
            let mut chain = Chain::from_root(root);
            chain.push(&tokens[..cut], |name| pieces.push(name));
            chain.push(&tokens[cut..], |name| pieces.push(name));
            prop_assert_eq!(chain.tokens(), tokens.len());
            prop_assert_eq!(&pieces, &names(root, &tokens));
        }

        #[test]
        fn a_change_renames_its_block_and_all_after_it_only(
            tokens in proptest::collection::vec(any::<u32>(), 16..200),
            at in any::<proptest::sample::Index>(),
        ) {
            let root = scope("m", "", "").root();
            let at = at.index(tokens.len());
            let mut other = tokens.clone();
            other[at] ^= 1;
            for (i, (a, b)) in names(root, &tokens).iter().zip(names(root, &other)).enumerate() {
                prop_assert_eq!(*a == b, i < at / BLOCK_TOKENS, "block {}", i);
            }
        }
    }
}
