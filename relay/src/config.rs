//! The relay's configuration: YAML, checked at start. Errors name the line and the field.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

use crate::index::{Duplicates, Limits};
use crate::load::Polling;
use crate::subscriber::Way;

/// Replicas of one relay; each also needs spare slots for its later lives.
pub(crate) const MAX_REPLICAS: usize = 4096;

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("can't read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Not YAML, or not of the expected shape.
    #[error("{file}: {error}")]
    Shape {
        /// The file.
        file: String,
        /// What and where.
        error: String,
    },
    /// A value that can't be meant.
    #[error("{file}:{line}:{column}: {field}: {what}")]
    Value {
        /// The file.
        file: String,
        /// From 1.
        line: u64,
        /// From 1.
        column: u64,
        /// Path of the field, such as `replicas[1].events`.
        field: String,
        /// What is wrong and what to do.
        what: String,
    },
}

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
    pub discovery: Vec<Dns>,
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
}

/// A replica.
#[derive(Clone, Debug)]
pub struct Replica {
    /// `ip:port` of the OpenAI API.
    pub endpoint: SocketAddr,
    /// Data-parallel rank.
    pub rank: Option<u32>,
    /// Its pool.
    pub pool: String,
    /// Its model's place in [`Config::models`].
    pub model: usize,
    /// Takes nothing new.
    pub draining: bool,
    /// The store of KV blocks that its engine shares with others, by name.
    pub store: Option<String>,
    /// How its events are heard.
    pub events: Option<Events>,
}

/// A name whose addresses are replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    /// The host name.
    pub name: String,
    /// Port of the OpenAI API.
    pub port: u16,
    /// Their pool.
    pub pool: String,
    /// Their model's place in [`Config::models`].
    pub model: usize,
    /// The store of KV blocks that they share, by name.
    pub store: Option<String>,
    /// Port of their publishers.
    pub events_port: Option<u16>,
    /// Port of their replay sockets.
    pub replay_port: Option<u16>,
    /// What a repeated store means.
    pub duplicates: Duplicates,
    /// Time between two look-ups.
    pub every: Duration,
}

/// What a follower of the side-stream must show, kept as its BLAKE3: two hashes are compared in
/// constant time, and the secret is in no log and no dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(blake3::Hash);

impl Token {
    /// The token of this text.
    pub fn new(secret: &str) -> Self {
        Self(blake3::hash(secret.as_bytes()))
    }

    /// Whether a header `authorization` shows it.
    pub fn admits(&self, header: Option<&[u8]>) -> bool {
        let shown = header.and_then(|header| header.strip_prefix(b"Bearer "));
        shown.is_some_and(|shown| blake3::hash(shown) == self.0)
    }
}

/// Certificates, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Tls {
    /// The relay's own, with its chain.
    pub certificate: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// Those who sign the certificates that followers must show; none for any follower.
    pub client_ca: Option<Vec<u8>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("mutual", &self.client_ca.is_some()).finish_non_exhaustive()
    }
}

/// How a replica's events are heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events {
    /// The publisher.
    pub way: Way,
    /// The replay socket, `host:port`.
    pub replay: Option<String>,
    /// What a repeated store means.
    pub duplicates: Duplicates,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    listen: Spanned<String>,
    admin: Option<Spanned<String>>,
    #[serde(default)]
    models: Vec<RawModel>,
    #[serde(default)]
    replicas: Vec<RawReplica>,
    #[serde(default)]
    discovery: Vec<RawDns>,
    token_file: Option<Spanned<PathBuf>>,
    tls: Option<RawTls>,
    #[serde(default)]
    polling: RawPolling,
    #[serde(default)]
    limits: RawLimits,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawModel {
    name: Spanned<String>,
    path: Option<Spanned<PathBuf>>,
    version: Spanned<String>,
    tokenizer_hash: Option<Spanned<String>>,
    served_names: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    adapters: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawReplica {
    endpoint: Spanned<String>,
    rank: Option<u32>,
    pool: Spanned<String>,
    model: Spanned<String>,
    #[serde(default)]
    draining: bool,
    shared_store: Option<Spanned<String>>,
    events: Option<Spanned<RawEvents>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTls {
    certificate: Spanned<PathBuf>,
    key: Spanned<PathBuf>,
    client_ca: Option<Spanned<PathBuf>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDns {
    dns: Spanned<String>,
    port: u16,
    pool: Spanned<String>,
    model: Spanned<String>,
    shared_store: Option<Spanned<String>>,
    events_port: Option<u16>,
    replay_port: Option<u16>,
    #[serde(default)]
    duplicates: Duplicates,
    every_ms: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEvents {
    connect: Option<String>,
    bind: Option<String>,
    replay: Option<String>,
    #[serde(default)]
    duplicates: Duplicates,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_field_names, reason = "the names are the file's")]
struct RawPolling {
    interval_ms: Option<Spanned<u64>>,
    timeout_ms: Option<Spanned<u64>>,
    silence_ms: Option<Spanned<u64>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLimits {
    blocks_per_replica: Option<Spanned<usize>>,
    waiting_tokens_per_replica: Option<Spanned<usize>>,
}

impl Config {
    /// Reads and checks a file. Relative paths in it are relative to its directory.
    ///
    /// # Errors
    /// [`ConfigError`], the first one found.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
        let directory = path.parent().unwrap_or(Path::new(""));
        Self::parse(&text, &path.display().to_string(), directory)
    }

    /// Checks a text. `file` is its name in errors, `directory` what relative paths begin from.
    ///
    /// # Errors
    /// [`ConfigError`], the first one found.
    pub fn parse(text: &str, file: &str, directory: &Path) -> Result<Self, ConfigError> {
        let raw: RawConfig = serde_saphyr::from_str(text).map_err(|error| ConfigError::Shape {
            file: file.to_owned(),
            error: error.to_string(),
        })?;
        Checker { file, directory }.config(&raw)
    }
}

struct Checker<'a> {
    file: &'a str,
    directory: &'a Path,
}

impl Checker<'_> {
    fn error(&self, at: Location, field: &str, what: impl Into<String>) -> ConfigError {
        ConfigError::Value {
            file: self.file.to_owned(),
            line: at.line(),
            column: at.column(),
            field: field.to_owned(),
            what: what.into(),
        }
    }

    fn address(&self, field: &str, text: &Spanned<String>) -> Result<SocketAddr, ConfigError> {
        text.value.parse().map_err(|_| {
            self.error(text.referenced, field, format!("{:?} is not ip:port", text.value))
        })
    }

    fn named(&self, field: &str, text: &Spanned<String>) -> Result<String, ConfigError> {
        if text.value.is_empty() {
            return Err(self.error(text.referenced, field, "is empty"));
        }
        Ok(text.value.clone())
    }

    fn config(&self, raw: &RawConfig) -> Result<Config, ConfigError> {
        let listen = self.address("listen", &raw.listen)?;
        let admin = match &raw.admin {
            None => None,
            Some(text) => {
                let address = self.address("admin", text)?;
                if !address.ip().is_loopback() {
                    let what =
                        "must be a loopback address: the admin endpoint has no access control";
                    return Err(self.error(text.referenced, "admin", what));
                }
                Some(address)
            }
        };
        let mut by_name = HashMap::new();
        let mut names = HashSet::new();
        let mut models = Vec::new();
        for (i, raw) in raw.models.iter().enumerate() {
            let model = self.model(i, raw, &mut names)?;
            if by_name.insert(model.name.clone(), i).is_some() {
                let field = format!("models[{i}].name");
                return Err(self.error(raw.name.referenced, &field, "another model has this name"));
            }
            models.push(model);
        }
        let mut seen = HashSet::new();
        let mut binds = HashSet::new();
        let mut replicas = Vec::new();
        for (i, raw) in raw.replicas.iter().enumerate() {
            let replica = self.replica(i, raw, &by_name)?;
            let at = raw.endpoint.referenced;
            let field = format!("replicas[{i}]");
            if i >= MAX_REPLICAS {
                let what = format!("a relay takes at most {MAX_REPLICAS} replicas");
                return Err(self.error(at, &field, what));
            }
            if !seen.insert((replica.endpoint, replica.rank)) {
                let what = "another replica has this endpoint and rank";
                return Err(self.error(at, &field, what));
            }
            if let Some(Events { way: Way::Bind(address), .. }) = &replica.events
                && !binds.insert(address.clone())
            {
                let what = "another replica's events bind this address";
                return Err(self.error(at, &format!("{field}.events.bind"), what));
            }
            replicas.push(replica);
        }
        let mut discovery = Vec::new();
        for (i, raw) in raw.discovery.iter().enumerate() {
            discovery.push(self.dns(i, raw, &by_name)?);
        }
        Ok(Config {
            listen,
            admin,
            models,
            replicas,
            discovery,
            token: self.token(raw.token_file.as_ref())?,
            tls: raw.tls.as_ref().map(|raw| self.tls(raw)).transpose()?,
            polling: self.polling(&raw.polling)?,
            limits: self.limits(&raw.limits)?,
        })
    }

    fn model(
        &self,
        i: usize,
        raw: &RawModel,
        names: &mut HashSet<String>,
    ) -> Result<Model, ConfigError> {
        let name = self.named(&format!("models[{i}].name"), &raw.name)?;
        let version = self.named(&format!("models[{i}].version"), &raw.version)?;
        let served = match &raw.served_names {
            Some(served) => served.clone(),
            None => vec![raw.name.clone()],
        };
        for (field, list) in [("served_names", &served), ("adapters", &raw.adapters)] {
            for (j, text) in list.iter().enumerate() {
                let field = format!("models[{i}].{field}[{j}]");
                if !names.insert(self.named(&field, text)?) {
                    let what = format!("{:?} names something else already", text.value);
                    return Err(self.error(text.referenced, &field, what));
                }
            }
        }
        let tokenizer_hash = match &raw.tokenizer_hash {
            None => None,
            Some(text) => {
                let field = format!("models[{i}].tokenizer_hash");
                if raw.path.is_some() {
                    let what = "is computed where path is given; leave one of them out";
                    return Err(self.error(text.referenced, &field, what));
                }
                let hash = blake3::Hash::from_hex(&text.value).map_err(|_| {
                    self.error(text.referenced, &field, "is not 64 hexadecimal digits")
                })?;
                Some(*hash.as_bytes())
            }
        };
        let path = match &raw.path {
            None => None,
            Some(path) => {
                let full = self.directory.join(&path.value);
                if !full.is_dir() {
                    let what = format!("{} is not a directory", full.display());
                    return Err(self.error(path.referenced, &format!("models[{i}].path"), what));
                }
                Some(full)
            }
        };
        Ok(Model {
            name,
            path,
            version,
            tokenizer_hash,
            served_names: served.into_iter().map(|text| text.value).collect(),
            adapters: raw.adapters.iter().map(|text| text.value.clone()).collect(),
        })
    }

    fn replica(
        &self,
        i: usize,
        raw: &RawReplica,
        models: &HashMap<String, usize>,
    ) -> Result<Replica, ConfigError> {
        let model = self.model_of(&format!("replicas[{i}].model"), &raw.model, models)?;
        let events = match &raw.events {
            None => None,
            Some(events) => {
                let field = format!("replicas[{i}].events");
                let at = events.referenced;
                let way = match (&events.value.connect, &events.value.bind) {
                    (Some(to), None) => {
                        Way::Connect(self.tcp(at, &format!("{field}.connect"), to, false)?)
                    }
                    (None, Some(on)) => {
                        Way::Bind(self.tcp(at, &format!("{field}.bind"), on, true)?)
                    }
                    _ => return Err(self.error(at, &field, "needs either connect or bind")),
                };
                let replay = match &events.value.replay {
                    None => None,
                    Some(to) => Some(self.tcp(at, &format!("{field}.replay"), to, false)?),
                };
                Some(Events { way, replay, duplicates: events.value.duplicates })
            }
        };
        Ok(Replica {
            endpoint: self.address(&format!("replicas[{i}].endpoint"), &raw.endpoint)?,
            rank: raw.rank,
            pool: self.named(&format!("replicas[{i}].pool"), &raw.pool)?,
            model,
            draining: raw.draining,
            store: self.store(&format!("replicas[{i}]"), raw.shared_store.as_ref())?,
            events,
        })
    }

    fn store(
        &self,
        of: &str,
        raw: Option<&Spanned<String>>,
    ) -> Result<Option<String>, ConfigError> {
        raw.map(|name| self.named(&format!("{of}.shared_store"), name)).transpose()
    }

    fn model_of(
        &self,
        field: &str,
        name: &Spanned<String>,
        models: &HashMap<String, usize>,
    ) -> Result<usize, ConfigError> {
        models.get(&name.value).copied().ok_or_else(|| {
            let what = format!("there is no model {:?} in models", name.value);
            self.error(name.referenced, field, what)
        })
    }

    fn dns(
        &self,
        i: usize,
        raw: &RawDns,
        models: &HashMap<String, usize>,
    ) -> Result<Dns, ConfigError> {
        let field = |name: &str| format!("discovery[{i}].{name}");
        if raw.replay_port.is_some() && raw.events_port.is_none() {
            let what = "is of no use without events_port";
            return Err(self.error(raw.dns.referenced, &field("replay_port"), what));
        }
        Ok(Dns {
            name: self.named(&field("dns"), &raw.dns)?,
            port: raw.port,
            pool: self.named(&field("pool"), &raw.pool)?,
            model: self.model_of(&field("model"), &raw.model, models)?,
            store: self.store(&format!("discovery[{i}]"), raw.shared_store.as_ref())?,
            events_port: raw.events_port,
            replay_port: raw.replay_port,
            duplicates: raw.duplicates,
            every: self.millis(&field("every_ms"), raw.every_ms.as_ref(), 5_000, 3_600_000)?,
        })
    }

    fn tls(&self, raw: &RawTls) -> Result<Tls, ConfigError> {
        let read = |name: &str, file: &Spanned<PathBuf>| {
            let path = self.directory.join(&file.value);
            std::fs::read(&path).map_err(|cause| {
                let what = format!("can't read {}: {cause}", path.display());
                self.error(file.referenced, &format!("tls.{name}"), what)
            })
        };
        Ok(Tls {
            certificate: read("certificate", &raw.certificate)?,
            key: read("key", &raw.key)?,
            client_ca: raw.client_ca.as_ref().map(|file| read("client_ca", file)).transpose()?,
        })
    }

    /// The first line of the file; relative paths start from the configuration's directory.
    fn token(&self, file: Option<&Spanned<PathBuf>>) -> Result<Option<Token>, ConfigError> {
        let Some(file) = file else { return Ok(None) };
        let error = |what: String| Err(self.error(file.referenced, "token_file", what));
        let path = self.directory.join(&file.value);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(cause) => return error(format!("can't read {}: {cause}", path.display())),
        };
        match text.lines().next().map(str::trim) {
            Some(secret) if secret.len() >= 16 => Ok(Some(Token::new(secret))),
            _ => error(format!("{} needs a first line of 16 characters or more", path.display())),
        }
    }

    fn millis(
        &self,
        field: &str,
        raw: Option<&Spanned<u64>>,
        default: u64,
        most: u64,
    ) -> Result<Duration, ConfigError> {
        let Some(raw) = raw else { return Ok(Duration::from_millis(default)) };
        if !(10..=most).contains(&raw.value) {
            let what = format!("{} is not from 10 to {most}", raw.value);
            return Err(self.error(raw.referenced, field, what));
        }
        Ok(Duration::from_millis(raw.value))
    }

    /// `tcp://host:port` → `host:port`; `*` is every address, to bind only.
    fn tcp(
        &self,
        at: Location,
        field: &str,
        text: &str,
        bind: bool,
    ) -> Result<String, ConfigError> {
        let wrong = |what: &str| Err(self.error(at, field, format!("{text:?} {what}")));
        let Some((host, port)) =
            text.strip_prefix("tcp://").and_then(|address| address.rsplit_once(':'))
        else {
            return wrong("is not tcp://host:port");
        };
        if host.is_empty() || port.parse::<u16>().is_err() {
            return wrong("is not tcp://host:port");
        }
        match (host, bind) {
            ("*", true) => Ok(format!("0.0.0.0:{port}")),
            ("*", false) => wrong("is where the engine binds; say the host to connect to"),
            _ => Ok(format!("{host}:{port}")),
        }
    }

    fn polling(&self, raw: &RawPolling) -> Result<Polling, ConfigError> {
        let field = |name: &str, raw: &Option<Spanned<u64>>, default, most| {
            self.millis(&format!("polling.{name}"), raw.as_ref(), default, most)
        };
        Ok(Polling {
            interval: field("interval_ms", &raw.interval_ms, 200, 60_000)?,
            timeout: field("timeout_ms", &raw.timeout_ms, 1000, 60_000)?,
            silence: match &raw.silence_ms {
                Some(raw) if raw.value == 0 => None,
                raw => Some(field("silence_ms", raw, 30_000, 3_600_000)?),
            },
        })
    }

    fn limits(&self, raw: &RawLimits) -> Result<Limits, ConfigError> {
        let field = |name: &str, raw: &Option<Spanned<usize>>, default| {
            let Some(raw) = raw else { return Ok(default) };
            if !(1024..=1_000_000_000).contains(&raw.value) {
                let what = format!("{} is not from 1024 to 1000000000", raw.value);
                return Err(self.error(raw.referenced, &format!("limits.{name}"), what));
            }
            Ok(raw.value)
        };
        let Limits { blocks, waiting_tokens } = Limits::default();
        Ok(Limits {
            blocks: field("blocks_per_replica", &raw.blocks_per_replica, blocks)?,
            waiting_tokens: field(
                "waiting_tokens_per_replica",
                &raw.waiting_tokens_per_replica,
                waiting_tokens,
            )?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
listen: 127.0.0.1:18900
admin: 127.0.0.1:18901
models:
  - name: demo
    version: "1"
    adapters: [demo-lora]
replicas:
  - endpoint: 127.0.0.1:18001
    pool: demo-eu-west
    model: demo
    events: { connect: "tcp://127.0.0.1:18101", replay: "tcp://localhost:18201" }
  - endpoint: 127.0.0.1:18002
    rank: 1
    pool: demo-eu-west
    model: demo
    draining: true
    events: { bind: "tcp://*:18102", duplicates: count }
discovery:
  - dns: engines.svc
    port: 8000
    pool: demo-eu-west
    model: demo
    events_port: 5557
    every_ms: 1000
polling: { interval_ms: 100, silence_ms: 0 }
limits: { blocks_per_replica: 5000 }
"#;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, "relay.yaml", Path::new("."))
    }

    #[test]
    fn a_good_one_is_understood() {
        let config = parse(GOOD).unwrap();
        assert_eq!(config.models[0].served_names, ["demo"]);
        let [first, second] = config.replicas.as_slice() else { panic!() };
        let events = first.events.as_ref().unwrap();
        assert_eq!(events.way, Way::Connect("127.0.0.1:18101".into()));
        assert_eq!(events.replay.as_deref(), Some("localhost:18201"));
        assert_eq!(events.duplicates, Duplicates::Doubt);
        let events = second.events.as_ref().unwrap();
        assert_eq!(events.way, Way::Bind("0.0.0.0:18102".into()));
        assert_eq!(events.duplicates, Duplicates::Count);
        assert!(second.draining && second.rank == Some(1));
        assert_eq!(config.polling.interval, Duration::from_millis(100));
        assert_eq!(config.polling.silence, None);
        assert_eq!(config.limits.blocks, 5000);
        let [dns] = config.discovery.as_slice() else { panic!() };
        assert_eq!(
            (dns.name.as_str(), dns.port, dns.events_port),
            ("engines.svc", 8000, Some(5557))
        );
        assert_eq!((dns.every, dns.replay_port), (Duration::from_secs(1), None));
    }

    #[test]
    fn errors_name_line_and_field() {
        for (from, to, line, words) in [
            ("admin: 127.0.0.1:18901", "admin: 0.0.0.0:18901", 3, "admin: must be a loopback"),
            ("listen: 127.0.0.1:18900", "listen: nowhere", 2, "listen: \"nowhere\" is not ip:port"),
            (
                "    model: demo\n    events",
                "    model: dome\n    events",
                11,
                "replicas[0].model: there is no model \"dome\"",
            ),
            ("127.0.0.1:18002\n    rank: 1", "127.0.0.1:18001", 13, "replicas[1]: another replica"),
            ("{ connect: \"tcp://127.0.0.1:18101\",", "{", 12, "replicas[0].events: needs either"),
            ("tcp://127.0.0.1:18101", "tcp://*:18101", 12, "replicas[0].events.connect"),
            (
                "adapters: [demo-lora]",
                "adapters: [demo]",
                7,
                "models[0].adapters[0]: \"demo\" names",
            ),
            (
                "version: \"1\"",
                "version: \"1\"\n    path: /nowhere",
                7,
                "models[0].path: /nowhere is not",
            ),
            ("interval_ms: 100", "interval_ms: 0", 26, "polling.interval_ms: 0 is not from 10"),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("relay.yaml:{line}:")), "{error}");
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_token_is_compared_whole_and_never_shown() {
        let token = Token::new("a secret of some length");
        assert!(token.admits(Some(b"Bearer a secret of some length")));
        for header in [
            None,
            Some(&b"Bearer "[..]),
            Some(b"a secret of some length"),
            Some(b"Bearer a secret"),
        ] {
            assert!(!token.admits(header));
        }
        assert!(!format!("{token:?}").contains("secret"));
    }

    #[test]
    fn unknown_fields_are_refused_by_name_and_line() {
        for (from, to, word) in [
            ("draining: true", "drained: true", "drained"),
            ("interval_ms", "interval", "interval"),
            ("admin:", "amdin:", "amdin"),
        ] {
            let error = parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains("relay.yaml") && error.contains(word), "{error}");
            assert!(error.contains("line"), "{error}");
        }
    }
}
