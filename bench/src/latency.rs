//! How long it takes from an engine's event to a decision that knows it: ZeroMQ → relay → gRPC →
//! shared data → a request through Envoy.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use fastrand::Rng;
use hdrhistogram::Histogram;
use warmpath_tests::Client;
use zeromq::{Socket, SocketRecv, SocketSend, XPubSocket, ZmqMessage};

use crate::args::at_least_one;
use crate::systems::Watched;
use crate::upstream::{BLOCK_TOKENS, stored};
use crate::usage;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The model's directory
    #[arg(long, value_name = "DIR", overrides_with = "model")]
    pub model: PathBuf,
    /// Events to follow, at each of the rates
    #[arg(long, default_value_t = 1000, value_parser = at_least_one)]
    pub samples: usize,
    /// Blocks a second that the engine stores meanwhile; may be given several times
    #[arg(long, value_name = "N", default_values_t = [0, 10_000, 50_000])]
    pub blocks: Vec<usize>,
}

/// Blocks of a followed event.
const BLOCKS: usize = 16;
/// Blocks of an event of those that are there to be busy with.
const BUSY_BLOCKS: usize = 64;
/// Prompt ids are below this, for any model.
const IDS: u32 = 1000;
/// An event that is not seen after this is lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// Measures, and prints a table.
///
/// # Errors
/// When something does not start, or an event never arrives.
pub fn run(args: &Args) -> anyhow::Result<()> {
    // The publisher's, and nothing else's.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut socket = XPubSocket::new();
    let endpoint = runtime.block_on(socket.bind("tcp://127.0.0.1:0"))?.to_string();
    let port = endpoint.rsplit(':').next().context("a port")?.parse()?;
    eprintln!("Starting engines, relay and Envoy …");
    let watched = Watched::start(&args.model, port)?;
    let mut publisher = Publisher { runtime, socket, sequence: 0, prompt: 1 << 20 };
    publisher.subscribed()?;
    println!("load before: {}", usage::load_average());
    println!("| blocks/s beside | events | p50 ms | p90 ms | p99 ms | most ms |");
    println!("| --: | --: | --: | --: | --: | --: |");
    for rate in &args.blocks {
        let seen = follow(&watched, &mut publisher, args.samples, *rate)?;
        let ms = |quantile| seen.value_at_quantile(quantile) as f64 / 1e6;
        println!(
            "| {rate} | {} | {:.2} | {:.2} | {:.2} | {:.2} |",
            seen.len(),
            ms(0.5),
            ms(0.9),
            ms(0.99),
            ms(1.0)
        );
    }
    println!("From before the event is sent to after the answer that knew it, a request included.");
    println!("load after: {}", usage::load_average());
    Ok(())
}

/// Sends events at random moments and asks after each until a decision counts on it.
fn follow(
    watched: &Watched,
    publisher: &mut Publisher,
    samples: usize,
    rate: usize,
) -> anyhow::Result<Histogram<u64>> {
    let client = Client::new(watched.port);
    let mut seen = Histogram::new_with_bounds(1_000, 60_000_000_000, 3)?;
    let mut rng = Rng::new();
    let start = Instant::now();
    let mut busy = 0;
    while seen.len() < samples as u64 {
        // To be busy: as many as should have come by now, but no more than fit a moment.
        let due = (start.elapsed().as_secs_f64() * rate as f64) as usize;
        let missing = (due.saturating_sub(busy) / BUSY_BLOCKS).min(64);
        for _ in 0..missing {
            publisher.store(&ids(&mut rng, BUSY_BLOCKS))?;
        }
        busy += missing * BUSY_BLOCKS;
        let prompt = ids(&mut rng, BLOCKS);
        let body = serde_json::json!({"model": "demo", "max_tokens": 1, "prompt": prompt});
        let body = body.to_string();
        let sent = Instant::now();
        publisher.store(&prompt)?;
        loop {
            let answer = client.post(watched.zone, "/v1/completions", &[], body.as_bytes())?;
            // The last token is always computed, and with it its block.
            if answer.explained("cached").parse::<usize>().is_ok_and(|cached| cached > 0) {
                seen.record(sent.elapsed().as_nanos() as u64)?;
                break;
            }
            if sent.elapsed() > PATIENCE {
                bail!("an event was not seen: {}", answer.header("x-warmpath-explain"));
            }
        }
        std::thread::sleep(Duration::from_micros(rng.u64(200..3_000)));
    }
    Ok(seen)
}

fn ids(rng: &mut Rng, blocks: usize) -> Vec<u32> {
    (0..blocks * BLOCK_TOKENS).map(|_| rng.u32(0..IDS)).collect()
}

/// An engine's publisher, told what to say.
struct Publisher {
    runtime: tokio::runtime::Runtime,
    socket: XPubSocket,
    sequence: u64,
    prompt: u64,
}

impl Publisher {
    fn subscribed(&mut self) -> anyhow::Result<()> {
        let message = self
            .runtime
            .block_on(async { tokio::time::timeout(PATIENCE, self.socket.recv()).await })??;
        match message.get(0).and_then(|frame| frame.first()) {
            Some(1) => Ok(()),
            _ => bail!("the relay did not subscribe"),
        }
    }

    /// Says that this prompt is held.
    fn store(&mut self, ids: &[u32]) -> anyhow::Result<()> {
        let sequence = Bytes::copy_from_slice(&self.sequence.to_be_bytes());
        let parts = vec![Bytes::new(), sequence, stored(self.prompt, ids)];
        self.sequence += 1;
        self.prompt += 1;
        let message =
            ZmqMessage::try_from(parts).map_err(|_| anyhow::anyhow!("an empty message"))?;
        Ok(self.runtime.block_on(self.socket.send(message))?)
    }
}
