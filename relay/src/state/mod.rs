//! The one task that owns what the relay knows: views, loads, states, and who listens.
//!
//! Everything comes to it as messages over a bounded channel and leaves it as deltas to bounded
//! queues, one per side-stream. A stream that doesn't keep up is ended; it comes again and gets a
//! snapshot.

mod summary;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{info, warn};
use warmpath_proto::v1::{self, down::Body, replica::State as ReplicaState};
use warmpath_routing::fingerprint::{KEY_BYTES, Key};

use crate::counters::Counters;
use crate::events::{Batch, Event};
use crate::index::{Changes, Slots, View};
use crate::load::{Load, Report};
use crate::message::{Doubt, Message, ReplicaId};
pub use summary::{Holder, ReplicaSummary, Summary};

/// Time between two deltas: a change goes at once if the last delta is that long ago.
const FLUSH_EVERY: Duration = Duration::from_millis(2);
/// Keys at which a delta goes at once.
const FLUSH_KEYS: usize = 4096;
/// Deltas that a stream may be behind, and bytes in any case. The bytes go up to twice a snapshot's:
/// beyond that a snapshot is the shorter way, and what the stream says is old.
const QUEUE: usize = 4096;
const QUEUE_BYTES: usize = 8 << 20;
/// Longest time that the first snapshots wait for replays and first polls.
const SETTLE: Duration = Duration::from_secs(1);
/// Streams at the same time; each Envoy has one.
const MAX_STREAMS: usize = 1024;
/// Change of KV usage that is worth a message.
const KV_STEP: f32 = 0.005;

/// What the state is told about a replica at start.
#[derive(Debug)]
pub struct Known {
    /// `ip:port` of its API.
    pub endpoint: String,
    /// Its data-parallel rank.
    pub rank: Option<u32>,
    /// Its pool.
    pub pool: String,
    /// Its model's name.
    pub model: String,
    /// Whether it takes nothing new.
    pub draining: bool,
    /// Whether its engine's events are subscribed to.
    pub has_events: bool,
    /// Time with running requests but without events after which its events are doubted; none for
    /// never.
    pub silence: Option<Duration>,
    /// Its empty view.
    pub view: View,
    /// Counted by the tasks about it.
    pub counters: Arc<Counters>,
}

#[allow(clippy::struct_excessive_bools, reason = "they are independent of each other")]
struct Replica {
    known: Known,
    slot: u32,
    heard: bool,
    up: Option<bool>,
    load: Option<Load>,
    load_told: Option<Load>,
    settled: bool,
    /// A person said that it takes nothing new.
    drained: bool,
    /// Since when it has been running requests without an event.
    mute_since: Option<Instant>,
    mute: bool,
    sequence: Option<u64>,
    clears: BTreeMap<&'static str, u64>,
    block_tokens: u32,
}

/// A delta, shared by all streams.
#[derive(Debug)]
pub struct Delta {
    /// In order.
    pub bodies: Vec<Body>,
    bytes: usize,
}

/// What a new stream begins with, and what follows.
#[derive(Debug)]
pub struct Subscription {
    /// The whole table.
    pub replicas: v1::Replicas,
    /// All loads.
    pub loads: v1::Loads,
    /// Held keys by slot.
    pub blocks: Vec<(u32, Vec<Key>)>,
    /// What changed since.
    pub deltas: Deltas,
}

/// A stream's queue.
#[derive(Debug)]
pub struct Deltas {
    receiver: mpsc::Receiver<Arc<Delta>>,
    bytes: Arc<AtomicUsize>,
    /// Cancelled when the stream is to end: it was too slow, or the relay starts its slots anew.
    pub ended: CancellationToken,
}

impl Deltas {
    /// The next delta; none when the state is gone.
    pub async fn next(&mut self) -> Option<Arc<Delta>> {
        let delta = self.receiver.recv().await?;
        self.bytes.fetch_sub(delta.bytes, Ordering::Relaxed);
        Some(delta)
    }
}

struct Listener {
    sender: mpsc::Sender<Arc<Delta>>,
    bytes: Arc<AtomicUsize>,
    _end: DropGuard,
}

/// The state; see the module.
pub struct State {
    replicas: BTreeMap<ReplicaId, Replica>,
    /// What persons drained, also for when it comes back.
    drained: BTreeSet<(String, Option<u32>)>,
    slots: Slots,
    changes: Changes,
    replicas_changed: bool,
    loads_changed: bool,
    flush_at: Option<Instant>,
    flushed_at: Instant,
    listeners: Vec<Listener>,
    early: Vec<oneshot::Sender<Subscription>>,
    settled: bool,
    streams_opened: u64,
    streams_too_slow: u64,
}

impl State {
    /// Nothing known yet but which replicas there are; they are numbered from 0 on.
    pub fn new(known: Vec<Known>) -> Self {
        let mut slots = Slots::default();
        let replicas = known
            .into_iter()
            .map(|known| Replica::new(known, slots.take().unwrap_or(u32::MAX)))
            .enumerate()
            .collect();
        Self {
            replicas,
            drained: BTreeSet::new(),
            slots,
            changes: Changes::default(),
            replicas_changed: false,
            loads_changed: false,
            flush_at: None,
            flushed_at: Instant::now(),
            listeners: Vec::new(),
            early: Vec::new(),
            settled: false,
            streams_opened: 0,
            streams_too_slow: 0,
        }
    }

    /// Runs until `stop`, or until nobody can send messages any more.
    pub async fn run(mut self, mut messages: mpsc::Receiver<Message>, stop: CancellationToken) {
        let settle_at = Instant::now() + SETTLE;
        let mut batch = Vec::with_capacity(256);
        loop {
            let flush_at = self.flush_at;
            tokio::select! {
                n = messages.recv_many(&mut batch, 256) => {
                    if n == 0 {
                        return;
                    }
                    for message in batch.drain(..) {
                        self.take(message);
                    }
                }
                () = at(flush_at), if flush_at.is_some() => self.flush(),
                () = tokio::time::sleep_until(settle_at), if !self.settled => self.settle(),
                () = stop.cancelled() => return,
            }
            let settled = |r: &Replica| r.settled && r.up.is_some();
            if !self.settled && self.replicas.values().all(settled) {
                self.settle();
            }
            if self.flush_at.is_some_and(|at| at <= Instant::now()) {
                self.flush();
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Batch { replica, sequence, batch } => self.batch(replica, sequence, &batch),
            Message::Clear { replica, why } => self.doubt(replica, why),
            Message::Heard { replica, heard } => self.update(replica, |r| r.heard = heard),
            Message::Settled { replica } => self.update(replica, |r| r.settled = true),
            Message::Report { replica, report } => self.report(replica, &report),
            Message::Subscribe { reply } => {
                if self.settled {
                    self.subscribe(reply);
                } else if self.early.len() < MAX_STREAMS {
                    self.early.push(reply);
                }
            }
            Message::Join { replica, known } => self.join(replica, *known),
            Message::Leave { replica } => self.leave(replica),
            Message::Draining { replica, draining } => {
                self.update(replica, |r| r.known.draining = draining);
            }
            Message::Drain { endpoint, rank, drain, reply } => {
                let _ = reply.send(self.drain(&endpoint, rank, drain));
            }
            Message::Holders { key, reply } => {
                let _ = reply.send(self.holders(&key));
            }
            Message::Summarize { reply } => {
                let _ = reply.send(self.summary());
            }
        }
    }

    /// Changes a replica, and notes when that changes the table.
    fn update(&mut self, id: usize, change: impl FnOnce(&mut Replica)) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let before = (replica.state(), replica.slot, replica.block_tokens);
        change(replica);
        if before != (replica.state(), replica.slot, replica.block_tokens) {
            self.replicas_changed = true;
            self.soon();
        }
    }

    fn batch(&mut self, id: usize, sequence: u64, batch: &Batch) {
        for event in &batch.events {
            if *event == Event::Cleared {
                self.new_life(id, "engine_cleared");
            }
            let Some(replica) = self.replicas.get_mut(&id) else { return };
            replica.known.view.apply(event, replica.slot, &mut self.changes);
            if self.changes.len() >= FLUSH_KEYS {
                self.flush();
            }
        }
        self.update(id, |replica| {
            replica.sequence = Some(sequence);
            replica.mute = false;
            replica.mute_since = None;
            replica.block_tokens = replica.known.view.block_tokens();
        });
        if !self.changes.is_empty() {
            self.soon();
        }
    }

    fn doubt(&mut self, id: usize, why: Doubt) {
        self.new_life(id, why.name());
        if let Some(replica) = self.replicas.get_mut(&id) {
            replica.known.view.clear();
            replica.sequence = None;
        }
    }

    /// Gives a replica whose cache is gone, or not known any more, a new slot, if anything was
    /// announced under the old one.
    fn new_life(&mut self, id: usize, why: &'static str) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let count = replica.known.view.len();
        if count == 0 && replica.known.view.held_blocks() == 0 {
            return;
        }
        *replica.clears.entry(why).or_default() += 1;
        info!(
            engine = replica.known.endpoint,
            rank = replica.known.rank,
            why,
            prefixes = count,
            "view cleared"
        );
        // What was said of the old slot goes before the table that no longer has it.
        self.flush();
        if let Some(slot) = self.slots.take() {
            if let Some(replica) = self.replicas.get_mut(&id) {
                replica.slot = slot;
                replica.load_told = None;
            }
        } else {
            if let Some(replica) = self.replicas.get_mut(&id) {
                replica.known.view.clear();
            }
            self.restart_slots();
        }
        self.replicas_changed = true;
        self.loads_changed = true;
        self.soon();
    }

    /// All numbers were used: within a new epoch they can be used again.
    fn restart_slots(&mut self) {
        self.changes.take();
        self.listeners.clear();
        self.slots.restart();
        for replica in self.replicas.values_mut() {
            replica.slot = self.slots.take().unwrap_or(u32::MAX);
            replica.load_told = None;
        }
    }

    fn join(&mut self, id: ReplicaId, known: Known) {
        let drained = self.drained.contains(&(known.endpoint.clone(), known.rank));
        let slot = self.slots.take();
        let replica = Replica::new(known, slot.unwrap_or(u32::MAX));
        self.replicas.insert(id, Replica { drained, ..replica });
        if slot.is_none() {
            self.restart_slots();
        }
        self.replicas_changed = true;
        self.soon();
    }

    fn leave(&mut self, id: ReplicaId) {
        // What was said of its slot goes before the table that no longer has it.
        self.flush();
        if self.replicas.remove(&id).is_some() {
            self.replicas_changed = true;
            self.soon();
        }
    }

    fn drain(&mut self, endpoint: &str, rank: Option<u32>, drain: bool) -> usize {
        let mut meant = Vec::new();
        for (&id, Replica { known, .. }) in &self.replicas {
            if known.endpoint == endpoint && (rank.is_none() || rank == known.rank) {
                meant.push((id, (known.endpoint.clone(), known.rank)));
            }
        }
        let count = meant.len();
        for (id, name) in meant {
            info!(engine = name.0, rank = name.1, drain, "drained by hand, or no more");
            if drain {
                self.drained.insert(name);
            } else {
                self.drained.remove(&name);
            }
            self.update(id, |replica| replica.drained = drain);
        }
        count
    }

    fn holders(&self, key: &Key) -> Vec<Holder> {
        let holds = |replica: &&Replica| replica.known.view.holds(key);
        self.replicas.values().filter(holds).map(Replica::holder).collect()
    }

    fn report(&mut self, id: usize, report: &Report) {
        self.update(id, |replica| {
            replica.up = Some(report.up);
            replica.listen_for_silence(report);
        });
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        if report.load.is_some() {
            replica.load = report.load;
        }
        if replica.load_is_news() {
            self.loads_changed = true;
            self.soon();
        }
    }

    fn soon(&mut self) {
        let at = self.flushed_at + FLUSH_EVERY;
        self.flush_at.get_or_insert(at);
    }

    /// Sends what changed to all streams: the table first, so that blocks find their slot there.
    fn flush(&mut self) {
        self.flush_at = None;
        self.flushed_at = Instant::now();
        let mut bodies = Vec::new();
        if std::mem::take(&mut self.replicas_changed) {
            bodies.push(Body::Replicas(self.table()));
        }
        bodies.extend(self.changes.take().into_iter().map(Body::Blocks));
        if std::mem::take(&mut self.loads_changed) {
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
            warn!(streams = too_slow, "ended side-streams that don't keep up");
        }
    }

    fn most_queued(&self) -> usize {
        let keys: usize = self.replicas.values().map(|replica| replica.known.view.len()).sum();
        (2 * KEY_BYTES * keys).max(QUEUE_BYTES)
    }

    fn settle(&mut self) {
        self.settled = true;
        let replicas = self.replicas.len();
        let prefixes: usize = self.replicas.values().map(|replica| replica.known.view.len()).sum();
        info!(replicas, prefixes, "ready");
        for reply in std::mem::take(&mut self.early) {
            self.subscribe(reply);
        }
    }

    fn subscribe(&mut self, reply: oneshot::Sender<Subscription>) {
        self.flush();
        self.listeners.retain(|listener| !listener.sender.is_closed());
        if self.listeners.len() >= MAX_STREAMS || reply.is_closed() {
            return;
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        let bytes = Arc::new(AtomicUsize::new(0));
        let ended = CancellationToken::new();
        let listener =
            Listener { sender, bytes: Arc::clone(&bytes), _end: ended.clone().drop_guard() };
        let loads = self.replicas.values().filter_map(|r| Some(message(r.slot, r.load?))).collect();
        let subscription = Subscription {
            replicas: self.table(),
            loads: v1::Loads { loads },
            blocks: self
                .replicas
                .values()
                .map(|replica| (replica.slot, replica.known.view.keys().collect()))
                .collect(),
            deltas: Deltas { receiver, bytes, ended },
        };
        if reply.send(subscription).is_ok() {
            self.streams_opened += 1;
            self.listeners.push(listener);
        }
    }

    fn table(&self) -> v1::Replicas {
        let replica = |replica: &Replica| v1::Replica {
            slot: replica.slot,
            endpoint: replica.known.endpoint.clone(),
            rank: replica.known.rank,
            pool: replica.known.pool.clone(),
            model: replica.known.model.clone(),
            block_tokens: replica.block_tokens,
            state: replica.state().into(),
        };
        v1::Replicas { replicas: self.replicas.values().map(replica).collect() }
    }
}

impl Replica {
    fn new(known: Known, slot: u32) -> Self {
        Self {
            slot,
            heard: false,
            up: None,
            load: None,
            load_told: None,
            settled: !known.has_events,
            drained: false,
            mute_since: None,
            mute: false,
            sequence: None,
            clears: BTreeMap::new(),
            block_tokens: 0,
            known,
        }
    }

    fn state(&self) -> ReplicaState {
        if self.up != Some(true) {
            ReplicaState::Down
        } else if self.known.draining || self.drained {
            ReplicaState::Draining
        } else if self.known.has_events && (!self.heard || self.mute) {
            ReplicaState::Suspect
        } else {
            ReplicaState::Ready
        }
    }

    /// An engine that runs requests fills blocks, and says so. One that doesn't for long isn't
    /// heard, whatever its connection looks like.
    fn listen_for_silence(&mut self, report: &Report) {
        let Some(limit) = self.known.silence.filter(|_| self.known.has_events) else { return };
        match report.load {
            Some(load) if load.running > 0 => {
                let since = *self.mute_since.get_or_insert_with(Instant::now);
                if !self.mute && self.heard && since.elapsed() >= limit {
                    self.mute = true;
                    warn!(
                        engine = self.known.endpoint,
                        rank = self.known.rank,
                        "it runs requests but publishes no events; its cache isn't believed"
                    );
                }
            }
            Some(_) => self.mute_since = None,
            None => {}
        }
    }

    fn load_is_news(&self) -> bool {
        match (self.load, self.load_told) {
            (Some(now), Some(told)) => {
                now.waiting != told.waiting
                    || now.running != told.running
                    || (now.kv_usage - told.kv_usage).abs() >= KV_STEP
            }
            (now, told) => now != told,
        }
    }

    fn tell_load(&mut self) -> Option<v1::Load> {
        self.load_told = self.load;
        Some(message(self.slot, self.load?))
    }
}

fn message(slot: u32, load: Load) -> v1::Load {
    v1::Load { slot, waiting: load.waiting, running: load.running, kv_usage: load.kv_usage }
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}
