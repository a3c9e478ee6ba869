//! A simulated engine: publisher, replay socket and API on real sockets, killed and started again.
//!
//! Each life has a runtime of its own, so that its end closes every socket at once, as a killed
//! process does.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::routing::get;
use warmpath_routing::fingerprint::Key;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::cache::{Cache, Event, Random};
use super::encode::Form;

/// Batches kept for replay, as in vLLM.
const KEPT: usize = 10_000;
/// An engine's step.
const STEP: Duration = Duration::from_millis(10);

/// What all engines are told to do.
pub const RUN: u8 = 0;
/// Publish nothing more but a last batch, so that a gap before it shows.
pub const REST: u8 = 1;
/// Those without replay empty their cache and fill it a little: from there on all is known again.
pub const FRESH: u8 = 2;
pub const END: u8 = 3;

#[derive(Clone)]
pub struct Spec {
    pub name: u64,
    pub block_tokens: usize,
    pub capacity: usize,
    pub form: Form,
    /// The replay socket's port, and whether replies carry the topic.
    pub replay: Option<(u16, bool)>,
    pub api: u16,
    pub events: u16,
    /// The relay binds the events' port.
    pub connects: bool,
    /// Events per second.
    pub rate: f64,
    /// Seconds of one life, from and to.
    pub life: (u64, u64),
}

#[derive(Default)]
pub struct Shared {
    pub phase: AtomicU8,
    pub events: AtomicU64,
    pub stored: AtomicU64,
    pub batches: AtomicU64,
    pub lost: AtomicU64,
    pub kills: AtomicU64,
    pub clears: AtomicU64,
    /// Keys that were published just now, for the latency to where they can be found.
    pub probes: Mutex<HashMap<Key, Instant>>,
}

pub struct Engine {
    pub spec: Spec,
    pub cache: Arc<Mutex<Cache>>,
    /// The phase that it has carried out.
    pub reached: Arc<AtomicU8>,
    /// Batches of this life.
    pub published: Arc<AtomicU64>,
    running: JoinHandle<()>,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

impl Engine {
    pub fn start(spec: Spec, seed: u64, shared: Arc<Shared>) -> Self {
        let cache = Arc::new(Mutex::new(Cache::new(spec.block_tokens, spec.capacity)));
        let reached = Arc::new(AtomicU8::new(RUN));
        let published = Arc::new(AtomicU64::new(0));
        let published_of = Arc::clone(&published);
        let (spec_of, cache_of, reached_of) =
            (spec.clone(), Arc::clone(&cache), Arc::clone(&reached));
        let running = std::thread::spawn(move || {
            let mut random = Random(seed ^ (spec_of.name << 32));
            while shared.phase.load(Ordering::SeqCst) != END {
                let mut life = Life {
                    spec: &spec_of,
                    cache: &cache_of,
                    reached: &reached_of,
                    published: &published_of,
                    shared: &shared,
                    random: &mut random,
                    past: Past::default(),
                    sequence: 0,
                    gap: 0,
                    calm: DISTURBED,
                };
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(life.run());
                drop(runtime);
                *lock(&cache_of) = Cache::new(spec_of.block_tokens, spec_of.capacity);
                shared.kills.fetch_add(1, Ordering::Relaxed);
                // Some are back before anybody can have noticed.
                let absence = if random.one_in(3) { random.below(20) } else { random.below(1500) };
                std::thread::sleep(Duration::from_millis(absence));
            }
        });
        Self { spec, cache, reached, published, running }
    }

    pub fn join(self) {
        self.running.join().unwrap();
    }
}

type Past = Arc<Mutex<VecDeque<(u64, Bytes)>>>;

struct Life<'a> {
    spec: &'a Spec,
    cache: &'a Mutex<Cache>,
    reached: &'a AtomicU8,
    published: &'a AtomicU64,
    shared: &'a Shared,
    random: &'a mut Random,
    past: Past,
    sequence: u64,
    /// Batches to come that get lost on the way.
    gap: u64,
    /// The sequence number from which on probes say how long an undisturbed event takes.
    calm: u64,
}

/// Batches after a start or a gap for which the relay may still be asking for replay.
const DISTURBED: u64 = 300;

impl Life<'_> {
    async fn run(&mut self) {
        let spec = self.spec;
        serve_api(spec.api).await;
        if let Some((port, topics)) = spec.replay {
            serve_past(port, topics, Arc::clone(&self.past)).await;
        }
        let mut socket = PubSocket::new();
        let address = format!("tcp://127.0.0.1:{}", spec.events);
        if spec.connects {
            while socket.connect(&address).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        } else {
            while socket.bind(&address).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        let (least, most) = spec.life;
        let life = Duration::from_millis(1000 * least + self.random.below(1000 * (most - least)));
        let start = Instant::now();
        let mut at = Instant::now();
        let mut step = tokio::time::interval(STEP);
        let mut due = 0.0;
        loop {
            step.tick().await;
            let phase = self.shared.phase.load(Ordering::SeqCst);
            let elapsed = std::mem::replace(&mut at, Instant::now()).elapsed().as_secs_f64();
            match phase {
                RUN => {
                    self.reached.store(RUN, Ordering::SeqCst);
                    if start.elapsed() > life {
                        return;
                    }
                    due += (elapsed * spec.rate).min(spec.rate / 4.0);
                    let mut events = Vec::new();
                    let mut probe = None;
                    while due > 0.0 {
                        let before = events.len();
                        let mut cache = lock(self.cache);
                        if self.random.one_in(400_000) {
                            cache.clear(&mut events);
                            self.shared.clears.fetch_add(1, Ordering::Relaxed);
                        }
                        probe = cache.prompt(self.random, &mut events).or(probe);
                        due -= (events.len() - before) as f64;
                    }
                    if self.gap == 0 && self.random.one_in(500) {
                        self.gap = 1 + self.random.below(4);
                    }
                    self.publish(&mut socket, &events, probe).await;
                }
                END => return,
                phase if self.reached.load(Ordering::SeqCst) != phase => {
                    self.gap = 0;
                    let mut events = Vec::new();
                    if phase == FRESH && spec.replay.is_none() {
                        let mut cache = lock(self.cache);
                        cache.clear(&mut events);
                        for _ in 0..500 {
                            cache.prompt(self.random, &mut events);
                        }
                    } else {
                        lock(self.cache).prompt(self.random, &mut events);
                    }
                    self.publish(&mut socket, &events, None).await;
                    self.reached.store(phase, Ordering::SeqCst);
                }
                _ => {}
            }
        }
    }

    async fn publish(&mut self, socket: &mut PubSocket, events: &[Event], probe: Option<Key>) {
        if events.is_empty() {
            return;
        }
        let payload: Bytes = self.spec.form.batch(self.spec.block_tokens, events).into();
        let stored = events.iter().map(|event| match event {
            Event::Stored { hashes, .. } => hashes.len() as u64,
            _ => 0,
        });
        self.shared.stored.fetch_add(stored.sum(), Ordering::Relaxed);
        self.shared.events.fetch_add(events.len() as u64, Ordering::Relaxed);
        self.shared.batches.fetch_add(1, Ordering::Relaxed);
        let sequence = self.sequence;
        self.sequence += 1;
        self.published.store(self.sequence, Ordering::SeqCst);
        {
            let mut past = lock(&self.past);
            if past.len() == KEPT {
                past.pop_front();
            }
            past.push_back((sequence, payload.clone()));
        }
        if self.gap > 0 {
            self.gap -= 1;
            self.calm = self.sequence + DISTURBED;
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if let Some(key) = probe
            && sequence >= self.calm
            && self.random.one_in(4)
        {
            lock(&self.shared.probes).insert(key, Instant::now());
        }
        let sequence = Bytes::copy_from_slice(&sequence.to_be_bytes());
        let _ = socket.send(message(vec![Bytes::from_static(b"kv"), sequence, payload])).await;
    }
}

fn message(parts: Vec<Bytes>) -> ZmqMessage {
    ZmqMessage::try_from(parts).unwrap()
}

async fn serve_api(port: u16) {
    let listener = loop {
        match tokio::net::TcpListener::bind(("127.0.0.1", port)).await {
            Ok(listener) => break listener,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let app = axum::Router::new()
        .route("/health", get(|| async { "" }))
        .route("/metrics", get(|| async { "vllm:num_requests_running{engine=\"0\"} 0\n" }));
    tokio::spawn(async move { axum::serve(listener, app).await });
}

async fn serve_past(port: u16, topics: bool, past: Past) {
    let mut socket = RouterSocket::new();
    while socket.bind(&format!("tcp://127.0.0.1:{port}")).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::spawn(async move {
        loop {
            let Ok(question) = socket.recv().await else { continue };
            let [identity, _, start] = &question.into_vec()[..] else { continue };
            let start = u64::from_be_bytes(start.as_ref().try_into().unwrap());
            let wanted: Vec<_> =
                lock(&past).iter().filter(|(sequence, _)| *sequence >= start).cloned().collect();
            for (sequence, payload) in wanted.into_iter().chain([(u64::MAX, Bytes::new())]) {
                let mut parts = vec![identity.clone(), Bytes::new()];
                if topics {
                    parts.push(Bytes::from_static(b"kv"));
                }
                parts.push(Bytes::copy_from_slice(&sequence.to_be_bytes()));
                parts.push(payload);
                if socket.send(message(parts)).await.is_err() {
                    break;
                }
            }
        }
    });
}
