//! What the service counts. Envoy puts `wasmcustom.` before the names.

use warmpath_routing::state::State;

use super::follower::Told;
use crate::host::{Counter, Gauge};

/// Each defined once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Metrics {
    pub(super) connects: Counter,
    pub(super) losses: Counter,
    pub(super) silences: Counter,
    pub(super) gaps: Counter,
    pub(super) messages: Counter,
    pub(super) errors: Counter,
    snapshots: Counter,
    held: Counter,
    lost: Counter,
    evicted: Counter,
    refused: Counter,
    synced: Gauge,
    replicas: Gauge,
    generation: Gauge,
    beat_lag_ms: Gauge,
}

impl Metrics {
    pub(super) fn define() -> Self {
        let counter = |name| Counter::define(&format!("warmpath.sidestream.{name}"));
        let gauge = |name| Gauge::define(&format!("warmpath.sidestream.{name}"));
        Self {
            connects: counter("connects"),
            losses: counter("losses"),
            silences: counter("silences"),
            gaps: counter("gaps"),
            messages: counter("messages"),
            errors: counter("errors"),
            snapshots: counter("snapshots"),
            held: counter("blocks_held"),
            lost: counter("blocks_lost"),
            evicted: counter("blocks_evicted"),
            refused: counter("changes_refused"),
            synced: gauge("synced"),
            replicas: gauge("replicas"),
            generation: gauge("map_generation"),
            beat_lag_ms: gauge("beat_lag_ms"),
        }
    }

    pub(super) fn count(&self, told: &Told) {
        self.held.add(told.applied.held);
        self.lost.add(told.applied.lost);
        self.evicted.add(told.applied.evicted);
        self.refused.add(told.refused);
        self.snapshots.add(u64::from(told.synced));
        if let Some(lag_ms) = told.lag_ms {
            self.beat_lag_ms.set(lag_ms);
        }
    }

    pub(super) fn show(&self, state: &State, replicas: usize) {
        self.synced.set(u64::from(state.synced));
        self.replicas.set(replicas as u64);
        self.generation.set(u64::from(state.map_generation));
    }
}
