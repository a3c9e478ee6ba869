//! The plugin configuration: JSON, one object, unknown fields refused.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use thiserror::Error;
use warmpath_routing::policy::{Policy, PolicyError};
use warmpath_routing::unique_keys;

/// What this plugin is to be.
#[derive(Clone, Debug)]
pub enum Config {
    /// The service that follows the relay.
    SideStream(SideStream),
    /// The HTTP filter.
    Router(Box<Router>),
}

/// Configuration of the role `sidestream`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SideStream {
    /// The Envoy cluster of the relay.
    pub cluster: String,
    /// Milliseconds between ticks: how soon it connects and notices silence.
    #[serde(default = "defaults::tick_ms")]
    pub tick_ms: u32,
    /// Silence after which the relay counts as gone, in milliseconds. It beats twice a second.
    #[serde(default = "defaults::silence_ms")]
    pub silence_ms: u64,
}

/// Configuration of the role `router`: a policy, and what only the filter needs.
#[derive(Clone, Debug)]
pub struct Router {
    /// Regions, pools, zones, prices, bounds.
    pub policy: Policy,
    /// The filter's own.
    pub shell: Shell,
}

/// What the router needs beside its policy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shell {
    /// Whether responses tell the client how its request was routed.
    #[serde(default)]
    pub explain: bool,
    /// Whether each decision is written to the request's filter state, for access logs.
    #[serde(default = "defaults::log_decision")]
    pub log_decision: bool,
    /// Whether engines are asked to report their load with each answer (ORCA).
    #[serde(default)]
    pub orca: bool,
    /// Milliseconds between ticks: how old a worker's view of replicas and loads may be.
    #[serde(default = "defaults::refresh_ms")]
    pub refresh_ms: u32,
    /// Memory for what was tokenized before, in bytes per model and worker.
    #[serde(default = "defaults::memo_bytes")]
    pub memo_bytes: usize,
}

/// Fields of [`Shell`], by which they are told from those of the policy.
const SHELL_FIELDS: [&str; 5] = ["explain", "log_decision", "orca", "refresh_ms", "memo_bytes"];

mod defaults {
    pub(super) fn tick_ms() -> u32 {
        100
    }
    pub(super) fn silence_ms() -> u64 {
        3_000
    }
    pub(super) fn log_decision() -> bool {
        true
    }
    pub(super) fn refresh_ms() -> u32 {
        50
    }
    pub(super) fn memo_bytes() -> usize {
        8 << 20
    }
}

/// Why a configuration is refused. Each names the field.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// No JSON, or no object.
    #[error("the plugin configuration is not a JSON object: {0}")]
    Json(String),
    /// No role that there is.
    #[error("role: expected \"router\" or \"sidestream\", found {0}")]
    Role(String),
    /// A field is missing, unknown or of another type.
    #[error("{0}")]
    Field(String),
    /// A policy that doesn't hold together.
    #[error("{0}")]
    Policy(#[from] PolicyError),
}

impl Config {
    /// Reads a configuration.
    ///
    /// # Errors
    /// [`ConfigError`]; Envoy then refuses the whole listener or bootstrap.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        let json = |error: serde_json::Error| ConfigError::Json(error.to_string());
        unique_keys::check(bytes).map_err(json)?;
        let mut fields: Map<String, Value> = serde_json::from_slice(bytes).map_err(json)?;
        match fields.remove("role") {
            Some(Value::String(role)) if role == "sidestream" => {
                let config: SideStream = read(fields)?;
                config.check()?;
                Ok(Self::SideStream(config))
            }
            Some(Value::String(role)) if role == "router" => {
                let own = SHELL_FIELDS
                    .iter()
                    .filter_map(|name| Some(((*name).to_owned(), fields.remove(*name)?)))
                    .collect();
                let shell: Shell = read(own)?;
                shell.check()?;
                let policy: Policy = read(fields)?;
                policy.check()?;
                Ok(Self::Router(Box::new(Router { policy, shell })))
            }
            Some(other) => Err(ConfigError::Role(other.to_string())),
            None => Err(ConfigError::Role("none".into())),
        }
    }
}

impl SideStream {
    fn check(&self) -> Result<(), ConfigError> {
        if self.cluster.is_empty() {
            return Err(ConfigError::Field("cluster: must not be empty".into()));
        }
        within("tick_ms", self.tick_ms.into(), 10, 1_000)?;
        within("silence_ms", self.silence_ms, 1_500, 600_000)
    }
}

impl Shell {
    fn check(&self) -> Result<(), ConfigError> {
        within("refresh_ms", self.refresh_ms.into(), 10, 1_000)?;
        within("memo_bytes", self.memo_bytes as u64, 0, 256 << 20)
    }
}

fn within(field: &str, value: u64, least: u64, most: u64) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(ConfigError::Field(format!("{field}: {value} is not within {least} to {most}")))
    }
}

fn read<T: DeserializeOwned>(fields: Map<String, Value>) -> Result<T, ConfigError> {
    serde_path_to_error::deserialize(Value::Object(fields)).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        ConfigError::Field(if path == "." { inner.to_string() } else { format!("{path}: {inner}") })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn router() -> Value {
        json!({
            "role": "router",
            "region": "eu",
            "regions": {"eu": {"jurisdiction": "EU"}},
            "pools": {"demo-eu": {"region": "eu", "model": "demo"}},
            "zones": {"eu": {"jurisdictions": ["EU"], "clusters": {"demo-eu": "eu.demo-eu"}}},
        })
    }

    fn refused(config: &Value) -> String {
        Config::parse(config.to_string().as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn both_roles_are_read_with_their_defaults() {
        let config = Config::parse(br#"{"role": "sidestream", "cluster": "relay"}"#).unwrap();
        let Config::SideStream(config) = config else { panic!("{config:?}") };
        assert_eq!(
            (config.cluster.as_str(), config.tick_ms, config.silence_ms),
            ("relay", 100, 3_000)
        );

        let config = Config::parse(router().to_string().as_bytes()).unwrap();
        let Config::Router(config) = config else { panic!("{config:?}") };
        assert!(!config.shell.explain && config.shell.log_decision);
        assert_eq!(config.policy.region, "eu");
    }

    #[test]
    fn a_zone_that_is_there_twice_is_refused() {
        let text = router().to_string();
        let twice = text.replace("\"zones\":{", "\"zones\":{\"eu\":{\"regions\":[\"*\"]},");
        assert_ne!(text, twice);
        let error = Config::parse(twice.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("\"eu\" is there twice"), "{error}");
    }

    #[test]
    fn an_error_names_the_field() {
        let with = |pointer: &str, value: Value| {
            let mut config = router();
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            config.pointer_mut(parent).unwrap()[name] = value;
            refused(&config)
        };
        for (message, field) in [
            (with("/explain", json!("yes")), "explain: invalid type"),
            (with("/memo_bytes", json!(1u64 << 40)), "memo_bytes: 1099511627776 is not within"),
            (with("/pools/demo-eu/regoin", json!("x")), "pools.demo-eu.regoin: unknown field"),
            (with("/regions/eu/rtt_ms", json!("far")), "regions.eu.rtt_ms: invalid type"),
            (with("/pools/demo-eu/region", json!("us")), "pools.demo-eu.region"),
            (with("/nonsense", json!(1)), "unknown field `nonsense`"),
            (with("/role", json!("rooter")), "role: expected \"router\" or \"sidestream\""),
            (refused(&json!({})), "role: expected"),
            (refused(&json!({"role": "sidestream"})), "missing field `cluster`"),
            (refused(&json!({"role": "sidestream", "cluster": ""})), "cluster: must not be empty"),
            (refused(&json!([])), "not a JSON object"),
            (Config::parse(b"").unwrap_err().to_string(), "not a JSON object"),
        ] {
            assert!(message.contains(field), "{message:?} should say {field:?}");
        }
    }
}
