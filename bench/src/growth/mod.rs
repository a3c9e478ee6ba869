//! How cost grows: with the prompt, the replicas and the held blocks (natively, the pieces alone), and
//! with workers and models (through Envoy).

mod plot;
mod series;

use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use series::Series;
use warmpath_routing::policy::PREFIX_TOKENS;

use crate::bodies::{Bodies, Kind};
use crate::cases::{BLOCKS, Call, apply, deciding, matching, prompt};
use crate::load::{self, Job, Shape};
use crate::systems::{Fleet, Options, WORKERS};

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The model's directory
    #[arg(long, value_name = "DIR", overrides_with = "model")]
    pub model: PathBuf,
    /// Where the results go
    #[arg(long, value_name = "DIR", overrides_with = "out")]
    pub out: PathBuf,
    /// Leave out what needs Envoy
    #[arg(long)]
    pub native: bool,
}

/// Measures, and writes `growth.json`, `growth.md` and `growth.svg`. Says whether nothing grows
/// faster than its cause.
///
/// # Errors
/// When a part does not start, or the results can't be drawn or written.
pub fn growth(args: &Args) -> anyhow::Result<bool> {
    let mut all = native()?;
    if !args.native {
        all.extend(through_envoy(args)?);
    }
    std::fs::create_dir_all(&args.out)?;
    let table = table(&all);
    std::fs::write(args.out.join("growth.json"), serde_json::to_vec_pretty(&all)?)?;
    std::fs::write(args.out.join("growth.md"), &table)?;
    std::fs::write(args.out.join("growth.svg"), plot::svg(&all)?)?;
    println!("{table}");
    eprintln!("Written: {0}/growth.json, {0}/growth.md, {0}/growth.svg", args.out.display());
    let grows = all.iter().filter(|series| series.is_superlinear());
    let grows: Vec<_> =
        grows.map(|series| format!("{} with {}", series.name, series.along)).collect();
    if !grows.is_empty() {
        eprintln!("Grows faster than its cause: {}.", grows.join("; "));
    }
    Ok(grows.is_empty())
}

/// The least time of a call, in microseconds: others who use the machine only ever add.
fn least_us(mut call: Call) -> f64 {
    call();
    let start = Instant::now();
    let mut least = f64::INFINITY;
    let mut calls = 0;
    while calls < 20 || start.elapsed() < Duration::from_millis(400) {
        let before = Instant::now();
        call();
        least = least.min(before.elapsed().as_secs_f64() * 1e6);
        calls += 1;
    }
    least
}

fn series<X: Copy + Into<f64>>(
    name: &str,
    along: &'static str,
    xs: &[X],
    mut cost: impl FnMut(X) -> anyhow::Result<f64>,
) -> anyhow::Result<Series> {
    let mut points = Vec::new();
    for x in xs {
        let y = cost(*x)?;
        eprintln!("{name}: {y:.1} at {} {along}", (*x).into());
        points.push(((*x).into(), y));
    }
    Ok(Series { name: name.to_owned(), unit: "µs", along, points })
}

fn native() -> anyhow::Result<Vec<Series>> {
    // About: a token of English is 4 bytes and a bit.
    let bytes = |tokens: u32| tokens as usize * 4;
    let tokens: Vec<u32> = (0..8).map(|power| 1_024 << power).collect();
    let replicas: Vec<u16> = vec![1, 4, 16, 64, 256, 1_024];
    let blocks: Vec<u32> = vec![10_240, 30_720, 102_400, 307_200, 1_024_000];
    let prompts = |blocks: u32| u16::try_from(u64::from(blocks) / BLOCKS).unwrap_or(u16::MAX);
    Ok(vec![
        series("prompt, known", "prompt tokens", &tokens, |n| {
            Ok(least_us(prompt(bytes(n), usize::MAX, 64 << 20)?))
        })?,
        series("prompt, known, as far as it is read by default", "prompt tokens", &tokens, |n| {
            Ok(least_us(prompt(bytes(n), PREFIX_TOKENS, 64 << 20)?))
        })?,
        series("prompt, unknown", "prompt tokens", &tokens, |n| {
            Ok(least_us(prompt(bytes(n), usize::MAX, 0)?))
        })?,
        series("decision, 512 blocks", "replicas", &replicas, |n| Ok(least_us(deciding(n)?)))?,
        series("match, 64 replicas", "held blocks", &blocks, |n| {
            Ok(least_us(matching(64, prompts(n))))
        })?,
        series("1,000 blocks into the map", "held blocks", &blocks, |n| {
            Ok(least_us(apply(true, prompts(n))))
        })?,
    ])
}

fn through_envoy(args: &Args) -> anyhow::Result<Vec<Series>> {
    let empty =
        |name: &str, unit, along| Series { name: name.to_owned(), unit, along, points: Vec::new() };
    let mut workers = [
        empty("CPU of a request, 16 connections", "µs", "workers"),
        empty("memory of Envoy and relay", "MB", "workers"),
    ];
    let mut models = [
        empty("CPU of a request, 16 connections", "µs", "models"),
        empty("memory of Envoy and relay", "MB", "models"),
    ];
    for (into, along, counts) in
        [(&mut workers, "workers", &[1, 2][..]), (&mut models, "models", &[1, 2, 4, 8][..])]
    {
        for count in counts {
            let (workers, models) =
                if along == "workers" { (*count, 1) } else { (WORKERS, *count) };
            let (cpu_us, resident_mb) = measure(args, workers, models)?;
            eprintln!("{count} {along}: {cpu_us:.0} µs of CPU, {resident_mb:.0} MB");
            for (series, y) in into.iter_mut().zip([cpu_us, resident_mb]) {
                series.points.push((*count as f64, y));
            }
        }
    }
    Ok(workers.into_iter().chain(models).collect())
}

/// Processor time of a request, in microseconds, and memory, in megabytes: medians of some rounds.
fn measure(args: &Args, workers: usize, models: usize) -> anyhow::Result<(f64, f64)> {
    const BYTES: usize = 8 << 10;
    let fleet = Fleet::start(&Options::warmpath(&args.model, BYTES, workers, models))?;
    let bodies = Bodies::new(BYTES);
    let mut rounds = Vec::new();
    for system in fleet.systems.iter().cycle().take(3) {
        let outcome = load::run(&Job {
            address: system.address,
            host: &system.host,
            bodies: &bodies,
            kind: Kind::Shared,
            shape: Shape::Closed(16),
            warm_up: Duration::from_millis(700),
            time: Duration::from_secs(2),
            processes: &system.processes,
        })?;
        let cpu_us = outcome.cpu_seconds * 1e6 / outcome.requests.max(1) as f64;
        rounds.push((cpu_us, outcome.resident as f64 / 1e6));
    }
    rounds.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    Ok(rounds.get(rounds.len() / 2).copied().unwrap_or_default())
}

fn table(all: &[Series]) -> String {
    let mut text = String::from(
        "| cost | along | from | to | grows as n to the | |\n| --- | --- | --: | --: | --: | --- |\n",
    );
    for series in all {
        let point = |point: Option<&(f64, f64)>| {
            point.map_or_else(String::new, |(x, y)| format!("{y:.1} {} at {x:.0}", series.unit))
        };
        let exponent = series.exponent().map_or("–".into(), |e| format!("{e:.2} at most"));
        let verdict = if series.is_superlinear() { "**SUPERLINEAR**" } else { "" };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {exponent} | {verdict} |",
            series.name,
            series.along,
            point(series.points.first()),
            point(series.points.last()),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(cost: impl Fn(f64) -> f64) -> Series {
        let points = [1.0, 2.0, 4.0, 16.0, 64.0].map(|x| (x, cost(x))).into();
        Series { name: "a".into(), unit: "µs", along: "b", points }
    }

    #[test]
    fn what_grows_faster_than_its_cause_is_told() {
        assert!(!series(|x| 5.0 + x).is_superlinear());
        assert!(!series(|_| 5.0).is_superlinear());
        let square = series(|x| x * x);
        assert!(square.is_superlinear());
        assert!(table(&[square]).contains("SUPERLINEAR"));
        // At one end only.
        assert!(series(|x| 100.0 + x * x).is_superlinear());
    }

    #[test]
    fn the_plot_has_all_points() {
        let all = [series(|x| x), series(|x| 2.0 * x)];
        let svg = plot::svg(&all).unwrap();
        assert_eq!(svg.matches("<circle").count(), 10);
        for text in ["µs", ">\nb\n<", ">\na\n<", "100"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(svg.trim_end().ends_with("</svg>"));
    }
}
