//! From a request's parts to a decision and what Envoy has to be told of it.
//!
//! Knows no stream: what comes in are the zone, the path and the body, and the time.

mod answers;
mod failures;
mod lookups;
mod stored;
mod tick;

use std::cell::RefCell;
use std::rc::Rc;

use warmpath_prompt::{Api, Body, CacheUse, Reach, Read, Reader};
use warmpath_routing::catalogue::{Wants, card, list, of_zone, resolve, retain_loaded};
use warmpath_routing::decision::{
    Ask, Outcome, Refusal, Route, decide_stored, decide_with, refuse_model,
};
use warmpath_routing::fingerprint::Key;
use warmpath_routing::policy::Policy;
use warmpath_routing::prefix_map::{Hints, Lookup};
use warmpath_routing::requested::Requested;
use warmpath_routing::residency::{Claim, Zone, zone_of};
use warmpath_routing::traffic::Traffic;
use warmpath_routing::view::World;

use super::feedback::Feedback;
use super::loaded_models;
use super::metrics::Metrics;
use super::orca_loads::OrcaLoads;
use super::pace::Pace;
use super::poison::PoisonPrompts;
use super::recall::Recall;
use super::sample::Sample;
use super::stored::Stored;
use super::ticket::Ticket;
use super::view::View;
use crate::config;
use crate::shared::{self, Data, Map};
use lookups::{Buckets, Unread};

/// A request, as far as it matters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    /// By the trusted sources.
    pub(super) zone: Claim<'a>,
    /// By the path; `None` for one of no known API.
    pub(super) api: Option<Api>,
    pub(super) body: Body<'a>,
    /// The stored response that the path names.
    pub(super) response: Option<&'a str>,
    /// The body's type, if it is a form.
    pub(super) form: Option<&'a [u8]>,
    /// What the client says of the length of a body that is not read whole.
    pub(super) content_length: Option<u64>,
    /// It can wait for others.
    pub(super) batch: bool,
    /// It may be held back here for a moment.
    pub(super) may_wait: bool,
}

/// What Envoy has to be told.
#[allow(clippy::large_enum_variant, reason = "it lives for one call")]
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decided {
    Route(Told),
    /// All are full: it waits here.
    Wait,
    Refuse(Refusal),
}

/// A route in Envoy's terms.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Told {
    pub(super) cluster: String,
    pub(super) rank: Option<u32>,
    /// For Envoy's own choice, where no replica is named.
    pub(super) hash: String,
    /// The first replica's slot.
    pub(super) slot: Option<u16>,
    /// The decision in a line; empty where nobody is told.
    pub(super) explain: String,
    /// Others of its cluster have not loaded the adapter: a retry must not go to them.
    pub(super) only_named: bool,
    /// What it has to do with stored responses.
    pub(super) stored: Stored,
    /// The last block's name; for those who may ask about a request of their own, not for logs.
    pub(super) last_key: Option<Key>,
    /// To be given back by [`Dispatch::landed`]: until then the request counts as in flight.
    pub(super) ticket: Ticket,
}

/// A worker's router, less the host.
pub(super) struct Dispatch<D> {
    config: config::Router,
    pub(super) map: Map<D>,
    // Filled while the map is searched.
    hints: RefCell<Hints>,
    pub(super) view: View,
    pub(super) traffic: Traffic,
    orca_loads: OrcaLoads,
    pub(super) feedback: Feedback,
    recall: Recall,
    poison: PoisonPrompts,
    sample: Sample,
    pace: Pace,
    awaits: bool,
    pub(super) reader: Rc<RefCell<Reader>>,
    // The relay can know the policy's pools.
    told_pools: bool,
    // Replicas under a pool of another model, when it was last told.
    misfiled: u64,
    metrics: Metrics,
    // Nanoseconds since 1970; none where the host refuses to say.
    clock: fn() -> Option<u64>,
}

impl<D: Data> Dispatch<D> {
    /// `id`: a random number, which names this worker's life. `clock`: nanoseconds since 1970, by which
    /// it measures what its own work takes.
    pub(super) fn new(
        config: config::Router,
        data: D,
        id: u64,
        clock: fn() -> Option<u64>,
    ) -> Self {
        Self {
            clock,
            pace: Pace::new(config.shell.refresh_ms),
            awaits: false,
            sample: Sample::default(),
            poison: PoisonPrompts::new(config.policy.poison.clone()),
            config,
            traffic: Traffic::new(id),
            orca_loads: OrcaLoads::default(),
            feedback: Feedback::define(),
            recall: Recall::define(),
            map: Map(data),
            hints: RefCell::default(),
            view: View::default(),
            reader: loaded_models::of_this_vm(),
            told_pools: false,
            misfiled: 0,
            metrics: Metrics::define(),
        }
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Whether bodies are awaited, which ticks look after.
    pub(super) fn awaits(&mut self, awaits: bool) {
        if awaits && !self.awaits {
            self.pace.stir();
        }
        self.awaits = awaits;
    }

    fn zone(&self, claim: Claim<'_>) -> Result<(&str, &Zone), Refusal> {
        let policy = &self.config.policy;
        let default = policy.zone_source.default.as_deref();
        Ok(zone_of(&policy.zones, default, claim)?)
    }

    /// Whether it is worth reading a body: an unknown zone is refused without.
    pub(super) fn knows_zone(&self, claim: Claim<'_>) -> bool {
        self.zone(claim).is_ok()
    }

    /// Whether it matters which model a request names: there are several, or adapters. Where it
    /// doesn't, a large body need not be held back until its model was found.
    pub(super) fn parts_models(&self) -> bool {
        let policy = &self.config.policy;
        policy.only_model().is_none()
            || policy.models.values().any(|names| !names.adapters.is_empty())
            || self.view.told().any(|model| !model.adapters.is_empty())
    }

    /// The answer to `GET /v1/models` (`None`), or to `GET /v1/models/NAME`.
    ///
    /// # Errors
    /// The request has no zone, or its zone no such model.
    pub(super) fn models(
        &self,
        claim: Claim<'_>,
        name: Option<&str>,
        now_ms: u64,
    ) -> Result<String, Refusal> {
        let refused = |refusal| {
            self.metrics.refused(&refusal);
            refusal
        };
        let (zone, rule) = self.zone(claim).map_err(refused)?;
        let policy = &self.config.policy;
        let mut entries = of_zone(policy, &self.view.told(), rule);
        retain_loaded(policy, &self.view.world.replicas, rule, &mut entries);
        let created = now_ms / 1_000;
        let Some(name) = name else { return Ok(list(&entries, created).to_string()) };
        if let Some(entry) = entries.iter().find(|entry| entry.id == name) {
            return Ok(card(entry, created).to_string());
        }
        // As a request for it would be answered.
        let requested = Requested::by_name(name);
        let wants = resolve(policy, self.view.told(), &requested).wants;
        let refusal = refuse_model(policy, zone, rule, wants).unwrap_or_else(|| {
            let names: Vec<&str> = entries.iter().map(|entry| entry.id).collect();
            Refusal::model_not_found(Some(name), &names)
        });
        Err(refused(refusal))
    }

    /// Decides. A routed request counts as in flight until [`Self::landed`].
    pub(super) fn dispatch(&mut self, asked: &Asked<'_>, now_ms: u64) -> Decided {
        if self.pace.wake() {
            self.look_around(now_ms);
        }
        let prompt = self.poison.name(asked.body, asked.content_length);
        if let Some(refused) = self.refuse_poison(prompt, now_ms) {
            return refused;
        }
        // Who asks why is told of the whole prompt; what drifts is looked into; and of a prompt that
        // ends where the map does an answer teaches nothing.
        let whole =
            self.config.shell.explain || self.feedback.counts_next() || self.view.has_partial();
        let mut reach = if whole { Reach::Whole } else { Reach::News };
        let mut chose = self.metrics.choose_us.has_room().then_some(0);
        loop {
            let read = self.read(asked, reach, now_ms);
            let start = chose.and_then(|_| (self.clock)());
            let decided = self.decide_by(asked, &read, now_ms);
            let took = start.and_then(|start| Some((self.clock)()?.saturating_sub(start)));
            chose = chose.zip(took).map(|(before, took)| before + took);
            if let Some(mut decided) = decided {
                if let Decided::Route(told) = &mut decided {
                    told.ticket.prompt = prompt;
                }
                if let Some(nanos) = chose {
                    self.metrics.choose_us.record(nanos / 1_000);
                }
                return decided;
            }
            // Nothing is left out of it then.
            reach = Reach::Whole;
        }
    }

    /// Decides; `None` where something was left out that matters: all before it is held, or so little
    /// that it doesn't name the prompt on the ring.
    fn decide_by(&mut self, asked: &Asked<'_>, read: &Read<'_>, now_ms: u64) -> Option<Decided> {
        let policy = &self.config.policy;
        let blocks = read.keys.len();
        if read.left_out.is_some() && blocks < policy.ring.blocks {
            return None;
        }
        let generation = self.view.look(now_ms, policy.stale_after_ms);
        let referred = asked.response.or(read.previous.as_deref());
        let holder = referred.and_then(|id| self.holder(asked.zone, id, now_ms));
        let policy = &self.config.policy;
        let wants = resolve(policy, self.view.told(), &read.requested).wants;
        let ask = read.ask(asked.zone, wants, referred.is_some(), asked.body, now_ms);
        let at_holder = holder.and_then(|at| decide_stored(policy, &self.view.world, &ask, at));
        let sought = referred.filter(|_| at_holder.is_none());
        let buckets = Buckets { map: &self.map, generation, hints: &self.hints, now_ms };
        let mut local = self.traffic.local(&self.feedback.prices, asked.batch, now_ms);
        let mut lookup: &dyn Lookup = &buckets;
        if read.cache_use == CacheUse::Unread {
            // It costs the same wherever it goes, and what it stores is where its like will look.
            lookup = &Unread;
            local.recent = None;
        }
        let held = at_holder.is_some();
        let outcome = at_holder
            .unwrap_or_else(|| decide_with(policy, &self.view.world, &local, &ask, lookup));
        let deepest = outcome.route().map_or(0, |route| route.deepest as usize);
        if read.left_out.is_some() && deepest >= blocks {
            return None;
        }
        self.metrics.known(read.memo, read.beginning);
        let (mut told, known) = match outcome {
            Outcome::Refuse(refusal) => {
                self.metrics.refused(&refusal);
                return Some(Decided::Refuse(refusal));
            }
            Outcome::Route(route) if route.crowded && asked.may_wait => {
                return Some(Decided::Wait);
            }
            Outcome::Route(route) => {
                self.metrics.routed(&route);
                let world = &self.view.world;
                let excused = excused(policy, &self.traffic, &route, &ask, world, now_ms);
                let mut ticket = Ticket::new(&route, &ask, world, &self.view.names, excused);
                ticket.asked_by(asked.api, read.asked, read.cache_use);
                self.keep(&mut ticket, &route, &read.keys);
                // What a slower tier holds is on its way to the GPU now, as what is computed.
                let on_gpu = route.cached_tokens.saturating_sub(route.offloaded_tokens);
                let explained = self.config.shell.explain || self.config.shell.log_decision;
                let mut told = told(&route, &ask, &self.view.world, ticket, explained);
                // Of a response that one replica holds the others know nothing.
                told.only_named |= held;
                let keeps = asked.api == Some(Api::Responses) && !read.unstored;
                told.stored = Stored::new(sought.map(str::to_owned), keeps);
                (told, on_gpu / 16)
            }
        };
        if let (Some(slot), Some(&name)) = (told.slot, told.ticket.named.names().first()) {
            told.ticket.at = Some(name);
            self.traffic.sent(self.view.places(), name, told.ticket.cold_tokens);
            self.traffic.recent.sent(&read.keys, known as usize, slot, now_ms);
        }
        Some(Decided::Route(told))
    }

    /// Keeps the prompt's keys if its answer can teach what its replica holds: not of one with slower
    /// tiers, as an answer doesn't say in which of them a token was.
    fn keep(&self, ticket: &mut Ticket, route: &Route<'_>, keys: &[Key]) {
        let first = route.replicas.first().and_then(|at| self.view.world.replicas.get(*at));
        let (Some(first), Some(expected)) = (first, &ticket.expected) else { return };
        let counted = ticket.cache_use == CacheUse::Counted && first.tiers.is_empty();
        ticket.partial = counted && self.view.is_partial(first.slot);
        if ticket.partial {
            ticket.kept = self.recall.keep(self.view.epoch(), first, keys, expected);
        }
    }

    fn read<'b>(&self, asked: &Asked<'b>, reach: Reach, now_ms: u64) -> Read<'b> {
        let known = (&self.config.policy, self.view.models.as_slice());
        let mut reader = self.reader.borrow_mut();
        reader.read(known, asked.api, asked.body, asked.form, reach, now_ms / 1_000)
    }
}

fn told(route: &Route<'_>, ask: &Ask<'_>, world: &World, ticket: Ticket, explained: bool) -> Told {
    let first = route.replicas.first().and_then(|at| world.replicas.get(*at));
    Told {
        cluster: route.cluster.to_owned(),
        // All ranks behind an API know its responses.
        rank: first.and_then(|replica| replica.rank).filter(|_| !ticket.seeks),
        hash: if ticket.named.names().is_empty() { hex(route.ring_key) } else { String::new() },
        slot: first.map(|replica| replica.slot),
        explain: if explained { route.explain(world) } else { String::new() },
        last_key: route.last_key,
        stored: Stored::default(),
        only_named: lack_adapter(ask, world),
        ticket,
    }
}

/// Whether the request is for an adapter that some replicas are known not to have.
fn lack_adapter(ask: &Ask<'_>, world: &World) -> bool {
    match ask.model {
        Wants::Model { adapter, .. } if !adapter.is_empty() => {
            world.replicas.iter().any(|replica| !replica.has_adapter(adapter))
        }
        _ => false,
    }
}

/// As `{:032x}` writes it, which takes longer.
fn hex(number: u128) -> String {
    String::from_utf8(number.to_be_bytes().map(shared::hex).concat()).unwrap_or_default()
}

/// Tokens that the chosen replica may hold beyond what the map says: those of requests that were
/// sent so shortly before that their events can't have come yet.
fn excused(
    policy: &Policy,
    traffic: &Traffic,
    route: &Route<'_>,
    ask: &Ask<'_>,
    world: &World,
    now_ms: u64,
) -> u32 {
    // An event's own way, and a prefill that may have waited for another one.
    const EVENT_MS: u64 = 500;
    let first = route.replicas.first().and_then(|at| world.replicas.get(*at));
    let Some(slot) = first.map(|replica| replica.slot) else { return 0 };
    if route.hoped_tokens == route.cached_tokens {
        return route.cached_tokens;
    }
    let within = EVENT_MS + 2 * policy.cost.prefill(0, ask.prompt_tokens) as u64;
    let sent = traffic.recent.at(now_ms).within(within).matches(ask.keys, &|at: u16| at == slot);
    sent.blocks(slot).saturating_mul(16)
}
