//! What one replica holds, from its engine's events.
//!
//! The law: in each layer of tiers that the engine uses (GPU; GPU or CPU; GPU, CPU or disk), a key
//! is announced exactly as long as some engine block in which it ends is held there and named and so
//! are all blocks before it. Where the events leave doubt, the view claims less. Of an engine with
//! several KV cache groups those keys are announced that a hit may come to (see `ends`).

use std::collections::VecDeque;
use std::sync::Arc;

use warmpath_routing::fingerprint::Key;

use super::announce::{LAYERS, Layer};
use super::changes::Changes;
use super::forest::Forest;
use super::groups::{GroupSummary, Groups, Place, bit};
use super::node::{Id, NONE, Node};
use super::rules::{BlockDrop, Duplicates, Limits, ModelScope};
use super::seen::Seen;
use crate::events::{EngineHash, Event, Medium, Removed, Stored};

/// Entries below which sweeping isn't worth it.
pub(super) const MIN_SWEEP: usize = 1024;

/// How the blocks of one event are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Take {
    /// Each is one more copy.
    Copy,
    /// Each is a copy, or a report of one.
    Doubt,
    /// Those that are held are reports.
    Once,
}

/// One replica's view.
#[derive(Debug)]
pub struct View {
    pub(super) scope: Arc<ModelScope>,
    pub(super) duplicates: Duplicates,
    pub(super) limits: Limits,
    /// It is of a store that several engines share, and not of an engine's own tiers.
    pub(super) shared: bool,
    pub(super) nodes: Forest,
    pub(super) layers: [Layer; LAYERS],
    /// Where hits may end, with several KV cache groups.
    pub(super) ends: Layer,
    pub(super) held: usize,
    pub(super) waiting: VecDeque<(Id, EngineHash)>,
    pub(super) waiting_tokens: usize,
    /// Entries of `waiting` at which those that wait no more are swept out.
    pub(super) waiting_sweep: usize,
    pub(super) groups: Groups,
    /// Group and tokens of the last store, if it began at a prompt's start, and how it was taken: the
    /// same in all groups.
    begun: Option<(Option<u32>, u64, Take)>,
    /// The blocks of it that were taken for reports in the main group.
    doubted: Vec<Id>,
    pub(super) block_tokens: u32,
    pub(super) seen: Seen,
}

impl View {
    /// An empty view.
    pub fn new(scope: Arc<ModelScope>, duplicates: Duplicates, limits: Limits) -> Self {
        Self {
            scope,
            duplicates,
            limits,
            shared: false,
            nodes: Forest::new(),
            layers: [Layer { open: true, ..Layer::default() }, Layer::default(), Layer::default()],
            ends: Layer::default(),
            held: 0,
            waiting: VecDeque::new(),
            waiting_tokens: 0,
            waiting_sweep: MIN_SWEEP,
            groups: Groups::default(),
            begun: None,
            doubted: Vec::new(),
            block_tokens: 0,
            seen: Seen::default(),
        }
    }

    /// The same of an engine that drops blocks behind its hits; for an empty view.
    #[must_use]
    pub fn dropping(self, drop: BlockDrop) -> Self {
        Self { groups: Groups::dropping(drop), ..self }
    }

    /// An empty view of a store that several engines share: it takes what they say of tiers that
    /// aren't their own, and a block is there once, whoever stored it.
    pub fn shared(scope: Arc<ModelScope>, limits: Limits) -> Self {
        Self { shared: true, ..Self::new(scope, Duplicates::Same, limits) }
    }

    /// An empty view of the store that this view's engine shares.
    #[must_use]
    pub fn shared_beside(&self) -> Self {
        Self::shared(Arc::clone(&self.scope), self.limits)
    }

    /// What its fingerprints are rooted in.
    pub fn scope(&self) -> Arc<ModelScope> {
        Arc::clone(&self.scope)
    }

    /// Applies one event; what changes in the map goes to `changes` under `slot`, and under the
    /// slots of those tiers that were opened. After [`Event::Cleared`] the caller gives the replica
    /// new slots, so that nothing is said there.
    pub fn apply(&mut self, event: &Event, slot: u32, changes: &mut Changes) {
        self.apply_as(event, None, slot, changes);
    }

    /// As [`Self::apply`], for a shared store. `engine` is the view of the engine that says it: it
    /// names the blocks of which the event gives no more than the hashes.
    pub fn apply_from(&mut self, event: &Event, engine: &Self, slot: u32, changes: &mut Changes) {
        self.apply_as(event, Some(engine), slot, changes);
    }

    fn apply_as(&mut self, event: &Event, engine: Option<&Self>, slot: u32, changes: &mut Changes) {
        let [first, ..] = &mut self.layers;
        first.slot = slot;
        match event {
            Event::Stored(stored) => self.store(stored, engine, changes),
            Event::Removed(removed) => self.remove(removed, changes),
            Event::Cleared => {
                self.seen.clears += 1;
                self.clear();
            }
            Event::Unknown => self.seen.events_unknown += 1,
            Event::Unusable(_) => self.seen.events_unusable += 1,
        }
    }

    /// Forgets all, also which tiers were opened; the counts of what was seen stay.
    pub fn clear(&mut self) {
        let fresh = Self::new(Arc::clone(&self.scope), self.duplicates, self.limits);
        let old = std::mem::replace(self, fresh);
        self.shared = old.shared;
        self.groups = Groups::dropping(old.groups.drop());
        self.seen = old.seen;
        self.block_tokens = old.block_tokens;
    }

    /// The tier that an event stores to, if nothing is announced of that tier yet: it needs a slot
    /// of its own, by [`Self::open`].
    pub fn unopened(&self, event: &Event) -> Option<Medium> {
        let Event::Stored(Stored { medium, .. }) = event else { return None };
        let layer = self.layers.get(layer(*medium)?)?;
        (!layer.open && !self.shared && !self.groups.hybrid()).then_some(*medium)
    }

    /// Whether hits end at blocks of their own after this event, and nothing is announced of these
    /// yet: they need a slot, by [`Self::open_ends`].
    pub fn lacks_ends(&self, event: &Event) -> bool {
        let Event::Stored(stored) = event else { return false };
        !self.shared
            && !self.ends.open
            && stored.medium != Medium::Other
            && (self.groups.hybrid() || self.groups.with(stored).is_some_and(|new| new.hybrid()))
    }

    /// Announces under `slot`, from now on, where hits may end.
    pub fn open_ends(&mut self, slot: u32, changes: &mut Changes) {
        if self.ends.open {
            return;
        }
        self.ends.slot = slot;
        self.ends.open = true;
        for key in self.ends.keys.keys() {
            changes.held(slot, *key);
        }
    }

    /// Gives the ends another slot, as when all slots begin anew.
    pub fn move_ends(&mut self, slot: u32) {
        self.ends.slot = slot;
    }

    /// The slot of the ends, if hits end at blocks of their own.
    pub fn ends(&self) -> Option<u32> {
        self.ends.open.then_some(self.ends.slot)
    }

    /// Every key at which a hit may end, once, where those are announced.
    pub fn end_keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.ends.keys.keys().copied()
    }

    /// Whether a hit may end at the key.
    pub fn ends_at(&self, key: &Key) -> bool {
        self.ends.keys.contains_key(key)
    }

    /// The KV cache groups that the engine told of.
    pub fn groups(&self) -> Vec<GroupSummary> {
        self.groups.summary()
    }

    /// Announces under `slot`, from now on, what is held in a tier or in a faster one.
    pub fn open(&mut self, medium: Medium, slot: u32, changes: &mut Changes) {
        let Some(at) = layer(medium) else { return };
        if let Some(layer) = self.layers.get_mut(at).filter(|layer| !layer.open) {
            *layer = Layer { slot, open: true, ..Layer::default() };
            self.announce_all(at, changes);
        }
    }

    /// Tiers behind the GPU that were opened, the faster first, with slots and announced keys.
    pub fn tiers(&self) -> impl Iterator<Item = (Medium, u32, usize)> + '_ {
        let all = [Medium::Gpu, Medium::Cpu, Medium::Disk].into_iter().zip(&self.layers).skip(1);
        all.filter(|(_, layer)| layer.open)
            .map(|(medium, layer)| (medium, layer.slot, layer.keys.len()))
    }

    /// Gives an opened tier another slot, as when all slots begin anew.
    pub fn move_to(&mut self, medium: Medium, slot: u32) {
        if let Some(layer) = layer(medium).and_then(|at| self.layers.get_mut(at)) {
            layer.slot = slot;
        }
    }

    /// Every key announced on the GPU, once.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.keys_in(Medium::Gpu)
    }

    /// Every key announced in a tier or in a faster one, once.
    pub fn keys_in(&self, medium: Medium) -> impl Iterator<Item = Key> + '_ {
        let layer = layer(medium).and_then(|at| self.layers.get(at));
        layer.into_iter().flat_map(|layer| layer.keys.keys().copied())
    }

    /// Keys announced on the GPU.
    pub fn len(&self) -> usize {
        let [first, ..] = &self.layers;
        first.keys.len()
    }

    /// Keys announced in all tiers together, each as often as it is.
    pub fn announcements(&self) -> usize {
        self.layers.iter().chain([&self.ends]).map(|layer| layer.keys.len()).sum()
    }

    /// Whether nothing is announced on the GPU.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the key is announced on the GPU.
    pub fn holds(&self, key: &Key) -> bool {
        self.held_in(key) == Some(Medium::Gpu)
    }

    /// The fastest tier in which the key is announced.
    pub fn held_in(&self, key: &Key) -> Option<Medium> {
        let all = [Medium::Gpu, Medium::Cpu, Medium::Disk].into_iter().zip(&self.layers);
        let mut found = all.filter(|(_, layer)| layer.keys.contains_key(key));
        found.next().map(|(medium, _)| medium)
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

    /// Whether events named other KV cache groups than the main one.
    pub fn has_several_groups(&self) -> bool {
        self.groups.several()
    }

    /// Tokens of which a hit's length is a multiple: of one engine block, or of the blocks of all
    /// groups; 0 until an event told.
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens.saturating_mul(self.groups.every())
    }

    /// Tokens that its engine drops behind a hit, and that must be held for it; 0 where it doesn't.
    pub fn dropped_tokens(&self) -> u32 {
        self.block_tokens.saturating_mul(self.groups.dropped())
    }

    /// What the view saw.
    pub fn seen(&self) -> &Seen {
        &self.seen
    }

    fn store(&mut self, event: &Stored, engine: Option<&Self>, changes: &mut Changes) {
        if (event.medium == Medium::Other) != self.shared {
            self.seen.other_medium += 1;
            return;
        }
        self.learn(event, changes);
        match self.groups.place(event, !self.shared) {
            Place::Main => self.store_main(event, engine, changes),
            Place::Further(at) if event.medium == Medium::Gpu => {
                self.store_further(at, event, changes);
            }
            Place::Further(_) | Place::Nowhere => {
                self.seen.other_group += 1;
                return;
            }
        }
        while self.nodes.len() > self.limits.blocks {
            let before = self.nodes.len();
            self.evict(changes);
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

    /// Learns of the engine's groups; where that changes what a hit is, all is announced anew.
    fn learn(&mut self, event: &Stored, changes: &mut Changes) {
        let Some(groups) = self.groups.with(event) else { return };
        if self.shared || !groups.asks_otherwise(&self.groups) {
            self.groups = groups;
            return;
        }
        let roots: Vec<Id> = self.nodes.roots().collect();
        for root in &roots {
            self.withdraw(*root, 0, changes);
        }
        self.groups = groups;
        if self.groups.hybrid() {
            // What the engine can bring back of several groups isn't known.
            for layer in 1..LAYERS {
                for root in &roots {
                    self.withdraw(*root, layer, changes);
                }
            }
            for layer in self.layers.iter_mut().skip(1) {
                *layer = Layer::default();
            }
        }
        self.announce_all(0, changes);
    }

    /// Blocks of a group beside the main one. Their place in prompts is told by the main group's
    /// store of the same hashes.
    fn store_further(&mut self, at: usize, event: &Stored, changes: &mut Changes) {
        let from_start = event.parent.is_none() && !event.tokens.is_empty();
        let take = self.take_for(event, from_start);
        let need = self.groups.own_need(at);
        // A report lists all blocks up to the hit's end, of which a hit needs the last alone.
        let report = take == Take::Doubt
            || from_start
                && !event.sparse
                && self.groups.is_sparse(at)
                && event.hashes.len() > need.saturating_mul(2);
        let skip = if report { event.hashes.len().saturating_sub(need) } else { 0 };
        for &hash in event.hashes.iter().skip(skip) {
            self.seen.blocks_stored += 1;
            let id = self.nodes.find_or_make(hash);
            self.nodes.touch(id);
            let Some(node) = self.nodes.get_mut(id) else { continue };
            let was_held = node.held();
            if take != Take::Copy && node.further().is_some_and(|f| f.held & bit(at) != 0) {
                self.seen.stores_repeated += 1;
                continue;
            }
            if node.add_further(at) {
                self.weigh_from(id, changes);
            }
            if !was_held {
                self.held += 1;
            }
        }
    }

    fn store_main(&mut self, event: &Stored, engine: Option<&Self>, changes: &mut Changes) {
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
        let take = self.take_for(event, from_start);
        let mut tokens = event.tokens.chunks(event.block_size.max(1) as usize);
        for (i, &hash) in event.hashes.iter().enumerate() {
            let tokens = tokens.next();
            let id = self.nodes.find_or_make(hash);
            self.nodes.touch(id);
            let news = match (tokens, engine) {
                (Some(tokens), _) => {
                    self.describe(id, parent, from_start && i == 0, event, i, tokens)
                }
                (None, Some(engine)) => self.adopt(id, hash, engine),
                (None, None) => false,
            };
            self.add_copy(id, event.medium, take);
            self.settle(id, news, changes);
            parent = id;
        }
        // It was made for nothing where its child had another place already.
        self.prune(before);
    }

    /// What a store means for blocks that are held already.
    ///
    /// vLLM 0.32.0 (`v1/core/block_pool.py`) keeps each block that it computed, also where one of the
    /// same hash is there (`BlockHashToBlockMap`): `BlockStored` is one more copy, and one
    /// `BlockRemoved` comes for each. But `emit_cached_block_events` repeats the stores of what a
    /// request hit, if it asks for `kv_cache_report_mode: full`: from the prompt's start, and all of
    /// it held. Two blocks or more so are no copy unless the engine didn't look into its cache (as
    /// for `prompt_logprobs`; three or more where it drops a block), or a hit needs more than this group has: with several groups a prompt
    /// is computed anew whose full attention's blocks are all there, and what is stored from its start
    /// to where a hit may end is a report.
    fn take_for(&mut self, event: &Stored, from_start: bool) -> Take {
        let several = self.groups.hybrid();
        if several && from_start && event.medium == Medium::Gpu {
            let tokens = event.tokens.iter().fold(event.tokens.len() as u64, |sum, &token| {
                (sum.rotate_left(5) ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            });
            // The groups' stores of one prompt follow each other, in order.
            let same = |(group, begun, _): &(Option<u32>, u64, Take)| {
                *begun == tokens && *group < event.group
            };
            let take = match self.begun.filter(same) {
                Some((_, _, Take::Doubt)) if event.sparse => {
                    // A report leaves nothing out: the main group's store was none, either.
                    self.believe();
                    Take::Copy
                }
                Some((_, _, take)) => take,
                None => {
                    self.doubted.clear();
                    self.take_alone(event, from_start)
                }
            };
            self.begun = Some((event.group, tokens, take));
            return take;
        }
        self.begun = None;
        self.doubted.clear();
        self.take_alone(event, from_start)
    }

    /// What the last store from a prompt's start was taken for a report of were copies.
    fn believe(&mut self) {
        for id in std::mem::take(&mut self.doubted) {
            if let Some(node) = self.nodes.get_mut(id) {
                node.believe();
            }
        }
    }

    fn take_alone(&self, event: &Stored, from_start: bool) -> Take {
        let node = |hash| self.nodes.find(hash).and_then(|id| self.nodes.get(id));
        let report = || {
            if !from_start || event.medium != Medium::Gpu {
                return false;
            }
            if self.groups.hybrid() {
                let last = event.hashes.last().and_then(|hash| self.nodes.find(hash));
                return !event.sparse && last.is_some_and(|last| self.is_hit(last));
            }
            let most = 1 + self.groups.dropped() as usize;
            let sure = |hash| node(hash).is_some_and(Node::sure);
            !self.groups.several() && event.hashes.len() > most && event.hashes.iter().all(sure)
        };
        match self.duplicates {
            Duplicates::Same => Take::Once,
            Duplicates::Doubt if from_start => Take::Once,
            Duplicates::Count if report() => Take::Doubt,
            Duplicates::Doubt | Duplicates::Count => Take::Copy,
        }
    }

    fn add_copy(&mut self, id: Id, medium: Medium, take: Take) {
        self.seen.blocks_stored += 1;
        let Some(node) = self.nodes.get_mut(id) else { return };
        let was_held = node.held();
        match take {
            Take::Once if node.has(medium) => self.seen.stores_repeated += 1,
            Take::Doubt => {
                self.seen.stores_repeated += 1;
                node.doubt();
                if self.groups.hybrid() {
                    self.doubted.push(id);
                }
            }
            Take::Once | Take::Copy => node.add(medium),
        }
        if !was_held {
            self.held += 1;
        }
    }

    fn remove(&mut self, event: &Removed, changes: &mut Changes) {
        if (event.medium == Medium::Other) != self.shared {
            self.seen.other_medium += 1;
            return;
        }
        match self.groups.place_of(event.group) {
            Place::Main => self.remove_main(event, changes),
            Place::Further(at) if event.medium == Medium::Gpu => {
                self.remove_further(at, event, changes);
            }
            Place::Further(_) | Place::Nowhere => self.seen.other_group += 1,
        }
    }

    fn remove_further(&mut self, at: usize, event: &Removed, changes: &mut Changes) {
        for hash in &event.hashes {
            let id = self.nodes.find(hash).unwrap_or(NONE);
            let (had, last) =
                self.nodes.get_mut(id).map_or((false, false), |node| node.take_further(at));
            if !had {
                self.seen.removals_unknown += 1;
                continue;
            }
            self.seen.blocks_removed += 1;
            if last {
                self.weigh_from(id, changes);
            }
            if self.nodes.get(id).is_some_and(|node| !node.held()) {
                self.held -= 1;
                self.prune(id);
            }
        }
    }

    fn remove_main(&mut self, event: &Removed, changes: &mut Changes) {
        for hash in &event.hashes {
            let id = self.nodes.find(hash).unwrap_or(NONE);
            if !self.nodes.get_mut(id).is_some_and(|node| node.take(event.medium)) {
                self.seen.removals_unknown += 1;
                continue;
            }
            self.seen.blocks_removed += 1;
            self.withdraw_lost(id, changes);
            if self.nodes.get(id).is_some_and(|node| !node.held()) {
                self.held -= 1;
                self.prune(id);
            }
        }
    }
}

/// The layer that ends with a tier; none for tiers that aren't a replica's own.
fn layer(medium: Medium) -> Option<usize> {
    match medium {
        Medium::Gpu => Some(0),
        Medium::Cpu => Some(1),
        Medium::Disk => Some(2),
        Medium::Other => None,
    }
}
