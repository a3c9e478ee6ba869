//! Where hits may end, in engines with several KV cache groups.
//!
//! Of full attention's closed prefixes only those are hits that the other groups allow, and those are
//! not closed: a window's blocks may be there for a long prefix and not for a shorter one. So a block
//! at which a hit may end is an *end*, announced under a slot of its own, and of full attention's
//! blocks those are announced that an end follows or that are ends. Of an engine that drops a block
//! behind its hits an end is the block that is dropped: only who asks for that one, too, gets the hit.

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
        // Blocks, and how many generations after them are looked at even if nothing changes there.
        let mut stack = vec![(start, 0)];
        let mut children = Vec::new();
        while let Some((id, left)) = stack.pop() {
            if !self.nodes.get(id).is_some_and(|node| node.announced(0)) {
                continue;
            }
            let changed = self.weigh(id, changes);
            let left = if changed { self.groups.dropped().max(1) } else { left };
            if left > 0 {
                self.nodes.push_children(id, &mut children);
                stack.extend(children.drain(..).map(|child| (child, left - 1)));
            }
        }
    }

    /// The block at which a hit ends of which this one is the last that is dropped.
    fn hit_before(&self, id: Id) -> Id {
        let mut hit = id;
        for _ in 0..self.groups.dropped() {
            let Some(node) = self.nodes.get(hit) else { return NONE };
            hit = node.parent;
        }
        hit
    }

    /// Whether a hit may end at a block; of many that follow it, some are looked at.
    pub(super) fn is_hit(&self, id: Id) -> bool {
        const MOST: usize = 1024;
        let mut stack = vec![(id, self.groups.dropped())];
        let mut children = Vec::new();
        for _ in 0..MOST {
            let Some((id, left)) = stack.pop() else { return false };
            if left > 0 {
                self.nodes.push_children(id, &mut children);
                stack.extend(children.drain(..).map(|child| (child, left - 1)));
                continue;
            }
            let further = self.nodes.get(id).and_then(|node| node.further());
            if further.is_some_and(|further| further.end) {
                return true;
            }
        }
        false
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
                None if from_start && need.from_start => need.blocks,
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
        let dropped = self.groups.dropped();
        let at_hit = if needs.iter().any(|need| need.at_hit) { self.hit_before(id) } else { NONE };
        let at_hit = self.nodes.get(at_hit).and_then(|node| node.further());
        let enough = |(at, (run, need)): (usize, (&u32, &Need))| {
            let run = if need.at_hit { at_hit.and_then(|hit| hit.runs.get(at)) } else { Some(run) };
            run.is_some_and(|run| *run >= need.blocks)
        };
        let end = (dropped == 0 || further.depth > dropped)
            && further.depth.saturating_sub(dropped).is_multiple_of(self.groups.every())
            && runs.iter().zip(needs).enumerate().all(enough);
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
