//! The role `router`: the HTTP filter on every worker.

mod awaited;
mod client;
mod dispatch;
mod drifts;
mod exchange;
mod feedback;
mod inflate;
mod loaded_models;
mod metrics;
mod orca_loads;
mod pace;
mod poison;
mod recall;
mod response;
mod sample;
mod stored;
mod ticket;
mod view;
mod waiting;
mod zone;

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::rc::Weak;

use warmpath_routing::policy::ZoneSource;
use warmpath_routing::residency::Claim;

use crate::config;
use crate::host;
use crate::shared::Envoy;
use awaited::Awaited;
use dispatch::{Asked, Decided, Dispatch};

pub use exchange::Exchange;
use exchange::Flow;
use waiting::{Now, Waiter, Waiting};

#[cfg(test)]
mod tests;

/// What all requests of one worker share.
pub struct Router {
    zone_source: ZoneSource,
    priority_header: String,
    most_body: usize,
    most_inflated: usize,
    explain: bool,
    log_decision: bool,
    orca: bool,
    /// How long a request may be held back.
    wait_ms: u64,
    waiting: RefCell<Waiting<Weak<RefCell<Flow>>>>,
    awaited: RefCell<Awaited<Weak<RefCell<Flow>>>>,
    dispatch: RefCell<Dispatch<Envoy>>,
}

impl Router {
    /// Sets up ticks; the first one looks at shared data.
    ///
    /// # Errors
    /// Where Envoy doesn't give the configuration or refuses a tick.
    pub fn start(config: config::Router) -> host::Result<Self> {
        host::set_tick_period(config.shell.refresh_ms)?;
        Ok(Self {
            zone_source: config.policy.zone_source.clone(),
            priority_header: config.policy.admission.header.clone(),
            most_body: config.policy.max_body_bytes,
            most_inflated: config.policy.max_inflated_bytes,
            explain: config.shell.explain,
            log_decision: config.shell.log_decision,
            orca: config.shell.orca,
            wait_ms: config.policy.admission.wait_ms,
            awaited: RefCell::new(Awaited::new(config.policy.max_awaited_bytes)),
            waiting: RefCell::new(Waiting::new(config.policy.admission.waiting)),
            dispatch: RefCell::new(Dispatch::new(config, Envoy, id(), || host::now_nanos().ok())),
        })
    }

    /// Brings the view of the world up to date, and asks again for those who wait.
    pub fn on_tick(&self) {
        let now_ms = host::now_ms();
        self.shed();
        let awaits = self.awaited.try_borrow().is_ok_and(|all| all.bytes() > 0);
        self.with(|dispatch| {
            dispatch.awaits(awaits);
            dispatch.tick(now_ms);
        });
        let Ok(mut waiting) = self.waiting.try_borrow_mut() else { return };
        if waiting.len() > 0 {
            let mut in_vain = 0;
            waiting.again(now_ms, |flow, over| {
                in_vain += u64::from(over);
                let flow = flow.upgrade();
                flow.and_then(|flow| Some(flow.try_borrow_mut().ok()?.again(over)))
                    .unwrap_or(Now::Gone)
            });
            let left = waiting.len() as u64;
            self.with(|dispatch| {
                dispatch.metrics().waited_in_vain.add(in_vain);
                dispatch.metrics().waiting.set_own(left);
            });
        }
        drop(waiting);
        self.with(set_pace);
    }

    // Lets go of the first come of the awaited bodies, as long as all together are too many bytes.
    fn shed(&self) {
        loop {
            // Who goes gives its place back, which needs the list.
            let first = self.awaited.try_borrow_mut().ok().and_then(|mut all| all.too_many());
            let Some(first) = first else { break };
            if let Some(flow) = first.upgrade()
                && let Ok(mut flow) = flow.try_borrow_mut()
            {
                flow.shed();
            }
        }
    }

    // So many bytes of a request's body are held, until they are released.
    fn hold(&self, place: &mut Option<u64>, bytes: usize, request: &Weak<RefCell<Flow>>) {
        if place.is_none() {
            // From now on ticks have something to look after.
            self.with(|dispatch| {
                dispatch.awaits(true);
                set_pace(dispatch);
            });
        }
        if let Ok(mut all) = self.awaited.try_borrow_mut() {
            all.hold(place, bytes, || Weak::clone(request));
        }
    }

    fn release(&self, place: &mut Option<u64>) {
        if place.is_some()
            && let Ok(mut all) = self.awaited.try_borrow_mut()
        {
            all.release(place);
        }
    }

    // Whether a request may be held back now.
    fn may_wait(&self) -> bool {
        self.wait_ms > 0 && self.waiting.try_borrow().is_ok_and(|waiting| waiting.has_room())
    }

    // Holds a request back.
    fn wait(&self, request: Weak<RefCell<Flow>>, batch: bool, now_ms: u64) {
        if let Ok(mut waiting) = self.waiting.try_borrow_mut() {
            waiting.push(Waiter { request, batch, until_ms: now_ms.saturating_add(self.wait_ms) });
            self.with(|dispatch| dispatch.metrics().waited.add(1));
        }
    }

    // No callback of Envoy's runs inside another one's borrow, so that there is always a decision;
    // and if there were none, the request would be refused and not let through.
    fn decide(&self, asked: &Asked<'_>) -> Option<Decided> {
        let mut dispatch = self.dispatch.try_borrow_mut().ok()?;
        let start = host::now_nanos().unwrap_or(0);
        let mut decided = dispatch.dispatch(asked, start / 1_000_000);
        set_pace(&mut dispatch);
        if let Decided::Route(told) = &mut decided {
            told.ticket.sent_ns = start;
        }
        let decide_us = dispatch.metrics().decide_us;
        if decide_us.has_room() {
            let end = host::now_nanos().unwrap_or(start);
            decide_us.record(end.saturating_sub(start) / 1_000);
        }
        Some(decided)
    }

    // Whether the policy has such a zone, so that it is worth reading the body.
    fn knows_zone(&self, claim: Claim<'_>) -> bool {
        self.dispatch.try_borrow().is_ok_and(|dispatch| dispatch.knows_zone(claim))
    }

    // Whether a request's model has to be known before it goes on.
    fn parts_models(&self) -> bool {
        self.dispatch.try_borrow().is_ok_and(|dispatch| dispatch.parts_models())
    }

    // What is only to be counted is not worth failing for.
    fn with<T>(&self, what: impl FnOnce(&mut Dispatch<Envoy>) -> T) -> Option<T> {
        self.dispatch.try_borrow_mut().ok().map(|mut dispatch| what(&mut dispatch))
    }
}

/// Tells Envoy how often to tick, if that has changed. Where it refuses it ticks as before, which is
/// told with the other errors.
fn set_pace(dispatch: &mut Dispatch<Envoy>) {
    if let Some(ms) = dispatch.tick_ms()
        && host::set_tick_period(ms).is_err()
    {
        dispatch.metrics().host_errors.add(1);
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
