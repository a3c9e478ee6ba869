//! The one task that owns what the relay knows: views, loads, states, and who listens.
//!
//! Everything comes to it as messages over a bounded channel and leaves it as deltas to bounded
//! queues, one per side-stream. A stream that doesn't keep up is ended; it comes again and gets a
//! snapshot.

mod adapters;
mod gateways;
mod lessons;
pub mod message;
pub mod policy_pools;
mod registration;
mod replica;
mod roots;
mod stores;
mod streams;
mod subscription;
mod summarize;
mod summary;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::info;
use warmpath_routing::fingerprint::Key;

use crate::engine::ranks::Heard;
use crate::engine::report::{Report, Sleep};
use crate::events::{Batch, Event, Medium};
use crate::index::{Changes, Slots};
use gateways::Warned;
use message::{Doubt, Message, ReplicaId};
pub use registration::Registration;
use replica::Replica;
use stores::{Store, StoreKey};
use streams::{Listener, MAX_STREAMS};
pub use subscription::{Delta, Deltas, Subscription};
pub use summary::{
    EndsSummary, Holder, PoolMismatch, ReplicaSummary, StoreSummary, Summary, TierSummary,
};

/// Time between two deltas: a change goes at once if the last delta is that long ago.
const FLUSH_EVERY: Duration = Duration::from_millis(2);
/// The same for loads, which engines are asked for a few times a second: one message for those of
/// many engines.
const LOADS_EVERY: Duration = Duration::from_millis(50);
/// Time between two looks for what answers taught too long ago.
const EXPIRE_EVERY: Duration = Duration::from_secs(10);
/// Keys at which a delta goes at once.
const FLUSH_KEYS: usize = 4096;
/// Longest time that the first snapshots wait for replays and first polls.
const SETTLE: Duration = Duration::from_secs(1);

/// The state; see the module.
pub struct State {
    replicas: BTreeMap<ReplicaId, Replica>,
    /// What persons drained, also for when it comes back.
    drained: BTreeSet<(String, Option<u32>)>,
    /// Shared stores that were heard of.
    stores: BTreeMap<StoreKey, Store>,
    slots: Slots,
    changes: Changes,
    replicas_changed: bool,
    loads_changed: bool,
    flush_at: Option<Instant>,
    flushed_at: Instant,
    loads_told_at: Instant,
    listeners: Vec<Listener>,
    early: Vec<oneshot::Sender<Subscription>>,
    settled: bool,
    streams_opened: u64,
    streams_too_slow: u64,
    warned: Warned,
}

impl State {
    /// Nothing known yet but which replicas there are; they are numbered from 0 on.
    pub fn new(known: Vec<Registration>) -> Self {
        let mut slots = Slots::default();
        let replicas: BTreeMap<_, _> = known
            .into_iter()
            .map(|known| Replica::new(known, slots.take().unwrap_or(u32::MAX)))
            .enumerate()
            .collect();
        let configured: Vec<_> = replicas
            .iter()
            .filter_map(|(id, replica)| Some((*id, replica.known.adapters.clone()?)))
            .collect();
        let mut state = Self {
            replicas,
            drained: BTreeSet::new(),
            stores: BTreeMap::new(),
            slots,
            changes: Changes::default(),
            replicas_changed: false,
            loads_changed: false,
            flush_at: None,
            flushed_at: Instant::now(),
            loads_told_at: Instant::now(),
            listeners: Vec::new(),
            early: Vec::new(),
            settled: false,
            streams_opened: 0,
            streams_too_slow: 0,
            warned: Warned::default(),
        };
        for (id, adapters) in configured {
            state.configured(id, Some(adapters));
        }
        state
    }

    /// Runs until `stop`, or until nobody can send messages any more.
    pub async fn run(mut self, mut messages: mpsc::Receiver<Message>, stop: CancellationToken) {
        let settle_at = Instant::now() + SETTLE;
        let mut batch = Vec::with_capacity(256);
        let mut expiry = tokio::time::interval(EXPIRE_EVERY);
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
                _ = expiry.tick() => self.expire_taught(),
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
            Message::Engines { replica, engines } => {
                self.ranks(replica, |r| r.learn_engines(engines));
            }
            Message::Sleep { replica, sleep } => self.sleep(replica, sleep),
            Message::Caches { replica, caches } => self.update(replica, |r| r.caches(caches)),
            Message::Speculates { replica, speculates } => {
                self.update(replica, |r| r.learn_speculation(speculates));
            }
            Message::OtherRank { replica, rank } => {
                self.ranks(replica, |r| r.ranks.skipped(rank));
            }
            Message::Serves { replica, wrong, adapters, root } => {
                self.update(replica, |r| r.serves(wrong));
                self.rooted(replica, root);
                self.listed(replica, adapters);
            }
            Message::Subscribe { reply } => {
                if self.settled {
                    self.subscribe(reply);
                } else if self.early.len() < MAX_STREAMS {
                    self.early.push(reply);
                }
            }
            Message::Policy { stream, node, pools } => self.policy(stream, node, pools),
            Message::Lessons { lessons } => self.learn(&lessons),
            Message::Join { replica, known } => self.join(replica, *known),
            Message::Leave { replica } => self.leave(replica),
            Message::Reconfigure { replica, draining, weight, adapters } => {
                self.update(replica, |replica| {
                    replica.known.draining = draining;
                    replica.known.weight = weight;
                });
                self.configured(replica, adapters);
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
        let told = |replica: &Replica| {
            let Replica { slot, block_tokens, known, adapters, caches_nothing, .. } = replica;
            let adapters = adapters.clone();
            let told = (adapters, replica.is_partial(), *caches_nothing);
            let blocks = (*block_tokens, replica.dropped_tokens);
            (replica.state(), *slot, blocks, known.weight, told)
        };
        let before = told(replica);
        change(replica);
        if before != told(replica) {
            self.replicas_changed = true;
            self.soon();
        }
    }

    /// An engine that sleeps would keep requests waiting until somebody wakes it.
    fn sleep(&mut self, id: usize, sleep: Option<Sleep>) {
        let Some(replica) = self.replicas.get(&id) else { return };
        let (engine, rank) = (&replica.known.endpoint, replica.known.rank);
        info!(engine, rank, asleep = sleep.is_some(), "the engine's sleep state changed");
        if sleep == Some(Sleep::Emptied) {
            self.new_life(id, "engine_asleep");
            if let Some(replica) = self.replicas.get_mut(&id) {
                replica.known.view.clear();
            }
        }
        self.update(id, |replica| replica.sleep = sleep);
    }

    /// Learns something of a replica's data-parallel rank.
    fn ranks(&mut self, id: usize, learn: impl FnOnce(&mut Replica)) {
        if let Some(replica) = self.replicas.get_mut(&id) {
            learn(replica);
            replica.check_rank();
        }
    }

    fn batch(&mut self, id: usize, sequence: u64, batch: &Batch) {
        self.ranks(id, |replica| replica.ranks.took(batch.rank));
        let cleared = batch.events.contains(&Event::Cleared);
        for event in &batch.events {
            if *event == Event::Cleared {
                self.new_life(id, "engine_cleared");
            }
            if !self.tell_store(id, event) {
                self.open_ends(id, event);
                self.open_tier(id, event);
                self.apply(id, event);
            }
            if self.changes.len() >= FLUSH_KEYS {
                self.flush();
            }
        }
        self.update(id, |replica| {
            replica.late |= replica.sequence.is_none() && sequence > 0 && !cleared;
            replica.late &= !cleared;
            replica.sequence = Some(sequence);
            replica.mute = false;
            replica.mute_since = None;
            replica.block_tokens = replica.known.view.block_tokens();
            replica.dropped_tokens = replica.known.view.dropped_tokens();
        });
        if !self.changes.is_empty() {
            self.soon();
        }
    }

    /// The first event of a further group: from then on the ends of hits have a slot of their own.
    fn open_ends(&mut self, id: ReplicaId, event: &Event) {
        if !self.replicas.get(&id).is_some_and(|r| r.known.view.lacks_ends(event)) {
            return;
        }
        let slot = self.take_slot();
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        info!(
            engine = replica.known.endpoint,
            rank = replica.known.rank,
            "the engine has several KV cache groups"
        );
        replica.known.view.open_ends(slot, &mut self.changes);
        self.replicas_changed = true;
        self.soon();
    }

    /// The first event of a tier: from then on the tier has a slot of its own.
    fn open_tier(&mut self, id: ReplicaId, event: &Event) {
        let unopened = self.replicas.get(&id).and_then(|r| r.known.view.unopened(event));
        let Some(medium) = unopened else { return };
        let slot = self.take_slot();
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        info!(
            engine = replica.known.endpoint,
            rank = replica.known.rank,
            tier = medium.name(),
            "the engine offloads KV blocks"
        );
        replica.known.view.open(medium, slot, &mut self.changes);
        self.replicas_changed = true;
        self.soon();
    }

    fn doubt(&mut self, id: usize, why: Doubt) {
        self.doubt_store(id, why);
        self.new_life(id, why.name());
        if let Some(replica) = self.replicas.get_mut(&id) {
            replica.known.view.clear();
            replica.sequence = None;
            replica.late = false;
            // Whoever publishes next may be another.
            replica.ranks = Heard::default();
        }
    }

    /// Gives a replica whose cache is gone, or not known any more, a new slot, if anything was
    /// announced under the old one.
    fn new_life(&mut self, id: usize, why: &'static str) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let count = replica.known.view.len() + replica.taught.len();
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
        if let Some(replica) = self.replicas.get_mut(&id) {
            replica.taught.clear();
        }
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

    /// A slot that nobody has.
    fn take_slot(&mut self) -> u32 {
        if let Some(slot) = self.slots.take() {
            return slot;
        }
        self.restart_slots();
        self.slots.take().unwrap_or(u32::MAX)
    }

    /// All numbers were used: within a new epoch they can be used again.
    fn restart_slots(&mut self) {
        self.changes.take();
        self.listeners.clear();
        self.slots.restart();
        let mut next = || self.slots.take().unwrap_or(u32::MAX);
        for replica in self.replicas.values_mut() {
            replica.slot = next();
            replica.load_told = None;
            let tiers: Vec<_> = replica.known.view.tiers().map(|(medium, ..)| medium).collect();
            for medium in tiers {
                replica.known.view.move_to(medium, next());
            }
            if replica.known.view.ends().is_some() {
                replica.known.view.move_ends(next());
            }
        }
        for store in self.stores.values_mut() {
            store.slot = next();
        }
    }

    fn join(&mut self, id: ReplicaId, known: Registration) {
        let drained = self.drained.contains(&(known.endpoint.clone(), known.rank));
        let slot = self.slots.take();
        self.compare_pool(&known.pool, &known.model);
        let adapters = known.adapters.clone();
        let replica = Replica::new(known, slot.unwrap_or(u32::MAX));
        self.replicas.insert(id, Replica { drained, ..replica });
        self.configured(id, adapters);
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
            self.retain_stores();
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
            info!(
                engine = name.0,
                rank = name.1,
                drain,
                "an operator drained the replica, or undid that"
            );
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
        let holder = |(id, replica): (&ReplicaId, &Replica)| {
            let store = || self.stores.get(&self.store_of(*id)?).filter(|s| s.view.holds(key));
            match replica.known.view.held_in(key) {
                Some(medium) => Some(replica.holder(medium)),
                None if replica.taught.holds(key) => Some(replica.holder(Medium::Gpu)),
                None => store().map(|_| replica.holder(Medium::Other)),
            }
        };
        self.replicas.iter().filter_map(holder).collect()
    }

    fn report(&mut self, id: usize, report: &Report) {
        self.update(id, |replica| {
            replica.up = Some(report.up);
            replica.listen_for_silence(report);
        });
        if !report.up {
            self.unlisted(id);
        }
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        replica.take_load(report);
        if report.round_trip.is_some() {
            replica.round_trip = report.round_trip;
        }
        if replica.load_is_news() {
            self.loads_changed = true;
            self.flush_by(self.loads_told_at + LOADS_EVERY);
        }
    }

    fn soon(&mut self) {
        self.flush_by(self.flushed_at + FLUSH_EVERY);
    }

    fn flush_by(&mut self, at: Instant) {
        self.flush_at = Some(self.flush_at.map_or(at, |before| before.min(at)));
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
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}
