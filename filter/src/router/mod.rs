//! The role `router`: the HTTP filter on every worker.

mod dispatch;
mod exchange;
mod feedback;
mod fresher;
mod here;
mod metrics;
mod prompts;
mod response;
mod ticket;
mod view;
mod zone;

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};

use warmpath_routing::policy::ZoneSource;

use crate::config;
use crate::host;
use crate::shared::Envoy;
use dispatch::{Asked, Decided, Dispatch};

pub use exchange::Exchange;

#[cfg(test)]
mod tests;

/// What all requests of one worker share.
pub struct Router {
    zone_source: ZoneSource,
    priority_header: String,
    most_body: usize,
    explain: bool,
    orca: bool,
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
            zone_source: config.policy.zone_source.clone(),
            priority_header: config.policy.admission.header.clone(),
            most_body: config.policy.max_body_bytes,
            explain: config.shell.explain,
            orca: config.shell.orca,
            dispatch: RefCell::new(Dispatch::new(config, Envoy, id())),
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
        let mut decided = dispatch.decide(asked, start / 1_000_000);
        let end = host::now_nanos().unwrap_or(start);
        dispatch.metrics().decide_us.record(end.saturating_sub(start) / 1_000);
        if let Decided::Route(told) = &mut decided {
            told.ticket.sent_ns = end;
        }
        Some(decided)
    }

    // Whether the policy has such a zone, so that it is worth reading the body.
    fn knows_zone(&self, zone: Option<&str>) -> bool {
        self.dispatch.try_borrow().is_ok_and(|dispatch| dispatch.knows_zone(zone))
    }

    // What is only to be counted is not worth failing for.
    fn with(&self, what: impl FnOnce(&mut Dispatch<Envoy>)) {
        if let Ok(mut dispatch) = self.dispatch.try_borrow_mut() {
            what(&mut dispatch);
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.with(Dispatch::leave);
    }
}

/// Names this life of this worker among the others. The host's randomness, in which `RandomState`
/// is rooted, and its clock.
fn id() -> u64 {
    RandomState::new().hash_one(host::now_nanos().unwrap_or(0))
}
