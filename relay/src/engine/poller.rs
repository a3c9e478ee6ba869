//! Polls an engine's API: is it well, and how busy is it?

use std::error::Error;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::alarms::Alarms;
use super::counters::Counters;
use super::gauges::{Page, parse};
use super::jitter::jittered;
use super::listing::{Asking, Listing, MAX_ANSWER};
use super::polling::Polling;
use super::ranks::Rank;
use super::report::{Engines, Report};
use super::round_trip::RoundTrip;
use super::rounds::Rounds;
use crate::state::message::{Message, ReplicaId, Sender};

/// Bytes of /metrics that are read. vLLM's has about 60 kB.
const MAX_METRICS: usize = 8 << 20;

/// Timeouts in a row after which an engine is down. One may be a busy event loop.
const TIMEOUTS_TO_DOWN: u32 = 3;

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
struct Health {
    /// Whether the engine is up; none before it was asked.
    up: Option<bool>,
    /// Timeouts in a row.
    silent: u32,
    /// When it is asked again, at the latest.
    due: Instant,
}

impl Health {
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
        let mut health = Health { up: None, silent: 0, due: ask_at };
        let mut sent = Engines::default();
        let mut sent_sleep = None;
        let mut sent_caches = None;
        let mut sent_speculates = false;
        loop {
            let start = Instant::now();
            let looks = health.due <= start || !health.is_well();
            // One that answers is well enough for now, whatever it says of its load.
            let mut load =
                if looks { Ok(None) } else { self.read_metrics(&client, &metrics).await };
            if let Err(Failure::Silent(_)) = load {
                health.silent += 1;
            }
            let up = if looks || load.is_err() {
                self.check_health(&client, &mut health).await
            } else {
                true
            };
            if !up {
                // It may come back as another.
                ask_at = start;
            } else if health.is_well() && ask_at <= start {
                if self.read_models(&client).await.is_err() {
                    return;
                }
                ask_at = start + jittered(self.polling.models);
            }
            if looks && health.is_well() {
                load = self.read_metrics(&client, &metrics).await;
            }
            let round_trip = match &mut trip {
                Some(trip) if up => trip.measure(&self.endpoint, self.polling.timeout).await,
                _ => None,
            };
            let page = load.ok().flatten();
            if let Some(Page { engines, .. }) = &page
                && *engines != sent
            {
                sent.clone_from(engines);
                let engines = engines.clone();
                let engines = Message::Engines { replica: self.replica, engines };
                if self.state.send(engines).await.is_err() {
                    return;
                }
            }
            // One that is down may come back awake, and says so then.
            let sleep = page.as_ref().map_or(sent_sleep, |page| page.sleep);
            if sleep != sent_sleep {
                sent_sleep = sleep;
                let sleep = Message::Sleep { replica: self.replica, sleep };
                if self.state.send(sleep).await.is_err() {
                    return;
                }
            }
            let caches = page.as_ref().and_then(|page| page.caches);
            if let Some(caches) = caches.filter(|_| caches != sent_caches) {
                sent_caches = Some(caches);
                let caches = Message::Caches { replica: self.replica, caches };
                if self.state.send(caches).await.is_err() {
                    return;
                }
            }
            let speculates = page.as_ref().map_or(sent_speculates, |page| page.speculates);
            if speculates != sent_speculates {
                sent_speculates = speculates;
                let speculates = Message::Speculates { replica: self.replica, speculates };
                if self.state.send(speculates).await.is_err() {
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
    async fn check_health(&self, client: &HttpClient, health: &mut Health) -> bool {
        health.due = Instant::now() + jittered(self.polling.health);
        let was_up = health.up;
        let url = format!("http://{}/health", self.endpoint);
        let up = match self.get(client, &url, 1 << 16).await {
            Ok(_) => {
                health.silent = 0;
                true
            }
            Err(failure) => {
                self.counters.polls_failed.one();
                let reason = match failure {
                    Failure::Refused => {
                        if was_up == Some(true) {
                            self.alarms.gone.notify_one();
                        }
                        health.silent = TIMEOUTS_TO_DOWN;
                        "it refuses connections".to_owned()
                    }
                    Failure::Status(status) => {
                        health.silent = TIMEOUTS_TO_DOWN;
                        format!("/health says {status}")
                    }
                    Failure::Silent(reason) => {
                        health.silent += 1;
                        reason
                    }
                };
                let up = was_up == Some(true) && health.silent < TIMEOUTS_TO_DOWN;
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
        health.up = Some(up);
        up
    }

    /// Asks which model and adapters it serves. An answer that can't be had changes nothing.
    async fn read_models(&self, client: &HttpClient) -> Result<(), Ended> {
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
        let root = listing.root().map(str::to_owned);
        let serves = Message::Serves { replica: self.replica, wrong, adapters, root };
        self.state.send(serves).await.map_err(|_| Ended)?;
        let engine = self
            .rank
            .header
            .map_or_else(|| self.endpoint.clone(), |rank| format!("{}#{rank}", self.endpoint));
        listings.put(model, &engine, right.then_some(listing));
        Ok(())
    }

    /// Reads `/metrics`: none where there are none.
    async fn read_metrics(&self, client: &HttpClient, url: &str) -> Result<Option<Page>, Failure> {
        let body = match self.get(client, url, MAX_METRICS).await {
            Ok(body) => body,
            Err(failure) => {
                self.counters.polls_failed.one();
                return match failure {
                    // It is there: SGLang has none unless it is started with them.
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
        let uri = url.parse().map_err(|_| Failure::Silent(format!("{url} is not a URL")))?;
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
