//! A part of what is known of stored responses: a record of bounded size.

/// How many there are.
pub const BUCKETS: u32 = 1_024;

/// Responses in one: 65,536 in all, in 1.3 MB at most.
const MOST: usize = 64;

/// An entry that is used is written anew where it was written longer ago than this, in seconds.
pub const TOUCH_S: u32 = 60;

/// The longest id that is remembered, in bytes. Engines' own have 37, clients may choose others (vLLM's
/// `request_id`).
pub(super) const MOST_ID: usize = 256;

const FORMAT: u8 = 1;
const ENTRY: usize = 20;

/// What a stored response is called: a digest of its id and of the zone of who asks, so that an id says
/// nothing in another zone than its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    bucket: u32,
    tag: u64,
}

impl Name {
    /// `None` for an id that is longer than any that is remembered, or empty.
    pub fn new(zone: &str, id: &str) -> Option<Self> {
        if id.is_empty() || id.len() > MOST_ID {
            return None;
        }
        let mut hasher = blake3::Hasher::new_derive_key("warmpath stored response v1");
        hasher.update(&(zone.len() as u64).to_le_bytes());
        hasher.update(zone.as_bytes());
        hasher.update(id.as_bytes());
        let digest = hasher.finalize();
        let (tag, rest) = digest.as_bytes().split_first_chunk()?;
        let bucket = u32::from_le_bytes(*rest.first_chunk()?) % BUCKETS;
        Some(Self { bucket, tag: u64::from_le_bytes(*tag) })
    }

    /// Its bucket, below [`BUCKETS`].
    pub fn bucket(self) -> u32 {
        self.bucket
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u64,
    replica: u64,
    used_s: u32,
}

/// Where some responses are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket(Vec<Entry>);

impl Bucket {
    /// The name of the replica that holds a response, and when that was written, in seconds since 1970.
    pub fn get(&self, name: Name) -> Option<(u64, u32)> {
        let found = self.0.iter().find(|entry| entry.tag == name.tag)?;
        Some((found.replica, found.used_s))
    }

    /// A replica holds a response. The last word counts: an id that a client chose twice is where it was
    /// answered last.
    pub fn put(&mut self, name: Name, replica: u64, now_s: u32) {
        self.0.retain(|entry| entry.tag != name.tag);
        if self.0.len() >= MOST
            && let Some(oldest) = self.0.iter().map(|entry| entry.used_s).min()
            && let Some(at) = self.0.iter().position(|entry| entry.used_s == oldest)
        {
            self.0.remove(at);
        }
        self.0.push(Entry { tag: name.tag, replica, used_s: now_s });
    }

    /// The bytes for shared data.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(1 + self.0.len() * ENTRY);
        bytes.push(FORMAT);
        for entry in &self.0 {
            bytes.extend(entry.tag.to_le_bytes());
            bytes.extend(entry.replica.to_le_bytes());
            bytes.extend(entry.used_s.to_le_bytes());
        }
        bytes
    }

    /// Reads one; what is none is empty.
    pub fn decode(bytes: &[u8]) -> Self {
        let Some((&FORMAT, rest)) = bytes.split_first() else { return Self::default() };
        let (entries, []) = rest.as_chunks::<ENTRY>() else { return Self::default() };
        Self(entries.iter().take(MOST).filter_map(entry).collect())
    }
}

fn entry(bytes: &[u8; ENTRY]) -> Option<Entry> {
    let (tag, rest) = bytes.split_first_chunk()?;
    let (replica, used_s) = rest.split_first_chunk()?;
    Some(Entry {
        tag: u64::from_le_bytes(*tag),
        replica: u64::from_le_bytes(*replica),
        used_s: u32::from_le_bytes(*used_s.first_chunk()?),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(id: &str) -> Name {
        Name::new("eu", id).unwrap()
    }

    #[test]
    fn an_id_means_something_in_its_own_zone_only() {
        let mut bucket = Bucket::default();
        bucket.put(name("resp_1"), 7, 10);
        assert_eq!(bucket.get(name("resp_1")), Some((7, 10)));
        assert_eq!(bucket.get(name("resp_2")), None);
        assert_eq!(bucket.get(Name::new("us", "resp_1").unwrap()), None);
        assert_ne!(Name::new("e", "uresp_1"), Name::new("eu", "resp_1"), "no other split");
        bucket.put(name("resp_1"), 8, 11);
        assert_eq!(bucket.get(name("resp_1")), Some((8, 11)), "the last word counts");
        assert_eq!(Name::new("eu", ""), None);
        assert_eq!(Name::new("eu", &"x".repeat(MOST_ID + 1)), None);
        assert!(Name::new("eu", &"x".repeat(MOST_ID)).is_some());
        let buckets = (0..10_000).map(|n| name(&format!("resp_{n}")).bucket());
        let distinct: std::collections::BTreeSet<u32> = buckets.collect();
        assert!(distinct.len() == BUCKETS as usize && distinct.iter().all(|it| *it < BUCKETS));
    }

    #[test]
    fn what_was_not_used_for_longest_leaves() {
        let mut bucket = Bucket::default();
        let names: Vec<Name> = (0..=MOST).map(|n| name(&n.to_string())).collect();
        for (at, name) in (0..).zip(&names[..MOST]) {
            bucket.put(*name, 1, at);
        }
        bucket.put(names[0], 1, 1_000);
        bucket.put(names[MOST], 2, 1_000);
        assert_eq!(bucket.0.len(), MOST);
        assert_eq!(bucket.get(names[1]), None);
        assert!(bucket.get(names[0]).is_some() && bucket.get(names[MOST]).is_some());
        assert_eq!(bucket.encode().len(), 1 + MOST * ENTRY);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(entries in proptest::collection::vec(any::<(u32, u64, u32)>(), 0..100)) {
            let mut bucket = Bucket::default();
            for (id, replica, at) in entries {
                bucket.put(name(&id.to_string()), replica, at);
            }
            prop_assert_eq!(Bucket::decode(&bucket.encode()), bucket);
        }

        #[test]
        fn foreign_bytes_are_no_trouble(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Bucket::decode(&bytes).0.len() <= MOST);
        }
    }
}
