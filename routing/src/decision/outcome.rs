//! What was decided, and why.

use super::refusal::Refusal;
use crate::cost::Cost;
use crate::fingerprint::Key;
use crate::view::{Medium, Replica, World};

/// A decision.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome<'a> {
    /// Send it there.
    Route(Route<'a>),
    /// Answer it here.
    Refuse(Refusal),
}

impl<'a> Outcome<'a> {
    /// The way to a replica, if it was not refused.
    pub fn route(&self) -> Option<&Route<'a>> {
        match self {
            Self::Route(route) => Some(route),
            Self::Refuse(_) => None,
        }
    }
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Route<'a> {
    /// The zone that bound the choice.
    pub zone: &'a str,
    /// The chosen region.
    pub region: &'a str,
    /// The chosen pool.
    pub pool: &'a str,
    /// The Envoy cluster to name.
    pub cluster: &'a str,
    /// Indices of the world's replicas, best first; empty where Envoy has to choose.
    pub replicas: Vec<usize>,
    /// Why the first of them.
    pub reason: Reason,
    /// What kept the decision from being better, if anything did.
    pub degrade: Option<Degrade>,
    /// A better replica was full.
    pub spilled: bool,
    /// All that could take it have as much to prefill as they may: it could wait a moment.
    pub crowded: bool,
    /// Prompt tokens that the chosen replica is expected to find cached.
    pub cached_tokens: u32,
    /// Those of them that are not on its GPU, but in a slower tier.
    pub offloaded_tokens: u32,
    /// The slowest tier that they come from.
    pub tier: Option<Medium>,
    /// As [`Self::cached_tokens`], with what requests sent there a moment ago will have brought.
    pub hoped_tokens: u32,
    /// Tokens of the prompt, as far as known.
    pub prompt_tokens: u32,
    /// Blocks of the prompt whose names are known.
    pub blocks: usize,
    /// The key of the last of them.
    pub last_key: Option<Key>,
    /// The chosen replica's cost, in milliseconds.
    pub cost: Cost,
    /// The place on the ring that stands for the prompt.
    pub ring_key: u128,
    /// Replicas that hold some of the prefix.
    pub holders: usize,
    /// Blocks of the prefix that some replica holds, or will soon.
    pub deepest: u32,
    /// Buckets of the map that were read.
    pub probes: u32,
}

impl<'a> Route<'a> {
    /// Tokens that the chosen replica has to compute: what the request counts for there until its first
    /// token comes.
    pub fn cold_tokens(&self) -> u32 {
        self.prompt_tokens.saturating_sub(self.hoped_tokens)
    }

    /// Whether each replica is asked for a response that one of them holds, and the others answer 404.
    pub fn seeks_response(&self) -> bool {
        self.degrade == Some(Degrade::UnknownResponse)
    }

    /// The replicas to name to Envoy, best first, with their places in the world.
    ///
    /// A retry takes the next endpoint and can't change the rank: only those of the first one's rank are
    /// named, the rest is left to Envoy's own choice. Where a response is sought all are.
    pub fn named<'w>(
        &self,
        world: &'w World,
    ) -> impl Iterator<Item = (usize, &'w Replica)> + use<'_, 'w> {
        let all = self.replicas.iter().filter_map(|at| Some((*at, world.replicas.get(*at)?)));
        let rank = all.clone().next().and_then(|(_, first)| first.rank);
        let any = self.seeks_response();
        all.filter(move |(_, replica)| any || replica.rank == rank)
    }

    /// To the zone's nearest pool, replica unknown.
    pub(super) fn unplaced(
        zone: &'a str,
        [region, pool, cluster]: [&'a str; 3],
        degrade: Option<Degrade>,
        ring_key: u128,
    ) -> Self {
        Self {
            zone,
            region,
            pool,
            cluster,
            replicas: Vec::new(),
            reason: Reason::Unplaced,
            degrade,
            spilled: false,
            crowded: false,
            cached_tokens: 0,
            offloaded_tokens: 0,
            tier: None,
            hoped_tokens: 0,
            prompt_tokens: 0,
            blocks: 0,
            last_key: None,
            cost: Cost::default(),
            ring_key,
            holders: 0,
            deepest: 0,
            probes: 0,
        }
    }
}

/// Why a replica was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It holds some of the prefix and is the cheapest.
    Warm,
    /// The same prefix was sent there a moment ago.
    Recent,
    /// Nobody worth it holds any: its place on the ring.
    Cold,
    /// It holds the response that the request refers to.
    Response,
    /// The map could not be asked: its place on the ring.
    Ring,
    /// No replica is known: Envoy chooses, within the zone.
    Unplaced,
}

impl Reason {
    /// All reasons, for those who count them.
    pub const ALL: [Self; 6] =
        [Self::Warm, Self::Recent, Self::Cold, Self::Response, Self::Ring, Self::Unplaced];

    /// The name in metrics, headers and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Recent => "recent",
            Self::Cold => "cold",
            Self::Response => "response",
            Self::Ring => "ring",
            Self::Unplaced => "unplaced",
        }
    }
}

/// What kept a decision from looking at the prefix map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Degrade {
    /// The relay is silent, or its snapshot is not complete.
    StaleMap,
    /// The model's tokenizer has not arrived, or the model has none.
    NoTokenizer,
    /// The path is none whose prompt is read.
    UnknownApi,
    /// The request has no body.
    NoBody,
    /// The body is larger than what is read.
    BodyTooLarge,
    /// The body is not what the API takes.
    BadRequest,
    /// The chat template refused or failed.
    Template,
    /// The prompt has content that can't be followed from its start.
    Unfollowable,
    /// It refers to a stored response, and nobody here knows which replica of the zone holds that.
    UnknownResponse,
    /// The prompt is known up to an image or another medium alone. What comes before it is looked
    /// up all the same.
    Media,
}

impl Degrade {
    /// All of them, for those who count them.
    pub const ALL: [Self; 10] = [
        Self::StaleMap,
        Self::NoTokenizer,
        Self::UnknownApi,
        Self::NoBody,
        Self::BodyTooLarge,
        Self::BadRequest,
        Self::Template,
        Self::Unfollowable,
        Self::UnknownResponse,
        Self::Media,
    ];

    /// The name in metrics, headers and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::StaleMap => "stale_map",
            Self::NoTokenizer => "no_tokenizer",
            Self::UnknownApi => "unknown_api",
            Self::NoBody => "no_body",
            Self::BodyTooLarge => "body_too_large",
            Self::BadRequest => "bad_request",
            Self::Template => "template",
            Self::Unfollowable => "unfollowable",
            Self::UnknownResponse => "unknown_response",
            Self::Media => "media",
        }
    }
}
