//! What answers teach of replicas whose events were not heard from the first one on.

use tokio::time::Instant;

use super::message::ReplicaId;
use super::{Replica, State};
use crate::events::Event;
use crate::index::lesson::Lesson;
use crate::index::{Changes, MOST_KEYS};

/// Keys that are kept of all replicas together.
const MOST_KEYS_OF_ALL: usize = 1 << 20;

impl State {
    /// Applies an event to a replica's view, and to what was taught beside it.
    pub(super) fn apply(&mut self, id: ReplicaId, event: &Event) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let Replica { known, taught, slot, late, .. } = replica;
        if !*late && taught.is_empty() {
            known.view.apply(event, *slot, &mut self.changes);
            return;
        }
        let mut said = Changes::default();
        known.view.apply(event, *slot, &mut said);
        let mut changes = Changes::default();
        taught.follow(&said, *slot, &mut changes);
        taught.hear(event, *slot, Instant::now(), &mut changes);
        self.changes.append(said);
        self.changes.append(changes);
    }

    /// Takes in what a gateway tells of answers.
    pub(super) fn learn(&mut self, lessons: &[Lesson]) {
        let now = Instant::now();
        let mut all: usize = self.replicas.values().map(|replica| replica.taught.len()).sum();
        for lesson in lessons {
            // A slot that nobody has is of a life that is over.
            let mut replicas = self.replicas.values_mut();
            let Some(replica) = replicas.find(|replica| replica.slot == lesson.slot) else {
                continue;
            };
            if !replica.is_partial() {
                continue;
            }
            let before = replica.taught.len();
            let most = MOST_KEYS.min(before + MOST_KEYS_OF_ALL.saturating_sub(all));
            let Replica { known, taught, .. } = replica;
            taught.learn(lesson, most, &known.view, now, &mut self.changes);
            all = all + taught.len() - before;
        }
        if !self.changes.is_empty() {
            self.soon();
        }
    }

    /// Ends what no answer spoke for any more.
    pub(super) fn expire_taught(&mut self) {
        let now = Instant::now();
        for Replica { taught, slot, .. } in self.replicas.values_mut() {
            taught.expire(*slot, now, &mut self.changes);
        }
        if !self.changes.is_empty() {
            self.soon();
        }
    }
}
