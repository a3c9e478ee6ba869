//! What answers tell of replicas, caches and prices.

use warmpath_routing::health::Cause;
use warmpath_routing::usage::Usage;

use super::Dispatch;
use crate::router::ticket::{Answer, Named, Ticket};
use crate::shared::{Data, Ledgers};

impl<D: Data> Dispatch<D> {
    /// Whether to look into the answer to this request: into all of a replica that failed of late, and
    /// of a prompt during which one did.
    pub(in crate::router) fn looks_into(&mut self, ticket: &Ticket) -> bool {
        self.poison.knows(ticket.prompt)
            || ticket.at.is_some_and(|name| self.traffic.doubts(name) || self.sample.take(name))
    }

    /// The headers of an answer have come: who served, and who failed before.
    pub(in crate::router) fn answered(
        &mut self,
        ticket: &mut Ticket,
        answer: &Answer,
        now_ms: impl Fn() -> u64,
    ) {
        let of_list = answer.upstream.as_ref().and_then(|upstream| ticket.named.position(upstream));
        if answer.of_engine {
            // Envoy takes the list from its start: those before the one that answered did not.
            let tried = of_list.unwrap_or(answer.attempts.saturating_sub(1));
            if !ticket.seeks {
                self.passed_over(ticket, tried, answer, &now_ms);
            }
            if let Some(&name) = of_list.and_then(|at| ticket.named.names().get(at)) {
                if answer.status == 500 {
                    self.failed_at(ticket, name, answer, now_ms());
                }
                if answer.is_overloaded() {
                    self.overloaded(ticket, name, answer, now_ms());
                } else {
                    self.traffic.served(&self.view.names, name);
                }
                if let Some(orca) = answer.orca {
                    self.metrics.load_reports.add(1);
                    self.orca_loads.heard(&mut self.view, name, orca, now_ms());
                }
            }
            // Elsewhere than foreseen: it counts there from now on, and the forecast is void.
            if of_list != Some(0) {
                ticket.expected = None;
                let name = answer.upstream.as_ref().and_then(|upstream| {
                    let all = self.view.world.replicas.iter().zip(&self.view.names);
                    all.filter(|(replica, _)| replica.endpoint == *upstream)
                        .map(|(_, name)| *name)
                        .next()
                });
                if let Some(name) = name.filter(|name| ticket.at.is_some_and(|at| at != *name)) {
                    let cold_tokens = ticket.cold_tokens;
                    self.landed(ticket);
                    ticket.cold_tokens = cold_tokens;
                    ticket.at = Some(name);
                    self.traffic.sent(self.view.places(), name, cold_tokens);
                }
            }
        } else if answer.upstream_failed {
            self.none_answered(ticket, answer, &now_ms);
        }
    }

    pub(super) fn failed(
        &mut self,
        ticket: &Ticket,
        first: usize,
        why: Cause,
        now_ms: &impl Fn() -> u64,
    ) {
        for name in ticket.named.names().iter().take(first) {
            self.fail_one(&ticket.named, *name, why, now_ms());
        }
    }

    pub(super) fn fail_one(&mut self, named: &Named, name: u64, cause: Cause, now_ms: u64) {
        self.metrics.replica_failures.add(1);
        let rule = &self.config.policy.ejection;
        if self.traffic.failed(rule, &self.view.names, name, cause, now_ms) {
            self.metrics.ejections.add(1);
            log::warn!(
                "router: {} failed time after time and is left alone for a while",
                named.endpoint_of(name)
            );
        }
    }

    /// The first token has come, at `at_ns` where it tells of a stream's: the prompt is computed.
    pub(in crate::router) fn first_token(&mut self, ticket: &mut Ticket, at_ns: Option<u64>) {
        ticket.first_token_ns = at_ns;
        let cold_tokens = std::mem::take(&mut ticket.cold_tokens);
        if let Some(name) = ticket.at.filter(|_| cold_tokens > 0) {
            self.traffic.prefilled(self.view.places(), name, cold_tokens);
        }
    }

    /// An answer has come to its end, and says this of its tokens.
    pub(in crate::router) fn finished(&mut self, ticket: &Ticket, usage: Option<Usage>) {
        self.feedback.usage(ticket, usage);
        if let Some(cached) = self.feedback.cached(ticket, usage)
            && let (Some(kept), Some(expected)) = (&ticket.kept, &ticket.expected)
        {
            self.recall.learn(kept, expected, cached, self.view.epoch());
        }
        self.feedback.timing(&self.config.policy.cost, ticket, usage);
    }

    /// A request has ended, one way or another.
    pub(in crate::router) fn landed(&mut self, ticket: &mut Ticket) {
        if let Some(kept) = ticket.kept.take() {
            kept.release();
        }
        let cold_tokens = std::mem::take(&mut ticket.cold_tokens);
        if let Some(name) = ticket.at.take() {
            self.traffic.prefilled(self.view.places(), name, cold_tokens);
            self.traffic.landed(self.view.places(), name);
        }
    }

    /// This worker's router goes away.
    pub(in crate::router) fn leave(&mut self) {
        self.traffic.leave(&mut Ledgers(&mut self.map.0));
    }
}
