//! The relay's configuration: YAML, checked at start. Errors name the line and the field.

mod check;
mod discovery;
mod error;
mod port;
mod raw;
mod secrets;
mod serving;
mod speculation;
#[cfg(test)]
mod tests;
pub mod time_zone;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use warmpath_prompt::Serving;

use crate::engine::adapters::Adapters;
use crate::engine::polling::Polling;
use crate::engine::way::Way;
use crate::index::{BlockDrop, Duplicates, Limits};
pub use error::ConfigError;
pub use port::Port;
use raw::RawConfig;
pub use secrets::{Tls, Token};
pub use speculation::Speculation;

/// Replicas of one relay; each also needs spare slots for its later lives.
pub(crate) const MAX_REPLICAS: usize = 4096;

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the side-stream is served.
    pub listen: SocketAddr,
    /// Where the admin endpoint is served; on loopback.
    pub admin: Option<SocketAddr>,
    /// The models.
    pub models: Vec<Model>,
    /// The replicas.
    pub replicas: Vec<Replica>,
    /// Where more replicas are found.
    pub discovery: Vec<Discovery>,
    /// Who may follow the side-stream.
    pub token: Option<Token>,
    /// TLS of the side-stream; none for plain HTTP/2.
    pub tls: Option<Tls>,
    /// How engines are polled.
    pub polling: Polling,
    /// Bounds of each replica's view.
    pub limits: Limits,
}

/// A model.
#[derive(Clone, Debug)]
pub struct Model {
    /// What replicas refer to.
    pub name: String,
    /// Its directory, with `tokenizer.json`; none for a model that is routed by the ring only.
    pub path: Option<PathBuf>,
    /// Its version, which is part of every prefix's name.
    pub version: String,
    /// The tokenizer's hash where there is no directory to compute it from.
    pub tokenizer_hash: Option<[u8; 32]>,
    /// Names in requests.
    pub served_names: Vec<String>,
    /// LoRA adapters.
    pub adapters: Vec<String>,
    /// Engines are asked whether they serve it, and for further names and adapters.
    pub from_engine: bool,
    /// What serves it, and how that was started.
    pub serving: Serving,
    /// What its engines drop of their hits, where it is said how they speculate.
    pub drop: Option<BlockDrop>,
}

/// A replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// `ip:port` of the OpenAI API.
    pub endpoint: SocketAddr,
    /// Data-parallel rank, as requests name it.
    pub rank: Option<u32>,
    /// Its pool.
    pub pool: String,
    /// Its model's place in [`Config::models`].
    pub model: usize,
    /// Takes nothing new.
    pub draining: bool,
    /// The store of KV blocks that its engine shares with others, by name.
    pub store: Option<String>,
    /// What it can take beside others, in hundredths of a plain replica.
    pub weight: u16,
    /// The adapters that are loaded there; none where that isn't said.
    pub adapters: Option<Adapters>,
    /// How its events are heard.
    pub events: Option<Events>,
}

/// A source of replicas, and what is the same of all that it finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovery {
    /// Where it looks.
    pub place: Place,
    /// Port of the OpenAI API.
    pub port: Port,
    /// Their pool.
    pub pool: String,
    /// Their model's place in [`Config::models`].
    pub model: usize,
    /// The store of KV blocks that they share, by name.
    pub store: Option<String>,
    /// What each can take beside others, in hundredths of a plain replica.
    pub weight: u16,
    /// The adapters that are loaded at each; none where that isn't said.
    pub adapters: Option<Adapters>,
    /// Port of their publishers.
    pub events_port: Option<Port>,
    /// Port of their replay sockets.
    pub replay_port: Option<Port>,
    /// What a repeated store means.
    pub duplicates: Duplicates,
    /// Data-parallel ranks at each address; none where it is one engine.
    pub ranks: Option<Ranks>,
}

/// The data-parallel ranks behind one API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// How many.
    pub count: u32,
    /// That of the first among all engines: what its batches carry, and what is added to ports.
    pub first: u32,
}

/// Where replicas are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The addresses of a host name.
    Dns {
        /// The name.
        name: String,
        /// Time between two look-ups.
        every: Duration,
    },
    /// The EndpointSlices of a Kubernetes Service.
    Kubernetes {
        /// The Service's name.
        service: String,
        /// Its namespace; the one that the relay runs in, or that the kubeconfig names, if none.
        namespace: Option<String>,
        /// The kubeconfig; none for the usual places, and then the pod's own service account.
        kubeconfig: Option<PathBuf>,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns { name, .. } => write!(f, "dns/{name}"),
            Self::Kubernetes { service, namespace, .. } => {
                write!(f, "kubernetes/{}/{service}", namespace.as_deref().unwrap_or("-"))
            }
        }
    }
}

/// How a replica's events are heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events {
    /// The publisher.
    pub way: Way,
    /// The replay socket, `host:port`.
    pub replay: Option<String>,
    /// The data-parallel rank that batches carry, where it isn't the replica's.
    pub rank: Option<u32>,
    /// What a repeated store means.
    pub duplicates: Duplicates,
}

impl Config {
    /// Reads and checks a file. Relative paths in it are relative to its directory.
    ///
    /// # Errors
    /// [`ConfigError::Read`] where the file can't be read; else as [`Self::parse`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
        let directory = path.parent().unwrap_or(Path::new(""));
        Self::parse(&text, &path.display().to_string(), directory)
    }

    /// Checks a text. `file` is its name in errors, `directory` what relative paths begin from.
    ///
    /// # Errors
    /// [`ConfigError::Shape`] where the text isn't YAML or a field is unknown, missing or of another
    /// type; [`ConfigError::Value`] for the first value that can't be meant, or whose file can't be
    /// read.
    pub fn parse(text: &str, file: &str, directory: &Path) -> Result<Self, ConfigError> {
        let mut field = String::new();
        let raw: RawConfig = serde_saphyr::with_deserializer_from_str(text, |yaml| {
            serde_path_to_error::deserialize(yaml).map_err(|error| {
                field = error.path().to_string();
                error.into_inner()
            })
        })
        .map_err(|error| {
            // What knows its line has its value in a field of its own; these stand for the whole.
            let field = match field.strip_suffix(".value").unwrap_or(&field) {
                "" | "." | "?" => String::new(),
                field => format!("{field}: "),
            };
            ConfigError::Shape { file: file.to_owned(), error: format!("{field}{error}") }
        })?;
        Self::checked(&raw, file, directory)
    }
}
