//! Which LoRA adapters are loaded where: what the engine says, or the configuration for one that
//! isn't asked or doesn't answer.

use tracing::warn;

use super::State;
use super::message::ReplicaId;
use crate::engine::adapters::Adapters;

/// Bytes of names in the table of replicas, which each worker of each gateway reads anew whenever
/// it changes: some 50,000 names. Of a replica whose names find no place it isn't known what is
/// loaded there.
pub(super) const MOST_BYTES: usize = 1 << 20;

impl State {
    /// The engine answered; none where its answer doesn't tell all that is loaded.
    pub(super) fn listed(&mut self, id: ReplicaId, adapters: Option<Adapters>) {
        if let Some(replica) = self.replicas.get_mut(&id) {
            replica.lists = true;
        }
        self.put_adapters(id, adapters);
    }

    /// The engine is down, and may come back with others.
    pub(super) fn unlisted(&mut self, id: ReplicaId) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        if std::mem::take(&mut replica.lists) {
            let configured = replica.known.adapters.clone();
            self.put_adapters(id, configured);
        }
    }

    /// The configuration says it, which counts where the engine doesn't.
    pub(super) fn configured(&mut self, id: ReplicaId, adapters: Option<Adapters>) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        replica.known.adapters.clone_from(&adapters);
        if !replica.lists {
            self.put_adapters(id, adapters);
        }
    }

    fn put_adapters(&mut self, id: ReplicaId, adapters: Option<Adapters>) {
        let Some(replica) = self.replicas.get(&id) else { return };
        if replica.adapters == adapters {
            return;
        }
        let others = self.replicas.iter().filter(|(other, _)| **other != id);
        let taken: usize =
            others.filter_map(|(_, other)| Some(other.adapters.as_ref()?.bytes())).sum();
        let fitting = adapters.filter(|adapters| {
            let fits = taken + adapters.bytes() <= MOST_BYTES;
            if !fits && !std::mem::replace(&mut self.warned.too_many_adapters, true) {
                warn!(
                    engine = replica.known.endpoint,
                    rank = replica.known.rank,
                    adapters = adapters.names().len(),
                    "all replicas together list more than {MOST_BYTES} bytes of adapters' names: \
                     for this one and others beyond that, requests are sent there as if any \
                     adapter of the model were loaded"
                );
            }
            fits
        });
        self.update(id, |replica| replica.adapters = fitting);
    }
}
