//! The one writer of the map.

use std::collections::BTreeMap;

use super::{Layout, Store, bucket, bucket::Bucket};
use crate::fingerprint::{KEY_BYTES, Key};

/// What a batch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Keys filed as held.
    pub held: u64,
    /// Keys filed as lost.
    pub lost: u64,
    /// Entries that had to leave full buckets.
    pub evicted: u64,
}

/// Applies changes bucket by bucket; a batch reads and writes each bucket once.
#[derive(Debug)]
pub struct Writer {
    layout: Layout,
    generation: u32,
    open: BTreeMap<u32, Bucket>,
    applied: Applied,
}

impl Writer {
    /// A writer of buckets of `generation`; those of other generations read as empty to it.
    pub fn new(layout: Layout, generation: u32) -> Self {
        Self { layout, generation, open: BTreeMap::new(), applied: Applied::default() }
    }

    /// Takes one replica's change: keys of 16 bytes end to end, lost ones before held ones. What
    /// is left of a length that is no multiple of 16 is ignored.
    ///
    /// # Errors
    /// When a bucket can't be read; its key and those after it are then left out.
    pub fn change<S: Store>(
        &mut self,
        store: &S,
        slot: u16,
        lost: &[u8],
        held: &[u8],
    ) -> Result<(), S::Error> {
        for key in keys(lost) {
            self.bucket(store, key)?.lose(bucket::tag(key), slot);
            self.applied.lost += 1;
        }
        for key in keys(held) {
            self.bucket(store, key)?.hold(bucket::tag(key), slot);
            self.applied.held += 1;
        }
        Ok(())
    }

    /// Writes what was taken since the last flush.
    ///
    /// # Errors
    /// When a bucket can't be written: those that were not written yet are then lost, and the map has to
    /// be filled again from a snapshot.
    pub fn flush<S: Store>(&mut self, store: &mut S) -> Result<Applied, S::Error> {
        for (number, bucket) in std::mem::take(&mut self.open) {
            let (bytes, evicted) = bucket.write(self.generation, self.layout.bucket_bytes);
            self.applied.evicted += u64::from(evicted);
            store.set(number, &bytes)?;
        }
        Ok(std::mem::take(&mut self.applied))
    }

    /// Frees what dead slots hold in the given buckets.
    ///
    /// # Errors
    /// When a bucket can't be read or written: those after it are then as they were.
    pub fn sweep<S: Store>(
        &self,
        store: &mut S,
        buckets: impl Iterator<Item = u32>,
        live: impl Fn(u16) -> bool,
    ) -> Result<(), S::Error> {
        for number in buckets.map(|n| n & (self.layout.buckets - 1)) {
            let Some(bytes) = store.get(number)? else { continue };
            let mut bucket = Bucket::read(&bytes, self.generation);
            if bucket.sweep(&live) {
                store.set(number, &bucket.write(self.generation, self.layout.bucket_bytes).0)?;
            }
        }
        Ok(())
    }

    fn bucket<S: Store>(&mut self, store: &S, key: Key) -> Result<&mut Bucket, S::Error> {
        let number = self.layout.bucket(key);
        Ok(match self.open.entry(number) {
            std::collections::btree_map::Entry::Occupied(open) => open.into_mut(),
            std::collections::btree_map::Entry::Vacant(closed) => {
                let bytes = store.get(number)?.unwrap_or_default();
                closed.insert(Bucket::read(&bytes, self.generation))
            }
        })
    }
}

fn keys(bytes: &[u8]) -> impl Iterator<Item = Key> + '_ {
    bytes.as_chunks::<KEY_BYTES>().0.iter().map(|key| Key(*key))
}
