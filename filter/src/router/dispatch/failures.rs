//! Requests that engines failed to answer: whose fault that may be, and what engines died of.

use warmpath_routing::health::{Cause, Ending};
use warmpath_routing::poison::{Death, Poison};
use warmpath_routing::view::ReplicaState;

use super::{Decided, Dispatch};
use crate::host::HostError;
use crate::router::client::Client;
use crate::router::poison::{Doubtful, Refused};
use crate::router::ticket::{Answer, Ticket};
use crate::shared::Data;
use warmpath_routing::poison::Prompt;

impl<D: Data> Dispatch<D> {
    /// The answer to a prompt that kills engines.
    pub(super) fn refuse_poison(&self, prompt: Option<Prompt>, now_ms: u64) -> Option<Decided> {
        self.poison.refuses(prompt, now_ms).then(|| {
            let refusal = Poison::refusal();
            self.metrics.refused(&refusal);
            Decided::Refuse(refusal)
        })
    }

    /// What a request itself may be to blame for. Of bodies that are not read to their end one client
    /// has only one, or it could make up any number of them.
    fn request(&self, ticket: &Ticket, client: Option<&Client>) -> Cause {
        let address = || client.map_or(0, |client| self.poison.client(&client.address));
        let prompt = match ticket.prompt {
            Some(prompt) if prompt.whole => prompt.id as u64,
            Some(_) => address(),
            None => 0,
        };
        Cause::Request { prompt, connection: client.map_or(0, |client| client.connection) }
    }

    /// As many of those that were named did not answer before another one did.
    pub(super) fn passed_over(
        &mut self,
        ticket: &Ticket,
        tried: usize,
        answer: &Answer,
        now_ms: &impl Fn() -> u64,
    ) {
        // Which of them refused the connection and which dropped the request nobody tells. The one
        // that answered shows that it can be done.
        let cause = match self.request(ticket, answer.client.as_ref()) {
            Cause::Request { prompt, .. } if !answer.is_overloaded() => Cause::Prompt(prompt),
            cause => cause,
        };
        self.failed(ticket, tried, cause, now_ms);
    }

    /// The engine's answer says that it can't serve.
    pub(super) fn overloaded(&mut self, ticket: &Ticket, name: u64, answer: &Answer, now_ms: u64) {
        let cause = self.request(ticket, answer.client.as_ref());
        self.fail_one(&ticket.named, name, cause, now_ms);
    }

    /// Envoy answered itself, having tried engines.
    pub(super) fn none_answered(
        &mut self,
        ticket: &Ticket,
        answer: &Answer,
        now_ms: &impl Fn() -> u64,
    ) {
        let names = ticket.named.names();
        let before_last = answer.attempts.saturating_sub(1);
        // Where Envoy has chosen the last one itself it is none of those that were named.
        let last = answer
            .upstream
            .as_deref()
            .map_or((before_last < names.len()).then_some(before_last), |it| {
                ticket.named.position(it)
            });
        // Of those that were asked for a response they don't have none failed.
        let earlier = if ticket.seeks { 0 } else { last.unwrap_or(before_last).min(names.len()) };
        if answer.ending == Ending::Dropped {
            let of_list =
                last.and_then(|at| names.get(at)).map(|name| ticket.named.endpoint_of(*name));
            // What became of the earlier ones isn't told. Those that were well until then died too.
            let well =
                names.iter().take(earlier).filter(|name| !self.is_in_doubt(**name, now_ms()));
            let died = answer.upstream.as_deref().or(of_list).into_iter();
            let died: Vec<&str> =
                died.chain(well.map(|name| ticket.named.endpoint_of(*name))).collect();
            self.died(ticket, &died, answer.client.as_ref(), now_ms());
        }
        let request = self.request(ticket, answer.client.as_ref());
        self.failed(ticket, earlier, request, now_ms);
        if let Some(&name) = last.and_then(|at| names.get(at)) {
            let refused = answer.ending == Ending::NoConnection;
            let cause = if refused { Cause::Replica } else { request };
            self.fail_one(&ticket.named, name, cause, now_ms());
        }
    }

    /// The engine at this endpoint dropped a request whose answer it had begun.
    pub(in crate::router) fn broke_off(
        &mut self,
        ticket: &Ticket,
        endpoint: &str,
        client: Option<&Client>,
        now_ms: u64,
    ) {
        self.died(ticket, &[endpoint], client, now_ms);
    }

    /// An engine has answered to the end: it lived through this prompt.
    pub(in crate::router) fn lived(&mut self, ticket: &Ticket) {
        if let Some(prompt) = ticket.prompt.filter(|prompt| self.poison.knows(Some(*prompt))) {
            let told = self.poison.answered(&mut self.map.0, prompt).map(|()| Vec::new());
            self.say_refused(told);
        }
    }

    fn is_in_doubt(&self, name: u64, now_ms: u64) -> bool {
        let mut replicas = self.view.names.iter().zip(&self.view.world.replicas);
        self.traffic.doubts(name)
            || self.traffic.is_ejected(name, now_ms)
            || replicas.any(|(at, it)| *at == name && it.state == ReplicaState::Down)
    }

    fn died(&mut self, ticket: &Ticket, endpoints: &[&str], client: Option<&Client>, at_ms: u64) {
        let Some(prompt) = ticket.prompt else { return };
        self.died_of(prompt, endpoints, client.map_or("", |client| &client.address), at_ms);
    }

    fn died_of(&mut self, prompt: Prompt, endpoints: &[&str], client: &str, at_ms: u64) {
        self.metrics.poison_deaths.add(endpoints.len() as u64);
        let engines = endpoints.iter().map(|endpoint| self.poison.engine(endpoint)).collect();
        let client = self.poison.client(client);
        let death = Death { prompt: prompt.id, client, engines, at_ms };
        let told = self.poison.died(&mut self.map.0, death);
        self.say_refused(told);
    }

    /// An engine answered that it failed, which may have been its last words.
    pub(super) fn failed_at(&mut self, ticket: &Ticket, name: u64, answer: &Answer, at_ms: u64) {
        let (Some(prompt), Some(client)) = (ticket.prompt, &answer.client) else { return };
        let endpoint = ticket.named.endpoint_of(name).to_owned();
        let client = client.address.clone();
        self.poison.doubt(Doubtful { prompt, name, endpoint, client, at_ms });
    }

    /// Engines that failed at a prompt a moment ago and are down now died of it.
    pub(super) fn settle_doubts(&mut self, now_ms: u64) {
        let view = &self.view;
        let serves = |name: u64| {
            let mut replicas = view.names.iter().zip(&view.world.replicas);
            replicas.any(|(at, it)| *at == name && it.state != ReplicaState::Down)
        };
        for gone in self.poison.gone(|name| !serves(name), now_ms) {
            self.died_of(gone.prompt, &[&gone.endpoint], &gone.client, now_ms);
        }
    }

    /// Hears of other workers' deaths and tells them of this one's.
    pub(super) fn exchange_poison(&mut self) {
        let told = self.poison.refresh(&mut self.map.0);
        self.say_refused(told);
    }

    fn say_refused(&self, told: Result<Vec<Refused>, HostError>) {
        match told {
            Ok(all) => {
                for Refused { prompt, ms, engines } in all {
                    let known = self.view.world.replicas.iter().map(|it| it.endpoint.as_str());
                    let mut died: Vec<&str> =
                        known.filter(|it| engines.contains(&self.poison.engine(it))).collect();
                    died.dedup();
                    log::warn!(
                        "router: prompt {:08x} is refused for {} s: {} engines died while they \
                         processed it, of which these are known: {}",
                        prompt >> 96,
                        ms / 1_000,
                        engines.len(),
                        died.join(", "),
                    );
                }
            }
            Err(error) => {
                self.metrics.host_errors.add(1);
                log::error!("router: {error}");
            }
        }
    }
}
