//! All engine blocks of a view: by number, by hash, as trees, and in the order of their age.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::node::{Id, NONE, Node};
use crate::events::EngineHash;

/// Steps that a new link's way to the root is followed to rule out a circle, which only a broken
/// engine could make.
const MAX_DEPTH: usize = 1 << 20;

/// Nodes by a small number, places used again.
#[derive(Debug)]
pub(super) struct Forest {
    places: Vec<Option<Node>>,
    free: Vec<Id>,
    by_hash: HashMap<EngineHash, Id, RandomState>,
    oldest: Id,
    newest: Id,
}

impl Forest {
    pub(super) fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            by_hash: HashMap::default(),
            oldest: NONE,
            newest: NONE,
        }
    }

    pub(super) fn get(&self, id: Id) -> Option<&Node> {
        self.places.get(id as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut Node> {
        self.places.get_mut(id as usize)?.as_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The node of a hash, if there is one.
    pub(super) fn find(&self, hash: &EngineHash) -> Option<Id> {
        self.by_hash.get(hash).copied()
    }

    /// The node of a hash, made where there is none.
    pub(super) fn find_or_make(&mut self, hash: EngineHash) -> Id {
        if let Some(&id) = self.by_hash.get(&hash) {
            return id;
        }
        let id = self.place(Node::new(hash));
        self.by_hash.insert(hash, id);
        self.append(id);
        id
    }

    fn place(&mut self, node: Node) -> Id {
        while let Some(id) = self.free.pop() {
            if let Some(place) = self.places.get_mut(id as usize) {
                *place = Some(node);
                return id;
            }
        }
        self.places.push(Some(node));
        self.places.len() as Id - 1
    }

    /// Takes a node out that has no children.
    pub(super) fn remove(&mut self, id: Id) {
        self.unlink(id);
        self.cut(id);
        if let Some(node) = self.places.get_mut(id as usize).and_then(Option::take) {
            self.by_hash.remove(&node.hash);
            self.free.push(id);
        }
    }

    /// The node whose last store is the longest ago, or [`NONE`].
    pub(super) fn oldest(&self) -> Id {
        self.oldest
    }

    /// Makes a node the youngest.
    pub(super) fn touch(&mut self, id: Id) {
        if self.newest != id {
            self.cut(id);
            self.append(id);
        }
    }

    /// All nodes that have no parent.
    pub(super) fn roots(&self) -> impl Iterator<Item = Id> + '_ {
        let all = self.places.iter().enumerate();
        all.filter(|(_, node)| node.as_ref().is_some_and(|node| node.parent == NONE))
            .map(|(id, _)| id as Id)
    }

    pub(super) fn push_children(&self, id: Id, stack: &mut Vec<Id>) {
        let mut child = self.get(id).map_or(NONE, |node| node.first_child);
        while let Some(node) = self.get(child) {
            stack.push(child);
            child = node.next_sibling;
        }
    }

    /// Hangs a node under a parent; false where that would make a circle.
    pub(super) fn link(&mut self, id: Id, parent: Id) -> bool {
        let Some(node) = self.get(id) else { return false };
        if node.parent == parent {
            return true;
        }
        if node.first_child != NONE || id == parent {
            let mut above = parent;
            for _ in 0..MAX_DEPTH {
                if above == id {
                    return false;
                }
                let Some(node) = self.get(above) else { break };
                above = node.parent;
            }
            if above != NONE {
                return false;
            }
        }
        self.unlink(id);
        let Some(first) =
            self.get_mut(parent).map(|parent| std::mem::replace(&mut parent.first_child, id))
        else {
            return false;
        };
        if let Some(sibling) = self.get_mut(first) {
            sibling.previous_sibling = id;
        }
        if let Some(node) = self.get_mut(id) {
            node.parent = parent;
            node.next_sibling = first;
        }
        true
    }

    /// Takes a node off its parent.
    pub(super) fn unlink(&mut self, id: Id) {
        let Some(node) = self.get_mut(id) else { return };
        let (parent, previous, next) = (node.parent, node.previous_sibling, node.next_sibling);
        node.parent = NONE;
        node.previous_sibling = NONE;
        node.next_sibling = NONE;
        if let Some(sibling) = self.get_mut(next) {
            sibling.previous_sibling = previous;
        }
        if let Some(sibling) = self.get_mut(previous) {
            sibling.next_sibling = next;
        } else if let Some(parent) = self.get_mut(parent) {
            parent.first_child = next;
        }
    }

    /// Puts a node at the young end.
    fn append(&mut self, id: Id) {
        let newest = std::mem::replace(&mut self.newest, id);
        if let Some(node) = self.get_mut(newest) {
            node.newer = id;
        } else {
            self.oldest = id;
        }
        if let Some(node) = self.get_mut(id) {
            node.older = newest;
            node.newer = NONE;
        }
    }

    /// Takes a node out of the order of age.
    fn cut(&mut self, id: Id) {
        let Some(node) = self.get(id) else { return };
        let (older, newer) = (node.older, node.newer);
        match self.get_mut(older) {
            Some(node) => node.newer = newer,
            None => self.oldest = newer,
        }
        match self.get_mut(newer) {
            Some(node) => node.older = older,
            None => self.newest = older,
        }
    }
}
