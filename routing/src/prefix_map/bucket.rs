//! A bucket's bytes.
//!
//! `format u8 = 1 ‖ generation u32 LE ‖ entries`, an entry being `tag u64 LE ‖ count u16 LE ‖ count
//! × slot u16 LE`. The newest entry comes last, so that the first is the one to leave when the
//! bucket is full. One held block costs 12 bytes, a further replica of the same block 2.

use crate::fingerprint::Key;

const FORMAT: u8 = 1;
const HEADER: usize = 5;
const ENTRY: usize = 10;

/// The map's fixed size: how many buckets, and how large one may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of buckets; a power of two.
    pub buckets: u32,
    /// Most bytes in one bucket.
    pub bucket_bytes: usize,
}

impl Default for Layout {
    /// 16,384 buckets of at most 8 KiB: a million blocks fill them to a tenth of that.
    fn default() -> Self {
        Self { buckets: 1 << 14, bucket_bytes: 8 << 10 }
    }
}

impl Layout {
    /// The bucket that a key belongs to.
    pub fn bucket(&self, key: Key) -> u32 {
        ((key.number() >> 64) as u32) & (self.buckets - 1)
    }
}

/// What a key is told apart by inside its bucket.
pub(super) fn tag(key: Key) -> u64 {
    key.number() as u64
}

/// One block's holders, as they lie in the bucket.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    pub(super) tag: u64,
    slots: &'a [u8],
}

impl<'a> Entry<'a> {
    pub(super) fn slots(&self) -> impl Iterator<Item = u16> + 'a {
        self.slots.chunks_exact(2).map(|pair| match pair {
            [low, high] => u16::from_le_bytes([*low, *high]),
            _ => u16::MAX,
        })
    }
}

/// The entries of a bucket of this generation. Foreign or damaged bytes read as no entries.
pub(super) fn entries(bytes: &[u8], generation: u32) -> impl Iterator<Item = Entry<'_>> {
    let mut rest = match bytes.split_at_checked(HEADER) {
        Some(([FORMAT, stamp @ ..], rest)) if *stamp == generation.to_le_bytes() => rest,
        _ => &[],
    };
    std::iter::from_fn(move || {
        let (tag, after) = rest.split_first_chunk::<8>()?;
        let (count, after) = after.split_first_chunk::<2>()?;
        let (slots, after) = after.split_at_checked(2 * usize::from(u16::from_le_bytes(*count)))?;
        rest = after;
        Some(Entry { tag: u64::from_le_bytes(*tag), slots })
    })
}

/// A bucket being rewritten.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    entries: Vec<(u64, Vec<u16>)>,
}

impl Bucket {
    pub(super) fn read(bytes: &[u8], generation: u32) -> Self {
        Self { entries: entries(bytes, generation).map(|e| (e.tag, e.slots().collect())).collect() }
    }

    /// The bytes, and how many entries had to leave to stay within `limit` bytes.
    pub(super) fn write(&self, generation: u32, limit: usize) -> (Vec<u8>, u32) {
        let size = |slots: &Vec<u16>| ENTRY + 2 * slots.len();
        let mut total = HEADER + self.entries.iter().map(|(_, slots)| size(slots)).sum::<usize>();
        let mut evicted = 0;
        let mut bytes = Vec::with_capacity(total.min(limit));
        bytes.push(FORMAT);
        bytes.extend_from_slice(&generation.to_le_bytes());
        for (tag, slots) in &self.entries {
            if total > limit {
                total -= size(slots);
                evicted += 1;
                continue;
            }
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&(slots.len() as u16).to_le_bytes());
            bytes.extend(slots.iter().flat_map(|slot| slot.to_le_bytes()));
        }
        (bytes, evicted)
    }

    /// Files the block as held; it becomes the newest entry.
    pub(super) fn hold(&mut self, tag: u64, slot: u16) {
        let mut slots = match self.entries.iter().position(|(t, _)| *t == tag) {
            Some(at) => self.entries.remove(at).1,
            None => Vec::with_capacity(1),
        };
        if !slots.contains(&slot) && slots.len() < usize::from(u16::MAX) {
            // In order, which saves readers the sorting; they don't count on it.
            slots.insert(slots.partition_point(|other| *other < slot), slot);
        }
        self.entries.push((tag, slots));
    }

    /// Files the block as lost by this replica.
    pub(super) fn lose(&mut self, tag: u64, slot: u16) {
        if let Some(at) = self.entries.iter().position(|(t, _)| *t == tag)
            && let Some((_, slots)) = self.entries.get_mut(at)
        {
            slots.retain(|s| *s != slot);
            if slots.is_empty() {
                self.entries.remove(at);
            }
        }
    }

    /// Drops the slots that nobody owns any more; says whether there were any.
    pub(super) fn sweep(&mut self, live: impl Fn(u16) -> bool) -> bool {
        let before: usize = self.entries.iter().map(|(_, slots)| slots.len()).sum();
        for (_, slots) in &mut self.entries {
            slots.retain(|slot| live(*slot));
        }
        self.entries.retain(|(_, slots)| !slots.is_empty());
        before != self.entries.iter().map(|(_, slots)| slots.len()).sum::<usize>()
    }
}
