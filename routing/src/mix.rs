//! Even numbers by key and name: where things lie on the ring.

/// The place of a replica for a key.
pub(crate) fn place(key: u128, endpoint: &str, rank: Option<u32>) -> u64 {
    let mut hasher = Mix::of(key);
    hasher.bytes(endpoint.as_bytes());
    hasher.word(rank.map_or(0, |rank| u64::from(rank) + 1));
    hasher.0
}

/// The place of anything that has a name.
pub(crate) fn named_place(key: u128, name: &str) -> u64 {
    let mut hasher = Mix::of(key);
    hasher.bytes(name.as_bytes());
    hasher.0
}

/// splitmix64's finaliser, word by word: places must be alike in every build and on every machine,
/// which `std`'s hasher does not promise. Keys are BLAKE3 output, so that nobody can aim.
struct Mix(u64);

impl Mix {
    fn of(key: u128) -> Self {
        Self((key as u64) ^ ((key >> 64) as u64).rotate_left(32))
    }

    fn word(&mut self, word: u64) {
        let mut z = (self.0 ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = z ^ (z >> 31);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        for (place, byte) in last.iter_mut().zip(rest) {
            *place = *byte;
        }
        self.word(u64::from_le_bytes(last));
        self.word(bytes.len() as u64);
    }
}
