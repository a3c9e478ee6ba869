//! The load generator: hyper's HTTP/1.1 client on connections that stay open, one thread.
//!
//! Why not a ready tool: wrk has no open loop, and oha takes bodies from a file, so that none of
//! them could be new to the proxy. Here every body is made when it is sent.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context;
use fastrand::Rng;
use hdrhistogram::Histogram;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, mpsc};

use crate::bodies::{Bodies, Kind};
use crate::usage;

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// Each connection sends its next request when it has the answer.
    Closed(usize),
    /// This many a second, at random moments, whatever becomes of those before.
    Open(f64),
}

/// Connections of an open loop.
const OPEN_CONNECTIONS: usize = 32;

impl Shape {
    /// A short name.
    pub fn name(self) -> String {
        match self {
            Self::Closed(connections) => format!("closed {connections}"),
            Self::Open(rate) => format!("open {rate:.0}/s"),
        }
    }

    fn connections(self) -> usize {
        match self {
            Self::Closed(connections) => connections,
            Self::Open(_) => OPEN_CONNECTIONS,
        }
    }
}

/// What to send where.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The proxy.
    pub address: SocketAddr,
    /// The `host` header.
    pub host: &'a str,
    /// The bodies.
    pub bodies: &'a Bodies,
    /// Which of them.
    pub kind: Kind,
    /// How they come.
    pub shape: Shape,
    /// Not measured: each connection sends as it can.
    pub warm_up: Duration,
    /// Measured.
    pub time: Duration,
    /// Processes whose use is measured.
    pub processes: &'a [u32],
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Answers with status 200 within the time.
    pub requests: u64,
    /// Other answers, and connections that broke.
    pub errors: u64,
    /// The time, as it was.
    pub seconds: f64,
    /// Latencies in nanoseconds. In an open loop from the moment the request came to be.
    pub latencies: Histogram<u64>,
    /// Processor seconds that the processes used within the time.
    pub cpu_seconds: f64,
    /// Bytes resident at its end.
    pub resident: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    WarmUp,
    Measured,
    Over,
}

struct Shared {
    phase: Cell<Phase>,
    requests: Cell<u64>,
    errors: Cell<u64>,
    latencies: RefCell<Histogram<u64>>,
}

/// Sends and measures.
///
/// # Errors
/// When the proxy can't be reached at all.
pub fn run(job: &Job<'_>) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, drive(job))
}

async fn drive(job: &Job<'_>) -> anyhow::Result<Outcome> {
    let shared = Rc::new(Shared {
        phase: Cell::new(Phase::WarmUp),
        requests: Cell::new(0),
        errors: Cell::new(0),
        latencies: RefCell::new(Histogram::new_with_bounds(1_000, 120_000_000_000, 3)?),
    });
    let (arrive, arrivals) = mpsc::unbounded_channel();
    let arrivals = Rc::new(Mutex::new(arrivals));
    let mut connections = Vec::new();
    for number in 0..job.shape.connections() {
        let sender = connect(job.address).await.with_context(|| job.address.to_string())?;
        let connection = Connection {
            address: job.address,
            host: job.host.to_owned(),
            bodies: job.bodies.clone(),
            kind: job.kind,
            rng: Rng::with_seed(fastrand::u64(..) ^ number as u64),
            shared: Rc::clone(&shared),
            arrivals: matches!(job.shape, Shape::Open(_)).then(|| Rc::clone(&arrivals)),
        };
        connections.push(tokio::task::spawn_local(connection.run(sender)));
    }
    tokio::time::sleep(job.warm_up).await;

    let before = usage::of(job.processes);
    let start = Instant::now();
    let pace = match job.shape {
        Shape::Open(rate) => Some(std::thread::spawn({
            let time = job.time;
            move || pace(rate, time, &arrive)
        })),
        Shape::Closed(_) => None,
    };
    shared.phase.set(Phase::Measured);
    tokio::time::sleep(job.time).await;
    shared.phase.set(Phase::Over);
    let seconds = start.elapsed().as_secs_f64();
    let after = usage::of(job.processes);
    for connection in connections {
        connection.abort();
    }
    if let Some(pace) = pace {
        let _ = pace.join();
    }
    let latencies = shared.latencies.borrow().clone();
    Ok(Outcome {
        requests: shared.requests.get(),
        errors: shared.errors.get(),
        seconds,
        latencies,
        cpu_seconds: after.cpu_seconds_since(&before),
        resident: after.resident,
    })
}

/// Tells when requests come. A thread, as it must neither wait for answers nor be held up by them,
/// and as tokio's timers count in milliseconds.
fn pace(rate: f64, time: Duration, arrive: &mpsc::UnboundedSender<Instant>) {
    let mut rng = Rng::new();
    let start = Instant::now();
    let mut next = Duration::ZERO;
    while next < time {
        next += Duration::from_secs_f64(-(1.0 - rng.f64()).ln() / rate);
        let due = start + next;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if arrive.send(Instant::now()).is_err() {
            return;
        }
    }
}

type Sender = SendRequest<Full<bytes::Bytes>>;

async fn connect(address: SocketAddr) -> anyhow::Result<Sender> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::task::spawn_local(connection);
    Ok(sender)
}

struct Connection {
    address: SocketAddr,
    host: String,
    bodies: Bodies,
    kind: Kind,
    rng: Rng,
    shared: Rc<Shared>,
    arrivals: Option<Rc<Mutex<mpsc::UnboundedReceiver<Instant>>>>,
}

impl Connection {
    async fn run(mut self, mut sender: Sender) {
        loop {
            let body = self.bodies.any(self.kind, &mut self.rng);
            let start = match (&self.arrivals, self.shared.phase.get()) {
                (_, Phase::Over) => return,
                (Some(arrivals), Phase::Measured) => match arrivals.lock().await.recv().await {
                    Some(arrival) => arrival,
                    None => return,
                },
                _ => Instant::now(),
            };
            let began = self.shared.phase.get();
            let result = self.ask(&mut sender, body).await;
            let took = start.elapsed().as_nanos() as u64;
            let counts = began == Phase::Measured && self.shared.phase.get() == Phase::Measured;
            let good = matches!(result, Ok(true));
            if counts && good {
                self.shared.requests.set(self.shared.requests.get() + 1);
                self.shared.latencies.borrow_mut().saturating_record(took);
            } else if counts {
                self.shared.errors.set(self.shared.errors.get() + 1);
            }
            if result.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
                if let Ok(fresh) = connect(self.address).await {
                    sender = fresh;
                }
            }
        }
    }

    /// Whether the answer was good; an error if the connection broke.
    async fn ask(&self, sender: &mut Sender, body: bytes::Bytes) -> anyhow::Result<bool> {
        let request = hyper::Request::post("/v1/chat/completions")
            .header(HOST, &self.host)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        let good = response.status() == 200;
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            frame?;
        }
        Ok(good)
    }
}
