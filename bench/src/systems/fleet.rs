//! All that is started for a comparison.

use std::path::{Path, PathBuf};

use anyhow::Context;
use warmpath_tests::{Process, Tools};

use super::ground::{ENGINES, Ground, free_ports, local};
use super::started::{Started, System};
use super::{engines, envoy, peers};
use crate::bodies::Kind;
use crate::ending;

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

/// All that runs. It ends when this is dropped.
#[derive(Debug)]
pub struct Fleet {
    /// What is measured, in the table's order.
    pub systems: Vec<System>,
    /// What can't be, and why.
    pub missing: Vec<(String, String)>,
    _processes: Vec<Process>,
    _dir: tempfile::TempDir,
}

impl Fleet {
    /// Starts everything.
    ///
    /// # Errors
    /// When a part of Warmpath's own does not start within a minute. Peers that don't are named in
    /// `missing`.
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
        let mut started = Started {
            systems: Vec::new(),
            missing: Vec::new(),
            processes: vec![engines::start(&ground, &options.sizes)?],
        };
        let wanted = |name: &str| {
            options.only.is_empty() || options.only.iter().any(|o| name.contains(o.as_str()))
        };
        let first = ground.engines.first().copied().context("no engine")?;
        if wanted("direct") {
            started.systems.push(System {
                name: "direct".into(),
                address: local(first),
                host: "localhost".into(),
                kind: Kind::Shared,
                processes: Vec::new(),
                reason: None,
            });
        }
        envoy::start(&ground, &wanted, &mut started)?;
        if let Some(filter) = &options.against {
            let tools = Tools { filter: filter.canonicalize()?, ..ground.tools.clone() };
            envoy::start_against(&Ground { tools, ..ground.clone() }, &mut started)?;
        }
        peers::start(&ground, options.peers.as_deref(), &wanted, &mut started);
        let Started { systems, missing, processes } = started;
        Ok(Self { systems, missing, _processes: processes, _dir: dir })
    }
}
