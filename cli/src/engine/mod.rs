//! `warmpath engine`: a SIMULATED engine that speaks vLLM's protocols.
//!
//! It stands in for GPUs only: tokenizer, prefix cache, KV events, metrics and API behave like
//! vLLM's, the model's work is replaced by waiting, and its answers are filler text.

mod args;
mod cache;
#[cfg(test)]
mod cache_tests;
#[cfg(test)]
mod capture_tests;
#[cfg(test)]
mod captures;
mod counters;
mod event;
#[cfg(test)]
mod event_tests;
mod fault;
mod filler;
mod hash;
mod http;
mod lock;
mod metrics;
mod publisher;
#[cfg(test)]
mod publisher_tests;
mod rank;
mod timing;
mod tokens;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use warmpath_prompt::Engine;

pub(crate) use self::args::Args;
use self::args::Options;
use self::cache::Cache;
use self::event::{Encoding, Form};
use self::fault::{Cut, Cuttable, Faults};
use self::filler::Filler;
use self::hash::Lora;
use self::http::App;
use self::publisher::{Config, Publisher};
use self::rank::Rank;
use self::timing::Timing;
use self::tokens::Tokenizer;
use crate::output;

/// How long a stop waits for running requests.
const GRACE: Duration = Duration::from_secs(5);

/// Runs until SIGINT or SIGTERM.
///
/// # Errors
/// Where arguments contradict each other, the model can't be loaded, or an address can't be bound.
#[allow(clippy::needless_pass_by_value, reason = "every command takes its arguments so")]
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.check()?;
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("can't start the runtime")?
        .block_on(serve(&args))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(args: &Options) -> anyhow::Result<()> {
    let listener = TcpListener::bind((args.host.as_str(), args.port))
        .await
        .with_context(|| format!("can't listen on {}:{}", args.host, args.port))?;
    let address = listener.local_addr().context("can't tell the own address")?.to_string();
    let serving = args.serving.serving(Engine::Vllm)?;
    let tokenizer = Tokenizer::load(&args.model, &serving)
        .with_context(|| format!("--model {}", args.model.display()))?;
    let app = app(args, tokenizer, address).await?;
    announce(args, &app);
    let (stop, stopped) = tokio::sync::watch::channel(());
    let mut on_stop = stopped.clone();
    let server = axum::serve(
        Cuttable(listener),
        http::router(app).into_make_service_with_connect_info::<Cut>(),
    )
    .with_graceful_shutdown(async move {
        let _ = on_stop.changed().await;
    });
    let server = tokio::spawn(server.into_future());
    wait_for_signal().await?;
    output::tell("warmpath engine: stopping");
    stop.send_replace(());
    tokio::select! {
        _ = tokio::time::timeout(GRACE, server) => {}
        // A second signal doesn't wait.
        _ = wait_for_signal() => {}
    }
    Ok(())
}

async fn wait_for_signal() -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("can't listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("can't listen for SIGTERM")?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

/// Starts the ranks.
async fn app(args: &Options, tokenizer: Tokenizer, address: String) -> anyhow::Result<Arc<App>> {
    let filler = Filler::new(&tokenizer);
    let timing = Timing::new(
        args.prefill_base_ms,
        args.prefill_ms_per_token,
        args.decode_ms_per_token,
        args.speedup,
    );
    let encoding = Encoding { form: args.kv_events_format, hashes: args.kv_events_hashes };
    let mut ranks = Vec::new();
    let mut sources = serde_json::Map::new();
    for number in args.ranks()? {
        let publisher = match publisher_config(args, number)? {
            Some(config) => {
                let publisher = Publisher::start(config).await?;
                sources.insert(number.to_string(), source(args, &publisher));
                Some(publisher)
            }
            None => None,
        };
        let mut cache = Cache::new(args.block_size, args.num_gpu_blocks_override);
        if args.no_enable_prefix_caching {
            cache = cache.without_prefixes();
        }
        if args.drops_block()? {
            cache = cache.dropping_last();
        }
        let seats = args.max_num_seqs;
        ranks.push(Arc::new(Rank::new(number, cache, timing, seats, encoding, publisher)));
    }
    let loras = args.lora.iter().zip(1..);
    Ok(Arc::new(App {
        ranks,
        tokenizer,
        filler,
        names: args.names()?,
        loras: loras.map(|(name, id)| Lora { name: name.as_str().into(), id }).collect(),
        root: args.model.display().to_string(),
        block_size: args.block_size,
        speculates: args.speculative_config.is_some(),
        max_model_len: args.model_len(),
        output_tokens: args.output_tokens,
        version: match args.kv_events_format {
            Form::Map => "0.32.0",
            Form::Array => "0.23.0",
        },
        started: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        address,
        region: args.region.clone(),
        responses: http::Store::new(args.enable_response_store),
        faults: Faults::new(args),
        event_sources: serde_json::Value::Object(sources),
    }))
}

fn publisher_config(args: &Options, rank: u32) -> anyhow::Result<Option<Config>> {
    let place = |endpoint: &str| {
        let given = (!endpoint.is_empty()).then_some(endpoint);
        given.map(|endpoint| publisher::offset_port(endpoint, rank)).transpose()
    };
    let Some(endpoint) = place(&args.kv_events_endpoint)? else { return Ok(None) };
    Ok(Some(Config {
        host: args.host.clone(),
        endpoint,
        replay_endpoint: place(&args.kv_events_replay_endpoint)?,
        topic: args.kv_events_topic.clone(),
        form: args.kv_events_format,
        buffer: args.kv_events_buffer_steps,
        loses_all: args.fault_lose_events,
    }))
}

/// What `/kv_event_sources` says of a rank, as vLLM 0.32.0 does.
fn source(args: &Options, publisher: &Publisher) -> serde_json::Value {
    let (endpoint, replay_endpoint) = publisher.endpoints();
    serde_json::json!({
        "enable_kv_cache_events": true,
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": replay_endpoint,
        "buffer_steps": args.kv_events_buffer_steps,
        "hwm": publisher::QUEUE,
        "max_queue_size": publisher::QUEUE,
        "topic": args.kv_events_topic,
    })
}

fn announce(args: &Options, app: &App) {
    output::tell(format_args!(
        "warmpath engine: SIMULATED engine, no model is run; answers are filler text\n\
         warmpath engine: http://{} serves {} (vLLM {} protocols), {} blocks of {} tokens",
        app.address,
        app.names.join(", "),
        app.version,
        args.num_gpu_blocks_override,
        args.block_size,
    ));
    for (rank, source) in app.event_sources.as_object().into_iter().flatten() {
        let at = |key: &str| source.get(key).and_then(|value| value.as_str()).unwrap_or("off");
        let (events, replay) = (at("endpoint"), at("replay_endpoint"));
        output::tell(format_args!(
            "warmpath engine: rank {rank}: KV events at {events}, replay at {replay}"
        ));
    }
}
