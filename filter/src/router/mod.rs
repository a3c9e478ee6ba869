//! The role `router`: the HTTP filter on every worker.

mod dispatch;
mod exchange;
mod metrics;
mod prompts;
mod view;

use std::cell::RefCell;

use crate::config;
use crate::host;
use crate::shared::Envoy;
use dispatch::{Asked, Decided, Dispatch};

pub use exchange::Exchange;

#[cfg(test)]
mod tests;

/// What all requests of one worker share.
pub struct Router {
    zone_header: String,
    most_body: usize,
    explain: bool,
    dispatch: RefCell<Dispatch<Envoy>>,
}

impl Router {
    /// Sets up ticks; the first one looks at shared data.
    ///
    /// # Errors
    /// The host's.
    pub fn start(config: config::Router) -> host::Result<Self> {
        host::set_tick_period(config.shell.refresh_ms)?;
        Ok(Self {
            zone_header: config.policy.zone_source.header.clone(),
            most_body: config.policy.max_body_bytes,
            explain: config.shell.explain,
            dispatch: RefCell::new(Dispatch::new(config, Envoy)),
        })
    }

    /// Brings the view of the world up to date.
    pub fn on_tick(&self) {
        if let Ok(mut dispatch) = self.dispatch.try_borrow_mut() {
            dispatch.tick(host::now_ms());
        }
    }

    // No callback of Envoy's runs inside another one's borrow, so that there is always a decision;
    // and if there were none, the request would be refused and not let through.
    fn decide(&self, asked: &Asked<'_>) -> Option<Decided> {
        let mut dispatch = self.dispatch.try_borrow_mut().ok()?;
        let start = host::now_nanos().unwrap_or(0);
        let decided = dispatch.decide(asked, start / 1_000_000);
        let took = host::now_nanos().unwrap_or(start).saturating_sub(start);
        dispatch.metrics().decide_us.record(took / 1_000);
        Some(decided)
    }

    // Whether the policy has such a zone, so that it is worth reading the body.
    fn knows_zone(&self, zone: Option<&str>) -> bool {
        self.dispatch.try_borrow().is_ok_and(|dispatch| dispatch.knows_zone(zone))
    }

    fn landed(&self, slot: u16) {
        if let Ok(mut dispatch) = self.dispatch.try_borrow_mut() {
            dispatch.landed(slot);
        }
    }
}
