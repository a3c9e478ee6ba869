//! Where hits may end, in engines with several KV cache groups.
//!
//! Of full attention's closed prefixes only those are hits that the other groups allow, and those are
//! not closed: a window's blocks may be there for a long prefix and not for a shorter one. So a block
//! at which a hit may end is an *end*, announced under a slot of its own, and of full attention's
//! blocks those are announced that an end follows or that are ends.

use super::changes::Changes;
use super::groups::Need;
use super::node::{Further, Id, NONE, Name};
use super::view::View;

impl View {
    /// Takes up a block that is held with all before it in the main group.
    pub(super) fn reach(&mut self, id: Id, changes: &mut Changes) {
        let Some(parent) = self.nodes.get(id).map(|node| node.parent) else { return };
        let depth = match self.nodes.get(parent) {
            Some(node) => node.further().map_or(0, |further| further.depth),
            None => 0,
        };
        if let Some(node) = self.nodes.get_mut(id) {
            node.further_mut().depth = depth.saturating_add(1);
        }
        self.weigh(id, changes);
    }

    /// Gives up a block that is no longer reached; those after it were given up before.
    pub(super) fn unreach(&mut self, id: Id, changes: &mut Changes) {
        self.set_end(id, false, changes);
        if let Some(node) = self.nodes.get_mut(id) {
            let further = node.further_mut();
            further.depth = 0;
            further.runs.clear();
        }
    }

    /// Looks again at a block of which a further group got or lost its own, and at those after it.
    pub(super) fn weigh_from(&mut self, start: Id, changes: &mut Changes) {
        let mut stack = vec![start];
        while let Some(id) = stack.pop() {
            if self.nodes.get(id).is_some_and(|node| node.announced(0)) && self.weigh(id, changes) {
                self.nodes.push_children(id, &mut stack);
            }
        }
    }

    /// Counts how many blocks in a row each need has at a block that is reached, and whether it is
    /// an end; whether any count changed.
    fn weigh(&mut self, id: Id, changes: &mut Changes) -> bool {
        let Some(node) = self.nodes.get(id) else { return false };
        let Some(further) = node.further() else { return false };
        let before = match self.nodes.get(node.parent) {
            Some(parent) => parent.further().map(|further| further.runs.as_slice()),
            None => None,
        };
        let from_start = node.parent == NONE;
        let run = |(at, need): (usize, &Need)| {
            let before = match before.and_then(|runs| runs.get(at)) {
                Some(run) => *run,
                None if from_start => need.blocks,
                None => 0,
            };
            if !further.depth.is_multiple_of(need.stride) {
                before
            } else if further.held & need.groups == need.groups {
                before.saturating_add(1).min(need.blocks)
            } else {
                0
            }
        };
        let needs = self.groups.needs();
        let runs: Vec<u32> = needs.iter().enumerate().map(run).collect();
        let end = further.depth.is_multiple_of(self.groups.every())
            && runs.iter().zip(needs).all(|(run, need)| *run >= need.blocks);
        let changed = runs != further.runs;
        if let Some(node) = self.nodes.get_mut(id).filter(|_| changed) {
            node.further_mut().runs = runs;
        }
        self.set_end(id, end, changes);
        changed
    }

    /// Announces or takes back an end, and what is to be announced of the blocks before it.
    fn set_end(&mut self, id: Id, end: bool, changes: &mut Changes) {
        let Some(further) = self.nodes.get(id).and_then(|node| node.further()) else { return };
        if further.end == end {
            return;
        }
        let last = match self.nodes.get(id).map(|node| &node.name) {
            Some(Name::Named(named)) => named.keys().last(),
            _ => None,
        };
        if let Some(key) = last {
            if end {
                self.ends.hold(key, changes);
            } else {
                self.ends.lose(key, changes);
            }
        }
        // Blocks that become worth announcing, or stop being so: up to the first that stays as it is.
        let mut turned = Vec::new();
        let mut at = id;
        let turns = |further: &mut Further, of: Id| {
            let was = further.is_live();
            if of == id {
                further.end = end;
            } else if end {
                further.live_children += 1;
            } else {
                further.live_children = further.live_children.saturating_sub(1);
            }
            was != further.is_live()
        };
        while let Some(node) = self.nodes.get_mut(at) {
            let parent = node.parent;
            if !turns(node.further_mut(), at) {
                break;
            }
            turned.push(at);
            at = parent;
        }
        // Closed at each moment: the first is announced first, the last is taken back first.
        if end {
            turned.reverse();
        }
        let [main, ..] = &mut self.layers;
        for id in turned {
            let Some(Name::Named(named)) = self.nodes.get(id).map(|node| &node.name) else {
                continue;
            };
            for key in named.keys() {
                if end {
                    main.hold(key, changes);
                } else {
                    main.lose(key, changes);
                }
            }
        }
    }
}
