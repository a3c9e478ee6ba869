//! A configuration as it is written.

use std::path::PathBuf;

use serde::Deserialize;
use serde_saphyr::Spanned;
use warmpath_prompt::ContentFormat;

use super::port::Port;
use super::speculation::Speculation;
use crate::index::Duplicates;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    pub(super) listen: Spanned<String>,
    pub(super) admin: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) models: Vec<RawModel>,
    #[serde(default)]
    pub(super) replicas: Vec<RawReplica>,
    #[serde(default)]
    pub(super) discovery: Vec<RawDiscovery>,
    pub(super) token_file: Option<Spanned<PathBuf>>,
    pub(super) tls: Option<RawTls>,
    #[serde(default)]
    pub(super) polling: RawPolling,
    #[serde(default)]
    pub(super) limits: RawLimits,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawModel {
    pub(super) name: Spanned<String>,
    pub(super) path: Option<Spanned<PathBuf>>,
    pub(super) version: Spanned<String>,
    pub(super) tokenizer_hash: Option<Spanned<String>>,
    pub(super) served_names: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    pub(super) adapters: Vec<Spanned<String>>,
    #[serde(default)]
    pub(super) from_engine: bool,
    pub(super) engine: Option<Spanned<String>>,
    pub(super) engine_version: Option<Spanned<String>>,
    pub(super) chat_template: Option<Spanned<PathBuf>>,
    pub(super) chat_template_content_format: Option<Spanned<ContentFormat>>,
    pub(super) default_chat_template_kwargs:
        Option<Spanned<serde_json::Map<String, serde_json::Value>>>,
    pub(super) exclude_tools_when_tool_choice_none: Option<Spanned<bool>>,
    pub(super) time_zone: Option<Spanned<String>>,
    pub(super) speculative_config: Option<Spanned<Speculation>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawReplica {
    pub(super) endpoint: Spanned<String>,
    pub(super) rank: Option<u32>,
    pub(super) pool: Spanned<String>,
    pub(super) model: Spanned<String>,
    #[serde(default)]
    pub(super) draining: bool,
    pub(super) shared_store: Option<Spanned<String>>,
    pub(super) weight: Option<Spanned<f64>>,
    pub(super) adapters: Option<Vec<Spanned<String>>>,
    pub(super) events: Option<Spanned<RawEvents>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTls {
    pub(super) certificate: Spanned<PathBuf>,
    pub(super) key: Spanned<PathBuf>,
    pub(super) client_ca: Option<Spanned<PathBuf>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDiscovery {
    pub(super) dns: Option<Spanned<String>>,
    pub(super) kubernetes: Option<Spanned<RawKubernetes>>,
    pub(super) port: Spanned<Port>,
    pub(super) pool: Spanned<String>,
    pub(super) model: Spanned<String>,
    pub(super) shared_store: Option<Spanned<String>>,
    pub(super) weight: Option<Spanned<f64>>,
    pub(super) adapters: Option<Vec<Spanned<String>>>,
    pub(super) events_port: Option<Spanned<Port>>,
    pub(super) replay_port: Option<Spanned<Port>>,
    #[serde(default)]
    pub(super) duplicates: Duplicates,
    pub(super) ranks: Option<Spanned<u32>>,
    pub(super) first_rank: Option<Spanned<u32>>,
    pub(super) every_ms: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawKubernetes {
    pub(super) service: Spanned<String>,
    pub(super) namespace: Option<Spanned<String>>,
    pub(super) kubeconfig: Option<Spanned<PathBuf>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEvents {
    pub(super) connect: Option<String>,
    pub(super) bind: Option<String>,
    pub(super) replay: Option<String>,
    pub(super) rank: Option<u32>,
    #[serde(default)]
    pub(super) duplicates: Duplicates,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_field_names, reason = "the names are the file's")]
pub(super) struct RawPolling {
    pub(super) interval_ms: Option<Spanned<u64>>,
    pub(super) timeout_ms: Option<Spanned<u64>>,
    pub(super) health_ms: Option<Spanned<u64>>,
    pub(super) models_ms: Option<Spanned<u64>>,
    pub(super) silence_ms: Option<Spanned<u64>>,
    pub(super) rtt_ms: Option<Spanned<u64>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLimits {
    pub(super) blocks_per_replica: Option<Spanned<usize>>,
    pub(super) waiting_tokens_per_replica: Option<Spanned<usize>>,
}
