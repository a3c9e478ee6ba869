//! `warmpath`: the relay, and the tools for those who run it.
#![forbid(unsafe_code)]
// They panic behind a pipe that is closed: see `output`.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod check;
mod engine;
mod events;
mod explain;
mod http;
mod output;
mod prompt;
mod relay;
mod serving;
mod simulate;
mod status;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "warmpath", version, about = "Keeps LLM requests on the warm path", long_about = None)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the relay: engines' KV events in, the side-stream to Envoy out
    Relay(relay::Args),
    /// Show what the filter makes of a request: prompt, token ids, fingerprints
    Prompt(prompt::Args),
    /// Check Envoy's and Istio's configuration: residency proved, every known trap found
    Check(check::Args),
    /// Listen in on an engine: its KV events decoded, and the prefixes that they lead to
    Events(events::Args),
    /// Decide a request on a dumped state, and show what each replica would have cost
    Explain(explain::Args),
    /// Show what the relay and the filter say of themselves
    Status(status::Args),
    /// Run a SIMULATED engine: vLLM's protocols without a GPU, for trials and tests
    Engine(engine::Args),
    /// Run a recorded trace through the decision, with simulated engines and time
    Simulate(simulate::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Relay(args) => relay::run(args),
        Command::Prompt(args) => prompt::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Events(args) => events::run(args),
        Command::Explain(args) => explain::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Engine(args) => engine::run(args),
        Command::Simulate(args) => simulate::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            output::tell(format_args!("warmpath: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
