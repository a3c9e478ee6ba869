//! Where engines have their model from: two that serve one model should have the same.

use tracing::warn;

use super::State;
use super::message::ReplicaId;
use super::replica::Replica;

impl State {
    /// An engine says where it has its model from.
    pub(super) fn rooted(&mut self, id: ReplicaId, root: Option<String>) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        if replica.root == root {
            return;
        }
        replica.root = root;
        self.replicas_changed = true;
        self.soon();
        let Some(replica) = self.replicas.get(&id) else { return };
        if let Some(other) = self.other_root(replica) {
            warn!(
                engine = replica.known.endpoint,
                root = replica.root,
                other = other.known.endpoint,
                other_root = other.root,
                model = replica.known.model,
                "engines of one model load it from different places: check that they are of one version"
            );
        }
    }

    /// Whether another replica of its model has it from elsewhere.
    pub(super) fn has_other_root(&self, replica: &Replica) -> bool {
        self.other_root(replica).is_some()
    }

    fn other_root(&self, replica: &Replica) -> Option<&Replica> {
        let root = last_part(replica.root.as_deref()?);
        self.replicas.values().find(|other| {
            other.known.model == replica.known.model
                && other.root.as_deref().is_some_and(|other| last_part(other) != root)
        })
    }
}

/// A model's own name: where directories are mounted says nothing of it.
fn last_part(root: &str) -> &str {
    root.trim_end_matches('/').rsplit('/').next().unwrap_or(root)
}
