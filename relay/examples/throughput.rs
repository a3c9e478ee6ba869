//! Measures the relay on this machine: decode and index alone, memory per held block, then the whole
//! way from a ZeroMQ publisher through the relay to a side-stream's reader, and its latency.
//!
//! `cargo run --release -p warmpath-relay --example throughput`
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use rmpv::Value;
use tokio::sync::{mpsc, oneshot};
use warmpath_proto::v1::down::Body;
use warmpath_proto::v1::side_stream_client::SideStreamClient;
use warmpath_proto::v1::{Down, Hello, Up, up};
use warmpath_relay::events::decode;
use warmpath_relay::index::{Changes, Duplicates, Limits, ModelScope, View};
use warmpath_relay::{Config, run_with};
use zeromq::{Socket, SocketRecv, SocketSend, ZmqMessage};

/// Blocks of 16 tokens in one frame: a prompt of 2,048 tokens.
const BLOCKS: u64 = 128;

/// A frame as vLLM 0.24 and later write it.
fn frame(prompt: u64) -> Vec<u8> {
    let tokens =
        (0..BLOCKS * 16).map(|i| Value::from((prompt * 7919 + i * 31) % 150_000)).collect();
    // Hashes spread over 64 bits, as an engine's are.
    let hash = |i: u64| (prompt * BLOCKS + i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let text = |key: &str, value| (Value::from(key), value);
    let event = Value::Map(vec![
        text("type", "BlockStored".into()),
        text("block_hashes", Value::Array((0..BLOCKS).map(|i| hash(i).into()).collect())),
        text("parent_block_hash", Value::Nil),
        text("token_ids", Value::Array(tokens)),
        text("block_size", 16.into()),
        text("lora_id", Value::Nil),
        text("medium", "GPU".into()),
        text("lora_name", Value::Nil),
        text("extra_keys", Value::Array(vec![Value::Nil; BLOCKS as usize])),
        text("group_idx", 0.into()),
        text("kv_cache_spec_kind", "full_attention".into()),
    ]);
    let mut out = Vec::new();
    let batch = Value::Array(vec![1.0.into(), Value::Array(vec![event]), 0.into()]);
    rmpv::encode::write_value(&mut out, &batch).unwrap();
    out
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn alone(frames: &[Vec<u8>]) {
    let blocks = frames.len() as u64 * BLOCKS;
    let start = Instant::now();
    let batches: Vec<_> = frames.iter().take(1000).map(|frame| decode(frame).unwrap()).collect();
    let decoding = start.elapsed() / 1000;
    println!("decode: {:.0} blocks/s", BLOCKS as f64 / decoding.as_secs_f64());
    drop(batches);

    let scope = Arc::new(ModelScope { version: "1".into(), tokenizer_hash: [1; 32] });
    let limits = Limits { blocks: 10_000_000, ..Limits::default() };
    let before = resident();
    let mut view = View::new(scope, Duplicates::Doubt, limits);
    let start = Instant::now();
    for frame in frames {
        let mut changes = Changes::default();
        for event in &decode(frame).unwrap().events {
            view.apply(event, 0, &mut changes);
        }
        changes.take();
    }
    let took = start.elapsed();
    println!("decode and index: {:.0} blocks/s", blocks as f64 / took.as_secs_f64());
    println!(
        "memory: {:.0} bytes per held block of 16 tokens ({} blocks)",
        (resident() - before) as f64 / view.len() as f64,
        view.len()
    );
    let start = Instant::now();
    let keys: Vec<_> = view.keys().collect();
    println!("keys for a snapshot of {}: {:?}", keys.len(), start.elapsed());
}

struct Reader {
    stream: tonic::Streaming<Down>,
    _up: mpsc::Sender<Up>,
    held: usize,
    snapshot: bool,
}

impl Reader {
    async fn open(address: std::net::SocketAddr) -> Self {
        let channel = tonic::transport::Endpoint::new(format!("http://{address}")).unwrap();
        let (sender, receiver) = mpsc::channel(1);
        let hello = Hello { artefacts: vec![], node: "throughput".into() };
        sender.send(Up { body: Some(up::Body::Hello(hello)) }).await.unwrap();
        let ups = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let mut client = SideStreamClient::new(channel.connect().await.unwrap());
        let stream = client.follow(ups).await.unwrap().into_inner();
        Self { stream, _up: sender, held: 0, snapshot: false }
    }

    async fn next(&mut self) {
        match self.stream.message().await.unwrap().unwrap().body.unwrap() {
            Body::Blocks(blocks) => {
                self.held +=
                    blocks.changes.iter().map(|change| change.held.len() / 16).sum::<usize>();
            }
            Body::SnapshotEnd(_) => self.snapshot = true,
            _ => {}
        }
    }
}

async fn whole(frames: Vec<Vec<u8>>) {
    let mut publisher = zeromq::XPubSocket::new();
    let address = publisher.bind("tcp://127.0.0.1:0").await.unwrap();
    let yaml = format!(
        "listen: 127.0.0.1:0\nmodels: [{{ name: m, version: \"1\" }}]\nlimits: {{ blocks_per_replica: 10000000 }}\n\
         replicas: [{{ endpoint: \"127.0.0.1:9\", pool: p, model: m, events: {{ connect: \"{address}\" }} }}]\n"
    );
    let config = Config::parse(&yaml, "throughput", std::path::Path::new(".")).unwrap();
    let (tell, listening) = oneshot::channel();
    tokio::spawn(run_with(
        config,
        warmpath_relay::artefact::build,
        |address| tell.send(address).unwrap(),
        std::future::pending(),
    ));
    let relay = listening.await.unwrap();
    publisher.recv().await.unwrap();
    let mut reader = Reader::open(relay).await;
    while !reader.snapshot {
        reader.next().await;
    }
    let total = frames.len() * BLOCKS as usize;
    let start = Instant::now();
    let count = frames.len() as u64;
    let publishing = tokio::spawn(async move {
        for (sequence, frame) in frames.into_iter().enumerate() {
            publish(&mut publisher, sequence as u64, frame).await;
        }
        publisher
    });
    while reader.held < total {
        reader.next().await;
    }
    let rate = total as f64 / start.elapsed().as_secs_f64();
    println!("publisher to side-stream's reader: {rate:.0} blocks/s");

    let start = Instant::now();
    let mut late = Reader::open(relay).await;
    while !late.snapshot {
        late.next().await;
    }
    println!("snapshot of {} blocks over gRPC: {:?}", late.held, start.elapsed());
    drop(late);

    let mut publisher = publishing.await.unwrap();
    let mut times = Vec::new();
    for i in 0..1000 {
        let frame = frame(count + i);
        let goal = reader.held + BLOCKS as usize;
        tokio::time::sleep(Duration::from_millis(5)).await;
        let start = Instant::now();
        publish(&mut publisher, count + i, frame).await;
        while reader.held < goal {
            reader.next().await;
        }
        times.push(start.elapsed());
    }
    times.sort();
    println!("event to side-stream's reader: p50 {:?}, p99 {:?}", times[500], times[990]);
}

async fn publish(publisher: &mut zeromq::XPubSocket, sequence: u64, payload: Vec<u8>) {
    let parts: Vec<axum::body::Bytes> =
        vec!["".into(), sequence.to_be_bytes().to_vec().into(), payload.into()];
    publisher.send(ZmqMessage::try_from(parts).unwrap()).await.unwrap();
}

fn main() {
    let frames: Vec<_> = (0..8192).map(frame).collect();
    alone(&frames);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(whole(frames));
}
