//! Those who listen: what each is told, and how far it may be behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::warn;
use warmpath_proto::v1::{self, down::Body};
use warmpath_routing::fingerprint::{KEY_BYTES, Key};

use super::gateways::Gateway;
use super::message::ReplicaId;
use super::replica::Replica;
use super::subscription::{Delta, Deltas, Subscription};
use super::{LOADS_EVERY, State};
use crate::events::Medium;

/// Deltas that a stream may be behind, and bytes in any case. The bytes go up to twice a snapshot's:
/// beyond that a snapshot is the shorter way, and what the stream says is old.
pub(super) const QUEUE: usize = 4096;
pub(super) const QUEUE_BYTES: usize = 8 << 20;
/// Streams at the same time; each Envoy has one.
pub(super) const MAX_STREAMS: usize = 1024;

pub(super) struct Listener {
    pub(super) id: u64,
    /// Who listens, once it has told its policy's pools.
    pub(super) gateway: Option<Gateway>,
    pub(super) sender: mpsc::Sender<Arc<Delta>>,
    pub(super) bytes: Arc<AtomicUsize>,
    _end: DropGuard,
}

impl State {
    /// Sends what changed to all streams, loads only when that is due or the table changed.
    pub(super) fn flush(&mut self) {
        let loads_due = self.loads_told_at + LOADS_EVERY;
        let loads = self.replicas_changed || loads_due <= Instant::now();
        self.tell(loads);
        if self.loads_changed {
            self.flush_by(loads_due);
        }
    }

    /// Sends what changed to all streams: the table first, so that blocks find their slot there.
    fn tell(&mut self, loads: bool) {
        self.flush_at = None;
        self.flushed_at = Instant::now();
        let mut bodies = Vec::new();
        if std::mem::take(&mut self.replicas_changed) {
            bodies.push(Body::Replicas(self.table()));
        }
        bodies.extend(self.changes.take().into_iter().map(Body::Blocks));
        if loads && std::mem::take(&mut self.loads_changed) {
            self.loads_told_at = self.flushed_at;
            let news = self.replicas.values_mut().filter(|replica| replica.load_is_news());
            let loads: Vec<_> = news.filter_map(Replica::tell_load).collect();
            if !loads.is_empty() {
                bodies.push(Body::Loads(v1::Loads { loads }));
            }
        }
        if bodies.is_empty() || self.listeners.is_empty() {
            return;
        }
        let bytes = bodies.iter().map(Body::encoded_len).sum();
        let delta = Arc::new(Delta { bodies, bytes });
        let most = self.most_queued();
        let mut too_slow = 0;
        self.listeners.retain(|listener| {
            if listener.sender.is_closed() {
                return false;
            }
            let queued = listener.bytes.fetch_add(bytes, Ordering::Relaxed);
            let kept = queued <= most && listener.sender.try_send(Arc::clone(&delta)).is_ok();
            too_slow += u64::from(!kept);
            kept
        });
        if too_slow > 0 {
            self.streams_too_slow += too_slow;
            warn!(streams = too_slow, "ended side-streams that are too slow");
        }
    }

    pub(super) fn most_queued(&self) -> usize {
        let announced = |r: &Replica| r.known.view.announcements() + r.taught.len();
        let own = self.replicas.values().map(announced);
        let shared = self.stores.values().map(|store| store.view.announcements());
        let keys: usize = own.chain(shared).sum();
        (2 * KEY_BYTES * keys).max(QUEUE_BYTES)
    }

    pub(super) fn subscribe(&mut self, reply: oneshot::Sender<Subscription>) {
        // What the new stream is handed is what the others were told, loads too: only what differs
        // from that is told to all of them.
        self.tell(true);
        self.listeners.retain(|listener| !listener.sender.is_closed());
        if self.listeners.len() >= MAX_STREAMS || reply.is_closed() {
            return;
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        let bytes = Arc::new(AtomicUsize::new(0));
        let ended = CancellationToken::new();
        let id = self.streams_opened;
        let listener = Listener {
            id,
            gateway: None,
            sender,
            bytes: Arc::clone(&bytes),
            _end: ended.clone().drop_guard(),
        };
        let loads = self.replicas.values().filter_map(Replica::load_now).collect();
        let subscription = Subscription {
            stream: id,
            replicas: self.table(),
            loads: v1::Loads { loads },
            blocks: self.held(),
            deltas: Deltas { receiver, bytes, ended },
        };
        if reply.send(subscription).is_ok() {
            self.streams_opened += 1;
            self.listeners.push(listener);
        }
    }

    /// All that is announced, by slot.
    fn held(&self) -> Vec<(u32, Vec<Key>)> {
        let mut blocks = Vec::new();
        for Replica { slot, known, taught, .. } in self.replicas.values() {
            blocks.push((*slot, known.view.keys().chain(taught.keys()).collect()));
            for (medium, slot, _) in known.view.tiers() {
                blocks.push((slot, known.view.keys_in(medium).collect()));
            }
            if let Some(slot) = known.view.ends() {
                blocks.push((slot, known.view.end_keys().collect()));
            }
        }
        for store in self.stores.values() {
            blocks.push((store.slot, store.view.keys().collect()));
        }
        blocks
    }

    pub(super) fn table(&self) -> v1::Replicas {
        let row = |(id, replica): (&ReplicaId, &Replica)| {
            let own = replica.known.view.tiers().map(|(medium, slot, _)| v1::Tier {
                slot,
                medium: match medium {
                    Medium::Cpu => v1::tier::Medium::Cpu.into(),
                    _ => v1::tier::Medium::Disk.into(),
                },
            });
            v1::Replica {
                slot: replica.slot,
                endpoint: replica.known.endpoint.clone(),
                rank: replica.known.rank,
                pool: replica.known.pool.clone(),
                model: replica.known.model.clone(),
                block_tokens: replica.block_tokens,
                dropped_tokens: replica.dropped_tokens,
                weight: u32::from(replica.known.weight),
                state: replica.state().into(),
                tiers: own.chain(self.store_tier(*id)).collect(),
                partial: replica.is_partial(),
                ends: replica.known.view.ends().map(|slot| v1::Ends { slot }),
                caches_nothing: replica.caches_nothing,
                other_root: self.has_other_root(replica),
                adapters_known: replica.adapters.is_some(),
                adapters: replica
                    .adapters
                    .as_ref()
                    .map(|adapters| adapters.names().to_vec())
                    .unwrap_or_default(),
            }
        };
        v1::Replicas { replicas: self.replicas.iter().map(row).collect() }
    }
}
