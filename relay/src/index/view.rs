//! What one replica holds, from its engine's events.
//!
//! The law: a key is announced exactly as long as some engine block in which it ends is held and
//! named and so are all blocks before it. Where the events leave doubt, the view claims less.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use warmpath_routing::fingerprint::{Chain, Key, Scope};

use super::changes::Changes;
use super::forest::Forest;
use super::node::{Id, NONE, Name, Named};
use crate::events::{EngineHash, Event, ExtraKeys, Kind, Medium, Removed, Stored};

/// Entries below which sweeping isn't worth it.
const MIN_SWEEP: usize = 1024;

/// KV cache groups that a view tells apart.
const MAX_GROUPS: usize = 64;

/// What a replica's fingerprints are rooted in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelScope {
    /// The model version as configured.
    pub version: String,
    /// Hash over tokenizer and chat template.
    pub tokenizer_hash: [u8; 32],
}

/// How a store of a block that is held already is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Duplicates {
    /// A store that begins at a prompt's start may be no copy but a report: vLLM repeats the stores
    /// of a request that asks for `kv_cache_report_mode: full`, and the two look alike. It doesn't
    /// count, so that after one removal nothing is claimed. Other stores count as further copies.
    #[default]
    Doubt,
    /// Every store is one more physical copy. Exact, as long as no request asks for full reports.
    Count,
}

/// Bounds of one view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Engine blocks that are remembered; the oldest leave first.
    pub blocks: usize,
    /// Token ids kept for blocks whose parent isn't known yet; the oldest leave first.
    pub waiting_tokens: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { blocks: 1_000_000, waiting_tokens: 4_000_000 }
    }
}

/// What a view saw, since the relay's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[allow(missing_docs, reason = "the names are the metrics' names")]
pub struct Seen {
    pub blocks_stored: u64,
    pub blocks_removed: u64,
    pub clears: u64,
    /// Stores of held blocks that were taken for reports, not copies.
    pub stores_repeated: u64,
    /// Removals of blocks that weren't held.
    pub removals_unknown: u64,
    /// Blocks with an image, an unnamed adapter or other things that fingerprints don't cover.
    pub blocks_nameless: u64,
    /// Blocks that waited too long for their parent.
    pub waiting_dropped: u64,
    /// Blocks that left because the view was full.
    pub evicted: u64,
    /// Events of groups that don't say what a prefix hit is.
    pub other_group: u64,
    /// Events of tiers that aren't the replica's own.
    pub other_medium: u64,
    pub events_unknown: u64,
    pub events_unusable: u64,
}

/// One replica's view.
#[derive(Debug)]
pub struct View {
    scope: Arc<ModelScope>,
    duplicates: Duplicates,
    limits: Limits,
    nodes: Forest,
    /// Announced keys, with the number of blocks that they end in.
    keys: HashMap<Key, u32, RandomState>,
    held: usize,
    waiting: VecDeque<(Id, EngineHash)>,
    waiting_tokens: usize,
    /// Entries of `waiting` at which those that wait no more are swept out.
    waiting_sweep: usize,
    /// Groups seen, with whether their removals count; the first that does is where stores count.
    groups: Vec<(u32, bool)>,
    block_tokens: u32,
    seen: Seen,
}

impl View {
    /// An empty view.
    pub fn new(scope: Arc<ModelScope>, duplicates: Duplicates, limits: Limits) -> Self {
        Self {
            scope,
            duplicates,
            limits,
            nodes: Forest::new(),
            keys: HashMap::default(),
            held: 0,
            waiting: VecDeque::new(),
            waiting_tokens: 0,
            waiting_sweep: MIN_SWEEP,
            groups: Vec::new(),
            block_tokens: 0,
            seen: Seen::default(),
        }
    }

    /// Applies one event; what changes in the map goes to `changes` under `slot`. After
    /// [`Event::Cleared`] the caller gives the replica a new slot, so that nothing is said there.
    pub fn apply(&mut self, event: &Event, slot: u32, changes: &mut Changes) {
        match event {
            Event::Stored(stored) => self.store(stored, slot, changes),
            Event::Removed(removed) => self.remove(removed, slot, changes),
            Event::Cleared => {
                self.seen.clears += 1;
                self.clear();
            }
            Event::Unknown => self.seen.events_unknown += 1,
            Event::Unusable(_) => self.seen.events_unusable += 1,
        }
    }

    /// Forgets all; the counts of what was seen stay.
    pub fn clear(&mut self) {
        let fresh = Self::new(Arc::clone(&self.scope), self.duplicates, self.limits);
        let old = std::mem::replace(self, fresh);
        self.seen = old.seen;
        self.block_tokens = old.block_tokens;
    }

    /// Every announced key, once.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.keys.keys().copied()
    }

    /// Announced keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether nothing is announced.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether the key is announced.
    pub fn holds(&self, key: &Key) -> bool {
        self.keys.contains_key(key)
    }

    /// Engine blocks that are held, announced or not.
    pub fn held_blocks(&self) -> usize {
        self.held
    }

    /// Engine blocks that are remembered for their children's sake, or wait, beside those held.
    pub fn known_blocks(&self) -> usize {
        self.nodes.len()
    }

    /// Token ids kept for blocks that wait.
    pub fn waiting_tokens(&self) -> usize {
        self.waiting_tokens
    }

    /// Tokens of one engine block; 0 until an event told.
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// What the view saw.
    pub fn seen(&self) -> &Seen {
        &self.seen
    }

    fn store(&mut self, event: &Stored, slot: u32, changes: &mut Changes) {
        if !self.store_counts(event) {
            return;
        }
        let named = !event.tokens.is_empty();
        if named {
            self.block_tokens = event.block_size;
        }
        let mut parent = match event.parent {
            Some(hash) if named => self.nodes.find_or_make(hash),
            _ => NONE,
        };
        let before = parent;
        let from_start = event.parent.is_none() && named;
        let mut tokens = event.tokens.chunks(event.block_size.max(1) as usize);
        for (i, &hash) in event.hashes.iter().enumerate() {
            let tokens = tokens.next();
            let id = self.nodes.find_or_make(hash);
            self.nodes.touch(id);
            let news = tokens.is_some_and(|tokens| {
                self.describe(id, parent, from_start && i == 0, event, i, tokens)
            });
            self.add_copy(id, event.medium, from_start);
            self.settle(id, news, slot, changes);
            parent = id;
        }
        // It was made for nothing where its child had another place already.
        self.prune(before);
        while self.nodes.len() > self.limits.blocks {
            let before = self.nodes.len();
            self.evict(slot, changes);
            if self.nodes.len() == before {
                break;
            }
        }
        while self.waiting_tokens > self.limits.waiting_tokens {
            if !self.drop_waiting() {
                break;
            }
        }
    }

    /// Whether the event says what a prefix hit on this replica is.
    fn store_counts(&mut self, event: &Stored) -> bool {
        if event.medium == Medium::Other {
            self.seen.other_medium += 1;
            return false;
        }
        let full = match event.kind {
            Kind::Full => true,
            Kind::Partial => false,
            // Before engines said so: the first group, or the only one.
            Kind::Unsaid => event.group.unwrap_or(0) == 0,
        };
        let counts = match event.group {
            None => full,
            Some(group) => {
                let known = self.groups.iter().any(|&(other, _)| other == group);
                if !known && self.groups.len() < MAX_GROUPS {
                    self.groups.push((group, full));
                }
                let first = self.groups.iter().find(|&&(_, full)| full);
                full && first.is_none_or(|&(first, _)| first == group)
            }
        };
        if !counts {
            self.seen.other_group += 1;
        }
        counts
    }

    /// Gives a node its place and content, if it lacks them; whether it did.
    fn describe(
        &mut self,
        id: Id,
        parent: Id,
        first: bool,
        event: &Stored,
        index: usize,
        tokens: &[u32],
    ) -> bool {
        if !self.nodes.get(id).is_some_and(|node| matches!(node.name, Name::Unknown)) {
            // An engine's hash covers all that comes before: one hash, one content.
            return false;
        }
        let extra = event.extra_keys.get(index);
        let name = if first {
            self.nodes.unlink(id);
            self.root(event, extra).map(|chain| Name::Named(Named::new(chain, tokens)))
        } else if !self.nodes.link(id, parent) {
            self.seen.events_unusable += 1;
            return false;
        } else if covered(event, extra) {
            match self.nodes.get(parent).map(|parent| &parent.name) {
                Some(Name::Named(named)) => Some(Name::Named(Named::new(named.chain(), tokens))),
                Some(Name::Nameless) => None,
                _ => {
                    self.wait(id, tokens.len());
                    Some(Name::Waiting(tokens.into()))
                }
            }
        } else {
            None
        };
        if name.is_none() {
            self.seen.blocks_nameless += 1;
        }
        if let Some(node) = self.nodes.get_mut(id) {
            node.name = name.unwrap_or(Name::Nameless);
        }
        true
    }

    /// The chain at the start of a prompt; none where fingerprints can't name it.
    fn root(&self, event: &Stored, extra: Option<&ExtraKeys>) -> Option<Chain> {
        let adapter = event.lora_name.as_deref().unwrap_or_default();
        if event.has_lora_id && adapter.is_empty() {
            return None;
        }
        let salt = match (event.cache_salt.as_deref(), extra) {
            (Some(salt), _) => salt,
            (None, None) => "",
            (None, Some(extra)) => match *besides(adapter, extra)?.as_slice() {
                [] => "",
                [salt] => salt,
                _ => return None,
            },
        };
        Some(Chain::new(&Scope {
            model_version: &self.scope.version,
            tokenizer_hash: &self.scope.tokenizer_hash,
            adapter,
            salt,
        }))
    }

    fn add_copy(&mut self, id: Id, medium: Medium, from_start: bool) {
        self.seen.blocks_stored += 1;
        let Some(node) = self.nodes.get_mut(id) else { return };
        let was_held = node.held();
        let Some(copies) = node.copies(medium) else { return };
        if *copies > 0 && from_start && self.duplicates == Duplicates::Doubt {
            self.seen.stores_repeated += 1;
            return;
        }
        *copies = copies.saturating_add(1);
        if !was_held {
            self.held += 1;
        }
    }

    fn remove(&mut self, event: &Removed, slot: u32, changes: &mut Changes) {
        if event.medium == Medium::Other {
            self.seen.other_medium += 1;
            return;
        }
        let counts = match event.group {
            None => true,
            // Removals count in every group that a hit needs, also where stores don't.
            Some(group) => self
                .groups
                .iter()
                .find(|&&(other, _)| other == group)
                .map_or(group == 0 || self.groups.is_empty(), |&(_, full)| full),
        };
        if !counts {
            self.seen.other_group += 1;
            return;
        }
        for hash in &event.hashes {
            let id = self.nodes.find(hash).unwrap_or(NONE);
            let node = self.nodes.get_mut(id);
            let copies = node.and_then(|node| node.copies(event.medium)).filter(|n| **n > 0);
            let Some(copies) = copies else {
                self.seen.removals_unknown += 1;
                continue;
            };
            *copies -= 1;
            self.seen.blocks_removed += 1;
            if self.nodes.get(id).is_some_and(|node| !node.held()) {
                self.held -= 1;
                self.withdraw(id, slot, changes);
                self.prune(id);
            }
        }
    }

    /// Names and announces the node and what follows it, as far as that is possible now. `news`: it
    /// was described just now, so that its children must hear of it in any case.
    fn settle(&mut self, start: Id, news: bool, slot: u32, changes: &mut Changes) {
        if !(self.settle_one(start, slot, changes) | news) {
            return;
        }
        let mut stack = Vec::new();
        self.nodes.push_children(start, &mut stack);
        while let Some(id) = stack.pop() {
            if self.settle_one(id, slot, changes) {
                self.nodes.push_children(id, &mut stack);
            }
        }
    }

    /// Whether anything changed that the children have been waiting for.
    fn settle_one(&mut self, id: Id, slot: u32, changes: &mut Changes) -> bool {
        let Some(node) = self.nodes.get(id) else { return false };
        let parent = self.nodes.get(node.parent);
        let mut changed = false;
        if let Name::Waiting(tokens) = &node.name {
            let name = match parent.map(|parent| &parent.name) {
                Some(Name::Named(named)) => Name::Named(Named::new(named.chain(), tokens)),
                Some(Name::Nameless) => Name::Nameless,
                _ => return false,
            };
            self.waiting_tokens -= tokens.len();
            if matches!(name, Name::Nameless) {
                self.seen.blocks_nameless += 1;
            }
            if let Some(node) = self.nodes.get_mut(id) {
                node.name = name;
            }
            changed = true;
        }
        let Some(node) = self.nodes.get(id) else { return false };
        let Name::Named(named) = &node.name else { return changed };
        let parent_announced = node.parent == NONE
            || self.nodes.get(node.parent).is_some_and(|parent| parent.announced);
        if !node.announced && node.held() && parent_announced {
            for key in named.keys() {
                let count = self.keys.entry(key).or_insert(0);
                *count += 1;
                if *count == 1 {
                    changes.held(slot, key);
                }
            }
            changed = true;
            if let Some(node) = self.nodes.get_mut(id) {
                node.announced = true;
            }
        }
        changed
    }

    /// Takes back what was announced of the node and all after it, the last first.
    fn withdraw(&mut self, start: Id, slot: u32, changes: &mut Changes) {
        let mut order = Vec::new();
        let mut stack = vec![start];
        while let Some(id) = stack.pop() {
            let Some(node) = self.nodes.get_mut(id) else { continue };
            if !node.announced {
                continue;
            }
            node.announced = false;
            order.push(id);
            self.nodes.push_children(id, &mut stack);
        }
        for id in order.into_iter().rev() {
            let Some(Name::Named(named)) = self.nodes.get(id).map(|node| &node.name) else {
                continue;
            };
            for key in named.keys() {
                let Some(count) = self.keys.get_mut(&key) else { continue };
                *count -= 1;
                if *count == 0 {
                    self.keys.remove(&key);
                    changes.lost(slot, key);
                }
            }
        }
    }

    /// Frees the node if neither it nor anything after it is held, then those before it likewise.
    fn prune(&mut self, mut id: Id) {
        while let Some(node) = self.nodes.get(id) {
            if node.held() || node.first_child != NONE {
                return;
            }
            let parent = node.parent;
            if let Name::Waiting(tokens) = &node.name {
                self.waiting_tokens -= tokens.len();
            }
            self.nodes.remove(id);
            id = parent;
        }
    }

    /// Makes room: forgets the oldest block, but first all that follow it, the last ones first.
    /// Stops as soon as there is some room.
    fn evict(&mut self, slot: u32, changes: &mut Changes) {
        let top = self.nodes.oldest();
        let room = self.limits.blocks - self.limits.blocks / 64;
        let mut id = top;
        loop {
            while let Some(child) = self.nodes.get(id).map(|node| node.first_child)
                && child != NONE
            {
                id = child;
            }
            let Some(node) = self.nodes.get_mut(id) else { return };
            let parent = node.parent;
            if node.held() {
                node.forget_copies();
                self.held -= 1;
            }
            self.seen.evicted += 1;
            self.withdraw(id, slot, changes);
            self.prune(id);
            if id == top || self.nodes.len() <= room {
                return;
            }
            // Up, where another branch may hang; the parent is gone where only this child kept it.
            id = parent;
        }
    }

    /// Notes a block whose tokens are kept until its parent is known.
    fn wait(&mut self, id: Id, tokens: usize) {
        let Some(hash) = self.nodes.get(id).map(|node| node.hash) else { return };
        self.waiting_tokens += tokens;
        self.waiting.push_back((id, hash));
        if self.waiting.len() > self.waiting_sweep {
            let nodes = &self.nodes;
            self.waiting.retain(|&(id, hash)| {
                let node = nodes.get(id);
                node.is_some_and(|n| n.hash == hash && matches!(n.name, Name::Waiting(_)))
            });
            self.waiting_sweep = 2 * self.waiting.len() + MIN_SWEEP;
        }
    }

    /// Forgets the tokens of the block that has waited longest.
    fn drop_waiting(&mut self) -> bool {
        let Some((id, hash)) = self.waiting.pop_front() else { return false };
        if let Some(node) = self.nodes.get_mut(id)
            && node.hash == hash
            && let Name::Waiting(tokens) = &node.name
        {
            self.waiting_tokens -= tokens.len();
            self.seen.waiting_dropped += 1;
            node.name = Name::Unknown;
        }
        true
    }
}

/// Whether a block inside a prompt is told by its tokens and its adapter alone.
fn covered(event: &Stored, extra: Option<&ExtraKeys>) -> bool {
    let adapter = event.lora_name.as_deref().unwrap_or_default();
    extra.is_none_or(|extra| besides(adapter, extra).is_some_and(|rest| rest.is_empty()))
}

/// The texts beside the adapter's name, which stands on every block; none where there is more than
/// text.
fn besides<'a>(adapter: &str, extra: &'a ExtraKeys) -> Option<Vec<&'a str>> {
    let ExtraKeys::Texts(texts) = extra else { return None };
    let mut texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    if let Some(at) = texts.iter().position(|text| !adapter.is_empty() && *text == adapter) {
        texts.remove(at);
    }
    Some(texts)
}
