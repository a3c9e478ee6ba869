//! What the parts of a fleet stand on: where they run, their model, tools and ports.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use warmpath_tests::{Client, Tools, repository};

/// How long something may take to start.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

/// Engines behind each proxy, where nothing else is said.
pub(crate) const ENGINES: usize = 4;

/// Envoy's worker threads, where nothing else is said.
pub(crate) const WORKERS: usize = 2;

/// What the parts of a fleet have to know of each other.
#[derive(Clone)]
pub(super) struct Ground {
    pub(super) dir: PathBuf,
    pub(super) model: PathBuf,
    pub(super) workers: usize,
    pub(super) models: usize,
    pub(super) tools: Tools,
    pub(super) engines: Vec<u16>,
    /// Ports of KV events, by listener.
    pub(super) events: Vec<Vec<u16>>,
}

pub(super) fn local(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

pub(super) fn answers(port: u16, path: &str) -> bool {
    Client::new(port).get("eu", path).is_ok_and(|answer| answer.status == 200)
}

/// Ports that are free now.
pub(super) fn free_ports(count: usize) -> anyhow::Result<Vec<u16>> {
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

pub(super) fn quickstart() -> PathBuf {
    Path::new(repository()).join("envoy/quickstart.yaml")
}
