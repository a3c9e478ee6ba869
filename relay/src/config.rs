//! The relay's configuration: YAML, checked at start. Errors name the line and the field.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

use crate::index::{Duplicates, Limits};
use crate::load::Polling;
use crate::subscriber::Way;

/// Replicas of one relay; each also needs spare slots for its later lives.
const MAX_REPLICAS: usize = 4096;

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
    /// How its events are heard.
    pub events: Option<Events>,
}

/// How a replica's events are heard.
#[derive(Clone, Debug)]
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
    events: Option<Spanned<RawEvents>>,
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
struct RawPolling {
    interval_ms: Option<Spanned<u64>>,
    timeout_ms: Option<Spanned<u64>>,
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
        Ok(Config {
            listen,
            admin,
            models,
            replicas,
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
        let model = models.get(&raw.model.value).copied().ok_or_else(|| {
            let what = format!("there is no model {:?} in models", raw.model.value);
            self.error(raw.model.referenced, &format!("replicas[{i}].model"), what)
        })?;
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
            events,
        })
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
        let field = |name: &str, raw: &Option<Spanned<u64>>, default| {
            let Some(raw) = raw else { return Ok(Duration::from_millis(default)) };
            if !(10..=60_000).contains(&raw.value) {
                let what = format!("{} is not from 10 to 60000", raw.value);
                return Err(self.error(raw.referenced, &format!("polling.{name}"), what));
            }
            Ok(Duration::from_millis(raw.value))
        };
        Ok(Polling {
            interval: field("interval_ms", &raw.interval_ms, 200)?,
            timeout: field("timeout_ms", &raw.timeout_ms, 1000)?,
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
polling: { interval_ms: 100 }
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
        assert_eq!(config.limits.blocks, 5000);
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
            ("interval_ms: 100", "interval_ms: 0", 19, "polling.interval_ms: 0 is not from 10"),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("relay.yaml:{line}:")), "{error}");
            assert!(error.contains(words), "{error}");
        }
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
