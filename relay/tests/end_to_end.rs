//! A whole relay against real ZeroMQ publishers of another implementation, read through gRPC.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use warmpath_proto::v1::down::Body;
use warmpath_proto::v1::replica::State;
use warmpath_proto::v1::side_stream_client::SideStreamClient;
use warmpath_proto::v1::{Down, Hello, Model, Replica, Up, up};
use warmpath_relay::artefact::Artefact;
use warmpath_relay::{Config, run_with};
use warmpath_routing::fingerprint::Key;
use zeromq::{Socket, SocketRecv, SocketSend, ZmqMessage};

use common::{Engine, Frame, captures, frames, meaning};

const HASH: [u8; 32] = [9; 32];
/// For things that take milliseconds; how long a broken relay makes a test last.
const PATIENCE: Duration = Duration::from_secs(20);

/// An engine's API: well until told otherwise.
struct Api {
    address: SocketAddr,
    well: Arc<AtomicBool>,
    serving: JoinHandle<()>,
}

async fn api() -> Api {
    api_at("127.0.0.1:0".parse().unwrap()).await
}

async fn api_at(address: SocketAddr) -> Api {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let well = Arc::new(AtomicBool::new(true));
    let health = Arc::clone(&well);
    let app = axum::Router::new()
        .route(
            "/health",
            get(move || async move {
                if health.load(Ordering::Relaxed) {
                    StatusCode::OK
                } else {
                    StatusCode::SERVICE_UNAVAILABLE
                }
            }),
        )
        .route(
            "/metrics",
            get(|| async {
                "vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_waiting{engine=\"0\"} 2\n\
                 vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n"
            }),
        );
    let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    Api { address, well, serving }
}

fn message(parts: &[&[u8]]) -> ZmqMessage {
    let parts: Vec<axum::body::Bytes> = parts.iter().map(|part| part.to_vec().into()).collect();
    ZmqMessage::try_from(parts).unwrap()
}

/// An engine's publisher; an XPUB so that the test knows when it is subscribed to.
struct Publisher {
    socket: zeromq::XPubSocket,
    address: String,
}

impl Publisher {
    async fn bind(address: &str) -> Self {
        let mut socket = zeromq::XPubSocket::new();
        let address = retry(async || socket.bind(address).await.ok()).await.to_string();
        Self { socket, address }
    }

    async fn subscribed(&mut self) {
        let subscription = timeout(PATIENCE, self.socket.recv()).await.unwrap().unwrap();
        assert_eq!(subscription.get(0).unwrap().as_ref(), b"\x01");
    }

    async fn publish(&mut self, frame: &Frame) {
        self.send(&frame.topic, frame.sequence, &frame.payload).await;
    }

    async fn send(&mut self, topic: &[u8], sequence: u64, payload: &[u8]) {
        let parts = message(&[topic, &sequence.to_be_bytes(), payload]);
        self.socket.send(parts).await.unwrap();
    }
}

/// What vLLM keeps for replay: sequence and payload.
type Past = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

/// An engine's replay socket. `topics`: the framing from vLLM 0.26 on.
async fn replayer(past: Past, topics: bool) -> (String, JoinHandle<()>) {
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

async fn retry<T>(mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = attempt().await {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "it never came about");
        sleep(Duration::from_millis(10)).await;
    }
}

struct Relay {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<()>,
}

impl Relay {
    /// A relay for one replica; `events` is YAML.
    async fn start(api: SocketAddr, events: &str) -> Self {
        let yaml = format!(
            "listen: 127.0.0.1:0\n\
             models:\n- {{ name: demo, version: \"1\", path: tests, adapters: [lora-a] }}\n\
             replicas:\n- {{ endpoint: \"{api}\", pool: eu, model: demo, events: {events} }}\n\
             polling: {{ interval_ms: 20 }}\n"
        );
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        let config = Config::parse(&yaml, "test.yaml", directory).unwrap();
        let build = |_: &Path| {
            let bytes = vec![7; 600_000];
            let id = *blake3::hash(&bytes).as_bytes();
            Ok(Artefact { id, bytes, tokenizer_hash: HASH })
        };
        let (stop, stopped) = oneshot::channel();
        let (tell, address) = oneshot::channel();
        let running = tokio::spawn(async move {
            let shutdown = async {
                let _ = stopped.await;
            };
            let listening = |address| tell.send(address).unwrap();
            run_with(config, build, listening, shutdown).await.unwrap();
        });
        Self { address: address.await.unwrap(), stop: Some(stop), running }
    }

    async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        timeout(PATIENCE, self.running).await.unwrap().unwrap();
    }
}

/// What a reader of the side-stream knows, kept as the filter would.
#[derive(Default)]
struct View {
    epoch: u64,
    sequence: u64,
    models: Vec<Model>,
    artefact: Vec<u8>,
    replicas: Vec<Replica>,
    loads: BTreeMap<u32, (u32, u32)>,
    held: BTreeMap<u32, BTreeSet<Key>>,
    snapshot: bool,
    beats: u32,
}

impl View {
    fn take(&mut self, down: Down) {
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

    fn keys(&self) -> BTreeSet<Key> {
        self.held.get(&self.replicas[0].slot).cloned().unwrap_or_default()
    }

    fn state(&self) -> State {
        self.replicas[0].state()
    }
}

struct Follower {
    stream: tonic::Streaming<Down>,
    _up: tokio::sync::mpsc::Sender<Up>,
    view: View,
}

impl Follower {
    async fn open(relay: &Relay, artefacts: Vec<Vec<u8>>) -> Self {
        let channel = tonic::transport::Endpoint::new(format!("http://{}", relay.address))
            .unwrap()
            .connect()
            .await
            .unwrap();
        let (up, ups) = tokio::sync::mpsc::channel(1);
        let hello = Hello { artefacts, node: "test".into() };
        up.send(Up { body: Some(up::Body::Hello(hello)) }).await.unwrap();
        let ups = tokio_stream::wrappers::ReceiverStream::new(ups);
        let stream = SideStreamClient::new(channel).follow(ups).await.unwrap().into_inner();
        Self { stream, _up: up, view: View::default() }
    }

    async fn until(&mut self, what: &str, done: impl Fn(&View) -> bool) {
        let reading = async {
            while !(self.view.snapshot && done(&self.view)) {
                let down = self.stream.message().await.unwrap().expect("the stream goes on");
                self.view.take(down);
            }
        };
        assert!(timeout(PATIENCE, reading).await.is_ok(), "never: {what}");
    }

    async fn until_keys(&mut self, expected: &BTreeSet<Key>) {
        self.until("the expected keys", |view| view.keys() == *expected).await;
    }
}

/// The frames of a whole engine's life, real ones where there are, and what is held after each.
fn life() -> (Vec<Frame>, Vec<BTreeSet<Key>>) {
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

#[tokio::test]
async fn events_become_a_snapshot_and_deltas() {
    let (frames, expected) = life();
    let api = api().await;
    let mut publisher = Publisher::bind("tcp://127.0.0.1:0").await;
    let relay =
        Relay::start(api.address, &format!("{{ connect: \"{}\" }}", publisher.address)).await;
    publisher.subscribed().await;
    let (first, rest) = frames.split_at(6);
    for frame in first {
        publisher.publish(frame).await;
    }
    let mut early = Follower::open(&relay, vec![]).await;
    early.until_keys(&expected[5]).await;
    let view = &early.view;
    assert_eq!(view.models[0].name, "demo");
    assert_eq!(view.models[0].adapters, ["lora-a"]);
    assert_eq!(view.models[0].tokenizer_hash, HASH);
    assert_eq!(view.artefact.len(), 600_000);
    assert_eq!(blake3::hash(&view.artefact).as_bytes().to_vec(), view.models[0].artefact);
    early
        .until("ready with its load", |view| {
            view.state() == State::Ready && view.loads.get(&view.replicas[0].slot) == Some(&(2, 3))
        })
        .await;
    assert_eq!(early.view.replicas[0].endpoint, api.address.to_string());
    assert_eq!(early.view.replicas[0].pool, "eu");

    for (frame, expected) in rest.iter().zip(&expected[6..]) {
        publisher.publish(frame).await;
        early.until_keys(expected).await;
    }
    // A late one, which holds the artefact already, gets the same by snapshot.
    let held = early.view.models[0].artefact.clone();
    let mut late = Follower::open(&relay, vec![held]).await;
    late.until_keys(expected.last().unwrap()).await;
    assert!(late.view.artefact.is_empty());
    assert_ne!(late.view.epoch, early.view.epoch);
    late.until("beats", |view| view.beats >= 2).await;

    // The API says it is not well, then it is; the view stays.
    api.well.store(false, Ordering::Relaxed);
    late.until("down", |view| view.state() == State::Down).await;
    api.well.store(true, Ordering::Relaxed);
    late.until("up", |view| view.state() == State::Ready).await;
    assert_eq!(late.view.keys(), *expected.last().unwrap());
    relay.stop().await;
}

#[tokio::test]
async fn a_restarted_engine_gets_a_new_slot_and_no_stale_block() {
    let (frames, expected) = life();
    let api = api().await;
    let mut publisher = Publisher::bind("tcp://127.0.0.1:0").await;
    let address = publisher.address.clone();
    let relay = Relay::start(api.address, &format!("{{ connect: \"{address}\" }}")).await;
    publisher.subscribed().await;
    for frame in &frames[..4] {
        publisher.publish(frame).await;
    }
    let mut follower = Follower::open(&relay, vec![]).await;
    follower.until_keys(&expected[3]).await;
    let slot = follower.view.replicas[0].slot;

    // It dies: its view goes at once, before it is back.
    drop(publisher);
    follower.until("suspect", |view| view.state() == State::Suspect).await;
    follower.until("a new slot", |view| view.replicas[0].slot != slot).await;
    assert!(follower.view.keys().is_empty());

    let mut publisher = Publisher::bind(&address).await;
    publisher.subscribed().await;
    publisher.publish(&frames[0]).await;
    follower.until_keys(&expected[0]).await;
    follower.until("ready", |view| view.state() == State::Ready).await;
    relay.stop().await;
}

#[tokio::test]
async fn a_sequence_that_begins_anew_on_the_same_connection_is_a_restart() {
    let (frames, expected) = life();
    let api = api().await;
    let mut publisher = Publisher::bind("tcp://127.0.0.1:0").await;
    let relay =
        Relay::start(api.address, &format!("{{ connect: \"{}\" }}", publisher.address)).await;
    publisher.subscribed().await;
    let mut follower = Follower::open(&relay, vec![]).await;
    for frame in &frames[..4] {
        publisher.publish(frame).await;
    }
    follower.until_keys(&expected[3]).await;
    let slot = follower.view.replicas[0].slot;
    publisher.publish(&frames[0]).await;
    follower.until("a new slot", |view| view.replicas[0].slot != slot).await;
    follower.until_keys(&expected[0]).await;
    relay.stop().await;
}

#[tokio::test]
async fn a_gap_is_replayed_where_that_is_offered_and_clears_where_not() {
    let (frames, expected) = life();
    for topics in [Some(true), Some(false), None] {
        let api = api().await;
        let mut publisher = Publisher::bind("tcp://127.0.0.1:0").await;
        let past = Past::default();
        let mut events = format!("connect: \"{}\"", publisher.address);
        if let Some(topics) = topics {
            let (replay, _) = replayer(Arc::clone(&past), topics).await;
            events = format!("{events}, replay: \"{replay}\"");
        }
        let relay = Relay::start(api.address, &format!("{{ {events} }}")).await;
        publisher.subscribed().await;
        let mut follower = Follower::open(&relay, vec![]).await;
        for (i, frame) in frames.iter().enumerate() {
            past.lock().unwrap().push((frame.sequence, frame.payload.clone()));
            if !(3..7).contains(&i) {
                publisher.publish(frame).await;
            }
            if i == 2 {
                follower.until_keys(&expected[2]).await;
            }
            if i == 7 && topics.is_none() {
                let mut engine = Engine::default();
                engine.apply(&meaning(&frame.decoded));
                follower.until_keys(&engine.keys("1", &HASH)).await;
                break;
            }
        }
        if topics.is_some() {
            follower.until_keys(expected.last().unwrap()).await;
        }
        relay.stop().await;
    }
}

#[tokio::test]
async fn a_relay_started_late_asks_for_the_past_before_it_speaks() {
    let (frames, expected) = life();
    for topics in [true, false] {
        let api = api().await;
        let publisher = Publisher::bind("tcp://127.0.0.1:0").await;
        let past = Past::default();
        for frame in &frames {
            past.lock().unwrap().push((frame.sequence, frame.payload.clone()));
        }
        let (replay, _) = replayer(past, topics).await;
        let events = format!("{{ connect: \"{}\", replay: \"{replay}\" }}", publisher.address);
        let relay = Relay::start(api.address, &events).await;
        let mut follower = Follower::open(&relay, vec![]).await;
        follower.until("the snapshot", |_| true).await;
        assert_eq!(follower.view.keys(), *expected.last().unwrap(), "exact at once");
        relay.stop().await;
    }
}

#[tokio::test]
async fn a_batch_that_cannot_be_read_clears_the_view() {
    let (frames, expected) = life();
    let api = api().await;
    let mut publisher = Publisher::bind("tcp://127.0.0.1:0").await;
    let relay =
        Relay::start(api.address, &format!("{{ connect: \"{}\" }}", publisher.address)).await;
    publisher.subscribed().await;
    let mut follower = Follower::open(&relay, vec![]).await;
    publisher.publish(&frames[0]).await;
    follower.until_keys(&expected[0]).await;
    publisher.send(b"", 1, b"\xc1garbage").await;
    follower.until("an empty view", |view| view.keys().is_empty()).await;
    publisher.send(b"x", 2, &frames[0].payload).await;
    follower.until_keys(&expected[0]).await;
    relay.stop().await;
}

#[tokio::test]
async fn a_refusing_api_means_that_the_engine_is_gone() {
    let (frames, expected) = life();
    let api = api().await;
    let mut publisher = Publisher::bind("tcp://127.0.0.1:0").await;
    let relay =
        Relay::start(api.address, &format!("{{ connect: \"{}\" }}", publisher.address)).await;
    publisher.subscribed().await;
    let mut follower = Follower::open(&relay, vec![]).await;
    publisher.publish(&frames[0]).await;
    follower.until_keys(&expected[0]).await;
    follower.until("ready", |view| view.state() == State::Ready).await;
    api.serving.abort();
    follower.until("down", |view| view.state() == State::Down).await;
    follower.until("an empty view", |view| view.keys().is_empty()).await;
    let address = api.address;
    drop(api.serving.await);
    let _api = api_at(address).await;
    follower.until("ready", |view| view.state() == State::Ready).await;
    relay.stop().await;
}

#[tokio::test]
async fn an_engine_that_connects_is_heard_where_the_relay_binds() {
    let (frames, expected) = life();
    let api = api().await;
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().port()
    };
    let relay = Relay::start(api.address, &format!("{{ bind: \"tcp://*:{port}\" }}")).await;
    let mut follower = Follower::open(&relay, vec![]).await;
    follower.until("suspect, for nobody came", |view| view.state() == State::Suspect).await;
    for life in 0..2 {
        let mut socket = zeromq::PubSocket::new();
        socket.connect(&format!("tcp://127.0.0.1:{port}")).await.unwrap();
        let mut publisher = socket;
        follower.until("heard", |view| view.state() == State::Ready).await;
        // A PUB can't tell when it is subscribed to: what comes too early is lost, like live.
        sleep(Duration::from_millis(300)).await;
        for frame in &frames[..3] {
            let parts = [&frame.topic[..], &frame.sequence.to_be_bytes(), &frame.payload];
            publisher.send(message(&parts)).await.unwrap();
        }
        follower.until_keys(&expected[2]).await;
        drop(publisher);
        follower.until("gone", |view| view.state() == State::Suspect).await;
        assert!(follower.view.keys().is_empty(), "life {life}");
    }
    relay.stop().await;
}

#[tokio::test]
async fn noise_on_the_events_port_does_no_harm() {
    use tokio::io::AsyncWriteExt;
    let (frames, expected) = life();
    let api = api().await;
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().port()
    };
    let relay = Relay::start(api.address, &format!("{{ bind: \"tcp://127.0.0.1:{port}\" }}")).await;
    let mut follower = Follower::open(&relay, vec![]).await;
    let mut publisher = zeromq::PubSocket::new();
    publisher.connect(&format!("tcp://127.0.0.1:{port}")).await.unwrap();
    follower.until("heard", |view| view.state() == State::Ready).await;
    sleep(Duration::from_millis(300)).await;
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    // A frame that claims 2^62 bytes, HTTP, and silence.
    let claim = [&greeting[..], &[6, 0x40, 0, 0, 0, 0, 0, 0, 0]].concat();
    for noise in [claim.as_slice(), b"GET / HTTP/1.1\r\n\r\n", b""] {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.write_all(noise).await.unwrap();
    }
    let frame = &frames[0];
    let parts = [&frame.topic[..], &frame.sequence.to_be_bytes(), &frame.payload];
    publisher.send(message(&parts)).await.unwrap();
    follower.until_keys(&expected[0]).await;
    relay.stop().await;
}
