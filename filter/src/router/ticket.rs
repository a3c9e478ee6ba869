//! What is kept of a request that was sent, until its answer has ended.

use warmpath_prompt::{Api, CacheUse};
use warmpath_routing::catalogue::Wants;
use warmpath_routing::cost::CostModel;
use warmpath_routing::decision::{Ask, Degrade, Route};
use warmpath_routing::drift::Asked;
use warmpath_routing::fingerprint::Key;
use warmpath_routing::orca::Orca;
use warmpath_routing::poison::Prompt;
use warmpath_routing::view::World;

use super::ending::{Client, Ending};
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
    pub(super) expected: Option<Expected>,
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

/// Tokens, as foreseen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) cached: u32,
    /// What may be cached as well, its events being under way.
    pub(super) excused: u32,
    /// Of requests sent before, whether or not a moment ago, beyond what the map says.
    pub(super) sent_before: u32,
    /// What the map doesn't promise.
    pub(super) dispute: Dispute,
    /// Nothing but the map spoke for the replica.
    pub(super) certain: bool,
    /// Of the whole prompt; `None` where it was not counted to its end.
    pub(super) prompt: Option<u32>,
}

/// Where the map's promise ends: what an engine has cached beyond it, or computes, shows there first
/// once its events have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dispute {
    /// The replica's, when it was decided.
    pub(super) slot: u16,
    /// The last of the first engine block that is not promised; `None` where the prompt ends before.
    pub(super) key: Option<Key>,
    /// Tokens up to its end.
    pub(super) tokens: u32,
    /// Of the engine's blocks; the longest that are usual where that isn't known.
    pub(super) block_tokens: u32,
}

impl Dispute {
    /// `promised`: tokens that the map says are held, those included that the engine drops.
    fn new(keys: &[Key], promised: u32, slot: u16, block_tokens: u32) -> Self {
        const LONG: u32 = 256;
        let block_tokens = if block_tokens == 0 { LONG } else { block_tokens };
        let end = (promised / block_tokens).saturating_add(1).saturating_mul(block_tokens);
        // A fingerprint belongs to the engine's block in which it ends.
        let blocks = (end / 16).max(promised / 16 + 1);
        let key = keys.get(blocks as usize - 1).copied();
        Self { slot, key, tokens: blocks.saturating_mul(16), block_tokens }
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
        self.of_engine && matches!(self.status, 502..=504)
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
        let first = route.replicas.first().and_then(|at| world.replicas.get(*at));
        let seeks = route.degrade == Some(Degrade::UnknownResponse);
        let rank = first.and_then(|replica| replica.rank);
        // A retry takes the next endpoint and can't change the rank: only those of the same rank
        // are named, the rest is left to Envoy's own choice. Where a response is sought the rank is.
        let named = route.replicas.iter().filter_map(|at| {
            let replica =
                world.replicas.get(*at).filter(|replica| seeks || replica.rank == rank)?;
            Some((replica.endpoint.as_str(), *names.get(*at)?))
        });
        let load = route.replicas.first().and_then(|at| world.loads.get(*at));
        // Where a prompt was read to its end, its blocks leave less than one over.
        let whole = ask.left_out.is_none()
            && u32::try_from(ask.keys.len()).ok() == Some(ask.prompt_tokens / 16);
        // What lies beyond all that was looked at may well be cached.
        let looked = (ask.keys.len() as u32).saturating_mul(16);
        let block = first.map_or(16, |replica| replica.block_tokens.max(16));
        let dropped = first.map_or(0, |replica| replica.dropped_tokens);
        let held = route.cached_tokens.saturating_add(dropped);
        let all_held = held.saturating_add(block) > looked;
        let beyond = !whole && ask.left_out.is_none() && all_held;
        let excused = if beyond { u32::MAX } else { excused };
        let followed = route.degrade.is_none() && !ask.keys.is_empty();
        let expected = first.filter(|_| followed).map(|replica| Expected {
            cached: route.cached_tokens,
            excused,
            sent_before: if route.hoped_tokens > route.cached_tokens {
                route.hoped_tokens
            } else {
                0
            },
            dispute: Dispute::new(
                ask.keys,
                route.cached_tokens.saturating_add(replica.dropped_tokens),
                replica.slot,
                replica.block_tokens,
            ),
            certain: route.hoped_tokens == route.cached_tokens,
            prompt: whole.then_some(ask.prompt_tokens),
        });
        Self {
            at: None,
            cold_tokens: route.prompt_tokens.saturating_sub(route.hoped_tokens),
            named: named.collect(),
            seeks,
            model: match ask.model {
                Wants::Model { name, .. } => Some(name.to_owned()),
                Wants::Unknown { .. } | Wants::Unnamed | Wants::Unreadable => None,
            },
            prompt: None,
            api: None,
            asked: (Asked::default(), 0),
            cache_use: CacheUse::default(),
            pool: route.pool.to_owned(),
            expected,
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
