//! What a relay would say and clients would ask, written down for bench/wasm/run.mjs, which gives it
//! to the filter in V8.

use std::path::{Path, PathBuf};

use anyhow::Context;
use fastrand::Rng;
use prost::Message;
use warmpath_prompt::{Api, ModelFiles, Prompter, Request, preprocess};
use warmpath_proto::v1::{
    ArtefactChunk, BlockChange, Blocks, Down, Load, Loads, Model, Models, Replica, Replicas,
    SnapshotBegin, SnapshotEnd, down::Body as Said, replica::State,
};
use warmpath_routing::fingerprint::{Key, Scope};

use crate::bodies::{Bodies, MODEL, PREFIXES};
use crate::upstream::held;

/// What to write.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where
    #[arg(long, value_name = "DIR", overrides_with = "out")]
    pub out: PathBuf,
    /// The model's directory
    #[arg(long, value_name = "DIR", overrides_with = "model")]
    pub model: PathBuf,
    /// Bytes of a body
    #[arg(long, default_value_t = 8 << 10)]
    pub bytes: usize,
    /// Replicas of the one pool
    #[arg(long, default_value_t = 4)]
    pub replicas: u32,
}

/// Bodies with a system prompt of each kind.
const QUESTIONS: usize = 8;

/// Writes `downs.bin` and `bodies.bin` (each a sequence of length as u32 LE and bytes) and
/// `router.json`, the filter's configuration.
///
/// # Errors
/// When the model's files can't be read, or the directory can't be written.
pub fn write(args: &Args) -> anyhow::Result<()> {
    let artefact = preprocess(&ModelFiles::read_dir(&args.model)?)?;
    let hash = artefact.tokenizer_hash;
    let scope = Scope { model_version: "1", tokenizer_hash: &hash, adapter: "", salt: "" };
    let model = warmpath_prompt::Model::load(artefact.bytes.clone())?;
    let mut prompter = Prompter::new(model, 64 << 20);
    let mut keys = |body: &[u8]| -> anyhow::Result<Vec<Key>> {
        let request = Request::parse(Api::Chat, body).ok().context("a body that is none")?;
        let prefix = prompter.prefix(&request, scope.root(), 1 << 20, 0)?;
        Ok(prefix.keys)
    };
    let bodies = Bodies::new(args.bytes);
    let mut rng = Rng::with_seed(5);
    let mut asked = Vec::new();
    let mut changes = Vec::new();
    for prefix in 0..PREFIXES {
        let all: Vec<_> = (0..QUESTIONS).map(|_| bodies.shared(prefix, &mut rng)).collect();
        let [one, other] = [keys(all.first().context("no")?)?, keys(all.last().context("no")?)?];
        let shared = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
        for slot in 0..args.replicas {
            let blocks = held(slot as usize, prefix, shared, args.replicas as usize);
            if blocks == 0 {
                continue;
            }
            let held = one.iter().take(blocks).flat_map(|key| key.0).collect();
            changes.push(BlockChange { slot: slot + 1, lost: Vec::new(), held });
        }
        asked.extend(all);
    }
    rng.shuffle(&mut asked);

    let id = blake3::hash(&artefact.bytes).as_bytes().to_vec();
    let total = artefact.bytes.len() as u64;
    let replica = |number: u32| Replica {
        slot: number + 1,
        endpoint: format!("127.0.{}.{}:8000", number >> 8, number & 255),
        rank: None,
        pool: "demo-eu-west".into(),
        model: MODEL.into(),
        block_tokens: 16,
        dropped_tokens: 0,
        state: State::Ready.into(),
        tiers: Vec::new(),
        ends: None,
        partial: false,
        caches_nothing: false,
        other_root: false,
        adapters: Vec::new(),
        adapters_known: false,
        weight: 0,
    };
    let load =
        |number: u32| Load { slot: number + 1, waiting: 0, running: 0, kv_usage: 0.5, rtt_us: 0 };
    let said = [
        Said::Models(Models {
            models: vec![Model {
                name: MODEL.into(),
                served_names: vec![MODEL.into()],
                adapters: Vec::new(),
                version: "1".into(),
                tokenizer_hash: hash.to_vec(),
                artefact: id.clone(),
            }],
        }),
        Said::Artefact(ArtefactChunk { id, offset: 0, total, data: artefact.bytes }),
        Said::Replicas(Replicas { replicas: (0..args.replicas).map(replica).collect() }),
        Said::Loads(Loads { loads: (0..args.replicas).map(load).collect() }),
        Said::SnapshotBegin(SnapshotBegin::default()),
        Said::Blocks(Blocks { changes }),
        Said::SnapshotEnd(SnapshotEnd {}),
    ];
    let downs: Vec<Vec<u8>> = (0..)
        .zip(said)
        .map(|(sequence, body)| Down { epoch: 7, sequence, body: Some(body) }.encode_to_vec())
        .collect();
    let router = serde_json::json!({
        "role": "router",
        "region": "eu-west",
        "regions": {"eu-west": {"jurisdiction": "EU", "operator": "acme", "rtt_ms": 1}},
        "pools": {"demo-eu-west": {"region": "eu-west", "model": MODEL}},
        "zones": {"eu": {"jurisdictions": ["EU"], "clusters": {"demo-eu-west": "eu.demo-eu-west"}}},
    });
    std::fs::create_dir_all(&args.out)?;
    std::fs::write(args.out.join("router.json"), router.to_string())?;
    lines(&args.out.join("downs.bin"), &downs)?;
    lines(&args.out.join("bodies.bin"), &asked)
}

fn lines(path: &Path, chunks: &[Vec<u8>]) -> anyhow::Result<()> {
    let bytes: Vec<u8> = chunks
        .iter()
        .flat_map(|chunk| {
            (chunk.len() as u32).to_le_bytes().into_iter().chain(chunk.iter().copied())
        })
        .collect();
    Ok(std::fs::write(path, bytes)?)
}
