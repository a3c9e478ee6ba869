//! `warmpath events`: a tap for a person who asks what an engine emits.

mod source;
mod tap;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use warmpath_prompt::Engine;
use warmpath_relay::artefact;
use warmpath_relay::index::{Duplicates, Limits, ModelScope};

use crate::output;
use crate::serving::ServingOptions;
use source::{Live, Note, file};
use tap::{Show, Tap};

#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("source").required(true))]
pub(crate) struct Args {
    /// Connect to the engine's publisher, such as tcp://127.0.0.1:5557
    #[arg(long, value_name = "TCP", group = "source")]
    connect: Option<String>,
    /// Bind an address that the engine connects to, such as tcp://*:5557
    #[arg(long, value_name = "TCP", group = "source")]
    bind: Option<String>,
    /// Read frames from JSON lines with "seq" and "payload_hex", plain or .gz; - for standard input
    #[arg(long, value_name = "FILE", group = "source")]
    file: Option<PathBuf>,
    /// Model directory, for the fingerprints' scope [default: fingerprints of no real model]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// The engine that serves it: vllm or sglang
    #[arg(long, value_name = "ENGINE", default_value = "vllm")]
    engine: String,
    /// Its version [default: the one that is known best]
    #[arg(long, value_name = "V")]
    engine_version: Option<String>,
    #[command(flatten)]
    options: ServingOptions,
    /// The model version that fingerprints are rooted in
    #[arg(long, value_name = "V", default_value = "")]
    model_version: String,
    /// End after so many batches
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Take no store from a prompt's start for a further copy, as the relay's `duplicates: doubt`
    #[arg(long)]
    doubt_duplicates: bool,
    /// Write one JSON object a line
    #[arg(long)]
    json: bool,
    /// Print token ids, which are what users wrote
    #[arg(long)]
    tokens: bool,
}

/// Ends at the file's end, after `--count` batches, or at Ctrl-C; always with a summary.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let engine = Engine::of(&args.engine, args.engine_version.as_deref()).with_context(|| {
        let version = args.engine_version.as_deref().unwrap_or_default();
        format!("--engine {} {version}", args.engine)
    })?;
    let serving = args.options.serving(engine)?;
    let tokenizer_hash = match &args.model {
        Some(path) => artefact::build(path, &serving).map_err(anyhow::Error::msg)?.tokenizer_hash,
        None => [0; 32],
    };
    let scope = ModelScope { version: args.model_version, tokenizer_hash };
    let duplicates = if args.doubt_duplicates { Duplicates::Doubt } else { Duplicates::Count };
    let show = Show { json: args.json, tokens: args.tokens };
    let mut tap = Tap::new(scope, duplicates, Limits::default(), show);
    let mut out = io::BufWriter::new(io::stdout().lock());
    let most = args.count.unwrap_or(u64::MAX);
    let result = match (&args.file, args.connect, args.bind) {
        (Some(path), ..) => read(path, &mut tap, most, &mut out),
        (None, Some(address), _) => listen(Live::connect(&address)?, &mut tap, most, &mut out),
        (None, None, Some(address)) => listen(Live::bind(&address)?, &mut tap, most, &mut out),
        // Clap lets none of it through.
        (None, None, None) => Ok(()),
    };
    match result.and_then(|()| Ok(tap.summary(&mut out).and_then(|()| out.flush())?)) {
        // Whoever read has seen enough.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        result => result.map(|()| ExitCode::SUCCESS),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

fn read(
    path: &std::path::Path,
    tap: &mut Tap,
    most: u64,
    out: &mut impl io::Write,
) -> anyhow::Result<()> {
    for frame in file(path)? {
        if tap.batches() >= most {
            break;
        }
        tap.frame(&frame?, out)?;
    }
    Ok(())
}

fn listen(
    mut live: Live,
    tap: &mut Tap,
    most: u64,
    out: &mut impl io::Write,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let stop = tokio::signal::ctrl_c();
        tokio::pin!(stop);
        while tap.batches() < most {
            let note = tokio::select! {
                note = live.next() => note?,
                stopped = &mut stop => return stopped.context("can't wait for Ctrl-C"),
            };
            match note {
                Note::Frame(frame) => tap.frame(&frame, out)?,
                Note::Malformed => tap.malformed(out)?,
                Note::Connected(peer) => {
                    output::tell(format_args!("warmpath events: hearing {peer}"));
                }
                Note::Lost(why) => {
                    output::tell(format_args!("warmpath events: {why}; retrying"));
                    tap.lost(out)?;
                }
            }
            out.flush()?;
        }
        Ok(())
    })
}
