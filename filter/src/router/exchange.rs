//! One request and its response.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::Write;
use std::rc::{Rc, Weak};

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use warmpath_routing::decision::Refusal;
use warmpath_routing::fingerprint::Key;
use warmpath_routing::prompt::Api;

use super::Router;
use super::dispatch::{Asked, Body, Decided, Told};
use super::response::{Progress, Watch};
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
    zone: Option<String>,
    // Where that was read.
    zone_from: Cow<'static, str>,
    api: Option<Api>,
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
            zone_from: Cow::Borrowed("default"),
            api: None,
            batch: false,
            explain: String::new(),
            last_key: None,
            ticket: None,
            watch: Watch::default(),
            orca: false,
            came_with: CameWith::default(),
        }
    }

    fn begin(&mut self) -> host::Result<bool> {
        let headers = Headers::Request.all()?;
        if let Some(found) = self.router.zone_source.find(&Asking(&headers)) {
            self.zone = Some(found.zone);
            self.zone_from = found.source;
        }
        let priority = &self.router.priority_header;
        self.batch =
            !priority.is_empty() && headers.get(priority).is_some_and(|value| *value == *b"batch");
        let mut post = false;
        for (name, value) in headers.iter() {
            match name {
                b":method" => post = value == b"POST",
                b":path" => self.api = str::from_utf8(value).ok().and_then(Api::of_path),
                _ if name.eq_ignore_ascii_case(RANK.as_bytes()) => {
                    self.came_with.rank = true;
                }
                _ if name.eq_ignore_ascii_case(HASH.as_bytes()) => {
                    self.came_with.hash = true;
                }
                _ => {}
            }
        }
        Ok(post && self.router.knows_zone(self.zone.as_deref()))
    }

    fn decide(&mut self, body: Body<'_>, may_wait: bool) -> Action {
        let before = std::mem::replace(&mut self.stage, Stage::Done);
        let zone = self.zone.as_deref();
        let asked = Asked { zone, api: self.api, body, batch: self.batch, may_wait };
        let result = match self.router.decide(&asked) {
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
        let action = self.decide_on(&bytes, !over);
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

    fn forward(&mut self, told: Told, before: Stage) -> host::Result<Action> {
        // From here on it counts, whatever becomes of it.
        self.ticket = Some(told.ticket);
        self.last_key = told.last_key;
        self.explain = told.explain;
        if !self.explain.is_empty() {
            self.explain.push_str(", zone_from=\"");
            self.explain.push_str(&self.zone_from);
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
        let from = if self.zone.is_some() { &*self.zone_from } else { "none" };
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

    fn buffered(&self) -> Vec<u8> {
        // One byte more than is looked into, to tell what is too large.
        host::request_body(self.router.most_body.saturating_add(1)).unwrap_or_else(|error| {
            log::error!("router: {error}");
            Vec::new()
        })
    }

    fn decide_on(&mut self, bytes: &[u8], may_wait: bool) -> Action {
        let body = if bytes.is_empty() {
            Body::None
        } else if bytes.len() > self.router.most_body {
            Body::TooLarge(bytes)
        } else {
            Body::Whole(bytes)
        };
        self.decide(body, may_wait)
    }
}

impl Context for Exchange {}

impl HttpContext for Exchange {
    fn on_http_request_headers(&mut self, _headers: usize, end: bool) -> Action {
        self.on(|flow| flow.request_headers(end))
    }

    fn on_http_request_body(&mut self, size: usize, end: bool) -> Action {
        self.on(|flow| flow.request_body(size, end))
    }

    fn on_http_request_trailers(&mut self, _trailers: usize) -> Action {
        self.on(Flow::request_trailers)
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

impl Flow {
    fn request_headers(&mut self, end: bool) -> Action {
        match self.begin() {
            // Needs `allow_on_headers_stop_iteration`, or Envoy would hold back the body too.
            Ok(true) if !end => Action::Pause,
            Ok(_) => self.decide(Body::None, false),
            Err(error) => {
                log::error!("router: {error}");
                self.stage = Stage::Done;
                self.fail("host").unwrap_or(Action::Pause)
            }
        }
    }

    // What to do with more of a request that was looked at already.
    fn settled(&self) -> Option<Action> {
        match self.stage {
            Stage::Done => Some(Action::Continue),
            Stage::Waiting(_) => Some(Action::Pause),
            Stage::Reading => None,
        }
    }

    fn request_body(&mut self, size: usize, end: bool) -> Action {
        if let Some(action) = self.settled() {
            return action;
        }
        if size <= self.router.most_body && !end {
            return Action::Pause;
        }
        let bytes = self.buffered();
        self.decide_on(&bytes, end && self.router.may_wait())
    }

    fn request_trailers(&mut self) -> Action {
        if let Some(action) = self.settled() {
            return action;
        }
        let bytes = self.buffered();
        self.decide_on(&bytes, self.router.may_wait())
    }

    fn response_headers(&mut self, end: bool) -> Action {
        if self.router.explain && !self.explain.is_empty() {
            let last = self.last_key.map(|key| format!(", last=\"{key:?}\"")).unwrap_or_default();
            let _ = Headers::Response.set(EXPLAIN, &format!("{}{last}", self.explain));
        }
        self.watch.progress = Progress::Begun;
        if let Some(ticket) = &mut self.ticket {
            let looks = self.router.with(|all| all.looks_into(ticket)).unwrap_or(false);
            // The client must not see an engine's load report.
            if looks || self.orca {
                match self.watch.begin(ticket.named.foreseen(), self.orca) {
                    Ok(answer) => {
                        self.router.with(|all| all.answered(ticket, &answer, host::now_ms));
                    }
                    Err(error) => log::debug!("router: {error}"),
                }
            }
            self.watch.read &= looks;
            if end {
                self.own_failure(0);
                self.finish();
            }
        }
        Action::Continue
    }

    fn own_failure(&mut self, size: usize) {
        let Some(ticket) = &mut self.ticket else { return };
        match self.watch.own_failure(size) {
            Ok(None) => {}
            Ok(Some(answer)) => {
                self.router.with(|all| all.answered(ticket, &answer, host::now_ms));
            }
            Err(error) => log::debug!("router: {error}"),
        }
    }

    fn over(&mut self) {
        let Some(ticket) = &self.ticket else { return };
        match self.watch.broke_off() {
            Ok(None) => {}
            Ok(Some((endpoint, client))) => {
                let now_ms = host::now_ms();
                self.router.with(|all| all.broke_off(ticket, &endpoint, Some(&client), now_ms));
            }
            Err(error) => log::debug!("router: {error}"),
        }
    }

    // Answers pass as they come: nothing here holds one back.
    fn response_body(&mut self, size: usize, end: bool) -> Action {
        if end {
            self.own_failure(size);
        }
        let Some(ticket) = &mut self.ticket else { return Action::Continue };
        if !self.watch.begun && size > 0 {
            self.watch.begun = true;
            // An answer in one piece comes with its last token, which tells nothing of the first.
            let timed = self.watch.stream && self.watch.read;
            let at = if timed { host::now_nanos().ok() } else { None };
            self.router.with(|all| all.first_token(ticket, at));
        }
        if let Err(error) = self.watch.piece(size) {
            log::debug!("router: {error}");
        }
        if end {
            self.finish();
        }
        Action::Continue
    }
}

impl Flow {
    fn finish(&mut self) {
        let taken = self.watch.end();
        if let Some(ticket) = self.ticket.as_ref().filter(|_| taken) {
            self.router.with(|all| all.lived(ticket));
        }
        if let Some(ticket) = self.ticket.as_ref().filter(|_| self.watch.is_due()) {
            self.router.with(|all| all.finished(ticket, self.watch.usage()));
        }
    }
}

impl Drop for Flow {
    // Envoy deletes every context exactly once, whatever became of its request.
    fn drop(&mut self) {
        if let Some(mut ticket) = self.ticket.take() {
            self.router.with(|all| all.landed(&mut ticket));
        }
    }
}

pub(super) fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
