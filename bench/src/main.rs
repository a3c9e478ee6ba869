//! `warmpath-bench`: what `scripts/bench` runs.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use warmpath_bench::{decision, ending, growth, guard, latency, memory, run, script, upstream};

#[derive(Parser)]
#[command(name = "warmpath-bench", about = "Benchmarks of Warmpath; start it by scripts/bench")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare Envoy, Warmpath and the peers under load
    Run(run::Args),
    /// Measure how long it takes from an engine's event to a decision that knows it
    Latency(latency::Args),
    /// Measure how long a decision takes inside Envoy
    Decision(decision::Args),
    /// Be the engines behind them
    Upstream(upstream::Args),
    /// Count the hot path's instructions and compare them with the stored counts
    Guard {
        /// The stored counts
        #[arg(long, value_name = "FILE")]
        counts: PathBuf,
        /// Store the counts of now
        #[arg(long)]
        update: bool,
    },
    /// How cost grows with prompts, replicas, blocks, workers and models
    Growth(growth::Args),
    /// Whether memory stays where it is under minutes of load
    Memory(memory::Args),
    /// Write down what a relay says and clients ask, for bench/wasm/run.mjs
    Script(script::Args),
    /// Run one case of the hot path some times, for valgrind and perf
    Case {
        /// Its name
        name: String,
    },
}

fn main() -> ExitCode {
    let command = Args::parse().command;
    // The others start nothing.
    if !matches!(command, Command::Upstream(_) | Command::Case { .. }) {
        ending::watch();
    }
    let result = match command {
        Command::Run(args) => run::run(&args).map(|()| true),
        Command::Latency(args) => latency::run(&args).map(|()| true),
        Command::Decision(args) => decision::run(&args).map(|()| true),
        Command::Upstream(args) => upstream::serve(&args).map(|()| true),
        Command::Guard { counts, update } => guard::guard(&counts, update),
        Command::Growth(args) => growth::growth(&args),
        Command::Memory(args) => memory::memory(&args),
        Command::Script(args) => script::write(&args).map(|()| true),
        Command::Case { name } => guard::run_case(&name).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("warmpath-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
