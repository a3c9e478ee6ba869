//! What is announced of the blocks that are held: closed prefixes, for each tier.

use super::changes::Changes;
use super::layer::LAYERS;
use super::node::{Id, NONE, Name, Named};
use super::view::View;

impl View {
    /// Names and announces the node and what follows it, as far as that is possible now. `news`: it
    /// was described just now, so that its children must hear of it in any case.
    pub(super) fn settle(&mut self, start: Id, news: bool, changes: &mut Changes) {
        if !(self.settle_one(start, changes) | news) {
            return;
        }
        let mut stack = Vec::new();
        self.nodes.push_children(start, &mut stack);
        while let Some(id) = stack.pop() {
            if self.settle_one(id, changes) {
                self.nodes.push_children(id, &mut stack);
            }
        }
    }

    /// Whether anything changed that the children have been waiting for.
    pub(super) fn settle_one(&mut self, id: Id, changes: &mut Changes) -> bool {
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
        for layer in 0..LAYERS {
            changed |= self.announce(id, layer, changes);
        }
        changed
    }

    /// Announces a node in a layer, if it and all before it are held there and named. With several
    /// groups: notes that it may be.
    fn announce(&mut self, id: Id, layer: usize, changes: &mut Changes) -> bool {
        let Some(of) = self.layers.get_mut(layer).filter(|of| of.open) else { return false };
        let Some(node) = self.nodes.get(id) else { return false };
        let Name::Named(named) = &node.name else { return false };
        let follows = node.parent == NONE
            || self.nodes.get(node.parent).is_some_and(|parent| parent.announced(layer));
        if node.announced(layer) || !node.held_in(layer) || !follows {
            return false;
        }
        // With several groups that is told by its end, or by what follows it.
        let hybrid = layer == 0 && self.groups.hybrid();
        if !hybrid {
            for key in named.keys() {
                of.hold(key, changes);
            }
        }
        if let Some(node) = self.nodes.get_mut(id) {
            node.set_announced(layer, true);
        }
        if hybrid {
            self.reach(id, changes);
        }
        true
    }

    /// Announces in a layer that has just been opened what is held there already.
    pub(super) fn announce_all(&mut self, layer: usize, changes: &mut Changes) {
        let mut stack: Vec<Id> = self.nodes.roots().collect();
        while let Some(id) = stack.pop() {
            if self.announce(id, layer, changes) {
                self.nodes.push_children(id, &mut stack);
            }
        }
    }

    /// Takes back in each layer what is no longer held there.
    pub(super) fn withdraw_lost(&mut self, id: Id, changes: &mut Changes) {
        for layer in 0..LAYERS {
            if self.nodes.get(id).is_some_and(|node| !node.held_in(layer)) {
                self.withdraw(id, layer, changes);
            }
        }
    }

    /// Takes back what was announced in a layer of the node and all after it, the last first.
    pub(super) fn withdraw(&mut self, start: Id, layer: usize, changes: &mut Changes) {
        let mut order = Vec::new();
        let mut stack = vec![start];
        while let Some(id) = stack.pop() {
            let Some(node) = self.nodes.get_mut(id) else { continue };
            if !node.announced(layer) {
                continue;
            }
            node.set_announced(layer, false);
            order.push(id);
            self.nodes.push_children(id, &mut stack);
        }
        if layer == 0 && self.groups.hybrid() {
            for id in order.into_iter().rev() {
                self.unreach(id, changes);
            }
            return;
        }
        let Some(of) = self.layers.get_mut(layer) else { return };
        for id in order.into_iter().rev() {
            let Some(Name::Named(named)) = self.nodes.get(id).map(|node| &node.name) else {
                continue;
            };
            for key in named.keys() {
                of.lose(key, changes);
            }
        }
    }

    /// Frees the node if neither it nor anything after it is held, then those before it likewise.
    pub(super) fn prune(&mut self, mut id: Id) {
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
    pub(super) fn evict(&mut self, changes: &mut Changes) {
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
            self.withdraw_lost(id, changes);
            self.prune(id);
            if id == top || self.nodes.len() <= room {
                return;
            }
            // Up, where another branch may hang; the parent is gone where only this child kept it.
            id = parent;
        }
    }
}
