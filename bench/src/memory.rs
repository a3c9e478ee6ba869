//! Whether memory stays where it is: Envoy and relay under load for minutes, with prompts that all
//! know and prompts that nobody saw before, so that everything that is kept for a while has to be
//! given up again.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::bodies::{Bodies, Kind};
use crate::load::{self, Job, Shape};
use crate::systems::{Fleet, Options, WORKERS};
use crate::usage;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How long, in seconds
    #[arg(long, default_value_t = 600)]
    pub seconds: u64,
    /// The model's directory
    #[arg(long, value_name = "DIR", overrides_with = "model")]
    pub model: PathBuf,
    /// Where the results go
    #[arg(long, value_name = "DIR", overrides_with = "out")]
    pub out: PathBuf,
}

/// Growth from the second quarter to the last, above which memory counts as growing. What Envoy's
/// allocator keeps for itself goes up and down by less.
const MOST_GROWTH: f64 = 1.03;

/// Memory at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    /// Since the start.
    seconds: f64,
    /// Answered so far.
    requests: u64,
    envoy_mb: f64,
    relay_mb: f64,
}

/// Measures, and writes `memory.json` and `memory.md`. Says whether memory stayed.
///
/// # Errors
/// When a part does not start, or the results can't be written.
pub fn memory(args: &Args) -> anyhow::Result<bool> {
    const BYTES: usize = 8 << 10;
    const SLICE: Duration = Duration::from_secs(5);
    let fleet = Fleet::start(&Options::warmpath(&args.model, BYTES, WORKERS, 1))?;
    let bodies = Bodies::new(BYTES);
    let start = Instant::now();
    let mut samples: Vec<Sample> = Vec::new();
    let (mut requests, mut errors) = (0, 0);
    let kinds = [Kind::Shared, Kind::Unique];
    for (system, kind) in fleet.systems.iter().cycle().zip(kinds.into_iter().cycle()) {
        if start.elapsed().as_secs() >= args.seconds {
            break;
        }
        let outcome = load::run(&Job {
            address: system.address,
            host: &system.host,
            bodies: &bodies,
            kind,
            shape: Shape::Closed(16),
            warm_up: Duration::ZERO,
            time: SLICE,
            processes: &system.processes,
        })?;
        requests += outcome.requests;
        errors += outcome.errors;
        // In the order in which they were started: see `systems::envoy`.
        let mut each = system.processes.iter().map(|id| usage::of(&[*id]).resident as f64 / 1e6);
        let sample = Sample {
            seconds: start.elapsed().as_secs_f64(),
            requests,
            envoy_mb: each.next().unwrap_or(f64::NAN),
            relay_mb: each.next().unwrap_or(f64::NAN),
        };
        eprintln!(
            "{:4.0} s  {requests:8} requests  Envoy {:.1} MB  relay {:.1} MB",
            sample.seconds, sample.envoy_mb, sample.relay_mb
        );
        samples.push(sample);
    }
    let text = table(&samples, errors);
    std::fs::create_dir_all(&args.out)?;
    std::fs::write(args.out.join("memory.json"), serde_json::to_vec_pretty(&samples)?)?;
    std::fs::write(args.out.join("memory.md"), &text)?;
    println!("{text}");
    Ok(errors == 0 && stays(&samples, |s| s.envoy_mb) && stays(&samples, |s| s.relay_mb))
}

/// The largest value within a quarter, 0 to 3.
fn most(samples: &[Sample], quarter: usize, of: impl Fn(&Sample) -> f64) -> f64 {
    let at = |quarter: usize| samples.len() * quarter / 4;
    let within = samples.get(at(quarter)..at(quarter + 1)).unwrap_or_default();
    within.iter().map(of).fold(f64::NAN, f64::max)
}

fn stays(samples: &[Sample], of: impl Fn(&Sample) -> f64 + Copy) -> bool {
    most(samples, 3, of) <= most(samples, 1, of) * MOST_GROWTH
}

fn table(samples: &[Sample], errors: u64) -> String {
    let mut text = String::from(
        "| most MB in each quarter | 1st | 2nd | 3rd | 4th | |\n| --- | --: | --: | --: | --: | --- |\n",
    );
    let envoy = |s: &Sample| s.envoy_mb;
    let relay = |s: &Sample| s.relay_mb;
    for (name, of) in [("Envoy, 2 workers", envoy as fn(&Sample) -> f64), ("relay", relay)] {
        let _ = write!(text, "| {name} |");
        for quarter in 0..4 {
            let _ = write!(text, " {:.1} |", most(samples, quarter, of));
        }
        let _ = writeln!(text, " {} |", if stays(samples, of) { "" } else { "**GROWS**" });
    }
    let (seconds, requests) = samples.last().map_or((0.0, 0), |s| (s.seconds, s.requests));
    let _ = writeln!(text, "{requests} requests in {seconds:.0} s, {errors} errors.");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_after_the_first_quarter_is_told() {
        let samples = |mb: fn(usize) -> f64| -> Vec<Sample> {
            let sample = |at| Sample {
                seconds: at as f64,
                requests: at as u64,
                envoy_mb: mb(at),
                relay_mb: 10.0,
            };
            (0..40).map(sample).collect()
        };
        let flat = samples(|at| if at < 10 { at as f64 * 10.0 } else { 100.0 + (at % 3) as f64 });
        assert!(stays(&flat, |s| s.envoy_mb) && !table(&flat, 0).contains("GROWS"));
        let leak = samples(|at| 100.0 + at as f64);
        assert!(!stays(&leak, |s| s.envoy_mb) && table(&leak, 0).contains("GROWS"));
        assert!(!stays(&[], |s| s.envoy_mb), "nothing was seen");
    }
}
