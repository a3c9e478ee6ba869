//! From a request's parts to a decision and what Envoy has to be told of it.
//!
//! Knows no stream: what comes in are the zone, the path and the body, and the time.

mod failures;
mod stored;

use std::cell::RefCell;
use std::rc::Rc;

use warmpath_prompt::{Api, Body, CacheUse, Reach, Read, Reader};
use warmpath_routing::catalogue::{Wants, card, list, of_zone, resolve, retain_loaded};
use warmpath_routing::decision::{
    Ask, Outcome, Refusal, Route, decide_stored, decide_with, refuse_model,
};
use warmpath_routing::drift::MapView;
use warmpath_routing::fingerprint::Key;
use warmpath_routing::health::Cause;
use warmpath_routing::policy::Policy;
use warmpath_routing::prefix_map::{Hint, Hints, Layout, Lookup, Matches, Wanted, find};
use warmpath_routing::requested::Requested;
use warmpath_routing::residency::{Claim, Zone, zone_of};
use warmpath_routing::tally::Tallies;
use warmpath_routing::traffic::Traffic;
use warmpath_routing::usage::Usage;
use warmpath_routing::view::World;

use super::feedback::Feedback;
use super::fresher::Fresher;
use super::metrics::Metrics;
use super::pace::Pace;
use super::prompts::{self, Loaded};
use super::recall::Recall;
use super::sample::Sample;
use super::stored::Stored;
use super::suspects::Suspects;
use super::ticket::{Answer, Named, Ticket};
use super::view::View;
use crate::shared::{self, Data, Ledgers, Map};
use crate::{config, host};

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
    map: Map<D>,
    // Filled while the map is searched.
    hints: RefCell<Hints>,
    view: View,
    traffic: Traffic,
    fresher: Fresher,
    feedback: Feedback,
    recall: Recall,
    suspects: Suspects,
    sample: Sample,
    pace: Pace,
    awaits: bool,
    reader: Rc<RefCell<Reader>>,
    // The relay can know the policy's pools.
    told_pools: bool,
    // Replicas under a pool of another model, when it was last told.
    misfiled: u64,
    metrics: Metrics,
}

impl<D: Data> Dispatch<D> {
    /// `id`: a random number, which names this worker's life.
    pub(super) fn new(config: config::Router, data: D, id: u64) -> Self {
        Self {
            pace: Pace::new(config.shell.refresh_ms),
            awaits: false,
            sample: Sample::default(),
            suspects: Suspects::new(config.policy.poison.clone()),
            config,
            traffic: Traffic::new(id),
            fresher: Fresher::default(),
            feedback: Feedback::define(),
            recall: Recall::define(),
            map: Map(data),
            hints: RefCell::default(),
            view: View::default(),
            reader: prompts::of_this_vm(),
            told_pools: false,
            misfiled: 0,
            metrics: Metrics::define(),
        }
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    #[cfg(test)]
    pub(super) fn data_mut(&mut self) -> &mut D {
        &mut self.map.0
    }

    #[cfg(test)]
    pub(super) fn load_one(&self) -> Loaded {
        prompts::load_one(&mut self.reader.borrow_mut(), &self.view, &self.map.0, 0)
    }

    #[cfg(test)]
    pub(super) fn totals(&self, now_ms: u64) -> warmpath_routing::traffic::Totals {
        self.traffic.totals(now_ms)
    }

    /// Replicas that lack what was expected, and that hold what was not.
    #[cfg(test)]
    pub(super) fn drifting(&self) -> [usize; 2] {
        use warmpath_routing::drift::Kind;
        let table = self.feedback.drifts.table();
        [Kind::Missing, Kind::Surprise].map(|kind| table.drifting(kind))
    }

    #[cfg(test)]
    pub(super) fn suspected(&self, suspect: warmpath_routing::drift::Suspect) -> usize {
        self.feedback.drifts.table().suspected(suspect)
    }

    #[cfg(test)]
    pub(super) fn names(&self) -> &[u64] {
        &self.view.names
    }

    #[cfg(test)]
    pub(super) fn world(&self) -> &World {
        &self.view.world
    }

    /// Pools of which prices were learned.
    #[cfg(test)]
    pub(super) fn learned(&self) -> usize {
        self.feedback.prices.len()
    }

    /// Whether bodies are awaited, which ticks look after.
    pub(super) fn awaits(&mut self, awaits: bool) {
        if awaits && !self.awaits {
            self.pace.stir();
        }
        self.awaits = awaits;
    }

    /// Looks around, and loads at most one model.
    pub(super) fn tick(&mut self, now_ms: u64) {
        self.look_around(now_ms);
        self.tell_pools();
        self.tell_misfiled();
        if let Err(error) = self.recall.tell(&mut self.map.0) {
            self.metrics.host_errors.add(1);
            log::error!("router: {error}");
        }
        self.metrics.totals(self.traffic.totals(now_ms));
        self.metrics.poison_prompts.set(self.suspects.refused(now_ms) as u64);
        self.sample.tick(now_ms);
        let mut reader = self.reader.borrow_mut();
        let memo_bytes = self.config.shell.memo_bytes;
        let loaded = prompts::load_one(&mut reader, &self.view, &self.map.0, memo_bytes);
        match &loaded {
            Loaded::Nothing => {}
            Loaded::Ready(name) => {
                let ms = host::now_ms().saturating_sub(now_ms);
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
            && !self.suspects.has_news()
            && !self.feedback.is_busy();
        self.pace.tick(!calm);
    }

    /// The milliseconds between ticks, if those have changed.
    pub(super) fn tick_ms(&mut self) -> Option<u32> {
        self.pace.news()
    }

    /// Puts the policy's pools where the service finds them, which tells the relay. Once: what was
    /// not written is tried again with the next tick.
    fn tell_pools(&mut self) {
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
    fn tell_misfiled(&mut self) {
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
    fn look_around(&mut self, now_ms: u64) {
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
        self.fresher.refresh(&mut self.view, now_ms);
        if let Err(error) =
            self.traffic.exchange(&mut Ledgers(&mut self.map.0), self.view.places(), now_ms)
        {
            self.metrics.host_errors.add(1);
            log::error!("router: {error}");
        }
        let generation = self.view.look(now_ms, self.config.policy.stale_after_ms);
        self.close_loop(generation, now_ms);
        self.settle_doubts(now_ms);
        self.exchange_suspects();
    }

    /// Looks what became of answers that were not as foreseen, and shares that with the others.
    fn close_loop(&mut self, generation: u32, now_ms: u64) {
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
    pub(super) fn decide(&mut self, asked: &Asked<'_>, now_ms: u64) -> Decided {
        if self.pace.wake() {
            self.look_around(now_ms);
        }
        let prompt = self.suspects.name(asked.body);
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
            let start = chose.and_then(|_| host::now_nanos().ok());
            let decided = self.decide_on(asked, &read, now_ms);
            let took = start.and_then(|start| Some(host::now_nanos().ok()?.saturating_sub(start)));
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
    fn decide_on(&mut self, asked: &Asked<'_>, read: &Read<'_>, now_ms: u64) -> Option<Decided> {
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

    /// Whether to look into the answer to this request: into all of a replica that failed of late, and
    /// of a prompt during which one did.
    pub(super) fn looks_into(&mut self, ticket: &Ticket) -> bool {
        self.suspects.knows(ticket.prompt)
            || ticket.at.is_some_and(|name| self.traffic.doubts(name) || self.sample.take(name))
    }

    /// The headers of an answer have come: who served, and who failed before.
    pub(super) fn answered(
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
                    self.fresher.heard(&mut self.view, name, orca, now_ms());
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

    fn failed(&mut self, ticket: &Ticket, first: usize, why: Cause, now_ms: &impl Fn() -> u64) {
        for name in ticket.named.names().iter().take(first) {
            self.fail_one(&ticket.named, *name, why, now_ms());
        }
    }

    fn fail_one(&mut self, named: &Named, name: u64, cause: Cause, now_ms: u64) {
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
    pub(super) fn first_token(&mut self, ticket: &mut Ticket, at_ns: Option<u64>) {
        ticket.first_token_ns = at_ns;
        let cold_tokens = std::mem::take(&mut ticket.cold_tokens);
        if let Some(name) = ticket.at.filter(|_| cold_tokens > 0) {
            self.traffic.prefilled(self.view.places(), name, cold_tokens);
        }
    }

    /// An answer has come to its end, and says this of its tokens.
    pub(super) fn finished(&mut self, ticket: &Ticket, usage: Option<Usage>) {
        self.feedback.usage(ticket, usage);
        if let Some(cached) = self.feedback.cached(ticket, usage) {
            self.recall.learn(ticket, cached, self.view.epoch());
        }
        self.feedback.timing(&self.config.policy.cost, ticket, usage);
    }

    /// A request has ended, one way or another.
    pub(super) fn landed(&mut self, ticket: &mut Ticket) {
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
    pub(super) fn leave(&mut self) {
        self.traffic.leave(&mut Ledgers(&mut self.map.0));
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

/// The caches as a request sees them of which nothing is read for it.
struct Unread;

impl Lookup for Unread {
    fn matches(&self, _: &[Key], _: &dyn Wanted) -> Matches {
        Matches::default()
    }
}

/// What there is to see after an answer.
struct Seen<'a, D> {
    map: &'a Map<D>,
    view: &'a View,
    generation: u32,
}

impl<D: Data> MapView for Seen<'_, D> {
    fn slot(&self, replica: u64) -> Option<u16> {
        let mut all = self.view.replicas();
        all.find_map(|((it, name), _)| (name == replica).then_some(it.slot))
    }

    fn holds(&self, slot: u16, key: Key) -> bool {
        let wanted = |other: u16| other == slot;
        let hint = Hint::default();
        let found = find(self.map, Layout::default(), self.generation, &[key], hint, &wanted);
        found.blocks(slot) > 0
    }

    fn tallies(&self) -> Tallies {
        let bytes = self.map.0.get(shared::TALLIES).ok().flatten();
        Tallies::decode(&bytes.unwrap_or_default())
    }
}

struct Buckets<'a, D> {
    map: &'a Map<D>,
    generation: u32,
    hints: &'a RefCell<Hints>,
    now_ms: u64,
}

impl<D: Data> Lookup for Buckets<'_, D> {
    fn matches(&self, keys: &[Key], wanted: &dyn Wanted) -> Matches {
        let Self { map, generation, hints, now_ms } = *self;
        let hint = hints.borrow().get(keys, generation, now_ms);
        let matches = find(map, Layout::default(), generation, keys, hint, wanted);
        hints.borrow_mut().put(keys, generation, now_ms, &matches);
        matches
    }
}
