//! Polls an engine's API: is it well, and how busy is it?

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use crate::counters::Counters;
use crate::listing::{Asking, Listing, MAX_ANSWER};
use crate::message::{Message, ReplicaId, Sender};
use crate::ranks::Rank;
use crate::round_trip::RoundTrip;
use crate::rounds::Rounds;
use crate::subscriber::jittered;

/// Bytes of /metrics that are read. vLLM's has about 60 kB.
const MAX_METRICS: usize = 8 << 20;

/// Data-parallel ranks that are believed of one API.
const MAX_RANKS: usize = 1024;

/// Timeouts in a row after which an engine is down. One may be a busy event loop.
const TIMEOUTS_TO_DOWN: u32 = 3;

/// How often and how patiently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polling {
    /// Between two polls.
    pub interval: Duration,
    /// For one answer.
    pub timeout: Duration,
    /// Between two looks at `/health` of an engine whose `/metrics` answers, jittered by a quarter:
    /// SGLang generates a token for each.
    pub health: Duration,
    /// Between two looks at which models and adapters it serves, jittered by a quarter.
    pub models: Duration,
    /// Time with running requests but without events after which an engine is suspect; none for
    /// never.
    pub silence: Option<Duration>,
    /// Between two measurements of the network's round trip, jittered by a quarter; none for never.
    pub round_trips: Option<Duration>,
}

/// What one poll found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// It can serve.
    pub up: bool,
    /// How busy it is, where /metrics could be read.
    pub load: Option<Load>,
    /// The network's round trip to it, once that was measured.
    pub round_trip: Option<Duration>,
}

/// How busy an engine says it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Requests that wait.
    pub waiting: u32,
    /// Requests that run.
    pub running: u32,
    /// Share of the KV cache in use, 0 to 1.
    pub kv_usage: f32,
}

/// How deep an engine sleeps, by `vllm:engine_sleep_state` (vLLM 0.32.0, `v1/metrics/loggers.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// It computes nothing; whether it kept its cache isn't told.
    Paused,
    /// Its cache is gone. It says so in its events with its first step after it was woken.
    Emptied,
}

impl Sleep {
    /// For status.
    pub fn name(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Emptied => "emptied",
        }
    }
}

/// The data-parallel ranks that an engine's API has, as its metrics name them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Engines {
    /// In order.
    pub ranks: Vec<u32>,
    /// There are no others: vLLM lists all from its start on.
    pub complete: bool,
}

impl Engines {
    /// The one that a request's header means by this number, where that is known.
    pub fn nth(&self, header: u32) -> Option<u32> {
        self.ranks.get(header as usize).copied().filter(|_| self.complete)
    }
}

/// What polling tells the subscriber of the same engine.
#[derive(Debug, Default)]
pub struct Alarms {
    /// The API's port refuses: the process is gone, and its cache with it.
    pub gone: Notify,
    /// It answers again after a silence: it may be another process on a host that came back, which
    /// only shows on the old connection when something is sent there.
    pub back: Notify,
}

/// Polls one replica.
pub struct Poller {
    /// The replica that reports are about.
    pub replica: ReplicaId,
    /// `ip:port` of the API.
    pub endpoint: String,
    /// The data-parallel rank whose gauges count, where the engine has several.
    pub rank: Rank,
    /// How often.
    pub polling: Polling,
    /// At which moments.
    pub rounds: Rounds,
    /// What it is asked at `/v1/models`, where that matters.
    pub asking: Option<Asking>,
    /// What the replica's subscriber must know at once.
    pub alarms: Arc<Alarms>,
    /// Failures are counted here.
    pub counters: Arc<Counters>,
    /// Where reports go.
    pub state: Sender,
}

/// Nobody wants to hear of it any more.
struct Ended;

/// What `/health` said lately.
struct Pulse {
    /// Whether the engine is up; none before it was asked.
    up: Option<bool>,
    /// Timeouts in a row.
    silent: u32,
    /// When it is asked again, at the latest.
    due: Instant,
}

impl Pulse {
    fn is_well(&self) -> bool {
        self.up == Some(true) && self.silent == 0
    }
}

/// Why a poll failed.
enum Failure {
    /// No process listens.
    Refused,
    /// No answer in time, or the connection broke.
    Silent(String),
    /// It answered that it is not well.
    Status(u16),
}

impl Poller {
    /// Polls until the state's task is gone.
    pub async fn run(self) {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(self.polling.timeout));
        let client: HttpClient = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(1)
            .build(connector);
        let metrics = format!("http://{}/metrics", self.endpoint);
        let mut ask_at = Instant::now();
        let mut trip = self.polling.round_trips.map(RoundTrip::new);
        let mut pulse = Pulse { up: None, silent: 0, due: ask_at };
        let mut told = Engines::default();
        let mut told_sleep = None;
        loop {
            let start = Instant::now();
            let looks = pulse.due <= start || !pulse.is_well();
            // One that answers is well enough for now, whatever it says of its load.
            let mut load = if looks { Ok(None) } else { self.load(&client, &metrics).await };
            if let Err(Failure::Silent(_)) = load {
                pulse.silent += 1;
            }
            let up =
                if looks || load.is_err() { self.feel(&client, &mut pulse).await } else { true };
            if !up {
                // It may come back as another.
                ask_at = start;
            } else if pulse.is_well() && ask_at <= start {
                if self.ask(&client).await.is_err() {
                    return;
                }
                ask_at = start + jittered(self.polling.models);
            }
            if looks && pulse.is_well() {
                load = self.load(&client, &metrics).await;
            }
            let round_trip = match &mut trip {
                Some(trip) if up => trip.measure(&self.endpoint, self.polling.timeout).await,
                _ => None,
            };
            let page = load.ok().flatten();
            if let Some(Page { engines, .. }) = &page
                && *engines != told
            {
                told.clone_from(engines);
                let engines = engines.clone();
                let engines = Message::Engines { replica: self.replica, engines };
                if self.state.send(engines).await.is_err() {
                    return;
                }
            }
            // One that is down may come back awake, and says so then.
            let sleep = page.as_ref().map_or(told_sleep, |page| page.sleep);
            if sleep != told_sleep {
                told_sleep = sleep;
                let sleep = Message::Sleep { replica: self.replica, sleep };
                if self.state.send(sleep).await.is_err() {
                    return;
                }
            }
            let load = page.and_then(|page| page.load);
            let report = Report { up, load, round_trip };
            let report = Message::Report { replica: self.replica, report };
            if self.state.send(report).await.is_err() {
                return;
            }
            tokio::select! {
                () = sleep_until(self.rounds.after(start, self.polling.interval)) => {}
                () = self.state.closed() => return,
            }
        }
    }

    /// Looks at `/health`; says whether the engine is up.
    async fn feel(&self, client: &HttpClient, pulse: &mut Pulse) -> bool {
        pulse.due = Instant::now() + jittered(self.polling.health);
        let was_up = pulse.up;
        let url = format!("http://{}/health", self.endpoint);
        let up = match self.get(client, &url, 1 << 16).await {
            Ok(_) => {
                pulse.silent = 0;
                true
            }
            Err(failure) => {
                self.counters.polls_failed.one();
                let reason = match failure {
                    Failure::Refused => {
                        if was_up == Some(true) {
                            self.alarms.gone.notify_one();
                        }
                        pulse.silent = TIMEOUTS_TO_DOWN;
                        "it refuses connections".to_owned()
                    }
                    Failure::Status(status) => {
                        pulse.silent = TIMEOUTS_TO_DOWN;
                        format!("/health says {status}")
                    }
                    Failure::Silent(reason) => {
                        pulse.silent += 1;
                        reason
                    }
                };
                let up = was_up == Some(true) && pulse.silent < TIMEOUTS_TO_DOWN;
                if !up && was_up != Some(false) {
                    warn!(engine = self.endpoint, reason, "the engine is down");
                }
                up
            }
        };
        if up && was_up != Some(true) {
            info!(engine = self.endpoint, "the engine is up");
            if was_up == Some(false) {
                self.alarms.back.notify_one();
            }
        }
        pulse.up = Some(up);
        up
    }

    /// Asks which model and adapters it serves. An answer that can't be had changes nothing.
    async fn ask(&self, client: &HttpClient) -> Result<(), Ended> {
        let Some(Asking { model, names, listings }) = &self.asking else { return Ok(()) };
        let url = format!("http://{}/v1/models", self.endpoint);
        let answer = self.get(client, &url, MAX_ANSWER).await.ok();
        let Some(listing) = answer.and_then(|bytes| Listing::parse(&bytes)) else {
            self.counters.polls_failed.one();
            debug!(engine = self.endpoint, "/v1/models has no list of models");
            return Ok(());
        };
        let wrong = (!listing.serves(names)).then(|| {
            let served: Vec<_> = listing.served.iter().take(4).map(String::as_str).collect();
            served.join(", ")
        });
        let right = wrong.is_none();
        let adapters = listings.loaded(model, &listing).filter(|_| right);
        let serves = Message::Serves { replica: self.replica, wrong, adapters };
        self.state.send(serves).await.map_err(|_| Ended)?;
        let engine = self
            .rank
            .header
            .map_or_else(|| self.endpoint.clone(), |rank| format!("{}#{rank}", self.endpoint));
        listings.put(model, &engine, right.then_some(listing));
        Ok(())
    }

    /// Reads `/metrics`: none where there are none.
    async fn load(&self, client: &HttpClient, url: &str) -> Result<Option<Page>, Failure> {
        let body = match self.get(client, url, MAX_METRICS).await {
            Ok(body) => body,
            Err(failure) => {
                self.counters.polls_failed.one();
                return match failure {
                    // It is there: SGLang has none unless it is told to.
                    Failure::Status(_) => Ok(None),
                    Failure::Refused | Failure::Silent(_) => Err(failure),
                };
            }
        };
        let page = parse(&String::from_utf8_lossy(&body), self.rank);
        if page.load.is_none() {
            debug!(engine = self.endpoint, "/metrics has none of the known gauges");
        }
        Ok(Some(page))
    }

    async fn get(&self, client: &HttpClient, url: &str, limit: usize) -> Result<Bytes, Failure> {
        let uri = url.parse().map_err(|_| Failure::Silent(format!("{url} is no URL")))?;
        let answer = async {
            let response = client.get(uri).await.map_err(|error| {
                if refused(&error) { Failure::Refused } else { Failure::Silent(chain(&error)) }
            })?;
            if !response.status().is_success() {
                return Err(Failure::Status(response.status().as_u16()));
            }
            let body = Limited::new(response.into_body(), limit).collect().await;
            body.map(http_body_util::Collected::to_bytes)
                .map_err(|error| Failure::Silent(error.to_string()))
        };
        tokio::time::timeout(self.polling.timeout, answer).await.unwrap_or_else(|_| {
            Err(Failure::Silent(format!("no answer within {:?}", self.polling.timeout)))
        })
    }
}

type HttpClient = Client<HttpConnector, Empty<Bytes>>;

fn refused(error: &(dyn Error + 'static)) -> bool {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(error) = error.downcast_ref::<io::Error>()
            && error.kind() == io::ErrorKind::ConnectionRefused
        {
            return true;
        }
        at = error.source();
    }
    false
}

fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    while let Some(error) = at {
        text = format!("{text}: {error}");
        at = error.source();
    }
    text
}

/// What `/metrics` says.
#[derive(Debug, PartialEq)]
struct Page {
    /// None where none of the known gauges is there.
    load: Option<Load>,
    engines: Engines,
    sleep: Option<Sleep>,
}

/// Whose a gauge is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// It has no label of a rank.
    All,
    Rank(u32),
    /// Its label is no number.
    Other,
}

/// Reads vLLM's or SGLang's gauges out of Prometheus text. Gauges of several models or ranks add up
/// (KV usage: the highest), but for those with an `engine` or `dp_rank` label of another rank.
fn parse(text: &str, rank: Rank) -> Page {
    let mut loads: BTreeMap<Owner, (Load, bool)> = BTreeMap::new();
    let mut ranks = BTreeSet::new();
    let mut sleep = None;
    let mut complete = true;
    for line in text.lines() {
        let Some((name, labels, value)) = sample(line) else { continue };
        let (owner, vllm) = owner(labels);
        let waits = match name {
            "vllm:num_requests_waiting" | "sglang:num_queue_reqs" => true,
            "vllm:num_requests_running" | "sglang:num_running_reqs" => false,
            "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" | "sglang:token_usage" => {
                if value.is_finite() {
                    let (load, _) = loads.entry(owner).or_default();
                    load.kv_usage = load.kv_usage.max(value.clamp(0.0, 1.0) as f32);
                }
                continue;
            }
            "vllm:engine_sleep_state" => {
                // The engines of an API sleep together.
                let is = |state| labels.contains(state);
                if is("sleep_state=\"awake\"") {
                    if value < 0.5 {
                        sleep = sleep.or(Some(Sleep::Paused));
                    }
                } else if value > 0.5 && (is("\"weights_offloaded\"") || is("\"discard_all\"")) {
                    sleep = Some(Sleep::Emptied);
                }
                continue;
            }
            _ => continue,
        };
        if let Owner::Rank(number) = owner
            && ranks.len() < MAX_RANKS
        {
            ranks.insert(number);
            complete &= vllm;
        }
        if value.is_finite() && value >= 0.0 {
            let (load, found) = loads.entry(owner).or_default();
            let gauge = if waits { &mut load.waiting } else { &mut load.running };
            *gauge = gauge.saturating_add(value as u32);
            *found = true;
        }
    }
    let complete = complete && !ranks.is_empty();
    let engines = Engines { ranks: ranks.into_iter().collect(), complete };
    let wanted = rank.label(&engines).map(Owner::Rank);
    let mut sum = (Load::default(), false);
    for (owner, (load, found)) in loads {
        if owner == Owner::All || wanted.is_none_or(|wanted| wanted == owner) {
            sum.0.waiting = sum.0.waiting.saturating_add(load.waiting);
            sum.0.running = sum.0.running.saturating_add(load.running);
            sum.0.kv_usage = sum.0.kv_usage.max(load.kv_usage);
            sum.1 |= found;
        }
    }
    Page { load: sum.1.then_some(sum.0), engines, sleep }
}

/// Name, labels and value of one line.
fn sample(line: &str) -> Option<(&str, &str, f64)> {
    if !line.starts_with("vllm:") && !line.starts_with("sglang:") {
        return None;
    }
    let (head, value) = match line.rsplit_once('}') {
        Some((head, value)) => (head, value),
        None => line.split_once(' ')?,
    };
    let (name, labels) = head.split_once('{').unwrap_or((head, ""));
    let value = value.split_ascii_whitespace().next()?.parse().ok()?;
    Some((name, labels, value))
}

/// Whose the labels say it is, and whether in vLLM's way.
fn owner(labels: &str) -> (Owner, bool) {
    for label in labels.split(',') {
        let Some((name @ ("engine" | "dp_rank"), value)) = label.split_once('=') else { continue };
        let number = value.trim_matches('"').parse();
        return (number.map_or(Owner::Other, Owner::Rank), name == "engine");
    }
    (Owner::All, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str, header: Option<u32>) -> Option<Load> {
        parse(text, Rank { header, events: None }).load
    }

    #[test]
    fn reads_vllm() {
        let text = "# HELP vllm:num_requests_running Number\n\
            vllm:num_requests_running{engine=\"0\",model_name=\"a b, c\"} 3.0\n\
            vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 2.0\n\
            vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 9.0\n\
            vllm:num_requests_waiting{engine=\"1\",model_name=\"tiny\"} 5.0\n\
            vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.25\n\
            vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"tiny\"} 0.5\n";
        let all = Load { waiting: 7, running: 3, kv_usage: 0.5 };
        assert_eq!(load(text, None), Some(all));
        let first = Load { waiting: 2, running: 3, kv_usage: 0.25 };
        assert_eq!(load(text, Some(0)), Some(first));
        // A node of a hybrid deployment: its first rank is the third of all.
        let second =
            text.replace("engine=\"1\"", "engine=\"3\"").replace("engine=\"0\"", "engine=\"2\"");
        assert_eq!(load(&second, Some(0)), Some(first));
        assert_eq!(load(&second, Some(2)), Some(first));
        assert_eq!(load(&second, Some(7)), None);
        let page = parse(&second, Rank::default());
        assert_eq!(page.engines, Engines { ranks: vec![2, 3], complete: true });
    }

    #[test]
    fn reads_how_deep_vllm_sleeps() {
        let page = |awake: u8, offloaded: u8, discarded: u8| {
            let line = |state: &str, value: u8| {
                let labels = format!("engine=\"0\",model_name=\"m\",sleep_state=\"{state}\"");
                format!("vllm:engine_sleep_state{{{labels}}} {value}.0\n")
            };
            let states = [("awake", awake), ("weights_offloaded", offloaded)];
            let states = states.into_iter().chain([("discard_all", discarded)]);
            let text: String = states.map(|(state, value)| line(state, value)).collect();
            parse(&text, Rank::default()).sleep
        };
        assert_eq!(page(1, 0, 0), None);
        assert_eq!(page(0, 0, 0), Some(Sleep::Paused));
        assert_eq!(page(0, 1, 0), Some(Sleep::Emptied));
        assert_eq!(page(0, 0, 1), Some(Sleep::Emptied));
        assert_eq!(parse("", Rank::default()).sleep, None);
    }

    #[test]
    fn reads_sglang_and_refuses_the_rest() {
        let text = "sglang:num_queue_reqs{model_name=\"m\"} 4\n\
            sglang:num_running_reqs{model_name=\"m\"} 1.0 1700000000\n\
            sglang:token_usage{model_name=\"m\"} NaN\nsglang:token_usage 7\n";
        assert_eq!(load(text, None), Some(Load { waiting: 4, running: 1, kv_usage: 1.0 }));
        assert_eq!(load("", None), None);
        let ranks = parse("sglang:num_queue_reqs{dp_rank=\"1\"} 4", Rank::default()).engines;
        assert_eq!(ranks, Engines { ranks: vec![1], complete: false });
        assert_eq!(
            load("vllm:num_requests_running{ -1\nvllm:num_requests_waiting nan", None),
            None
        );
    }
}
