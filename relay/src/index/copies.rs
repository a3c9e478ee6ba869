//! Stores and removals: which copies of which blocks a view's engine has.

use super::changes::Changes;
use super::groups::{Role, bit};
use super::layer::{LAYERS, Layer};
use super::node::{Id, NONE, Node};
use super::rules::Duplicates;
use super::view::View;
use crate::events::{Medium, Removed, Stored};

/// How the blocks of one event are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Take {
    /// Each is one more copy.
    Copy,
    /// Each is a copy, or a report of one.
    Doubt,
    /// Those that are held are reports.
    Once,
}

impl View {
    pub(super) fn store(&mut self, event: &Stored, engine: Option<&Self>, changes: &mut Changes) {
        if (event.medium == Medium::Other) != self.shared {
            self.seen.other_medium += 1;
            return;
        }
        self.learn(event, changes);
        match self.groups.place(event, !self.shared) {
            Role::Main => self.store_main(event, engine, changes),
            Role::Further(at) if event.medium == Medium::Gpu => {
                self.store_further(at, event, changes);
            }
            Role::Further(_) | Role::Nowhere => {
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
    /// for `prompt_logprobs`), or a hit needs more than this group has: with several groups a prompt
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

    pub(super) fn remove(&mut self, event: &Removed, changes: &mut Changes) {
        if (event.medium == Medium::Other) != self.shared {
            self.seen.other_medium += 1;
            return;
        }
        match self.groups.place_of(event.group) {
            Role::Main => self.remove_main(event, changes),
            Role::Further(at) if event.medium == Medium::Gpu => {
                self.remove_further(at, event, changes);
            }
            Role::Further(_) | Role::Nowhere => self.seen.other_group += 1,
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
