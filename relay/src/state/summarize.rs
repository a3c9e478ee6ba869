//! How the state is summarized.

use super::message::ReplicaId;
use super::replica::Replica;
use super::stores::Store;
use super::streams::Listener;
use super::summary::{EndsSummary, Holder, ReplicaSummary, StoreSummary, Summary, TierSummary};
use super::{Registration, State};
use crate::engine::ranks::Problem;
use crate::engine::report::Sleep;
use crate::events::Medium;

impl State {
    pub(super) fn summary(&self) -> Summary {
        let open = |listener: &&Listener| !listener.sender.is_closed();
        Summary {
            streams: self.listeners.iter().filter(open).count(),
            streams_opened: self.streams_opened,
            streams_too_slow: self.streams_too_slow,
            replicas: self.replicas.iter().map(|(id, r)| self.replica_summary(*id, r)).collect(),
            stores: self.stores.iter().map(|((name, _), store)| store.summary(name)).collect(),
            pool_mismatches: self.pool_mismatches(),
        }
    }

    fn replica_summary(&self, id: ReplicaId, replica: &Replica) -> ReplicaSummary {
        let mut summary = replica.summary();
        summary.other_root = self.has_other_root(replica);
        let store = self.store_of(id).and_then(|key| self.stores.get(&key));
        summary
            .tiers
            .extend(store.map(|store| tier((Medium::Other, store.slot, store.view.len()))));
        summary
    }
}

impl Store {
    fn summary(&self, name: &str) -> StoreSummary {
        StoreSummary {
            store: name.to_owned(),
            slot: self.slot,
            held_blocks: self.view.held_blocks(),
            announced_prefixes: self.view.len(),
            view_cleared: self.clears,
            events: *self.view.seen(),
        }
    }
}

/// A tier behind the GPU: its medium, slot and announced prefixes.
fn tier((medium, slot, announced_prefixes): (Medium, u32, usize)) -> TierSummary {
    TierSummary { tier: medium.name(), slot, announced_prefixes }
}

impl Replica {
    pub(super) fn holder(&self, medium: Medium) -> Holder {
        let Registration { endpoint, rank, pool, model, .. } = &self.known;
        Holder {
            endpoint: endpoint.clone(),
            rank: *rank,
            pool: pool.clone(),
            model: model.clone(),
            slot: self.slot,
            state: self.state().as_str_name(),
            tier: medium.name(),
        }
    }

    pub(super) fn summary(&self) -> ReplicaSummary {
        let Registration { endpoint, rank, pool, model, view, counters, .. } = &self.known;
        ReplicaSummary {
            endpoint: endpoint.clone(),
            rank: *rank,
            events_rank: self.known.events_rank,
            engine_ranks: self.engines.ranks.clone(),
            engine_kind: self.engines.kind,
            other_engine: self.other_engine(),
            rank_problem: self.rank_problem.map(Problem::name),
            pool: pool.clone(),
            model: model.clone(),
            slot: self.slot,
            state: self.state().as_str_name(),
            hears_events: self.heard,
            silent_under_load: self.mute,
            drained_by_hand: self.drained,
            asleep: self.sleep.map(Sleep::name),
            wrong_model: self.wrong.clone(),
            root: self.root.clone(),
            other_root: false,
            caches_nothing: self.caches_nothing,
            speculates_unsaid: self.speculates_unsaid(),
            adapters: self.adapters.as_ref().map(|adapters| adapters.names().to_vec()),
            last_sequence: self.sequence,
            block_tokens: self.block_tokens,
            dropped_tokens: self.dropped_tokens,
            weight: f64::from(self.known.weight) / 100.0,
            held_engine_blocks: view.held_blocks(),
            known_engine_blocks: view.known_blocks(),
            announced_prefixes: view.len(),
            joined_late: self.late,
            taught_prefixes: self.taught.len(),
            taught: *self.taught.judged(),
            tiers: view.tiers().map(tier).collect(),
            groups: view.groups(),
            ends: view.ends().map(|slot| EndsSummary { slot, announced: view.end_keys().count() }),
            waiting_tokens: view.waiting_tokens(),
            requests_waiting: self.load.map(|load| load.waiting),
            requests_running: self.load.map(|load| load.running),
            kv_usage: self.load.map(|load| load.kv_usage),
            rtt_ms: self.round_trip.map(|trip| trip.as_secs_f64() * 1e3),
            batches: counters.batches.get(),
            connects: counters.connects.get(),
            disconnects: counters.disconnects.get(),
            gaps: counters.gaps.get(),
            restarts: counters.restarts.get(),
            replays: counters.replays.get(),
            replays_failed: counters.replays_failed.get(),
            polls_failed: counters.polls_failed.get(),
            frames_skipped: counters.skipped_by_reason(),
            view_cleared: self.clears.clone(),
            events: *view.seen(),
        }
    }
}
