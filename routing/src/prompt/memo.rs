//! What was tokenized before: per stretch of text, the fingerprints it adds and where they lead.
//!
//! A stretch is known by a hash over the root, all text before it, and itself, so a hit means
//! that everything up to its end is equal. Memory is bounded; what was used least lately goes.

use lru::LruCache;

use crate::fingerprint::{Chain, Fingerprint};

/// The name of a text prefix under a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place([u8; 32]);

impl Place {
    /// The empty text under a root; `marked` if ids stand in front of it.
    pub(super) fn start(root: &Fingerprint, marked: bool) -> Self {
        let mut bytes = [0; 33];
        let (head, tail) = bytes.split_at_mut(32);
        head.copy_from_slice(&root.0);
        tail.fill(u8::from(marked));
        Self(*blake3::hash(&bytes).as_bytes())
    }

    /// The text that goes on with `text`.
    pub(super) fn then(&self, text: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0);
        hasher.update(text.as_bytes());
        Self(*hasher.finalize().as_bytes())
    }
}

/// What a stretch adds to a prefix.
pub(super) struct Known {
    /// The blocks that it fills.
    pub(super) names: Box<[Fingerprint]>,
    /// The prefix up to its end.
    pub(super) chain: Chain,
}

impl Known {
    /// About what an entry takes, tables included.
    fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.names) + size_of::<Place>() + 48
    }
}

/// The memo of one model in one worker.
pub(super) struct Memo {
    entries: LruCache<Place, Known>,
    bytes: usize,
    limit: usize,
}

impl Memo {
    /// An empty memo of at most about `limit` bytes; 0 switches it off.
    pub(super) fn new(limit: usize) -> Self {
        Self { entries: LruCache::unbounded(), bytes: 0, limit }
    }

    pub(super) fn is_on(&self) -> bool {
        self.limit > 0
    }

    pub(super) fn get(&self, place: &Place) -> Option<&Known> {
        self.entries.peek(place)
    }

    /// Marks a prefix's stretches as used, its start last: what others share stays longest.
    pub(super) fn touch(&mut self, places: &[Place]) {
        for place in places.iter().rev() {
            self.entries.promote(place);
        }
    }

    pub(super) fn put(&mut self, place: Place, known: Known) {
        self.bytes += known.bytes();
        if let Some(old) = self.entries.put(place, known) {
            self.bytes -= old.bytes();
        }
        while self.bytes > self.limit {
            let Some((_, old)) = self.entries.pop_lru() else { break };
            self.bytes -= old.bytes();
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        Known {
            names: vec![Fingerprint([0; 32]); 8].into(),
            chain: Chain::from_root(Fingerprint([0; 32])),
        }
    }

    #[test]
    fn memory_is_bounded_and_the_least_lately_used_goes() {
        let root = Place::start(&Fingerprint([1; 32]), false);
        let mut memo = Memo::new(known().bytes() * 3);
        let places: Vec<_> = (0..4).map(|i| root.then(&i.to_string())).collect();
        for place in &places[..3] {
            memo.put(*place, known());
        }
        memo.touch(&places[..2]);
        memo.put(places[3], known());
        let held: Vec<_> = places.iter().map(|place| memo.get(place).is_some()).collect();
        assert_eq!(held, [true, true, false, true]);
        assert!(memo.bytes() <= known().bytes() * 3);
    }

    #[test]
    fn places_tell_roots_and_texts_apart() {
        let root = Fingerprint([1; 32]);
        let start = Place::start(&root, false);
        assert_ne!(start, Place::start(&root, true));
        assert_ne!(start.then("a"), Place::start(&Fingerprint([2; 32]), false).then("a"));
        assert_ne!(start.then("ab").then("c"), start.then("ab").then("d"));
    }
}
