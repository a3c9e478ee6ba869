//! The simulated engine's own block names.
//!
//! Engines name a block by hashing its parent's name, its tokens and its extra keys. The names are
//! opaque to everyone else; only the sizes on the wire (u64, or 32 bytes) are vLLM's.

use std::sync::Arc;

/// The 32-byte name of a cached block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockHash(pub(crate) [u8; 32]);

impl BlockHash {
    /// The number that vLLM sends instead of the bytes: the last 8, big-endian.
    pub(crate) fn number(&self) -> u64 {
        u64::from_be_bytes(*self.0.last_chunk().unwrap_or(&[0; 8]))
    }
}

/// A LoRA adapter, as requests and events name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lora {
    pub(crate) name: Arc<str>,
    pub(crate) id: u64,
}

/// What sets prompts apart besides their tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) lora: Option<Lora>,
    pub(crate) salt: Option<Arc<str>>,
}

impl Keys {
    /// vLLM's `extra_keys` of one block: the adapter on every block, then the salt on the first.
    pub(crate) fn of_block(&self, index: usize) -> Vec<Arc<str>> {
        let lora = self.lora.as_ref().map(|lora| Arc::clone(&lora.name));
        let salt = self.salt.clone().filter(|_| index == 0);
        lora.into_iter().chain(salt).collect()
    }
}

/// Names block `index`, which comes after `parent`.
pub(crate) fn block_hash(
    parent: Option<&BlockHash>,
    tokens: &[u32],
    keys: &Keys,
    index: usize,
) -> BlockHash {
    let mut hasher = blake3::Hasher::new_derive_key("warmpath simulated engine block v1");
    hasher.update(&parent.map_or([0; 32], |hash| hash.0));
    hasher.update(&(tokens.len() as u64).to_le_bytes());
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
    // Tagged, unlike vLLM's: there a salt that reads like an adapter's name shares a block with it.
    let lora = keys.lora.as_ref().map(|lora| ('l', &*lora.name));
    let salt = keys.salt.as_deref().filter(|_| index == 0).map(|salt| ('s', salt));
    for (tag, key) in lora.into_iter().chain(salt) {
        hasher.update(&[tag as u8]);
        hasher.update(&(key.len() as u64).to_le_bytes());
        hasher.update(key.as_bytes());
    }
    BlockHash(*hasher.finalize().as_bytes())
}
