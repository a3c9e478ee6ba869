//! Prefixes that answers taught of a replica whose events were not heard from the first one on.
//!
//! They stand beside the view, under the same slot, and are closed as its prefixes are: a key is
//! there only while all before it are, here or in the view. What the view comes to announce is the
//! view's from then on. A taught prefix ends when an answer shows less, when the view loses what it
//! builds on, when no answer spoke for it for [`LIFETIME`], and when the engine evicts what it
//! stored after an answer last did: engines evict what was used longest ago (vLLM 0.32.0,
//! `v1/core/block_pool.py`, `free_block_queue`; SGLang 0.5.23, `srt/mem_cache/radix_cache.py`, by
//! default), so that the prefix went before.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::time::Instant;
use warmpath_routing::fingerprint::{KEY_BYTES, Key};

use super::changes::Changes;
use super::lesson::Lesson;
use super::view::View;
use crate::events::{EngineHash, Event, Medium, Removed, Stored};

/// Time after the last answer that spoke for a prefix.
pub const LIFETIME: Duration = Duration::from_mins(10);
/// Keys that are kept of one replica; those that no answer spoke for the longest leave first.
pub const MOST_KEYS: usize = 65_536;
/// Time between two stores that are remembered to see how far eviction has come, and how many are.
const LANDMARK_EVERY: Duration = Duration::from_secs(2);
const MOST_LANDMARKS: usize = 300;

const FIRST: Key = Key([0; KEY_BYTES]);
const LAST: Key = Key([0xff; KEY_BYTES]);

#[derive(Clone, Copy, Debug)]
struct Entry {
    parent: Option<Key>,
    /// Blocks up to this one.
    blocks: u32,
    /// When an answer last spoke for it; of one with children, for it as the last of a prefix.
    seen: Instant,
}

/// What became of lessons, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[allow(missing_docs, reason = "the names are the metrics' names")]
pub struct Judged {
    /// Keys that were learned.
    pub learned: u64,
    /// Keys that an answer showed to be gone.
    pub refuted: u64,
    /// Keys that no answer spoke for, for too long or for the engine's eviction.
    pub expired: u64,
    /// Keys that left for want of room, and those not learned for it.
    pub crowded: u64,
    /// Lessons that follow on what isn't known here any more.
    pub loose: u64,
}

/// The taught prefixes of one replica.
#[derive(Debug, Default)]
pub struct Taught {
    entries: HashMap<Key, Entry, RandomState>,
    /// Parent and child.
    edges: BTreeSet<(Key, Key)>,
    /// Entries without children.
    leaves: BTreeSet<(Instant, Key)>,
    /// Blocks that the engine stored, and when.
    landmarks: VecDeque<(Instant, EngineHash)>,
    judged: Judged,
}

impl Taught {
    /// Keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether nothing at all is left of what was taught.
    #[cfg(test)]
    pub(super) fn is_clean(&self) -> bool {
        self.entries.is_empty() && self.edges.is_empty() && self.leaves.is_empty()
    }

    /// Every key.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.entries.keys().copied()
    }

    /// Whether the key is there.
    pub fn holds(&self, key: &Key) -> bool {
        self.entries.contains_key(key)
    }

    /// What became of lessons.
    pub fn judged(&self) -> &Judged {
        &self.judged
    }

    /// Forgets all without a word: the slot goes with it. The counts stay.
    pub fn clear(&mut self) {
        *self = Self { judged: self.judged, ..Self::default() };
    }

    /// Takes in what an answer said at `now`, of a replica with this view. No more than `most` keys
    /// are kept.
    pub fn learn(
        &mut self,
        lesson: &Lesson,
        most: usize,
        view: &View,
        now: Instant,
        changes: &mut Changes,
    ) {
        let slot = lesson.slot;
        if let Some(missing) = lesson.missing {
            self.refute(missing, lesson.blocks, slot, changes);
        }
        let mut last = lesson.after;
        if let Some(after) = last
            && !view.holds(&after)
            && !self.holds(&after)
        {
            self.judged.loose += 1;
            return;
        }
        // What the lesson is built on must not make room for it.
        self.keep(last);
        let mut blocks = lesson.blocks;
        for &key in &lesson.keys {
            blocks = blocks.saturating_add(1);
            if self.holds(&key) {
                self.keep(Some(key));
            } else if !view.holds(&key) {
                if self.len() >= most && !self.make_room(slot, changes) {
                    self.judged.crowded += 1;
                    break;
                }
                self.add(key, Entry { parent: last, blocks, seen: now });
                self.judged.learned += 1;
                changes.held(slot, key);
            }
            last = Some(key);
        }
        if let Some(last) = last {
            self.confirm(last, now);
        }
    }

    /// Takes in what the view has just said under `slot`: what it holds now is the view's, and what
    /// it lost takes with it what was built on it.
    pub fn follow(&mut self, said: &Changes, slot: u32, changes: &mut Changes) {
        for (lost, held) in said.of(slot) {
            for key in lost {
                for child in self.children(key) {
                    self.forget(child, slot, changes);
                }
            }
            for key in held {
                self.hand_over(key);
            }
        }
    }

    /// Takes in what the engine stored and removed, for what that says of the order of eviction.
    pub fn hear(&mut self, event: &Event, slot: u32, now: Instant, changes: &mut Changes) {
        match event {
            Event::Stored(Stored { hashes, medium: Medium::Gpu, .. }) => {
                let due = self.landmarks.back().is_none_or(|(at, _)| *at + LANDMARK_EVERY <= now);
                if let Some(&hash) = hashes.last().filter(|_| due) {
                    self.landmarks.push_back((now, hash));
                    if self.landmarks.len() > MOST_LANDMARKS {
                        self.landmarks.pop_front();
                    }
                }
            }
            Event::Removed(Removed { hashes, medium: Medium::Gpu, .. }) if !self.is_empty() => {
                let is_removed = |(_, hash): &(Instant, EngineHash)| hashes.contains(hash);
                let Some(at) = self.landmarks.iter().rposition(is_removed) else { return };
                let passed = self.landmarks.drain(..=at).next_back();
                if let Some((stored, _)) = passed {
                    self.expire_before(stored, slot, changes);
                }
            }
            _ => {}
        }
    }

    /// Ends what no answer spoke for during [`LIFETIME`].
    pub fn expire(&mut self, slot: u32, now: Instant, changes: &mut Changes) {
        if let Some(limit) = now.checked_sub(LIFETIME) {
            self.expire_before(limit, slot, changes);
        }
    }

    fn expire_before(&mut self, limit: Instant, slot: u32, changes: &mut Changes) {
        while let Some(&(seen, key)) = self.leaves.first()
            && seen < limit
        {
            self.judged.expired += 1;
            self.forget(key, slot, changes);
        }
    }

    /// An answer showed that of the prefix that ends in `missing` no more than so many blocks are
    /// held.
    fn refute(&mut self, missing: Key, kept: u32, slot: u32, changes: &mut Changes) {
        let mut top = None;
        let mut at = Some(missing);
        while let Some(key) = at
            && let Some(entry) = self.entries.get(&key).filter(|entry| entry.blocks > kept)
        {
            top = Some(key);
            at = entry.parent;
        }
        if let Some(top) = top {
            let before = self.len();
            self.forget(top, slot, changes);
            self.judged.refuted += (before - self.len()) as u64;
        }
    }

    fn make_room(&mut self, slot: u32, changes: &mut Changes) -> bool {
        let Some(&(_, oldest)) = self.leaves.first() else { return false };
        self.judged.crowded += 1;
        self.forget(oldest, slot, changes);
        true
    }

    /// Makes an entry no leaf until [`Self::confirm`], so that nothing takes it away before.
    fn keep(&mut self, key: Option<Key>) {
        if let Some(key) = key
            && let Some(entry) = self.entries.get(&key)
        {
            self.leaves.remove(&(entry.seen, key));
        }
    }

    /// Adds an entry that is no leaf yet, as after [`Self::keep`].
    fn add(&mut self, key: Key, entry: Entry) {
        if let Some(parent) = entry.parent {
            self.edges.insert((parent, key));
        }
        self.entries.insert(key, entry);
    }

    fn confirm(&mut self, key: Key, now: Instant) {
        let is_leaf = !self.has_children(key);
        let Some(entry) = self.entries.get_mut(&key) else { return };
        self.leaves.remove(&(entry.seen, key));
        entry.seen = entry.seen.max(now);
        if is_leaf {
            self.leaves.insert((entry.seen, key));
        }
    }

    /// Forgets an entry and all that follow it, and says so, the last first.
    fn forget(&mut self, top: Key, slot: u32, changes: &mut Changes) {
        let mut order = Vec::new();
        let mut stack = vec![top];
        while let Some(key) = stack.pop() {
            order.push(key);
            stack.extend(self.children(key));
        }
        let mut left = None;
        for key in order.into_iter().rev() {
            if let Some(entry) = self.take(key) {
                changes.lost(slot, key);
                left = Some(entry);
            }
        }
        // The one before it may be the last of a prefix now.
        if let Some(Entry { parent: Some(parent), seen, .. }) = left {
            self.confirm(parent, seen);
        }
    }

    fn hand_over(&mut self, key: Key) {
        if let Some(Entry { parent: Some(parent), seen, .. }) = self.take(key) {
            self.confirm(parent, seen);
        }
    }

    fn take(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        self.leaves.remove(&(entry.seen, key));
        if let Some(parent) = entry.parent {
            self.edges.remove(&(parent, key));
        }
        Some(entry)
    }

    fn has_children(&self, key: Key) -> bool {
        self.edges.range((key, FIRST)..=(key, LAST)).next().is_some()
    }

    fn children(&self, key: Key) -> Vec<Key> {
        self.edges.range((key, FIRST)..=(key, LAST)).map(|(_, child)| *child).collect()
    }
}
