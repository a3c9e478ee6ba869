//! The comparison: every proxy under every load, in turn, for some rounds.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;

use crate::args::{at_least_one, positive};
use crate::bodies::Bodies;
use crate::load::{self, Job, Shape};
use crate::report::{Cell, Report};
use crate::systems::{ENGINES, Fleet, NAMES, Options, System, WORKERS, decided, decisions};
use crate::usage;

/// What to compare.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// One round of short measurements: one size, fewer loads
    #[arg(long)]
    pub quick: bool,
    /// Rounds; what is reported are medians over them
    #[arg(long, value_parser = at_least_one)]
    pub rounds: Option<usize>,
    /// Seconds of each measurement
    #[arg(long, value_parser = positive)]
    pub seconds: Option<f64>,
    /// The model's directory
    #[arg(long, value_name = "DIR", overrides_with = "model")]
    pub model: PathBuf,
    /// Python of the environment that has the peers
    #[arg(long, value_name = "FILE")]
    pub peers: Option<PathBuf>,
    /// Another build of the filter (wasm), measured beside this one
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
    /// Only systems whose name contains this; may be given several times
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Only sizes of this many bytes; may be given several times
    #[arg(long, value_name = "BYTES")]
    pub size: Vec<usize>,
    /// Where the results go
    #[arg(long, value_name = "DIR", overrides_with = "out")]
    pub out: PathBuf,
    /// How this was called, for the report
    #[arg(long, default_value = "")]
    pub command: String,
}

const WARM_UP: Duration = Duration::from_millis(700);

/// Compares, and writes `bench.json` and `bench.md`.
///
/// # Errors
/// When something of Warmpath's own does not start, or does not answer.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let all = if args.quick { vec![8 << 10] } else { vec![8 << 10, 64 << 10] };
    let sizes = if args.size.is_empty() { all } else { args.size.clone() };
    let shapes = if args.quick {
        vec![Shape::Closed(1), Shape::Closed(16), Shape::Open(200.0)]
    } else {
        vec![
            Shape::Closed(1),
            Shape::Closed(16),
            Shape::Closed(64),
            Shape::Open(200.0),
            Shape::Open(1000.0),
        ]
    };
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 3 });
    let seconds = args.seconds.unwrap_or(if args.quick { 1.5 } else { 3.0 });
    let is_there = |only: &String| NAMES.iter().any(|name| name.contains(only.as_str()));
    if args.against.is_none() && !args.only.is_empty() && !args.only.iter().any(is_there) {
        let only = args.only.join(" --only ");
        bail!("--only {only}: no such system; there are {}", NAMES.join(", "));
    }
    eprintln!("Starting engines, relays and proxies …");
    let fleet = Fleet::start(&Options {
        model: args.model.clone(),
        sizes: sizes.clone(),
        // Not canonical: the link is what tells Python its environment.
        peers: args.peers.as_deref().map(std::path::absolute).transpose()?,
        against: args.against.clone(),
        only: args.only.clone(),
        workers: WORKERS,
        models: 1,
        engines: ENGINES,
    })?;
    for (name, why) in &fleet.missing {
        eprintln!("MISSING {name}: {why}");
    }
    let bodies: Vec<Bodies> = sizes.into_iter().map(Bodies::new).collect();
    let mut report = Report::new(&args.command, rounds, seconds, &fleet.missing);
    for round in 0..rounds {
        for bodies in &bodies {
            for shape in &shapes {
                // Each round begins with another, so that none always follows the same one.
                let count = fleet.systems.len().max(1);
                let systems = fleet.systems.iter().cycle().skip(round % count).take(count);
                for system in systems {
                    let cell = measure(system, bodies, *shape, seconds)?;
                    eprintln!("round {} {}", round + 1, cell.line());
                    report.add(cell);
                }
            }
        }
    }
    report.load_after = usage::load_average();
    write(&args.out, &report)
}

fn measure(system: &System, bodies: &Bodies, shape: Shape, seconds: f64) -> anyhow::Result<Cell> {
    let before = system.reason.map(|(reason, admin)| (decisions(admin, reason), decided(admin)));
    let outcome = load::run(&Job {
        address: system.address,
        host: &system.host,
        bodies,
        kind: system.kind,
        shape,
        warm_up: WARM_UP,
        time: Duration::from_secs_f64(seconds),
        processes: &system.processes,
    })?;
    let as_meant = system.reason.zip(before).map(|((reason, admin), (meant, all))| {
        (decisions(admin, reason) - meant) as f64 / (decided(admin) - all).max(1) as f64
    });
    let micros = |quantile| outcome.latencies.value_at_quantile(quantile) as f64 / 1e3;
    Ok(Cell {
        system: system.name.clone(),
        bytes: bodies.bytes(),
        shape: shape.name(),
        requests_per_second: outcome.requests as f64 / outcome.seconds,
        errors: outcome.errors,
        p50_us: micros(0.5),
        p99_us: micros(0.99),
        cpu_us: (!system.processes.is_empty())
            .then(|| outcome.cpu_seconds * 1e6 / outcome.requests.max(1) as f64),
        resident_mb: (!system.processes.is_empty()).then(|| outcome.resident as f64 / 1e6),
        as_meant,
    })
}

fn write(out: &Path, report: &Report) -> anyhow::Result<()> {
    std::fs::create_dir_all(out)?;
    std::fs::write(out.join("bench.json"), serde_json::to_vec_pretty(report)?)?;
    let markdown = report.markdown();
    std::fs::write(out.join("bench.md"), &markdown)?;
    println!("{markdown}");
    eprintln!("Written: {0}/bench.json, {0}/bench.md", out.display());
    Ok(())
}
