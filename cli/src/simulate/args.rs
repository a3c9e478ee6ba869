//! Arguments of `warmpath simulate`.

use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Trace: JSON lines of {timestamp (ms), input_length, output_length, hash_ids}, an id per 512
    /// tokens; may be gzipped (Mooncake's format)
    #[arg(long, value_name = "FILE")]
    pub(super) trace: PathBuf,
    /// Replicas, in one region
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) replicas: u16,
    /// Tokens that a replica's cache holds; unbounded without
    #[arg(long, value_name = "TOKENS")]
    pub(super) cache_tokens: Option<u64>,
    /// How much faster than recorded requests come
    #[arg(long, default_value_t = 1.0)]
    pub(super) speed: f64,
    /// Prefill of a thousand tokens, in milliseconds: the engines' and the decision's
    #[arg(long, default_value_t = 100.0)]
    pub(super) prefill_ms_per_1k_tokens: f64,
    /// Decoding one token, in milliseconds
    #[arg(long, default_value_t = 10.0)]
    pub(super) decode_ms_per_token: f64,
    /// Time from an engine's event to the map, in milliseconds
    #[arg(long, default_value_t = 10.0)]
    pub(super) event_ms: f64,
    /// Members of the router's policy to change, as JSON: {"ring": {"load_floor": 8}}
    #[arg(long, value_name = "JSON", default_value = "{}")]
    pub(super) policy: String,
    /// Only the first requests of the trace
    #[arg(long)]
    pub(super) requests: Option<usize>,
    /// A line of JSON instead of the table
    #[arg(long)]
    pub(super) json: bool,
}
