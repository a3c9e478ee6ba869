//! One request and its response: reads headers, awaits the body, sets the headers that Envoy routes by.

mod answer;
mod request;

use std::cell::RefCell;
use std::fmt::Write;
use std::rc::{Rc, Weak};

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use warmpath_prompt::{Api, Body, Large, Target, model_in_path};
use warmpath_routing::decision::Refusal;
use warmpath_routing::fingerprint::Key;
use warmpath_routing::requested::Requested;
use warmpath_routing::residency::Claim;
use warmpath_routing::zone_source::NamedZone;

use super::Router;
use super::dispatch::{Asked, Decided, Told};
use super::inflate::Coding;
use super::response::Watch;
use super::stored::Stored;
use super::ticket::Ticket;
use super::waiting::Now;
use super::zone::Asking;
use crate::host::{self, Headers};

/// Names the Envoy cluster; the route's `cluster_header`.
const CLUSTER: &str = "x-warmpath-cluster";
/// Names the hosts; the cluster's `override_host`. Also what the Gateway API calls it.
const ENDPOINT: &str = "x-gateway-destination-endpoint";
/// Names the engine's data-parallel rank; vLLM's own.
const RANK: &str = "x-data-parallel-rank";
/// Asks the engine to report its load with the answer (ORCA).
const ORCA_FORMAT: &str = "endpoint-load-metrics-format";
/// Bounds Envoy's retries of one request, whatever the route says; Envoy's own.
const MAX_RETRIES: &str = "x-envoy-max-retries";
/// By these Envoy asks the next of those that were named where one answers so, whatever the route says;
/// Envoy's own.
const RETRY_ON: (&str, &str) = ("x-envoy-retry-on", "retriable-status-codes");
const RETRIABLE: (&str, &str) = ("x-envoy-retriable-status-codes", "404");
/// For Envoy's own choice, where no host is named.
const HASH: &str = "x-warmpath-hash";
/// Tells the client why, if configured.
const EXPLAIN: &str = "x-warmpath-explain";
/// Filter state for the access log: `%FILTER_STATE(wasm.warmpath_decision:PLAIN)%`.
const PROPERTY: &str = "warmpath_decision";

/// Where the request is on its way through the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its body is awaited.
    Reading,
    /// It is held back until a replica has room, since this time in milliseconds.
    Waiting(u64),
    /// It goes on, or was answered.
    Done,
}

/// One request and its response, as the SDK holds it. What waits is asked again from the tick, which
/// needs a hold of it too.
pub struct Exchange(Rc<RefCell<Flow>>);

impl Exchange {
    /// A request that has just begun, of the context of this id.
    pub fn new(router: Rc<Router>, id: u32) -> Self {
        Self(Rc::new_cyclic(|me| RefCell::new(Flow::new(router, id, Weak::clone(me)))))
    }

    // No callback of Envoy's runs inside another one; were there one, the request would stay where
    // it is rather than pass unrouted.
    fn on(&self, act: impl FnOnce(&mut Flow) -> Action) -> Action {
        self.0.try_borrow_mut().map_or(Action::Pause, |mut flow| act(&mut flow))
    }
}

/// Headers of ours that the client itself has sent.
#[derive(Clone, Copy, Debug, Default)]
struct CameWith {
    rank: bool,
    hash: bool,
}

/// A request on its way, and its response.
pub(super) struct Flow {
    id: u32,
    me: Weak<RefCell<Flow>>,
    router: Rc<Router>,
    stage: Stage,
    zone: Option<NamedZone>,
    api: Option<Api>,
    // The model by the path, of a request without a body.
    requested: Requested<'static>,
    // The stored response that the path names, and what there is to learn of it or of a new one.
    response: Option<String>,
    stored: Stored,
    // The body's type, if it is a form.
    form: Option<Vec<u8>>,
    // How the body is compressed, until it is no more; and bytes of it that came so far.
    coding: Option<Coding>,
    compressed: usize,
    // Its place among the bodies that are awaited.
    awaited: Option<u64>,
    // The body, if it is too large to be looked into.
    large: Option<Large>,
    batch: bool,
    explain: String,
    // Of the prompt; for the client's header only.
    last_key: Option<Key>,
    // In flight until this is dropped.
    ticket: Option<Ticket>,
    watch: Watch,
    // The engine is asked to report its load.
    orca: bool,
    came_with: CameWith,
}

impl Flow {
    fn new(router: Rc<Router>, id: u32, me: Weak<RefCell<Self>>) -> Self {
        Self {
            id,
            me,
            router,
            stage: Stage::Reading,
            zone: None,
            api: None,
            requested: Requested::Nothing,
            response: None,
            stored: Stored::default(),
            form: None,
            coding: None,
            compressed: 0,
            awaited: None,
            large: None,
            batch: false,
            explain: String::new(),
            last_key: None,
            ticket: None,
            watch: Watch::default(),
            orca: false,
            came_with: CameWith::default(),
        }
    }

    /// Reads the headers, and says what to do about the rest. `end`: there is no body.
    fn begin(&mut self, end: bool) -> host::Result<Begun> {
        let headers = Headers::Request.all()?;
        self.zone = self.router.zone_source.find(&Asking(&headers));
        let priority = &self.router.priority_header;
        self.batch =
            !priority.is_empty() && headers.get(priority).is_some_and(|value| *value == *b"batch");
        let (mut method, mut path, mut encoding): (&[u8], &[u8], &[u8]) = (b"", b"", b"");
        for (name, value) in headers.iter() {
            match name {
                b":method" => method = value,
                b":path" => path = value,
                b"content-encoding" if !is_plain(value) => encoding = value,
                b"content-type" if is_form(value) => self.form = Some(value.to_vec()),
                _ if name.eq_ignore_ascii_case(RANK.as_bytes()) => {
                    self.came_with.rank = true;
                }
                _ if name.eq_ignore_ascii_case(HASH.as_bytes()) => {
                    self.came_with.hash = true;
                }
                _ => {}
            }
        }
        let path = str::from_utf8(path).unwrap_or_default();
        let target = Target::of_path(path);
        self.api = target.api();
        let gets = matches!(method, b"GET" | b"HEAD");
        match target {
            Target::Models if gets => return Ok(Begun::Models(None)),
            Target::Model(name) if gets => return Ok(Begun::Models(Some(name.into_owned()))),
            // Others below `/v1/responses` that are posted to are no responses: `compact`, say.
            Target::Response { id, below } if below || method != b"POST" => {
                self.response = Some(id.into_owned());
            }
            _ => {}
        }
        // What asks for an upgrade has no body that would end, nor a model in it.
        let has_body = !end && !gets && !matches!(method, b"CONNECT" | b"OPTIONS");
        self.requested = match model_in_path(path) {
            // If nothing comes of the body after all: what a decompressor could not undo arrives as
            // no byte, and may have named any model.
            Requested::Nothing if has_body => Requested::Unreadable,
            requested => requested.into_owned(),
        };
        if !has_body {
            return Ok(Begun::Decide);
        }
        if self.router.knows_zone(self.claim()) {
            if !encoding.is_empty() {
                self.coding = Coding::of_header(encoding).filter(|_| self.router.most_inflated > 0);
                if self.coding.is_none() {
                    return Ok(Begun::Encoded(String::from_utf8_lossy(encoding).into_owned()));
                }
            }
            return Ok(Begun::Body);
        }
        Ok(Begun::Decide)
    }

    fn claim(&self) -> Claim<'_> {
        self.zone.as_ref().map_or(Claim::Silent, NamedZone::claim)
    }

    fn route(&mut self, bytes: &[u8], may_wait: bool) -> Action {
        let before = std::mem::replace(&mut self.stage, Stage::Done);
        let body = match &self.large {
            Some(large) => Body::TooLarge(large, bytes),
            None if bytes.is_empty() => Body::None(&self.requested),
            None => Body::Whole(bytes),
        };
        let decided = self.router.decide(&Asked {
            zone: self.claim(),
            api: self.api,
            body,
            response: self.response.as_deref(),
            form: self.form.as_deref(),
            content_length: self.large.as_ref().and_then(|_| content_length()),
            batch: self.batch,
            may_wait,
        });
        let result = match decided {
            Some(Decided::Wait) => {
                self.stage = match before {
                    Stage::Waiting(_) => before,
                    Stage::Reading | Stage::Done => {
                        let now_ms = host::now_ms();
                        self.router.wait(Weak::clone(&self.me), self.batch, now_ms);
                        Stage::Waiting(now_ms)
                    }
                };
                Ok(Action::Pause)
            }
            Some(Decided::Route(told)) => self.forward(told, before),
            Some(Decided::Refuse(refusal)) => self.refuse(&refusal),
            None => self.fail("busy"),
        };
        result.unwrap_or_else(|error| {
            log::error!("router: {error}");
            // A request that Envoy was not told about must not go on: nothing would bind it to its
            // zone. If even this fails, it stays where it is and times out.
            self.fail("host").unwrap_or(Action::Pause)
        })
    }

    /// A place may have become free: asks again, and lets the request go on if it may. `over`: its
    /// time is over, and it goes wherever is best.
    pub(super) fn again(&mut self, over: bool) -> Now {
        if !matches!(self.stage, Stage::Waiting(_)) || host::act_for(self.id).is_err() {
            return Now::Gone;
        }
        let bytes = self.buffered();
        let action = self.route(&bytes, !over);
        if self.stage == Stage::Done {
            self.router.release(&mut self.awaited);
        }
        if matches!(self.stage, Stage::Waiting(_)) {
            return Now::Waits;
        }
        if matches!(action, Action::Continue)
            && let Err(error) = host::resume_request()
        {
            log::error!("router: {error}");
        }
        Now::Gone
    }

    /// Too many bodies are held, and this one came first: sends it off if it is whole, else refuses it.
    pub(super) fn shed(&mut self) {
        match self.stage {
            Stage::Waiting(_) => drop(self.again(true)),
            Stage::Reading if host::act_for(self.id).is_ok() => {
                self.stage = Stage::Done;
                if let Err(error) = self.count_and_refuse(&Refusal::bodies_awaited()) {
                    log::error!("router: {error}");
                }
            }
            Stage::Reading | Stage::Done => {}
        }
    }

    fn forward(&mut self, told: Told, before: Stage) -> host::Result<Action> {
        // From here on it counts, whatever becomes of it.
        self.ticket = Some(told.ticket);
        self.last_key = told.last_key;
        self.explain = told.explain;
        self.stored = told.stored;
        if !self.explain.is_empty() {
            self.explain.push_str(", zone_from=\"");
            self.explain.push_str(self.zone.as_ref().map_or("default", |found| &found.source));
            self.explain.push('"');
            if let Stage::Waiting(since_ms) = before {
                let ms = host::now_ms().saturating_sub(since_ms);
                // Writing to a string can't fail.
                let _ = write!(self.explain, ", waited_ms={ms}");
            }
        }
        // Set, never add, and remove what is not set: a client may have sent its own.
        Headers::Request.set(CLUSTER, &told.cluster)?;
        let endpoints = self.ticket.as_ref().map_or("", |ticket| ticket.named.endpoints());
        if endpoints.is_empty() {
            Headers::Request.set(HASH, &told.hash)?;
            Headers::Request.remove(ENDPOINT)?;
        } else {
            Headers::Request.set(ENDPOINT, endpoints)?;
            if self.came_with.hash {
                Headers::Request.remove(HASH)?;
            }
        }
        let seeks = self.ticket.as_ref().is_some_and(|ticket| ticket.seeks);
        if seeks {
            for (name, value) in [RETRY_ON, RETRIABLE] {
                Headers::Request.set(name, value)?;
            }
        }
        if told.only_named || seeks {
            // Where all that were named have failed Envoy would take any host of the cluster.
            let named = self.ticket.as_ref().map_or(0, |ticket| ticket.named.names().len());
            Headers::Request.set(MAX_RETRIES, &named.saturating_sub(1).to_string())?;
        }
        match told.rank {
            Some(rank) => Headers::Request.set(RANK, &rank.to_string())?,
            None if self.came_with.rank => Headers::Request.remove(RANK)?,
            None => {}
        }
        // Of a rank nothing can be learned: the report is of all of them together.
        self.orca = self.router.orca && told.rank.is_none() && told.slot.is_some();
        if self.orca {
            Headers::Request.set(ORCA_FORMAT, "TEXT")?;
        }
        host::clear_route_cache()?;
        self.note();
        Ok(Action::Continue)
    }

    fn refuse(&mut self, refusal: &Refusal) -> host::Result<Action> {
        let from = self.zone.as_ref().map_or("none", |found| &found.source);
        self.explain = format!("refused=\"{}\", zone_from=\"{from}\"", refusal.code);
        self.note();
        let details = format!("warmpath_{}", refusal.code);
        let retry_after = refusal.retry_after.map(|seconds| seconds.to_string());
        let mut headers = vec![("content-type", "application/json")];
        if let Some(seconds) = &retry_after {
            headers.push(("retry-after", seconds));
        }
        host::respond(refusal.status.into(), &details, &headers, refusal.body().as_bytes())?;
        Ok(Action::Pause)
    }

    fn fail(&mut self, why: &str) -> host::Result<Action> {
        self.explain = format!("failed=\"{why}\"");
        let body = br#"{"error":{"message":"The gateway could not route this request.","type":"server_error","param":null,"code":"unrouted"}}"#;
        let headers = [("content-type", "application/json")];
        host::respond(503, &format!("warmpath_failed_{why}"), &headers, body)?;
        Ok(Action::Pause)
    }

    // For the access log. Not worth failing for.
    fn note(&self) {
        if self.router.log_decision
            && let Err(error) = host::set_property(PROPERTY, &self.explain)
        {
            log::debug!("router: {error}");
        }
    }

    /// The whole body, or as much of it as is looked into.
    fn buffered(&self) -> Vec<u8> {
        host::request_body(0, self.router.most_body).unwrap_or_else(|error| {
            log::error!("router: {error}");
            Vec::new()
        })
    }

    /// The gateway's own answer to who asks for models.
    fn list(&mut self, name: Option<&str>) -> host::Result<Action> {
        let listed = self.router.with(|all| all.models(self.claim(), name, host::now_ms()));
        match listed {
            Some(Ok(json)) => {
                self.explain = "answered=\"models\"".into();
                self.note();
                let headers = [("content-type", "application/json")];
                host::respond(200, "warmpath_models", &headers, json.as_bytes())?;
                Ok(Action::Pause)
            }
            Some(Err(refusal)) => self.refuse(&refusal),
            None => self.fail("busy"),
        }
    }
}

/// What to do about a request of which the headers are there.
enum Begun {
    /// Wait for its body.
    Body,
    /// Decide without one.
    Decide,
    /// Tell it of the models, or of this one.
    Models(Option<String>),
    /// Nobody here can read its body, for this encoding.
    Encoded(String),
}

/// Whether a body of this encoding is as it was written.
fn is_plain(encoding: &[u8]) -> bool {
    encoding.is_empty() || encoding.eq_ignore_ascii_case(b"identity")
}

fn is_form(content_type: &[u8]) -> bool {
    const MULTIPART: &[u8] = b"multipart/";
    let start = content_type.trim_ascii_start().get(..MULTIPART.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(MULTIPART))
}

impl Context for Exchange {}

impl HttpContext for Exchange {
    fn on_http_request_headers(&mut self, _headers: usize, end: bool) -> Action {
        self.on(|flow| flow.request_headers(end))
    }

    fn on_http_request_body(&mut self, size: usize, end: bool) -> Action {
        self.on(|flow| {
            let action = flow.request_body(size, end);
            if flow.stage == Stage::Done {
                flow.router.release(&mut flow.awaited);
            } else {
                flow.router.hold(&mut flow.awaited, size, &flow.me);
            }
            action
        })
    }

    fn on_http_request_trailers(&mut self, _trailers: usize) -> Action {
        self.on(|flow| {
            let action = flow.request_trailers();
            if flow.stage == Stage::Done {
                flow.router.release(&mut flow.awaited);
            }
            action
        })
    }

    fn on_http_response_headers(&mut self, _headers: usize, end: bool) -> Action {
        self.on(|flow| flow.response_headers(end))
    }

    fn on_http_response_body(&mut self, size: usize, end: bool) -> Action {
        self.on(|flow| flow.response_body(size, end))
    }

    // Envoy calls this once for each stream, before it deletes the context.
    fn on_log(&mut self) {
        if let Ok(mut flow) = self.0.try_borrow_mut() {
            flow.over();
        }
    }

    fn on_http_response_trailers(&mut self, _trailers: usize) -> Action {
        self.on(|flow| {
            flow.finish();
            Action::Continue
        })
    }
}

/// What the client says of the length of its body.
fn content_length() -> Option<u64> {
    let value = host::property("request\0headers\0content-length").ok().flatten()?;
    str::from_utf8(&value).ok()?.parse().ok()
}
