//! What was decided, and why.

use crate::cost::Cost;
use crate::fingerprint::Key;
use crate::poison::Poison;
use crate::residency::NoZone;
use crate::view::Medium;

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
    /// The body is larger than what is looked into.
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

/// An answer in place of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// OpenAI's `error.type`.
    pub kind: &'static str,
    /// OpenAI's `error.code`; the name in metrics, too.
    pub code: &'static str,
    /// For the client; says nothing of the inside.
    pub message: String,
    /// Seconds after which another try makes sense.
    pub retry_after: Option<u32>,
}

impl From<NoZone> for Refusal {
    fn from(why: NoZone) -> Self {
        let (code, message) = match why {
            NoZone::Missing => (
                "zone_missing",
                "The request has no data-residency zone, and this gateway requires one.",
            ),
            NoZone::Unknown => {
                ("zone_unknown", "The request's data-residency zone is not known to this gateway.")
            }
        };
        Self::forbidden(code, message.into())
    }
}

/// What a client sent, fit for a message to it.
fn shown(text: &str) -> String {
    const MOST: usize = 128;
    let plain = text.chars().map(|c| if c.is_control() || c == '`' { '?' } else { c });
    plain.take(MOST).collect()
}

/// A few of the names.
fn listed(names: &[&str]) -> String {
    const MOST: usize = 20;
    let some: Vec<&str> = names.iter().copied().take(MOST).collect();
    match names.len().checked_sub(MOST) {
        None | Some(0) => some.join(", "),
        Some(more) => format!("{} and {more} more", some.join(", ")),
    }
}

impl Refusal {
    /// All codes, for those who count them.
    pub const CODES: [&'static str; 11] = [
        "zone_missing",
        "zone_unknown",
        "no_replica",
        "model_not_found",
        "model_not_in_zone",
        "model_unknown",
        "unsupported_encoding",
        "bad_encoding",
        "request_too_large",
        "bodies_awaited",
        Poison::CODE,
    ];

    fn forbidden(code: &'static str, message: String) -> Self {
        Self { status: 403, kind: "permission_error", code, message, retry_after: None }
    }

    fn not_found(message: String) -> Self {
        Self {
            status: 404,
            kind: "invalid_request_error",
            code: "model_not_found",
            message,
            retry_after: None,
        }
    }

    /// No model of this name, or none named (`None`), where `there` are to be had in the zone.
    pub fn model_not_found(name: Option<&str>, there: &[&str]) -> Self {
        let there = listed(there);
        Self::not_found(match name {
            Some(name) => {
                let name = shown(name);
                format!("The model `{name}` does not exist in this zone, which has {there}.")
            }
            None => format!("The request names no model, and this zone has {there}."),
        })
    }

    pub(super) fn model_unreadable(there: &[&str]) -> Self {
        let there = listed(there);
        Self::not_found(format!(
            "The model could not be read from the request's body, and this zone has {there}."
        ))
    }

    pub(super) fn adapter_not_loaded(zone: &str, adapter: &str) -> Self {
        let adapter = shown(adapter);
        Self::not_found(format!("No replica of zone {zone} has the adapter `{adapter}` loaded."))
    }

    pub(super) fn model_not_in_zone(zone: &str, there: &[&str]) -> Self {
        let there = listed(there);
        let message = format!("The model is not served in zone {zone}, which has {there}.");
        Self::forbidden("model_not_in_zone", message)
    }

    pub(super) fn model_unknown() -> Self {
        Self {
            status: 503,
            kind: "server_error",
            code: "model_unknown",
            message: "This gateway does not know the model: it has not heard from its relay yet."
                .into(),
            retry_after: Some(1),
        }
    }

    /// A compressed body that can't be undone.
    pub fn bad_encoding() -> Self {
        Self {
            status: 400,
            kind: "invalid_request_error",
            code: "bad_encoding",
            message: "The body is cut off, or is not of its content-encoding.".into(),
            retry_after: None,
        }
    }

    /// A compressed body that grows larger than so many bytes, or too many times its size.
    pub fn request_too_large(most: usize) -> Self {
        Self {
            status: 413,
            kind: "invalid_request_error",
            code: "request_too_large",
            message: format!(
                "The compressed body grows to more than {most} bytes, or to more than 256 KiB and a \
                 hundred times its size. Send it uncompressed."
            ),
            retry_after: None,
        }
    }

    /// Too many bodies are awaited, and this one came before the others.
    pub fn bodies_awaited() -> Self {
        Self {
            status: 503,
            kind: "server_error",
            code: "bodies_awaited",
            message: "This gateway waits for the ends of too many request bodies, and has waited \
                      longest for this one's. Send it again."
                .into(),
            retry_after: Some(1),
        }
    }

    /// A body that neither this gateway nor an engine can read.
    pub fn unsupported_encoding(encoding: &str) -> Self {
        Self {
            status: 415,
            kind: "invalid_request_error",
            code: "unsupported_encoding",
            message: format!(
                "This gateway does not read bodies with content-encoding `{}`.",
                shown(encoding)
            ),
            retry_after: None,
        }
    }

    pub(super) fn no_replica(zone: &str, model: &str) -> Self {
        Self {
            status: 503,
            kind: "server_error",
            code: "no_replica",
            message: format!(
                "No replica of model {model} in zone {zone} is available at the moment."
            ),
            retry_after: Some(1),
        }
    }

    /// The answer's body, in the shape of OpenAI's errors.
    pub fn body(&self) -> String {
        serde_json::json!({
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": null,
                "code": self.code,
            }
        })
        .to_string()
    }
}
