//! The engines behind every proxy: they answer at once, and say by KV events, as vLLM does, that
//! they hold the shared system prompts.

mod events;
mod http;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use fastrand::Rng;
use warmpath_prompt::{Api, Model, ModelFiles, Prompter, Request, preprocess};

use crate::bodies::{Bodies, PREFIXES, label};

pub use events::{BLOCK_TOKENS, stored};

/// What the upstream process is to be.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The model's directory
    #[arg(long)]
    pub model: PathBuf,
    /// HTTP ports, one per engine
    #[arg(long, value_delimiter = ',')]
    pub http: Vec<u16>,
    /// Ports for KV events: each listener's engines in turn
    #[arg(long, value_delimiter = ',')]
    pub events: Vec<u16>,
    /// Sizes of bodies, in bytes
    #[arg(long, value_delimiter = ',')]
    pub sizes: Vec<usize>,
}

/// Serves for ever.
///
/// # Errors
/// When the model can't be read, or a port can't be bound.
pub fn serve(args: &Args) -> anyhow::Result<()> {
    let prompts = Arc::new(prompts(&args.model, &args.sizes)?);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        for (at, port) in args.events.iter().enumerate() {
            let engine = at % args.http.len().max(1);
            let mine = prompts.values().enumerate().filter_map(|(number, ids)| {
                let blocks = ids.len() / BLOCK_TOKENS;
                ids.get(..held(engine, number, blocks, args.http.len()) * BLOCK_TOKENS)
            });
            let mine = mine.filter(|ids| !ids.is_empty()).map(<[u32]>::to_vec).collect();
            events::start(*port, mine).await?;
        }
        let mut servers = Vec::new();
        for port in &args.http {
            servers.push(http::start(*port, Arc::clone(&prompts)).await?);
        }
        for server in servers {
            server.await?;
        }
        Ok(())
    })
}

/// Blocks of a prompt of so many that an engine holds: one of them holds all, and in a large
/// pool every eighth some.
pub(crate) fn held(engine: usize, prompt: usize, blocks: usize, engines: usize) -> usize {
    let home = prompt % engines.max(1);
    if engine == home {
        blocks
    } else if engines >= 16 && engine % 8 == home % 8 {
        blocks * ((engine * 31 + prompt * 17) % 100) / 100
    } else {
        0
    }
}

/// Token ids of the shared system prompts, by label: what two chats with one of them have in
/// common, in whole blocks.
fn prompts(model: &Path, sizes: &[usize]) -> anyhow::Result<BTreeMap<String, Vec<u32>>> {
    let files = ModelFiles::read_dir(model)?;
    let mut prompter = Prompter::new(Model::load(preprocess(&files)?.bytes)?, 0);
    let mut rng = Rng::with_seed(1);
    let mut found = BTreeMap::new();
    for bytes in sizes {
        let bodies = Bodies::new(*bytes);
        for prefix in 0..PREFIXES {
            let mut ids = || -> anyhow::Result<Vec<u32>> {
                let body = bodies.shared(prefix, &mut rng);
                let request = Request::parse(Api::Chat, &body)?;
                Ok(prompter.tokens(&request, None, 0)?.ids)
            };
            let (one, other) = (ids()?, ids()?);
            let same = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
            let whole = same / BLOCK_TOKENS * BLOCK_TOKENS;
            let ids = one.get(..whole).context("a prefix is no longer than its prompt")?;
            found.insert(label(*bytes, prefix), ids.to_vec());
        }
    }
    Ok(found)
}
