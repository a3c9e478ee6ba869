//! One replica, as the state knows it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};
use warmpath_proto::v1::{self, replica::State as ReplicaState};

use super::registration::Registration;
use crate::engine::adapters::Adapters;
use crate::engine::ranks::{Heard, Problem, Rank};
use crate::engine::report::{Engines, Load, Report, Sleep};
use crate::index::Taught;

/// Change of KV usage that is worth a message.
const KV_STEP: f32 = 0.005;
/// Change of the round trip that is, in microseconds; of a long one a tenth.
const RTT_STEP_US: u32 = 100;

/// Polls without a load after which the last one is worth nothing: two seconds by default.
const MOST_BLIND: u32 = 10;

#[allow(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(super) struct Replica {
    pub(super) known: Registration,
    pub(super) slot: u32,
    pub(super) heard: bool,
    pub(super) up: Option<bool>,
    pub(super) load: Option<Load>,
    /// Polls in a row that found no load.
    pub(super) blind: u32,
    /// The network's round trip to it.
    pub(super) round_trip: Option<Duration>,
    pub(super) load_told: Option<v1::Load>,
    pub(super) settled: bool,
    /// The models that its engine serves in place of the one that it is said to serve.
    pub(super) wrong: Option<String>,
    /// Where its engine has its model from, as far as it says.
    pub(super) root: Option<String>,
    /// Its engine says that it keeps no prefix cache.
    pub(super) caches_nothing: bool,
    /// A person said that it takes nothing new.
    pub(super) drained: bool,
    /// Its engine said what it serves.
    pub(super) lists: bool,
    /// The adapters that it has, as far as that is known.
    pub(super) adapters: Option<Adapters>,
    /// Since when it has been running requests without an event.
    pub(super) mute_since: Option<Instant>,
    pub(super) mute: bool,
    pub(super) sequence: Option<u64>,
    /// Its events were not heard from the first one on.
    pub(super) late: bool,
    /// What answers taught of it for that reason.
    pub(super) taught: Taught,
    pub(super) clears: BTreeMap<&'static str, u64>,
    pub(super) block_tokens: u32,
    /// What its engine drops behind a hit.
    pub(super) dropped_tokens: u32,
    /// Its engine speculates.
    pub(super) speculates: bool,
    /// Its engine sleeps.
    pub(super) sleep: Option<Sleep>,
    /// The data-parallel ranks of its engine's API.
    pub(super) engines: Engines,
    /// Those of its batches.
    pub(super) ranks: Heard,
    pub(super) rank_problem: Option<Problem>,
}

impl Replica {
    pub(super) fn new(known: Registration, slot: u32) -> Self {
        Self {
            slot,
            heard: false,
            up: None,
            load: None,
            blind: 0,
            round_trip: None,
            load_told: None,
            settled: !known.has_events,
            wrong: None,
            root: None,
            caches_nothing: false,
            drained: false,
            lists: false,
            adapters: None,
            mute_since: None,
            mute: false,
            sequence: None,
            late: false,
            taught: Taught::default(),
            clears: BTreeMap::new(),
            block_tokens: 0,
            dropped_tokens: 0,
            speculates: false,
            sleep: None,
            engines: Engines::default(),
            ranks: Heard::default(),
            rank_problem: None,
            known,
        }
    }

    pub(super) fn state(&self) -> ReplicaState {
        if self.up != Some(true) || self.wrong.is_some() {
            ReplicaState::Down
        } else if self.known.draining || self.drained || self.sleep.is_some() {
            ReplicaState::Draining
        } else if self.known.has_events && (!self.heard || self.mute) {
            ReplicaState::Suspect
        } else {
            ReplicaState::Ready
        }
    }

    /// Whether it may hold more than its events have told, and lessons are to be had of it. Not of an
    /// engine with several groups of KV cache, where what one answer says of a prefix need not hold
    /// for the next.
    pub(super) fn is_partial(&self) -> bool {
        self.late && !self.known.view.has_several_groups()
    }

    pub(super) fn serves(&mut self, wrong: Option<String>) {
        let (engine, rank) = (&self.known.endpoint, self.known.rank);
        match (&self.wrong, &wrong) {
            (before, Some(lists)) if before.as_ref() != Some(lists) => {
                let model = &self.known.model;
                warn!(
                    engine,
                    rank,
                    model,
                    lists,
                    "the engine serves another model; no requests are sent there"
                );
            }
            (Some(_), None) => {
                info!(engine, rank, model = self.known.model, "the engine serves its model again");
            }
            _ => {}
        }
        self.wrong = wrong;
    }

    pub(super) fn caches(&mut self, caches: bool) {
        let Registration { endpoint: engine, rank, .. } = &self.known;
        if !caches && !self.caches_nothing {
            warn!(
                engine,
                rank, "prefix caching is off in this engine: no request will find its prefix there"
            );
        }
        self.caches_nothing = !caches;
    }

    /// Whether its engine speculates in a way that isn't configured, and may drop a block of each hit.
    pub(super) fn speculates_unsaid(&self) -> bool {
        self.speculates && !self.known.says_speculation
    }

    pub(super) fn learn_speculation(&mut self, speculates: bool) {
        let before = self.speculates_unsaid();
        self.speculates = speculates;
        if self.speculates_unsaid() && !before {
            let Registration { endpoint: engine, rank, model, .. } = &self.known;
            warn!(
                engine,
                rank,
                model,
                "it speculates, and the model's `speculative_config` isn't set: with MTP or EAGLE it \
                 gives back a block of each hit, and a block too much is expected"
            );
        }
    }

    /// Compares the rank that is configured with what the engine shows.
    pub(super) fn check_rank(&mut self) {
        let Registration { endpoint, rank, events_rank, .. } = &self.known;
        let problem =
            Rank { header: *rank, events: *events_rank }.problem(&self.engines, &self.ranks);
        if problem != self.rank_problem
            && let Some(problem) = problem
        {
            let ranks = &self.engines.ranks;
            let (problem, advice) = (problem.name(), problem.advice());
            warn!(engine = endpoint, rank, events_rank, ?ranks, problem, "{advice}");
        }
        self.rank_problem = problem;
    }

    /// The kind of its engine, if that isn't the one that its model's prompts are made for.
    pub(super) fn other_engine(&self) -> Option<&'static str> {
        self.engines.kind.filter(|kind| *kind != self.known.engine)
    }

    /// Takes what its metrics say of its engine.
    pub(super) fn learn_engines(&mut self, engines: Engines) {
        let before = self.other_engine();
        self.engines = engines;
        if let Some(found) = self.other_engine().filter(|found| before != Some(found)) {
            let Registration { endpoint, model, engine, .. } = &self.known;
            warn!(
                engine = endpoint,
                model,
                found,
                configured = engine,
                "its prompts are made for another engine: set the model's engine, and give each kind \
                 a model of its own"
            );
        }
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
                        "the engine runs requests but publishes no events; its cache is not relied on"
                    );
                }
            }
            Some(_) => self.mute_since = None,
            None => {}
        }
    }

    /// A load that was not seen for some polls is none: it may be any by now.
    pub(super) fn take_load(&mut self, report: &Report) {
        if report.load.is_some() {
            (self.load, self.blind) = (report.load, 0);
            return;
        }
        self.blind = self.blind.saturating_add(1);
        if self.blind >= MOST_BLIND && self.load.take().is_some() && report.up {
            warn!(
                engine = self.known.endpoint,
                rank = self.known.rank,
                "the engine's /metrics shows no load any more: only what this gateway sends is known"
            );
        }
    }

    pub(super) fn load_is_news(&self) -> bool {
        match (self.load_now(), self.load_told) {
            (Some(now), Some(told)) => {
                now.waiting != told.waiting
                    || now.running != told.running
                    || (now.kv_usage - told.kv_usage).abs() >= KV_STEP
                    || now.rtt_us.abs_diff(told.rtt_us) > RTT_STEP_US.max(told.rtt_us / 10)
            }
            (now, told) => now != told,
        }
    }

    /// How busy it is and how far; none of what isn't known yet.
    pub(super) fn load_now(&self) -> Option<v1::Load> {
        if self.load.is_none() && self.round_trip.is_none() {
            return None;
        }
        let Load { waiting, running, kv_usage } = self.load.unwrap_or_default();
        let micros = self.round_trip.map_or(0, |trip| trip.as_micros().max(1));
        let rtt_us = u32::try_from(micros).unwrap_or(u32::MAX);
        Some(v1::Load { slot: self.slot, waiting, running, kv_usage, rtt_us })
    }

    pub(super) fn tell_load(&mut self) -> Option<v1::Load> {
        self.load_told = self.load_now();
        self.load_told
    }
}
