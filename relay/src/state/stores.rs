//! Stores of KV blocks that several engines share, such as LMCache or SGLang's storage backends.
//!
//! A store is no engine's own: it outlives them, and each of them may write to it and remove from
//! it. So what it holds is known only as long as all who share it are heard.

use std::sync::Arc;

use tracing::{info, warn};
use warmpath_proto::v1;

use super::State;
use super::message::{Doubt, ReplicaId};
use crate::events::Event;
use crate::index::{ModelScope, View};

/// A store's name; engines of another model share nothing, whatever their store is called.
pub(super) type StoreKey = (String, Arc<ModelScope>);

/// A store that was heard of.
pub(super) struct Store {
    pub(super) slot: u32,
    pub(super) view: View,
    pub(super) clears: u64,
}

impl State {
    /// The store that a replica shares, if it shares one.
    pub(super) fn store_of(&self, id: ReplicaId) -> Option<StoreKey> {
        let known = &self.replicas.get(&id)?.known;
        Some((known.store.clone()?, known.view.scope()))
    }

    /// Applies what an engine says of the store that it shares; false where that is none of it.
    pub(super) fn tell_store(&mut self, id: ReplicaId, event: &Event) -> bool {
        if !event.is_shared() {
            return false;
        }
        let Some(key) = self.store_of(id) else { return false };
        if !self.stores.contains_key(&key) {
            let slot = self.take_slot();
            let Some(replica) = self.replicas.get(&id) else { return false };
            info!(
                store = key.0,
                engine = replica.known.endpoint,
                "the engine reports a shared store"
            );
            let view = replica.known.view.shared_beside();
            self.stores.insert(key.clone(), Store { slot, view, clears: 0 });
            self.replicas_changed = true;
        }
        let (Some(store), Some(replica)) = (self.stores.get_mut(&key), self.replicas.get(&id))
        else {
            return false;
        };
        store.view.apply_from(event, &replica.known.view, store.slot, &mut self.changes);
        true
    }

    /// Events of an engine were missed: it may have removed blocks from its store, too.
    pub(super) fn doubt_store(&mut self, id: ReplicaId, why: Doubt) {
        let Some(key) = self.store_of(id) else { return };
        let prefixes = self.stores.get(&key).map_or(0, |store| store.view.len());
        // A sequence that begins anew on a connection that holds has lost nothing.
        if why == Doubt::Restarted || prefixes == 0 {
            return;
        }
        warn!(store = key.0, why = why.name(), prefixes, "the shared store's view is cleared");
        self.flush();
        let slot = self.take_slot();
        if let Some(store) = self.stores.get_mut(&key) {
            store.slot = slot;
            store.clears += 1;
            store.view.clear();
        }
        self.replicas_changed = true;
        self.soon();
    }

    /// Forgets stores that nobody shares any more.
    pub(super) fn retain_stores(&mut self) {
        let shared = |(name, scope): &StoreKey| {
            self.replicas.values().any(|replica| {
                let known = &replica.known;
                known.store.as_ref() == Some(name) && known.view.scope() == *scope
            })
        };
        self.stores.retain(|key, _| shared(key));
    }

    /// The row of the store that a replica shares.
    pub(super) fn store_tier(&self, id: ReplicaId) -> Option<v1::Tier> {
        let store = self.stores.get(&self.store_of(id)?)?;
        Some(v1::Tier { slot: store.slot, medium: v1::tier::Medium::Shared.into() })
    }
}
