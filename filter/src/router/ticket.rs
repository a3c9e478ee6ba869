//! What is kept of a request that was sent, until its answer has ended.

use warmpath_prompt::{Api, CacheUse};
use warmpath_routing::catalogue::Wants;
use warmpath_routing::cost::CostModel;
use warmpath_routing::decision::{Ask, Route};
use warmpath_routing::drift::{Asked, Forecast};
use warmpath_routing::health::{Ending, is_overloaded};
use warmpath_routing::orca::Orca;
use warmpath_routing::poison::Prompt;
use warmpath_routing::view::World;

use super::client::Client;
use super::recall::Kept;

/// A request under way.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ticket {
    /// The replica where it counts as in flight.
    pub(super) at: Option<u64>,
    /// Tokens that it has in prefill there.
    pub(super) cold_tokens: u32,
    /// What Envoy was told.
    pub(super) named: Named,
    /// Each of those named is asked for a response that one of them holds, and the others answer 404.
    pub(super) seeks: bool,
    /// What was sent.
    pub(super) prompt: Option<Prompt>,
    /// The model, by the name that pools use.
    pub(super) model: Option<String>,
    pub(super) pool: String,
    pub(super) api: Option<Api>,
    /// What the prompt is made of, and the messages of a chat.
    pub(super) asked: (Asked, u8),
    /// What the engine does with its cache for it, and so what its answer can teach.
    pub(super) cache_use: CacheUse,
    /// What was expected; `None` where nothing was: the map not asked, the prompt not read.
    pub(super) expected: Option<Forecast>,
    /// Its replica may hold more than the map says.
    pub(super) partial: bool,
    /// Its prompt's keys, if answers teach what that is.
    pub(super) kept: Option<Kept>,
    /// Tokens to be brought in from a slower tier.
    pub(super) offloaded: u32,
    /// What the decision reckoned with.
    pub(super) queued: u32,
    pub(super) rtt_ms: f64,
    /// When it was decided on, and when the first token came, in nanoseconds since 1970.
    pub(super) sent_ns: u64,
    pub(super) first_token_ns: Option<u64>,
}

/// Replicas, in the order in which Envoy tries them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Named {
    /// `ip:port`, comma between them: one text, which is what Envoy is told.
    endpoints: String,
    names: Vec<u64>,
}

impl Named {
    fn push(&mut self, endpoint: &str, name: u64) {
        if !self.names.is_empty() {
            self.endpoints.push(',');
        }
        self.endpoints.push_str(endpoint);
        self.names.push(name);
    }

    /// `ip:port`, comma between them, best first; empty where Envoy has to choose.
    pub(super) fn endpoints(&self) -> &str {
        &self.endpoints
    }

    /// Names of the replicas.
    pub(super) fn names(&self) -> &[u64] {
        &self.names
    }

    /// The first one's endpoint.
    pub(super) fn foreseen(&self) -> Option<&str> {
        self.endpoints.split(',').next().filter(|first| !first.is_empty())
    }

    /// The place of an endpoint.
    pub(super) fn position(&self, endpoint: &str) -> Option<usize> {
        let mut all = self.endpoints.split(',').take(self.names.len());
        all.position(|named| named == endpoint)
    }

    /// A replica's endpoint, for a log.
    pub(super) fn endpoint_of(&self, name: u64) -> &str {
        let at = self.names.iter().position(|named| *named == name);
        at.and_then(|at| self.endpoints.split(',').nth(at)).unwrap_or("a replica")
    }
}

impl<'e> FromIterator<(&'e str, u64)> for Named {
    fn from_iter<I: IntoIterator<Item = (&'e str, u64)>>(all: I) -> Self {
        // As many as most policies name.
        let mut named = Self { endpoints: String::with_capacity(96), names: Vec::with_capacity(4) };
        all.into_iter().for_each(|(endpoint, name)| named.push(endpoint, name));
        named
    }
}

/// What Envoy tells of an answer when its headers come.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// An engine's answer, and not Envoy's own.
    pub(super) of_engine: bool,
    /// Envoy's own answer says that engines failed, and not the client or the configuration.
    pub(super) upstream_failed: bool,
    /// How the last of them did.
    pub(super) ending: Ending,
    /// Who asked; told where something went wrong.
    pub(super) client: Option<Client>,
    /// `ip:port` of the host that answered or was tried last.
    pub(super) upstream: Option<String>,
    /// Hosts that were tried.
    pub(super) attempts: usize,
    /// The engine's load, where it reports one.
    pub(super) orca: Option<Orca>,
}

impl Answer {
    /// An engine says that it can't serve.
    pub(super) fn is_overloaded(&self) -> bool {
        self.of_engine && is_overloaded(self.status)
    }
}

impl Ticket {
    /// `excused`: tokens of requests whose events may still be under way.
    pub(super) fn new(
        route: &Route<'_>,
        ask: &Ask<'_>,
        world: &World,
        names: &[u64],
        excused: u32,
    ) -> Self {
        let named = route
            .named(world)
            .filter_map(|(at, replica)| Some((replica.endpoint.as_str(), *names.get(at)?)));
        let load = route.replicas.first().and_then(|at| world.loads.get(*at));
        Self {
            at: None,
            cold_tokens: route.cold_tokens(),
            named: named.collect(),
            seeks: route.seeks_response(),
            model: match ask.model {
                Wants::Model { name, .. } => Some(name.to_owned()),
                Wants::Unknown { .. } | Wants::Unnamed | Wants::Unreadable => None,
            },
            prompt: None,
            api: None,
            asked: (Asked::default(), 0),
            cache_use: CacheUse::default(),
            pool: route.pool.to_owned(),
            expected: Forecast::of(route, ask, world, excused),
            partial: false,
            kept: None,
            offloaded: route.offloaded_tokens,
            queued: load.map_or(0, CostModel::queued),
            rtt_ms: route.cost.network,
            sent_ns: 0,
            first_token_ns: None,
        }
    }

    /// A request of this API, made of this, for which an engine uses its cache like this.
    pub(super) fn asked_by(&mut self, api: Option<Api>, asked: (Asked, u8), cache_use: CacheUse) {
        self.api = api;
        self.asked = asked;
        self.cache_use = cache_use;
        if cache_use == CacheUse::Uncounted {
            self.expected = None;
        }
    }
}
