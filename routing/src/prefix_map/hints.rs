//! Where the matches of like prompts ended, so that the next search looks there early.

use crate::fingerprint::Key;

/// Blocks that have to be alike for prompts to be like: a system prompt's first 256 tokens.
const DEPTH: usize = 16;

/// A small table of depths. A wrong one costs a search two buckets more, never its result.
#[derive(Clone, Debug)]
pub struct Hints {
    /// (what is left of the key, blocks), by the key's low bits.
    depths: Vec<(u32, u32)>,
}

impl Default for Hints {
    /// 8 KiB: room for a thousand prefixes.
    fn default() -> Self {
        Self { depths: vec![(0, 0); 1024] }
    }
}

impl Hints {
    fn place(&self, keys: &[Key]) -> Option<(usize, u32)> {
        let number = keys.get(DEPTH - 1)?.number();
        Some(((number as usize) % self.depths.len().max(1), (number >> 64) as u32))
    }

    /// Blocks at which a like prompt's best match ended; 0 if none is known.
    pub fn get(&self, keys: &[Key]) -> u32 {
        let found = self.place(keys).and_then(|(at, tag)| {
            self.depths.get(at).filter(|(known, _)| *known == tag).map(|(_, blocks)| *blocks)
        });
        found.unwrap_or(0)
    }

    /// A prompt's best match ended there.
    pub fn put(&mut self, keys: &[Key], blocks: u32) {
        if let Some((at, tag)) = self.place(keys)
            && let Some(depth) = self.depths.get_mut(at)
        {
            *depth = (tag, blocks);
        }
    }
}
