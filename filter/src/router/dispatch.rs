//! From a request's parts to a decision and what Envoy has to be told of it.
//!
//! Knows no stream: what comes in are the zone, the path and the body, and the time.

use std::cell::RefCell;
use std::rc::Rc;

use warmpath_routing::decision::{Ask, Degrade, Outcome, Refusal, Route, decide};
use warmpath_routing::fingerprint::Key;
use warmpath_routing::prefix_map::{Layout, Lookup, Matches, find};
use warmpath_routing::view::World;

use super::metrics::Metrics;
use super::prompts::{Loaded, Prompts, Read};
use super::view::View;
use crate::config;
use crate::shared::{Data, Map};
use warmpath_routing::prompt::Api;

/// How much of an unread body tells requests apart, in bytes.
const AFFINITY_BYTES: usize = 2_048;

/// A request, as far as it matters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    /// From the trusted header; `None` without it.
    pub(super) zone: Option<&'a str>,
    /// Without the query.
    pub(super) path: &'a str,
    pub(super) body: Body<'a>,
}

/// How much of the body there is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Body<'a> {
    /// None at all.
    None,
    /// All of it.
    Whole(&'a [u8]),
    /// Too much to look into; this is its start.
    TooLarge(&'a [u8]),
}

/// What Envoy has to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decided {
    Route(Told),
    Refuse(Refusal),
}

/// A route in Envoy's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) cluster: String,
    /// `ip:port`, comma between them, best first; empty where Envoy has to choose.
    pub(super) endpoints: String,
    pub(super) rank: Option<u32>,
    /// For Envoy's own choice, where it has one.
    pub(super) hash: String,
    /// The first replica's slot, which has one more request in flight now.
    pub(super) slot: Option<u16>,
    pub(super) explain: String,
}

/// A worker's router, less the host.
pub(super) struct Dispatch<D> {
    config: config::Router,
    map: Map<D>,
    view: View,
    prompts: Rc<RefCell<Prompts>>,
    metrics: Metrics,
}

impl<D: Data> Dispatch<D> {
    pub(super) fn new(config: config::Router, data: D) -> Self {
        Self {
            config,
            map: Map(data),
            view: View::default(),
            prompts: Prompts::of_this_vm(),
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
        self.prompts.borrow_mut().load_one(&self.view, &self.map.0, 0)
    }

    #[cfg(test)]
    pub(super) fn world(&self) -> &World {
        &self.view.world
    }

    /// Reads what has changed in shared data, and loads at most one model.
    pub(super) fn tick(&mut self, now_ms: u64) {
        let data = &self.map.0;
        if let Err(error) = self.view.refresh(data) {
            self.metrics.host_errors.add(1);
            log::error!("router: {error}");
        }
        self.view.look(data, now_ms, self.config.policy.stale_after_ms);
        let mut prompts = self.prompts.borrow_mut();
        match prompts.load_one(&self.view, data, self.config.shell.memo_bytes) {
            Loaded::Nothing => {}
            Loaded::Ready(name) => log::info!("router: tokenizer of {name} loaded"),
            Loaded::Refused(name, why) => {
                self.metrics.models_refused.add(1);
                log::error!("router: {name} is routed without looking into prompts: {why}");
            }
        }
        self.metrics.models.set(prompts.ready() as u64);
        self.metrics.memo_bytes.set(prompts.memo_bytes() as u64);
        self.metrics.map_fresh.set(u64::from(self.view.world.fresh));
        self.metrics.replicas.set(self.view.world.replicas.len() as u64);
    }

    /// Whether it is worth reading a body: an unknown zone is refused without.
    pub(super) fn knows_zone(&self, zone: Option<&str>) -> bool {
        let policy = &self.config.policy;
        zone.or(policy.zone_source.default.as_deref())
            .is_some_and(|zone| policy.zones.contains_key(zone))
    }

    /// Decides. A routed request counts as in flight until [`Self::landed`].
    pub(super) fn decide(&mut self, asked: &Asked<'_>, now_ms: u64) -> Decided {
        let policy = &self.config.policy;
        let generation = self.view.look(&self.map.0, now_ms, policy.stale_after_ms);
        let read = self.read(asked, now_ms);
        self.metrics.memo(read.memo);
        let model = read.model.as_deref().map(|requested| {
            self.view.model(requested).map_or(requested, |(known, _)| known.model.name.as_str())
        });
        let ask = Ask {
            zone: asked.zone,
            model,
            keys: &read.keys,
            prompt_tokens: read.prompt_tokens,
            affinity: if read.keys.is_empty() { affinity(asked.body, now_ms) } else { 0 },
            degrade: read.degrade,
        };
        let buckets = Buckets { map: &self.map, generation };
        let told = match decide(policy, &self.view.world, &ask, &buckets) {
            Outcome::Refuse(refusal) => {
                self.metrics.refused(&refusal);
                return Decided::Refuse(refusal);
            }
            Outcome::Route(route) => {
                self.metrics.routed(&route);
                told(&route, &self.view.world)
            }
        };
        if let Some(slot) = told.slot {
            self.view.sent(slot);
        }
        Decided::Route(told)
    }

    /// A request that was sent to the replica has ended.
    pub(super) fn landed(&mut self, slot: u16) {
        self.view.landed(slot);
    }

    fn read(&self, asked: &Asked<'_>, now_ms: u64) -> Read {
        let because = |degrade, read| Read { degrade: Some(degrade), ..read };
        match (Api::of_path(asked.path), asked.body) {
            (Some(_), Body::None) => because(Degrade::NoBody, Read::default()),
            (_, Body::TooLarge(start)) => because(Degrade::BodyTooLarge, Read::guess(start)),
            (None, Body::None) => because(Degrade::UnknownApi, Read::default()),
            (None, Body::Whole(body)) => because(Degrade::UnknownApi, Read::peek(body)),
            (Some(api), Body::Whole(body)) => {
                let limit = self.config.policy.prefix_tokens;
                let mut prompts = self.prompts.borrow_mut();
                prompts.read(&self.view, api, body, limit, now_ms / 1_000)
            }
        }
    }
}

fn told(route: &Route<'_>, world: &World) -> Told {
    let replica = |at: &usize| world.replicas.get(*at);
    let first = route.replicas.first().and_then(replica);
    let rank = first.and_then(|replica| replica.rank);
    // A retry takes the next endpoint and can't change the rank: only those of the same rank are
    // named, the rest is left to Envoy's own choice.
    let named = route.replicas.iter().filter_map(replica).filter(|replica| replica.rank == rank);
    let endpoints: Vec<&str> = named.map(|replica| replica.endpoint.as_str()).collect();
    Told {
        cluster: route.cluster.to_owned(),
        endpoints: endpoints.join(","),
        rank,
        hash: format!("{:032x}", route.ring_key),
        slot: first.map(|replica| replica.slot),
        explain: route.explain(world),
    }
}

/// What keeps requests together whose prompt has no block: the start of the body; and requests
/// without a body apart.
fn affinity(body: Body<'_>, now_ms: u64) -> u128 {
    let bytes = match body {
        Body::None => &now_ms.to_le_bytes(),
        Body::Whole(bytes) | Body::TooLarge(bytes) => bytes.get(..AFFINITY_BYTES).unwrap_or(bytes),
    };
    let hash = blake3::hash(bytes);
    hash.as_bytes().first_chunk().map_or(0, |first| u128::from_le_bytes(*first))
}

struct Buckets<'a, D> {
    map: &'a Map<D>,
    generation: u32,
}

impl<D: Data> Lookup for Buckets<'_, D> {
    fn matches(&self, keys: &[Key], wanted: &dyn Fn(u16) -> bool) -> Matches {
        find(self.map, Layout::default(), self.generation, keys, wanted)
    }
}
