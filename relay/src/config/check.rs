//! From what is written to what is meant: every value checked, every error with its line and field.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_saphyr::{Location, Spanned};

use warmpath_routing::view;

use super::raw::{RawConfig, RawLimits, RawModel, RawPolling, RawReplica, RawTls};
use super::{Config, ConfigError, Events, MAX_REPLICAS, Model, Replica, Tls, Token};
use crate::engine::adapters::Adapters;
use crate::engine::polling::Polling;
use crate::engine::way::Way;
use crate::index::Limits;

/// Where values stand, for errors and for relative paths.
pub(super) struct Checker<'a> {
    pub(super) file: &'a str,
    pub(super) directory: &'a Path,
}

impl Config {
    /// Checks what was written.
    pub(super) fn checked(
        raw: &RawConfig,
        file: &str,
        directory: &Path,
    ) -> Result<Self, ConfigError> {
        Checker { file, directory }.config(raw)
    }
}

impl Checker<'_> {
    pub(super) fn error(&self, at: Location, field: &str, what: impl Into<String>) -> ConfigError {
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

    pub(super) fn named(&self, field: &str, text: &Spanned<String>) -> Result<String, ConfigError> {
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
                if address == listen {
                    let what = "is where the side-stream is served";
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
        let mut connects = HashSet::new();
        let mut replicas = Vec::new();
        for (i, raw) in raw.replicas.iter().enumerate() {
            let replica = self.replica(i, raw, &models, &by_name)?;
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
            match &replica.events {
                Some(Events { way: Way::Bind(address), .. }) if !binds.insert(address.clone()) => {
                    let what = "another replica's events bind this address";
                    return Err(self.error(at, &format!("{field}.events.bind"), what));
                }
                // Ranks may share a publisher, whose batches say whose they are.
                Some(Events { way: Way::Connect(address), rank, .. })
                    if !connects.insert((address.clone(), rank.or(replica.rank)))
                        || connects.iter().any(|(other, of)| {
                            other == address && of.is_some() != rank.or(replica.rank).is_some()
                        }) =>
                {
                    let what = "another replica's events come from this address: one of the two \
                                would be said to hold what the other does";
                    return Err(self.error(at, &format!("{field}.events.connect"), what));
                }
                Some(Events { way: Way::Connect(address), replay: Some(replay), .. })
                    if address == replay =>
                {
                    let what =
                        "is where the live events come from; the replay has a port of its own";
                    return Err(self.error(at, &format!("{field}.events.replay"), what));
                }
                _ => {}
            }
            replicas.push(replica);
        }
        let mut discovery = Vec::new();
        for (i, raw) in raw.discovery.iter().enumerate() {
            discovery.push(self.discovery(i, raw, &models, &by_name)?);
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
            from_engine: raw.from_engine,
            serving: self.serving(&format!("models[{i}]"), raw)?,
            drop: self.block_drop(&format!("models[{i}]"), raw)?,
        })
    }

    fn replica(
        &self,
        i: usize,
        raw: &RawReplica,
        models: &[Model],
        by_name: &HashMap<String, usize>,
    ) -> Result<Replica, ConfigError> {
        let model = self.model_of(&format!("replicas[{i}].model"), &raw.model, by_name)?;
        let adapters =
            self.adapters(&format!("replicas[{i}]"), raw.adapters.as_ref(), models.get(model))?;
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
                let (rank, duplicates) = (events.value.rank, events.value.duplicates);
                Some(Events { way, replay, rank, duplicates })
            }
        };
        Ok(Replica {
            endpoint: self.address(&format!("replicas[{i}].endpoint"), &raw.endpoint)?,
            rank: raw.rank,
            pool: self.named(&format!("replicas[{i}].pool"), &raw.pool)?,
            model,
            draining: raw.draining,
            store: self.store(&format!("replicas[{i}]"), raw.shared_store.as_ref())?,
            weight: self.weight(&format!("replicas[{i}]"), raw.weight.as_ref())?,
            adapters,
            events,
        })
    }

    /// In hundredths.
    pub(super) fn weight(&self, of: &str, raw: Option<&Spanned<f64>>) -> Result<u16, ConfigError> {
        let Some(raw) = raw else { return Ok(view::Replica::PLAIN) };
        if !(0.01..=100.0).contains(&raw.value) {
            let what = format!("{} is not from 0.01 to 100", raw.value);
            return Err(self.error(raw.referenced, &format!("{of}.weight"), what));
        }
        Ok((raw.value * f64::from(view::Replica::PLAIN)).round() as u16)
    }

    pub(super) fn store(
        &self,
        of: &str,
        raw: Option<&Spanned<String>>,
    ) -> Result<Option<String>, ConfigError> {
        raw.map(|name| self.named(&format!("{of}.shared_store"), name)).transpose()
    }

    /// Only what the model lists, so that a name is the same everywhere.
    pub(super) fn adapters(
        &self,
        of: &str,
        raw: Option<&Vec<Spanned<String>>>,
        model: Option<&Model>,
    ) -> Result<Option<Adapters>, ConfigError> {
        let (Some(raw), Some(model)) = (raw, model) else { return Ok(None) };
        for (i, name) in raw.iter().enumerate() {
            if !model.adapters.contains(&name.value) {
                let what = format!(
                    "{:?} is none of the adapters of model {:?}: list it there, too, or leave it \
                     out here",
                    name.value, model.name
                );
                let field = format!("{of}.adapters[{i}]");
                return Err(self.error(name.referenced, &field, what));
            }
        }
        Ok(Some(raw.iter().map(|name| name.value.clone()).collect()))
    }

    pub(super) fn model_of(
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

    pub(super) fn millis(
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
        let or_never = |name: &str, raw: &Option<Spanned<u64>>, default| match raw {
            Some(raw) if raw.value == 0 => Ok(None),
            raw => field(name, raw, default, 3_600_000).map(Some),
        };
        Ok(Polling {
            interval: field("interval_ms", &raw.interval_ms, 200, 60_000)?,
            timeout: field("timeout_ms", &raw.timeout_ms, 1000, 60_000)?,
            health: field("health_ms", &raw.health_ms, 1_000, 60_000)?,
            models: field("models_ms", &raw.models_ms, 5_000, 3_600_000)?,
            silence: or_never("silence_ms", &raw.silence_ms, 30_000)?,
            round_trips: or_never("rtt_ms", &raw.rtt_ms, 5_000)?,
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
