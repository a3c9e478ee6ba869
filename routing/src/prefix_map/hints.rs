//! What searches for like prompts found, so that the next one looks there early.

use super::{First, Matches};
use crate::fingerprint::Key;

/// Blocks that have to be alike for prompts to be like: a system prompt's first 256 tokens.
const DEPTH: usize = 16;

/// How long it counts who holds the first block, where somebody holds far more: what others have of
/// a prompt, that hold less than that, changes little.
const FIRST_MS: u64 = 100;

/// What is known of like prompts. The default is nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hint {
    /// Blocks at which the best match ended; 0 for no idea. A wrong number costs a search two
    /// buckets more, never its result.
    pub blocks: u32,
    /// Who held the first block a moment ago, in order. It is believed where somebody holds the
    /// block above: then it is about those that hold less.
    pub first: Option<First>,
}

impl Hint {
    /// That the best match may well end there.
    pub fn at(blocks: u32) -> Self {
        Self { blocks, first: None }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// What is left of the key.
    tag: u32,
    blocks: u32,
    /// The map that these were read of, and until when they count.
    generation: u32,
    until_ms: u64,
    first: First,
}

/// A small table of hints.
#[derive(Clone, Debug)]
pub struct Hints {
    /// By the key's low bits.
    places: Vec<Place>,
}

impl Default for Hints {
    /// 48 KiB: room for a thousand prefixes.
    fn default() -> Self {
        Self { places: vec![Place::default(); 1024] }
    }
}

impl Hints {
    fn place(&self, keys: &[Key]) -> Option<(usize, u32)> {
        let number = keys.get(DEPTH - 1)?.number();
        Some(((number as usize) % self.places.len().max(1), (number >> 64) as u32))
    }

    /// What is known of a like prompt, in a map of this generation.
    pub fn get(&self, keys: &[Key], generation: u32, now_ms: u64) -> Hint {
        let place = self.place(keys).and_then(|(at, tag)| {
            self.places.get(at).filter(|place| place.tag == tag && place.blocks > 0)
        });
        let Some(place) = place else { return Hint::default() };
        // A clock that was set back must not keep them for long.
        let counts = (1..=FIRST_MS).contains(&place.until_ms.saturating_sub(now_ms))
            && place.generation == generation;
        Hint { blocks: place.blocks, first: counts.then_some(place.first) }
    }

    /// A prompt's matches were these.
    pub fn put(&mut self, keys: &[Key], generation: u32, now_ms: u64, matches: &Matches) {
        if matches.found.is_empty() {
            return;
        }
        let Some((at, tag)) = self.place(keys) else { return };
        let Some(place) = self.places.get_mut(at) else { return };
        if place.tag != tag {
            *place = Place { tag, ..Place::default() };
        }
        place.blocks = matches.deepest();
        if let Some(first) = matches.first {
            let until_ms = now_ms.saturating_add(FIRST_MS);
            *place = Place { generation, until_ms, first, ..*place };
        }
    }
}
