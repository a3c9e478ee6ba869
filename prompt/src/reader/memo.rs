//! What was tokenized before: per stretch of text, the fingerprints it adds and where they lead.
//!
//! A stretch is known by a hash over the root, all text before it, and itself, so a hit means
//! that everything up to its end is equal. The hash is SipHash-1-3 of 128 bits under a secret of this
//! memo, which nobody outside can aim at; BLAKE3, which needs no secret, was the larger part of what
//! a known prefix cost. Memory is bounded; what was used least lately goes.

use std::hash::{BuildHasherDefault, Hasher};

use lru::LruCache;
use siphasher::sip128::{Hasher128, SipHasher13};

use warmpath_routing::digest::secret;
use warmpath_routing::fingerprint::{Chain, Fingerprint, Key};

/// The name of a text prefix under a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u128);

impl std::hash::Hash for Place {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0 as u64);
    }
}

/// Places are hashes already.
#[derive(Default)]
pub(crate) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// Goes along a text from its start, naming the prefixes.
#[derive(Clone, Copy)]
pub(crate) struct Walk(SipHasher13);

impl Walk {
    /// The prefix that goes on with `text`. Where stretches end counts: an entry holds what its
    /// stretch alone adds.
    pub(crate) fn then(&mut self, text: &str) -> Place {
        self.0.write(text.as_bytes());
        self.0.write(&(text.len() as u64).to_le_bytes());
        Place(self.0.finish128().as_u128())
    }
}

/// What a stretch adds to a prefix.
pub(crate) struct Known {
    /// The blocks that it fills.
    pub(crate) keys: Box<[Key]>,
    /// The prefix up to its end.
    pub(crate) chain: Chain,
    /// What the memo's clock said when this was last put in front.
    stamp: u64,
}

impl Known {
    pub(crate) fn new(keys: Box<[Key]>, chain: Chain) -> Self {
        Self { keys, chain, stamp: 0 }
    }

    /// About what an entry takes, tables included.
    fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.keys) + size_of::<Place>() + 48
    }
}

/// The memo of one model in one worker.
pub(crate) struct Memo {
    entries: LruCache<Place, Known, BuildHasherDefault<AsItIs>>,
    secret: [u8; 16],
    bytes: usize,
    limit: usize,
    /// Entries that were put so far.
    clock: u64,
}

impl Memo {
    /// An empty memo of at most about `limit` bytes; 0 switches it off.
    pub(crate) fn new(limit: usize) -> Self {
        let entries = LruCache::unbounded_with_hasher(BuildHasherDefault::default());
        Self { entries, secret: secret(), bytes: 0, limit, clock: 0 }
    }

    /// The empty text under a root; `marked` if ids stand in front of it.
    pub(crate) fn walk(&self, root: &Fingerprint, marked: bool) -> Walk {
        let mut hasher = SipHasher13::new_with_key(&self.secret);
        hasher.write(&root.0);
        hasher.write(&[u8::from(marked)]);
        Walk(hasher)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.limit > 0
    }

    pub(crate) fn get(&self, place: &Place) -> Option<&Known> {
        self.entries.peek(place)
    }

    /// Whether what is used now has to be touched. What was put in front lately is far from its
    /// end, and moving it again would touch its neighbours' memory for nothing.
    pub(crate) fn has_aged(&self, known: &Known) -> bool {
        self.clock - known.stamp > self.entries.len() as u64 / 8
    }

    /// Marks a prefix's stretches as used, its start last: what others share stays longest.
    pub(crate) fn touch(&mut self, places: &[Place]) {
        for place in places.iter().rev() {
            if let Some(known) = self.entries.get_mut(place) {
                known.stamp = self.clock;
            }
        }
    }

    pub(crate) fn put(&mut self, place: Place, mut known: Known) {
        self.clock += 1;
        known.stamp = self.clock;
        self.bytes += known.bytes();
        if let Some(old) = self.entries.put(place, known) {
            self.bytes -= old.bytes();
        }
        while self.bytes > self.limit {
            let Some((_, old)) = self.entries.pop_lru() else { break };
            self.bytes -= old.bytes();
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        Known::new(vec![Key([0; 16]); 8].into(), Chain::from_root(Fingerprint([0; 32])))
    }

    #[test]
    fn memory_is_bounded_and_the_least_lately_used_goes() {
        let mut memo = Memo::new(known().bytes() * 3);
        let root = memo.walk(&Fingerprint([1; 32]), false);
        let places: Vec<_> = (0..4)
            .map(|i| {
                let mut walk = root;
                walk.then(&i.to_string())
            })
            .collect();
        for place in &places[..3] {
            memo.put(*place, known());
        }
        assert!(places[..2].iter().all(|place| memo.has_aged(memo.get(place).unwrap())));
        memo.touch(&places[..2]);
        assert!(!places[..2].iter().any(|place| memo.has_aged(memo.get(place).unwrap())));
        memo.put(places[3], known());
        let held: Vec<_> = places.iter().map(|place| memo.get(place).is_some()).collect();
        assert_eq!(held, [true, true, false, true]);
        assert!(memo.bytes() <= known().bytes() * 3);
    }

    #[test]
    fn places_tell_roots_texts_and_ways_apart() {
        let memo = Memo::new(1);
        let roots = [1, 2].map(|root| Fingerprint([root; 32]));
        let along = |memo: &Memo, root: usize, marked: bool, texts: &[&str]| {
            let mut walk = memo.walk(&roots[root], marked);
            texts.iter().map(|text| walk.then(text)).last().unwrap()
        };
        let place = along(&memo, 0, false, &["ab", "c"]);
        assert_eq!(place, along(&memo, 0, false, &["ab", "c"]));
        for other in [
            along(&memo, 0, true, &["ab", "c"]),
            along(&memo, 1, false, &["ab", "c"]),
            along(&memo, 0, false, &["ab", "d"]),
            along(&memo, 0, false, &["ab"]),
            // An entry holds what its stretch adds: the same text, otherwise cut, is another one.
            along(&memo, 0, false, &["a", "bc"]),
            along(&memo, 0, false, &["abc"]),
        ] {
            assert_ne!(place, other);
        }
        assert_ne!(place, along(&Memo::new(1), 0, false, &["ab", "c"]), "a secret of its own");
    }
}
