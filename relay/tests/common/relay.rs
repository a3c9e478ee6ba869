//! A whole relay with publishers of another implementation, and a reader of its side-stream.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use warmpath_prompt::Serving;
use warmpath_proto::v1::down::Body;
use warmpath_proto::v1::replica::State;
use warmpath_proto::v1::side_stream_client::SideStreamClient;
use warmpath_proto::v1::{Down, Hello, Model, Replica, Up, up};
use warmpath_relay::artefact::Artefact;
use warmpath_relay::{Config, run_reloading};
use warmpath_routing::fingerprint::Key;
use zeromq::{Socket, SocketRecv, SocketSend, ZmqMessage};

use super::{Engine, Frame, captures, frames, meaning};

pub const HASH: [u8; 32] = [9; 32];
/// For things that take milliseconds; how long a broken relay makes a test last.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// An engine's API: well until told otherwise.
pub struct Api {
    pub address: SocketAddr,
    pub well: Arc<AtomicBool>,
    /// How often it was asked at `/health` and `/metrics`.
    pub asked: Arc<[AtomicUsize; 2]>,
    /// Nothing is answered; there is no `/metrics`.
    pub silent: Arc<AtomicBool>,
    pub bare: Arc<AtomicBool>,
    /// What it says at `/v1/models`.
    pub models: Arc<Mutex<String>>,
    /// What `/metrics` says beside its load.
    pub more: Arc<Mutex<String>>,
    pub serving: JoinHandle<()>,
}

pub async fn api() -> Api {
    api_at("127.0.0.1:0".parse().unwrap()).await
}

pub async fn api_at(address: SocketAddr) -> Api {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let well = Arc::new(AtomicBool::new(true));
    let health = Arc::clone(&well);
    let asked = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let (silent, bare) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let [of_health, of_metrics] = [0, 1].map(|at| {
        let (asked, silent) = (Arc::clone(&asked), Arc::clone(&silent));
        async move || {
            asked[at].fetch_add(1, Ordering::Relaxed);
            if silent.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        }
    });
    let is_bare = Arc::clone(&bare);
    let models = Arc::new(Mutex::new(String::new()));
    let listed = Arc::clone(&models);
    let more = Arc::new(Mutex::new(String::new()));
    let says = Arc::clone(&more);
    let app = axum::Router::new()
        .route(
            "/health",
            get(move || async move {
                of_health().await;
                if health.load(Ordering::Relaxed) {
                    StatusCode::OK
                } else {
                    StatusCode::SERVICE_UNAVAILABLE
                }
            }),
        )
        .route("/v1/models", get(move || async move { listed.lock().unwrap().clone() }))
        .route(
            "/metrics",
            get(move || async move {
                of_metrics().await;
                let text = "vllm:num_requests_running{engine=\"0\"} 3\n\
                    vllm:num_requests_waiting{engine=\"0\"} 2\n\
                    vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n";
                let text = text.to_owned() + &says.lock().unwrap();
                if is_bare.load(Ordering::Relaxed) { Err(StatusCode::NOT_FOUND) } else { Ok(text) }
            }),
        );
    let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    Api { address, well, asked, silent, bare, models, more, serving }
}

pub fn message(parts: &[&[u8]]) -> ZmqMessage {
    let parts: Vec<axum::body::Bytes> = parts.iter().map(|part| part.to_vec().into()).collect();
    ZmqMessage::try_from(parts).unwrap()
}

/// An engine's publisher; an XPUB so that the test knows when it is subscribed to.
pub struct Publisher {
    pub socket: zeromq::XPubSocket,
    pub address: String,
}

impl Publisher {
    pub async fn bind(address: &str) -> Self {
        let mut socket = zeromq::XPubSocket::new();
        let address = retry(async || socket.bind(address).await.ok()).await.to_string();
        Self { socket, address }
    }

    pub async fn subscribed(&mut self) {
        let subscription = timeout(PATIENCE, self.socket.recv()).await.unwrap().unwrap();
        assert_eq!(subscription.get(0).unwrap().as_ref(), b"\x01");
    }

    pub async fn publish(&mut self, frame: &Frame) {
        self.send(&frame.topic, frame.sequence, &frame.payload).await;
    }

    pub async fn send(&mut self, topic: &[u8], sequence: u64, payload: &[u8]) {
        let parts = message(&[topic, &sequence.to_be_bytes(), payload]);
        self.socket.send(parts).await.unwrap();
    }
}

/// What vLLM keeps for replay: sequence and payload.
pub type Past = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

/// An engine's replay socket. `topics`: the framing from vLLM 0.26 on.
pub async fn replayer(past: Past, topics: bool) -> (String, JoinHandle<()>) {
    let mut socket = zeromq::RouterSocket::new();
    let address = socket.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
    let serving = tokio::spawn(async move {
        while let Ok(question) = socket.recv().await {
            let [identity, empty, start] = &question.into_vec()[..] else { panic!() };
            assert!(empty.is_empty());
            let start = u64::from_be_bytes(start.as_ref().try_into().unwrap());
            let answers: Vec<_> =
                past.lock().unwrap().iter().filter(|(seq, _)| *seq >= start).cloned().collect();
            for (sequence, payload) in answers.into_iter().chain([(u64::MAX, Vec::new())]) {
                let sequence = sequence.to_be_bytes();
                let answer = if topics {
                    message(&[identity, b"", b"kv-events", &sequence, &payload])
                } else {
                    message(&[identity, b"", &sequence, &payload])
                };
                socket.send(answer).await.unwrap();
            }
        }
    });
    (address, serving)
}

pub async fn retry<T>(mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = attempt().await {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "it never came about");
        sleep(Duration::from_millis(10)).await;
    }
}

pub struct Relay {
    pub address: SocketAddr,
    pub reload: mpsc::Sender<Config>,
    pub stop: Option<oneshot::Sender<()>>,
    pub running: JoinHandle<()>,
}

impl Relay {
    /// A relay for one replica; `events` is YAML.
    pub async fn start(api: SocketAddr, events: &str) -> Self {
        Self::with(&one_replica(api, events)).await
    }

    /// A relay by its configuration.
    pub async fn with(yaml: &str) -> Self {
        let config = configuration(yaml);
        let build = |_: &Path, _: &Serving| {
            let bytes = vec![7; 600_000];
            let id = *blake3::hash(&bytes).as_bytes();
            Ok(Artefact { id, bytes, tokenizer_hash: HASH })
        };
        let (stop, stopped) = oneshot::channel();
        let (tell, address) = oneshot::channel();
        let (reload, reloads) = mpsc::channel(1);
        let running = tokio::spawn(async move {
            let shutdown = async {
                let _ = stopped.await;
            };
            let listening = |address| tell.send(address).unwrap();
            run_reloading(config, build, listening, reloads, shutdown).await.unwrap();
        });
        Self { address: address.await.unwrap(), reload, stop: Some(stop), running }
    }

    pub async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        timeout(PATIENCE, self.running).await.unwrap().unwrap();
    }
}

/// What a reader of the side-stream knows, kept as the filter would.
#[derive(Default)]
pub struct View {
    pub epoch: u64,
    pub sequence: u64,
    pub models: Vec<Model>,
    pub artefact: Vec<u8>,
    pub replicas: Vec<Replica>,
    pub loads: BTreeMap<u32, (u32, u32)>,
    pub held: BTreeMap<u32, BTreeSet<Key>>,
    pub snapshot: bool,
    pub beats: u32,
}

impl View {
    pub fn take(&mut self, down: Down) {
        if self.epoch == 0 {
            self.epoch = down.epoch;
        }
        assert_ne!(down.epoch, 0);
        assert_eq!((down.epoch, down.sequence), (self.epoch, self.sequence));
        self.sequence += 1;
        match down.body.unwrap() {
            Body::Models(models) => self.models = models.models,
            Body::Artefact(chunk) => {
                assert_eq!(chunk.offset, self.artefact.len() as u64);
                assert!(chunk.data.len() <= 256 * 1024 && chunk.total == 600_000);
                self.artefact.extend(chunk.data);
            }
            Body::Replicas(replicas) => self.replicas = replicas.replicas,
            Body::Loads(loads) => {
                for load in loads.loads {
                    self.loads.insert(load.slot, (load.waiting, load.running));
                }
            }
            Body::SnapshotBegin(_) => assert!(!self.snapshot),
            Body::SnapshotEnd(_) => self.snapshot = true,
            Body::Blocks(blocks) => {
                for change in blocks.changes {
                    assert!(
                        self.replicas.iter().any(|replica| replica.slot == change.slot),
                        "a slot that the table lacks"
                    );
                    let held = self.held.entry(change.slot).or_default();
                    for key in change.lost.chunks_exact(16) {
                        assert!(held.remove(&Key(key.try_into().unwrap())));
                    }
                    for key in change.held.chunks_exact(16) {
                        assert!(held.insert(Key(key.try_into().unwrap())));
                    }
                }
            }
            Body::Beat(beat) => {
                assert!(beat.unix_ms > 1_700_000_000_000);
                self.beats += 1;
            }
        }
    }

    pub fn keys(&self) -> BTreeSet<Key> {
        self.held.get(&self.replicas[0].slot).cloned().unwrap_or_default()
    }

    pub fn state(&self) -> State {
        self.replicas[0].state()
    }
}

pub struct Follower {
    pub stream: tonic::Streaming<Down>,
    pub up: mpsc::Sender<Up>,
    pub view: View,
}

impl Follower {
    pub async fn open(relay: &Relay, artefacts: Vec<Vec<u8>>) -> Self {
        let channel = tonic::transport::Endpoint::new(format!("http://{}", relay.address))
            .unwrap()
            .connect()
            .await
            .unwrap();
        let (up, ups) = mpsc::channel(1);
        let hello = Hello { artefacts, node: "test".into() };
        up.send(Up { body: Some(up::Body::Hello(hello)) }).await.unwrap();
        let ups = tokio_stream::wrappers::ReceiverStream::new(ups);
        let stream = SideStreamClient::new(channel).follow(ups).await.unwrap().into_inner();
        Self { stream, up, view: View::default() }
    }

    pub async fn until(&mut self, what: &str, done: impl Fn(&View) -> bool) {
        let reading = async {
            while !(self.view.snapshot && done(&self.view)) {
                let down = self.stream.message().await.unwrap().expect("the stream goes on");
                self.view.take(down);
            }
        };
        assert!(timeout(PATIENCE, reading).await.is_ok(), "never: {what}");
    }

    pub async fn until_keys(&mut self, expected: &BTreeSet<Key>) {
        self.until("the expected keys", |view| view.keys() == *expected).await;
    }
}

/// A configuration with one replica; `events` is YAML.
pub fn one_replica(api: SocketAddr, events: &str) -> String {
    format!(
        "listen: 127.0.0.1:0\n\
         models:\n- {{ name: demo, version: \"1\", path: tests, adapters: [lora-a] }}\n\
         replicas:\n- {{ endpoint: \"{api}\", pool: eu, model: demo, events: {events} }}\n\
         polling: {{ interval_ms: 20, health_ms: 20 }}\n"
    )
}

pub fn configuration(yaml: &str) -> Config {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    Config::parse(yaml, "test.yaml", directory).unwrap()
}

/// The frames of a whole engine's life, real ones where there are, and what is held after each.
pub fn life() -> (Vec<Frame>, Vec<BTreeSet<Key>>) {
    let frames = if let Some(directory) = captures() {
        frames(&directory.join("vllm023_llama31_bs32.frames.jsonl.gz"))
    } else {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/frames.jsonl");
        // Those that leave something to see when they come first.
        let stores = frames(&path).into_iter().filter(|frame| {
            let mut engine = Engine::default();
            engine.apply(&meaning(&frame.decoded));
            !engine.keys("1", &HASH).is_empty()
        });
        stores.enumerate().map(|(i, frame)| Frame { sequence: i as u64, ..frame }).collect()
    };
    assert!(frames.len() >= 12);
    let mut engine = Engine::default();
    let expected: Vec<_> = frames
        .iter()
        .map(|frame| {
            engine.apply(&meaning(&frame.decoded));
            engine.keys("1", &HASH)
        })
        .collect();
    assert!(expected.iter().all(|keys| !keys.is_empty()));
    (frames, expected)
}
