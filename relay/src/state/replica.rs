//! One replica, as the state knows it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};
use warmpath_proto::v1::{self, replica::State as ReplicaState};

use crate::counters::Counters;
use crate::index::View;
use crate::load::{Load, Report};

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
    /// The store that it shares with others, by name.
    pub store: Option<String>,
    /// Its empty view.
    pub view: View,
    /// Counted by the tasks about it.
    pub counters: Arc<Counters>,
}

#[allow(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(super) struct Replica {
    pub(super) known: Known,
    pub(super) slot: u32,
    pub(super) heard: bool,
    pub(super) up: Option<bool>,
    pub(super) load: Option<Load>,
    pub(super) load_told: Option<Load>,
    pub(super) settled: bool,
    /// The models that its engine serves in place of the one that it is said to serve.
    pub(super) wrong: Option<String>,
    /// A person said that it takes nothing new.
    pub(super) drained: bool,
    /// Since when it has been running requests without an event.
    pub(super) mute_since: Option<Instant>,
    pub(super) mute: bool,
    pub(super) sequence: Option<u64>,
    pub(super) clears: BTreeMap<&'static str, u64>,
    pub(super) block_tokens: u32,
}

impl Replica {
    pub(super) fn new(known: Known, slot: u32) -> Self {
        Self {
            slot,
            heard: false,
            up: None,
            load: None,
            load_told: None,
            settled: !known.has_events,
            wrong: None,
            drained: false,
            mute_since: None,
            mute: false,
            sequence: None,
            clears: BTreeMap::new(),
            block_tokens: 0,
            known,
        }
    }

    pub(super) fn state(&self) -> ReplicaState {
        if self.up != Some(true) || self.wrong.is_some() {
            ReplicaState::Down
        } else if self.known.draining || self.drained {
            ReplicaState::Draining
        } else if self.known.has_events && (!self.heard || self.mute) {
            ReplicaState::Suspect
        } else {
            ReplicaState::Ready
        }
    }

    pub(super) fn serves(&mut self, wrong: Option<String>) {
        let (engine, rank) = (&self.known.endpoint, self.known.rank);
        match (&self.wrong, &wrong) {
            (before, Some(lists)) if before.as_ref() != Some(lists) => {
                let model = &self.known.model;
                warn!(engine, rank, model, lists, "it serves another model; nothing is sent there");
            }
            (Some(_), None) => {
                info!(engine, rank, model = self.known.model, "it serves its model again");
            }
            _ => {}
        }
        self.wrong = wrong;
    }

    /// An engine that runs requests fills blocks, and says so. One that doesn't for long isn't
    /// heard, whatever its connection looks like.
    pub(super) fn listen_for_silence(&mut self, report: &Report) {
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

    pub(super) fn load_is_news(&self) -> bool {
        match (self.load, self.load_told) {
            (Some(now), Some(told)) => {
                now.waiting != told.waiting
                    || now.running != told.running
                    || (now.kv_usage - told.kv_usage).abs() >= KV_STEP
            }
            (now, told) => now != told,
        }
    }

    pub(super) fn tell_load(&mut self) -> Option<v1::Load> {
        self.load_told = self.load;
        Some(message(self.slot, self.load?))
    }
}

pub(super) fn message(slot: u32, load: Load) -> v1::Load {
    v1::Load { slot, waiting: load.waiting, running: load.running, kv_usage: load.kv_usage }
}
