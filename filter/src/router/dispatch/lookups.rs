//! The prefix map in shared data, as a decision and as the closed loop ask it.

use std::cell::RefCell;

use warmpath_routing::drift::MapView;
use warmpath_routing::fingerprint::Key;
use warmpath_routing::prefix_map::{Hint, Hints, Layout, Lookup, Matches, Wanted, find};
use warmpath_routing::tally::Tallies;

use crate::router::view::View;
use crate::shared::{self, Data, Map};

/// The caches as a request sees them of which nothing is read for it.
pub(super) struct Unread;

impl Lookup for Unread {
    fn matches(&self, _: &[Key], _: &dyn Wanted) -> Matches {
        Matches::default()
    }
}

/// What there is to see after an answer.
pub(super) struct Seen<'a, D> {
    pub(super) map: &'a Map<D>,
    pub(super) view: &'a View,
    pub(super) generation: u32,
}

impl<D: Data> MapView for Seen<'_, D> {
    fn slot(&self, replica: u64) -> Option<u16> {
        let mut all = self.view.replicas();
        all.find_map(|((it, name), _)| (name == replica).then_some(it.slot))
    }

    fn holds(&self, slot: u16, key: Key) -> bool {
        let wanted = |other: u16| other == slot;
        let hint = Hint::default();
        let found = find(self.map, Layout::default(), self.generation, &[key], hint, &wanted);
        found.blocks(slot) > 0
    }

    fn tallies(&self) -> Tallies {
        let bytes = self.map.0.get(shared::TALLIES).ok().flatten();
        Tallies::decode(&bytes.unwrap_or_default())
    }
}

pub(super) struct Buckets<'a, D> {
    pub(super) map: &'a Map<D>,
    pub(super) generation: u32,
    pub(super) hints: &'a RefCell<Hints>,
    pub(super) now_ms: u64,
}

impl<D: Data> Lookup for Buckets<'_, D> {
    fn matches(&self, keys: &[Key], wanted: &dyn Wanted) -> Matches {
        let Self { map, generation, hints, now_ms } = *self;
        let hint = hints.borrow().get(keys, generation, now_ms);
        let matches = find(map, Layout::default(), generation, keys, hint, wanted);
        hints.borrow_mut().put(keys, generation, now_ms, &matches);
        matches
    }
}
