//! `warmpath simulate`: a recorded trace through the very decision that the filter takes.
//!
//! Time, engines and network are simulated; the decision, its costs, ring and bounds are real, as is
//! what the gateway itself knows: requests under way, speculation, learned prices. Where all replicas
//! are full a request goes on at once; the filter holds it back a moment.

mod args;
mod fleet;
mod gateway;
mod map;
mod router;
mod trace;

use std::process::ExitCode;

use anyhow::Context;

use crate::output;
pub(crate) use args::Args;
use fleet::{Fleet, Served};
use router::Router;
use trace::Trace;

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut trace = Trace::read(&args.trace)?;
    if let Some(count) = args.requests {
        trace.requests.truncate(count);
    }
    anyhow::ensure!(!trace.requests.is_empty(), "{}: no requests", args.trace.display());
    anyhow::ensure!(args.speed > 0.0, "--speed {} must be above 0", args.speed);
    let best = trace.best_share();
    let mut rows = Vec::new();
    for router in [Router::Warmpath, Router::CacheOnly, Router::RoundRobin] {
        rows.push((router, simulate(args, &trace, router)?));
    }
    if args.json {
        for (router, report) in &rows {
            output::line(report.json(router.name(), best))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    output::line(format_args!(
        "{} requests, {} prompt tokens; one cache that knows all: {:.1} % cached\n",
        trace.requests.len(),
        trace.prompt_tokens(),
        best * 100.0
    ))?;
    output::line(format_args!(
        "{:<12} {:>8} {:>8} {:>10} {:>10} {:>10} {:>9} {:>9}",
        "router", "cached %", "of best", "max/mean", "max/mean", "max/mean", "TTFT p50", "TTFT p99"
    ))?;
    output::line(format_args!(
        "{:<12} {:>8} {:>8} {:>10} {:>10} {:>10} {:>9} {:>9}",
        "", "", "%", "requests", "prefill", "tokens", "ms", "ms"
    ))?;
    for (router, report) in &rows {
        output::line(report.row(router.name(), best))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn simulate(args: &Args, trace: &Trace, router: Router) -> anyhow::Result<Report> {
    let mut fleet = Fleet::new(args);
    let mut chooser = router::Chooser::new(args, router).context("--policy")?;
    let mut report = Report::new(args.replicas);
    for request in &trace.requests {
        let now = request.at_ms / args.speed;
        fleet.advance(now);
        let replica = chooser.choose(&fleet, request, now);
        let served = fleet.serve(replica, request, now);
        chooser.served(&served);
        report.add(replica, request.input_tokens, &served);
    }
    Ok(report)
}

/// What a router made of a trace.
struct Report {
    prompt_tokens: u64,
    cached_tokens: u64,
    requests: Vec<u64>,
    prefill: Vec<u64>,
    tokens: Vec<u64>,
    first_token_ms: Vec<f64>,
}

impl Report {
    fn new(replicas: u16) -> Self {
        let zeros = vec![0; usize::from(replicas)];
        Self {
            prompt_tokens: 0,
            cached_tokens: 0,
            requests: zeros.clone(),
            prefill: zeros.clone(),
            tokens: zeros,
            first_token_ms: Vec::new(),
        }
    }

    fn add(&mut self, replica: usize, tokens: u64, served: &Served) {
        self.prompt_tokens += tokens;
        self.cached_tokens += served.cached;
        for (sums, value) in [
            (&mut self.requests, 1),
            (&mut self.prefill, tokens - served.cached),
            (&mut self.tokens, tokens),
        ] {
            if let Some(sum) = sums.get_mut(replica) {
                *sum += value;
            }
        }
        self.first_token_ms.push(served.first_token_ms);
    }

    fn share(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    fn quantile(&self, q: f64) -> f64 {
        let mut sorted = self.first_token_ms.clone();
        sorted.sort_by(f64::total_cmp);
        let at = (sorted.len().saturating_sub(1)) as f64 * q;
        sorted.get(at as usize).copied().unwrap_or(0.0)
    }

    fn row(&self, name: &str, best: f64) -> String {
        format!(
            "{:<12} {:>8.2} {:>8.2} {:>10.2} {:>10.2} {:>10.2} {:>9.0} {:>9.0}",
            name,
            self.share() * 100.0,
            self.share() / best * 100.0,
            max_to_mean(&self.requests),
            max_to_mean(&self.prefill),
            max_to_mean(&self.tokens),
            self.quantile(0.5),
            self.quantile(0.99),
        )
    }

    fn json(&self, name: &str, best: f64) -> String {
        serde_json::json!({
            "router": name,
            "cached_share": self.share(),
            "of_best": self.share() / best,
            "max_to_mean_requests": max_to_mean(&self.requests),
            "max_to_mean_prefill_tokens": max_to_mean(&self.prefill),
            "max_to_mean_prompt_tokens": max_to_mean(&self.tokens),
            "ttft_ms_p50": self.quantile(0.5),
            "ttft_ms_p99": self.quantile(0.99),
        })
        .to_string()
    }
}

fn max_to_mean(values: &[u64]) -> f64 {
    let sum: u64 = values.iter().sum();
    let max = values.iter().max().copied().unwrap_or(0);
    max as f64 * values.len() as f64 / sum.max(1) as f64
}
