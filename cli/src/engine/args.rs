//! The command line: vLLM's names where vLLM has the option.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow, ensure};

use super::event::{Form, HashForm};
use warmpath_relay::config::Speculation;
use warmpath_relay::index::BlockDrop;

use crate::serving;

/// The options, boxed: they are many.
pub(crate) type Args = Box<Options>;

/// Run a SIMULATED engine: vLLM's protocols without a GPU, for trials and tests.
///
/// It tokenizes with the real tokenizer, keeps a real prefix cache, publishes vLLM's KV events and
/// takes the time that a GPU would have taken. What it answers is filler text.
#[derive(Clone, Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools)] // They are vLLM's flags.
pub(crate) struct Options {
    /// Directory with tokenizer.json and tokenizer_config.json
    #[arg(long, value_name = "DIR")]
    pub(super) model: PathBuf,
    /// Name that requests use; repeatable [default: the directory's name]
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub(super) served_model_name: Vec<String>,
    /// Adapter that requests can name as their model; repeatable
    #[arg(long, value_name = "NAME")]
    pub(super) lora: Vec<String>,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub(super) host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000)]
    pub(super) port: u16,
    /// Told in the response header x-warmpath-engine-region
    #[arg(long, value_name = "NAME")]
    pub(super) region: Option<String>,

    #[command(flatten)]
    pub(super) serving: serving::ServingOptions,

    /// Tokens in a cache block
    #[arg(long, value_name = "TOKENS", default_value_t = 16)]
    pub(super) block_size: usize,
    /// Blocks in the cache
    #[arg(long, value_name = "BLOCKS", default_value_t = 4096)]
    pub(super) num_gpu_blocks_override: usize,
    /// Keep no prefix cache: nothing is found again, and no event comes
    #[arg(long)]
    pub(super) no_enable_prefix_caching: bool,
    /// Speculation as in vLLM, in JSON. SIMULATED of it is only what it does to the cache: with mtp, eagle
    /// and their like a hit's last block is computed anew
    #[arg(long, value_name = "JSON", value_parser = speculation)]
    pub(super) speculative_config: Option<Speculation>,
    /// Most tokens of prompt and answer [default: 32768, or what the cache holds]
    #[arg(long, value_name = "TOKENS")]
    pub(super) max_model_len: Option<usize>,
    /// Requests that run at once; the others wait
    #[arg(long, value_name = "REQUESTS", default_value_t = 256)]
    pub(super) max_num_seqs: usize,
    /// Data-parallel ranks in all, each with a cache and event ports of its own
    #[arg(long, value_name = "RANKS", default_value_t = 1)]
    pub(super) data_parallel_size: u32,
    /// Ranks in this process, where others are elsewhere [default: all]
    #[arg(long, value_name = "RANKS")]
    pub(super) data_parallel_size_local: Option<u32>,
    /// The first of them; with --data-parallel-size-local it means --data-parallel-hybrid-lb
    #[arg(long, value_name = "RANK")]
    pub(super) data_parallel_start_rank: Option<u32>,
    /// This API has the ranks of this process only, and its header counts them from 0
    #[arg(long)]
    pub(super) data_parallel_hybrid_lb: bool,
    /// This API has one rank only, --data-parallel-rank, which its header calls 0
    #[arg(long)]
    pub(super) data_parallel_external_lb: bool,
    /// The rank of this process; means --data-parallel-external-lb
    #[arg(long, value_name = "RANK")]
    pub(super) data_parallel_rank: Option<u32>,

    /// Where to publish KV events: tcp://*:PORT binds (on --host), tcp://HOST:PORT connects; the
    /// rank is added to the port; empty for none
    #[arg(long, value_name = "ENDPOINT", default_value = "tcp://*:5557")]
    pub(super) kv_events_endpoint: String,
    /// Where to replay past KV events on demand, bound like that; empty for none
    #[arg(long, value_name = "ENDPOINT", default_value = "tcp://*:5558")]
    pub(super) kv_events_replay_endpoint: String,
    /// Topic frame of the events
    #[arg(long, value_name = "TOPIC", default_value = "")]
    pub(super) kv_events_topic: String,
    /// Events as vLLM 0.32 (map) or 0.23 (array) writes them, replay framing too
    #[arg(long, value_name = "FORM", value_enum, default_value_t = Form::Map)]
    pub(super) kv_events_format: Form,
    /// Block hashes as 64-bit numbers or 32 bytes
    #[arg(long, value_name = "FORM", value_enum, default_value_t = HashForm::Int)]
    pub(super) kv_events_hashes: HashForm,
    /// Batches kept for replay
    #[arg(long, value_name = "BATCHES", default_value_t = 10_000)]
    pub(super) kv_events_buffer_steps: usize,

    /// Milliseconds per prompt token that is not cached
    #[arg(long, value_name = "MS", default_value_t = 0.36)]
    pub(super) prefill_ms_per_token: f64,
    /// Milliseconds before the first token, besides
    #[arg(long, value_name = "MS", default_value_t = 60.0)]
    pub(super) prefill_base_ms: f64,
    /// Milliseconds per generated token
    #[arg(long, value_name = "MS", default_value_t = 12.0)]
    pub(super) decode_ms_per_token: f64,
    /// Tokens of an answer that max_tokens doesn't cut
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    pub(super) output_tokens: usize,
    /// Divides all times
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub(super) speedup: f64,

    /// Keeps responses for `previous_response_id` and `GET /v1/responses/ID`, as vLLM does with
    /// VLLM_ENABLE_RESPONSES_API_STORE=1
    #[arg(long)]
    pub(super) enable_response_store: bool,

    /// For tests: ends the process, dropping its connections, once it has computed a prompt whose
    /// body contains this
    #[arg(long, value_name = "TEXT")]
    pub(super) fault_crash_on: Option<String>,
    /// For tests: publishes no KV event, as if all were lost on their way
    #[arg(long)]
    pub(super) fault_lose_events: bool,
    /// For tests: resets the connection of a request whose content-length is above this, once so
    /// much of its body has come
    #[arg(long, value_name = "BYTES")]
    pub(super) fault_reset_over: Option<u64>,
}

fn speculation(json: &str) -> Result<Speculation, String> {
    serde_json::from_str(json).map_err(|error| error.to_string())
}

/// Limits of what is sensible to simulate.
const BLOCK_SIZE: std::ops::RangeInclusive<usize> = 1..=4096;
const BLOCKS: std::ops::RangeInclusive<usize> = 1..=1 << 24;
const RANKS: std::ops::RangeInclusive<u32> = 1..=64;
const MODEL_LEN: usize = 32_768;

impl Options {
    /// Says what is wrong with the values, by name.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!(BLOCK_SIZE.contains(&self.block_size), "--block-size must be in {BLOCK_SIZE:?}");
        let blocks = self.num_gpu_blocks_override;
        ensure!(BLOCKS.contains(&blocks), "--num-gpu-blocks-override must be in {BLOCKS:?}");
        self.ranks()?;
        self.drops_block()?;
        ensure!(self.max_num_seqs > 0, "--max-num-seqs must be at least 1");
        ensure!(self.output_tokens > 0, "--output-tokens must be at least 1");
        for (name, value) in [
            ("--prefill-ms-per-token", self.prefill_ms_per_token),
            ("--prefill-base-ms", self.prefill_base_ms),
            ("--decode-ms-per-token", self.decode_ms_per_token),
        ] {
            ensure!((0.0..=1e6).contains(&value), "{name} must be between 0 and 1000000");
        }
        ensure!(self.speedup.is_finite() && self.speedup > 0.0, "--speedup must be above 0");
        if let Some(len) = self.max_model_len {
            let room = self.block_size * blocks;
            ensure!(
                (2..=room).contains(&len),
                "--max-model-len must be between 2 and the {room} tokens that the cache holds"
            );
        }
        Ok(())
    }

    /// Whether a hit's last block is computed anew.
    pub(super) fn drops_block(&self) -> anyhow::Result<bool> {
        let Some(speculation) = &self.speculative_config else { return Ok(false) };
        let drop = speculation.block_drop();
        let drop = drop.map_err(|(field, what)| anyhow!("--speculative-config: {field} {what}"))?;
        Ok(drop != BlockDrop::None)
    }

    /// The ranks behind this API, by their numbers among all, as vLLM 0.32.0 tells them
    /// (`engine/arg_utils.py`, `create_engine_config`). Its models without experts refuse the
    /// external mode; this one takes it.
    pub(super) fn ranks(&self) -> anyhow::Result<std::ops::Range<u32>> {
        let all = self.data_parallel_size;
        ensure!(RANKS.contains(&all), "--data-parallel-size must be in {RANKS:?}");
        ensure!(
            !(self.data_parallel_hybrid_lb && self.data_parallel_external_lb),
            "--data-parallel-hybrid-lb and --data-parallel-external-lb exclude each other"
        );
        let local = self.data_parallel_size_local;
        let (first, count) = if self.data_parallel_external_lb || self.data_parallel_rank.is_some()
        {
            ensure!(
                local.is_none_or(|n| n == 1),
                "an external rank is the only one: --data-parallel-size-local must be 1"
            );
            let rank = self.data_parallel_rank;
            (rank.context("--data-parallel-external-lb needs --data-parallel-rank")?, 1)
        } else if let Some(local) = local {
            let start = self.data_parallel_start_rank;
            ensure!(
                local == all || self.data_parallel_hybrid_lb || start.is_some(),
                "ranks of other processes aren't simulated: --data-parallel-size-local below \
                 --data-parallel-size needs --data-parallel-hybrid-lb"
            );
            (start.unwrap_or(0), local)
        } else {
            ensure!(
                !self.data_parallel_hybrid_lb && self.data_parallel_start_rank.is_none(),
                "--data-parallel-hybrid-lb and --data-parallel-start-rank need \
                 --data-parallel-size-local"
            );
            (0, all)
        };
        let end = first.saturating_add(count);
        ensure!(
            count > 0 && end <= all,
            "data-parallel ranks {first} to {} are not below --data-parallel-size {all}",
            end.saturating_sub(1)
        );
        Ok(first..end)
    }

    pub(super) fn model_len(&self) -> usize {
        let room = self.block_size.saturating_mul(self.num_gpu_blocks_override);
        self.max_model_len.unwrap_or(MODEL_LEN.min(room))
    }

    /// The names of the base model.
    pub(super) fn names(&self) -> anyhow::Result<Vec<String>> {
        if !self.served_model_name.is_empty() {
            return Ok(self.served_model_name.clone());
        }
        let directory = self
            .model
            .canonicalize()
            .with_context(|| format!("--model {}", self.model.display()))?;
        let name = directory.file_name().context("--model names no directory")?;
        Ok(vec![name.to_string_lossy().into_owned()])
    }
}
