//! What a worker does from time to time: it looks around, loads models and tells what it has to tell.

use super::Dispatch;
use super::lookups::Seen;
use crate::router::loaded_models::{self, Loaded};
use crate::shared::{self, Data, Ledgers};

impl<D: Data> Dispatch<D> {
    /// Looks around, and loads at most one model.
    pub(in crate::router) fn tick(&mut self, now_ms: u64) {
        self.look_around(now_ms);
        self.tell_pools();
        self.tell_misfiled();
        if let Err(error) = self.recall.tell(&mut self.map.0) {
            self.metrics.host_errors.add(1);
            log::error!("router: {error}");
        }
        self.metrics.totals(self.traffic.totals(now_ms));
        self.metrics.poison_prompts.set(self.poison.refused(now_ms) as u64);
        self.sample.tick(now_ms);
        let mut reader = self.reader.borrow_mut();
        let memo_bytes = self.config.shell.memo_bytes;
        let loaded = loaded_models::load_one(&mut reader, &self.view, &self.map.0, memo_bytes);
        match &loaded {
            Loaded::Nothing => {}
            Loaded::Ready(name) => {
                let now = (self.clock)().map_or(now_ms, |nanos| nanos / 1_000_000);
                let ms = now.saturating_sub(now_ms);
                log::info!("router: tokenizer of {name} loaded in {ms} ms");
            }
            Loaded::Refused(name, why) => {
                self.metrics.models_refused.add(1);
                log::error!("router: {name} is routed without looking into prompts: {why}");
            }
        }
        self.metrics.models.set(reader.ready() as u64);
        self.metrics.memo_bytes.set(reader.memo_bytes() as u64);
        self.metrics.map_fresh.set(u64::from(self.view.world.fresh));
        self.metrics.replicas.set(self.view.world.replicas.len() as u64);
        // Who waits for a map, loads models or has requests to hear of has something to do.
        let calm = self.view.world.fresh
            && loaded == Loaded::Nothing
            && !self.awaits
            && !self.traffic.has_in_flight()
            && self.recall.is_told()
            && !self.poison.has_news()
            && !self.feedback.is_busy();
        self.pace.tick(!calm);
    }

    /// The milliseconds between ticks, if those have changed.
    pub(in crate::router) fn tick_ms(&mut self) -> Option<u32> {
        self.pace.news()
    }

    /// Puts the policy's pools where the service finds them, which tells the relay. Once: what was
    /// not written is tried again with the next tick.
    pub(super) fn tell_pools(&mut self) {
        if self.told_pools {
            return;
        }
        let pools = self.config.policy.pools.iter();
        let pools: Vec<(&str, &str)> =
            pools.map(|(name, pool)| (name.as_str(), pool.model.as_str())).collect();
        match shared::merge_pools(&mut self.map.0, &pools) {
            Ok(()) => self.told_pools = true,
            Err(error) => {
                self.metrics.host_errors.add(1);
                log::error!("router: {error}");
            }
        }
    }

    /// Says once that replicas are filed under a pool of another model: they are never used, and
    /// only the configuration can mend it.
    pub(super) fn tell_misfiled(&mut self) {
        let count = self.view.misfiled().count() as u64;
        if count > self.misfiled
            && let Some(one) = self.view.misfiled().next()
        {
            log::error!(
                "router: {count} replicas are not used, as the policy has no such pool of their \
                 model: {} in pool {:?} is one",
                one.endpoint,
                one.pool
            );
        }
        self.misfiled = count;
        self.metrics.misfiled.set(count);
    }

    /// Reads what has changed in shared data, and hears the other workers.
    pub(super) fn look_around(&mut self, now_ms: u64) {
        match self.view.refresh(&self.config.policy, &self.map.0) {
            Ok(false) => {}
            Ok(true) => {
                // Slots are others now.
                self.traffic.recent.clear();
                self.feedback.forget_pending();
            }
            Err(error) => {
                self.metrics.host_errors.add(1);
                log::error!("router: {error}");
            }
        }
        self.orca_loads.refresh(&mut self.view, now_ms);
        if let Err(error) =
            self.traffic.exchange(&mut Ledgers(&mut self.map.0), self.view.places(), now_ms)
        {
            self.metrics.host_errors.add(1);
            log::error!("router: {error}");
        }
        let generation = self.view.look(now_ms, self.config.policy.stale_after_ms);
        self.close_loop(generation, now_ms);
        self.settle_doubts(now_ms);
        self.exchange_poison();
    }

    /// Looks what became of answers that were not as foreseen, and shares that with the others.
    pub(super) fn close_loop(&mut self, generation: u32, now_ms: u64) {
        let Self { feedback, view, map, .. } = self;
        if view.world.fresh {
            feedback.settle(&Seen { map, view, generation }, now_ms);
        } else {
            feedback.forget_pending();
        }
        if let Err(error) = feedback.drifts.exchange(&mut map.0, view) {
            self.metrics.host_errors.add(1);
            log::error!("router: {error}");
        }
    }
}
