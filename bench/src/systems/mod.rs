//! What is measured: each proxy in front of the same engines.

mod envoy;
mod peers;

pub(crate) use envoy::{decided, decisions, histogram, prompt_tokens};

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use warmpath_tests::{Client, Process, Tools, repository};

use crate::bodies::Kind;
use crate::ending;

/// How long something may take to start.
const PATIENCE: Duration = Duration::from_mins(1);

/// Engines behind each proxy, where nothing else is said.
pub(crate) const ENGINES: usize = 4;

/// Listeners of KV events: Warmpath's relay, that of the map that goes stale, vLLM Router, the relay
/// of another filter.
const LISTENERS: usize = 4;

/// What there is to compare.
pub(crate) const NAMES: [&str; 8] = [
    "direct",
    "envoy",
    "warmpath warm",
    "warmpath cold",
    "warmpath stale",
    "vllm-router kv_aware",
    "vllm-router cache_aware",
    "sglang-router cache_aware",
];

/// What to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// The model's directory.
    pub model: PathBuf,
    /// Sizes of bodies, in bytes.
    pub sizes: Vec<usize>,
    /// Python of the environment that has the peers.
    pub peers: Option<PathBuf>,
    /// Another build of the filter, to compare with.
    pub against: Option<PathBuf>,
    /// Only systems whose name contains one of these; all if there are none.
    pub only: Vec<String>,
    /// Envoy's worker threads.
    pub workers: usize,
    /// Models that Warmpath knows, each with a tokenizer of its own; the first one is asked for.
    pub models: usize,
    /// Engines behind each proxy.
    pub engines: usize,
}

impl Options {
    /// Warmpath alone, for bodies of so many bytes.
    pub fn warmpath(model: &Path, bytes: usize, workers: usize, models: usize) -> Self {
        Self {
            model: model.to_owned(),
            sizes: vec![bytes],
            peers: None,
            against: None,
            only: vec!["warmpath warm".into()],
            workers,
            models,
            engines: ENGINES,
        }
    }
}

/// A proxy, or none, that runs.
#[derive(Debug)]
pub struct System {
    /// Its name in the table.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// The `host` header that it wants.
    pub host: String,
    /// Which prompts it gets.
    pub kind: Kind,
    /// The processes that it consists of.
    pub processes: Vec<u32>,
    /// The reason that Warmpath should give for each decision, and Envoy's admin port.
    pub reason: Option<(&'static str, u16)>,
}

/// All that runs. It ends when this is dropped.
#[derive(Debug)]
pub struct Fleet {
    /// What is measured, in the table's order.
    pub systems: Vec<System>,
    /// What can't be, and why.
    pub missing: Vec<(String, String)>,
    processes: Vec<Process>,
    _dir: tempfile::TempDir,
}

/// What the parts of a fleet have to know of each other.
#[derive(Clone)]
struct Ground {
    dir: PathBuf,
    model: PathBuf,
    workers: usize,
    models: usize,
    tools: Tools,
    engines: Vec<u16>,
    /// Ports of KV events, by listener.
    events: Vec<Vec<u16>>,
}

impl Fleet {
    /// Starts everything.
    ///
    /// # Errors
    /// A part of Warmpath's own does not start. Peers that don't are named in `missing`.
    pub fn start(options: &Options) -> anyhow::Result<Self> {
        let dir = ending::directory()?;
        let mut ports = free_ports(options.engines * (1 + LISTENERS))?.into_iter();
        let mut take = || ports.by_ref().take(options.engines).collect::<Vec<u16>>();
        let ground = Ground {
            dir: dir.path().to_owned(),
            model: options.model.canonicalize()?,
            workers: options.workers,
            models: options.models,
            tools: Tools::find()?,
            engines: take(),
            events: (0..LISTENERS).map(|_| take()).collect(),
        };
        let mut fleet = Self {
            systems: Vec::new(),
            missing: Vec::new(),
            processes: vec![upstream(&ground, &options.sizes)?],
            _dir: dir,
        };
        let wanted = |name: &str| {
            options.only.is_empty() || options.only.iter().any(|o| name.contains(o.as_str()))
        };
        let first = ground.engines.first().copied().context("no engine")?;
        if wanted("direct") {
            fleet.systems.push(System {
                name: "direct".into(),
                address: local(first),
                host: "localhost".into(),
                kind: Kind::Shared,
                processes: Vec::new(),
                reason: None,
            });
        }
        envoy::start(&ground, &wanted, &mut fleet)?;
        if let Some(filter) = &options.against {
            let tools = Tools { filter: filter.canonicalize()?, ..ground.tools.clone() };
            envoy::start_against(&Ground { tools, ..ground.clone() }, &mut fleet)?;
        }
        peers::start(&ground, options.peers.as_deref(), &wanted, &mut fleet);
        Ok(fleet)
    }
}

/// One Envoy with Warmpath that says why it decides so.
#[derive(Debug)]
pub struct Watched {
    /// Where it listens.
    pub port: u16,
    /// Whom requests are for.
    pub zone: &'static str,
    _processes: [Process; 3],
    _dir: tempfile::TempDir,
}

impl Watched {
    /// Starts it. The first engine's events are published on `events`, by the caller.
    ///
    /// # Errors
    /// Something does not start.
    pub fn start(model: &Path, events: u16) -> anyhow::Result<Self> {
        let dir = ending::directory()?;
        let mut ports = free_ports(ENGINES * 2)?.into_iter();
        let mut take = || ports.by_ref().take(ENGINES).collect::<Vec<u16>>();
        let ground = Ground {
            workers: crate::run::WORKERS,
            models: 1,
            dir: dir.path().to_owned(),
            model: model.canonicalize()?,
            tools: Tools::find()?,
            engines: take(),
            events: vec![take()],
        };
        let upstream = upstream(&ground, &[8 << 10])?;
        let mut publishers = ground.events.concat();
        *publishers.first_mut().context("an engine")? = events;
        let (port, _, [relay, envoy]) = envoy::warmpath(&ground, "watched", &publishers, true)?;
        Ok(Self { port, zone: envoy::ZONE, _processes: [envoy, relay, upstream], _dir: dir })
    }
}

fn upstream(ground: &Ground, sizes: &[usize]) -> anyhow::Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("upstream").arg("--model").arg(&ground.model);
    command.args(["--http", &join(&ground.engines)]);
    command.args(["--events", &join(&ground.events.concat())]);
    command.args(["--sizes", &join(sizes)]);
    let mut process = Process::start("upstream", &ground.dir, &mut command)?;
    let engines = ground.engines.clone();
    process
        .until(PATIENCE, || engines.iter().all(|port| answers(*port, "/health")))
        .context("the upstream")?;
    Ok(process)
}

fn join<T: ToString>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

fn local(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn answers(port: u16, path: &str) -> bool {
    Client::new(port).get("eu", path).is_ok_and(|answer| answer.status == 200)
}

/// Ports that are free now.
fn free_ports(count: usize) -> anyhow::Result<Vec<u16>> {
    let held: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    Ok(held
        .iter()
        .map(TcpListener::local_addr)
        .collect::<Result<Vec<_>, _>>()?
        .iter()
        .map(SocketAddr::port)
        .collect())
}

fn quickstart() -> PathBuf {
    Path::new(repository()).join("envoy/quickstart.yaml")
}
