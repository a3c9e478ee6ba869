//! How long a decision takes inside Envoy, by its own histograms: all of it (the prompt's reading, the
//! search of the prefix map and the choice), and the search and the choice alone.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::args::at_least_one;
use crate::bodies::{Bodies, Kind};
use crate::load::{self, Job, Shape};
use crate::systems::{
    Buckets, Fleet, Options, WORKERS, decided, decisions, histogram, prompt_tokens,
};
use crate::usage;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The model's directory
    #[arg(long, value_name = "DIR", overrides_with = "model")]
    pub model: PathBuf,
    /// Replicas of the pool; may be given several times
    #[arg(long, value_name = "N", default_values_t = [4, 64], value_parser = at_least_one)]
    pub replicas: Vec<usize>,
    /// Bytes of a body: 38,000 are somewhat more than 512 blocks of 16 tokens
    #[arg(long, value_name = "N", default_value_t = 38_000)]
    pub bytes: usize,
    /// Seconds of each load
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
}

/// Envoy adds to what its histograms show every five seconds.
const FLUSH: Duration = Duration::from_secs(6);

/// Measures, and prints a table.
///
/// # Errors
/// When something does not start, or decisions are not those that were meant.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let bodies = Bodies::new(args.bytes);
    println!("load before: {}", usage::load_average());
    println!(
        "| replicas | load | tokens of a prompt | decisions | decision: p50 µs | p90 | p99 \
         | alone: p50 µs | p90 | p99 |"
    );
    println!("| --: | --- | --: | --: | --: | --: | --: | --: | --: | --: |");
    for replicas in &args.replicas {
        let mut options = Options::warmpath(&args.model, args.bytes, WORKERS, 1);
        options.engines = *replicas;
        let fleet = Fleet::start(&options)?;
        let system = fleet.systems.first().context("nothing to measure")?;
        let (reason, admin) = system.reason.context("no reason")?;
        for shape in [Shape::Closed(1), Shape::Closed(16)] {
            let mut job = Job {
                address: system.address,
                host: &system.host,
                bodies: &bodies,
                kind: Kind::Shared,
                shape,
                warm_up: Duration::ZERO,
                time: Duration::from_secs(3),
                processes: &system.processes,
            };
            // The memo and the compiler get warm.
            load::run(&job)?;
            std::thread::sleep(FLUSH);
            let counted = || (decisions(admin, reason), decided(admin), prompt_tokens(admin));
            let histograms = || -> anyhow::Result<[Buckets; 2]> {
                Ok([histogram(admin, "decide_us")?, histogram(admin, "choose_us")?])
            };
            let (before, (meant, all, tokens)) = (histograms()?, counted());
            job.time = Duration::from_secs(args.seconds);
            load::run(&job)?;
            std::thread::sleep(FLUSH);
            let (after, (meant_after, all_after, tokens_after)) = (histograms()?, counted());
            let all = (all_after - all).max(1);
            let share = (meant_after - meant) as f64 / all as f64;
            ensure!(
                share > 0.9,
                "only {:.0} % of the decisions found what is held: are bodies of {} bytes too short?",
                share * 100.0,
                args.bytes
            );
            let tokens = (tokens_after - tokens) / all;
            let mut line = format!("| {replicas} | {} | {tokens} |", shape.name());
            for (number, (after, before)) in after.into_iter().zip(&before).enumerate() {
                let taken = less(after, before);
                if number == 0 {
                    let _ = write!(line, " {} |", taken.values().sum::<u64>());
                }
                for quantile in [0.5, 0.9, 0.99] {
                    let _ = write!(line, " {:.1} |", value_at(&taken, quantile) / 1e3);
                }
            }
            println!("{line}");
        }
    }
    println!(
        "decision: with the prompt's reading; alone: the search of the map and the choice. By Envoy's \
         own histograms, of a sample, in whole microseconds."
    );
    println!("load after: {}", usage::load_average());
    Ok(())
}

fn less(mut after: Buckets, before: &Buckets) -> Buckets {
    for (bucket, count) in before {
        if let Some(left) = after.get_mut(bucket) {
            *left = left.saturating_sub(*count);
        }
    }
    after
}

/// The value at a quantile, as if those of a bucket lay evenly in it; NaN if there are none.
fn value_at(buckets: &Buckets, quantile: f64) -> f64 {
    let mut left = buckets.values().sum::<u64>() as f64 * quantile;
    for ((lower, width), count) in buckets {
        let count = *count as f64;
        if count > 0.0 && left <= count {
            return *lower as f64 + *width as f64 * left / count;
        }
        left -= count;
    }
    f64::NAN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_what_came_since() {
        let before = Buckets::from([((1_000, 1_000), 90), ((9_000, 1_000), 7)]);
        let after =
            Buckets::from([((1_000, 1_000), 90), ((9_000, 1_000), 57), ((20_000, 100), 50)]);
        let since = less(after, &before);
        assert_eq!(since.values().sum::<u64>(), 100);
        let rounded = [0.25, 0.5, 1.0].map(|q| value_at(&since, q).round() as u64);
        assert_eq!(rounded, [9_500, 10_000, 20_100]);
        assert!(value_at(&Buckets::new(), 0.5).is_nan());
    }
}
