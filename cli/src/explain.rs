//! `warmpath explain`: the filter's own decision about a request, on a dumped state.
//!
//! The state is what the relay's admin endpoint says at `/status`, to which may be added what that
//! does not say: models, what replicas hold, what is in flight, whether the map is fresh. The
//! decision is `routing`'s; all that is here is asking it once for all replicas, and once for each
//! of them alone, which tells what each would have cost.

mod prompt;
mod state;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use warmpath_routing::catalogue::{Wants, resolve};
use warmpath_routing::decision::{Degrade, Outcome, decide};
use warmpath_routing::policy::Policy;
use warmpath_routing::residency::Claim;
use warmpath_routing::view::Medium;

use self::prompt::Asked;
use self::state::State;
use self::table::{Row, rows};
use crate::check;
use crate::output;
use crate::status::table as columns;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Envoy's configuration with the filter in it, Istio's, or the policy alone
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The state, JSON: the relay's /status, and what may be added to it (see `--help`)
    #[arg(
        long,
        value_name = "FILE",
        long_help = "The state, JSON: the relay's /status, and optionally beside its `replicas`:\n  \
                     \"fresh\": false                 the map is stale\n  \
                     \"models\": [{\"name\": …, \"path\": DIR, \"version\": …, \"served_names\": […], \"adapters\": […]}]\n  \
                     \"held\": [{\"endpoint\": …, \"rank\": …, \"blocks\": N}]   first N blocks of this prompt, or\n  \
                     \"held\": [{\"endpoint\": …, \"keys\": [\"…\"]}]            fingerprints, as `warmpath prompt` names them\n\
                     and in each replica \"in_flight\": N, what the gateway has sent there"
    )]
    state: PathBuf,
    /// The relay's configuration: where models are read that the state does not have
    #[arg(long, value_name = "FILE")]
    relay: Option<PathBuf>,
    /// The request's zone, as its trusted source says [default: the policy's default]
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// The path that is asked [default: by the body's shape]
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// The time that the chat template sees, in seconds since 1970 [default: now]
    #[arg(long, value_name = "SECONDS")]
    now: Option<u64>,
    /// Write JSON
    #[arg(long)]
    json: bool,
    /// The request body; - for standard input
    #[arg(value_name = "request.json")]
    request: PathBuf,
}

/// Ends with 0 where the request is sent somewhere, 1 where it is refused.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let text = std::fs::read_to_string(&args.config)
        .with_context(|| format!("can't read {}", args.config.display()))?;
    let mut policies =
        check::policies(&text).with_context(|| format!("in {}", args.config.display()))?;
    if policies.len() > 1 {
        bail!("{} has {} policies; give the one alone", args.config.display(), policies.len());
    }
    let policy = policies.pop().context("there is no policy")?;
    let mut state = State::read(&args.state, args.relay.as_deref())?;
    state.file(&policy);
    let body = crate::prompt::read_body(&args.request)?;
    let now = match args.now {
        Some(now) => now,
        None => std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs(),
    };
    let large = prompt::large(&policy, &body);
    let asked = Asked::read(&state, &policy, args.path.as_deref(), &body, large.as_ref(), now)?;
    let report = Report::new(&policy, &state, args.zone.as_deref(), &asked);
    if args.json {
        output::line(serde_json::to_string_pretty(&report.json())?)?;
    } else {
        output::print(report.text())?;
    }
    Ok(if report.refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A decision and the replicas that were weighed for it.
struct Report {
    refused: bool,
    /// What came out, by names.
    decision: Vec<(&'static str, Value)>,
    rows: Vec<Row>,
}

impl Report {
    fn new(policy: &Policy, state: &State, zone: Option<&str>, asked: &Asked) -> Self {
        let told = state.models.iter().map(|(model, ..)| model);
        let wants = resolve(policy, told, &asked.read.requested).wants;
        let claim = zone.map_or(Claim::Silent, Claim::Zone);
        let refers = asked.read.previous.is_some();
        let ask = asked.read.ask(claim, wants, refers, asked.body, 0);
        let held = state.held(&asked.read.keys);
        let outcome = decide(policy, &state.world, &ask, &held);
        let said_by = if zone.is_some() { "--zone" } else { "the policy's default" };
        let mut decision: Vec<(&'static str, Value)> = Vec::new();
        let mut refused = false;
        match &outcome {
            Outcome::Refuse(refusal) => {
                refused = true;
                decision.push(("status", refusal.status.into()));
                decision.push(("refused", refusal.code.into()));
                decision.push(("message", refusal.message.clone().into()));
            }
            Outcome::Route(route) => {
                let first = route.replicas.first().and_then(|at| state.world.replicas.get(*at));
                let replica = first.map(|replica| replica.endpoint.clone());
                decision.push(("zone", route.zone.into()));
                decision.push(("zone_source", said_by.into()));
                decision.push(("region", route.region.into()));
                decision.push(("pool", route.pool.into()));
                decision.push(("cluster", route.cluster.into()));
                decision.push(("replica", replica.into()));
                decision.push(("rank", first.and_then(|replica| replica.rank).into()));
                decision.push(("reason", route.reason.name().into()));
                decision.push(("degrade", route.degrade.map(Degrade::name).into()));
                decision.push(("spilled", route.spilled.into()));
                decision.push(("crowded", route.crowded.into()));
                decision.push(("prompt_tokens", route.prompt_tokens.into()));
                decision.push(("cached_tokens", route.cached_tokens.into()));
                decision.push(("offloaded_tokens", route.offloaded_tokens.into()));
                decision.push(("tier", route.tier.map(Medium::name).into()));
                decision.push(("blocks", route.blocks.into()));
                decision.push(("holders", route.holders.into()));
                decision.push(("ring_key", format!("{:032x}", route.ring_key).into()));
            }
        }
        let (model, adapter) = match wants {
            Wants::Model { name, adapter } => (Some(name), Some(adapter)),
            Wants::Unknown { .. } | Wants::Unnamed | Wants::Unreadable => (None, None),
        };
        decision.push(("model", model.into()));
        if let Some(adapter) = adapter.filter(|adapter| !adapter.is_empty()) {
            decision.push(("adapter", adapter.into()));
        }
        decision.push(("fresh", state.world.fresh.into()));
        if let Some(note) = &asked.note {
            decision.push(("note", note.clone().into()));
        }
        Self { refused, decision, rows: rows(policy, &state.world, &ask, &held, &outcome) }
    }

    fn json(&self) -> Value {
        let decision: serde_json::Map<String, Value> =
            self.decision.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        json!({ "decision": decision, "candidates": self.rows })
    }

    fn text(&self) -> String {
        let mut lines = Vec::new();
        for (name, value) in &self.decision {
            let value = match value {
                Value::String(text) => text.clone(),
                Value::Null => "-".into(),
                other => other.to_string(),
            };
            lines.push([format!("{name:<16}"), value]);
        }
        let mut text = columns(&lines);
        text.push('\n');
        let head = [
            "",
            "REPLICA",
            "POOL",
            "REGION",
            "STATE",
            "CACHED",
            "PREFILL",
            "LOAD",
            "NETWORK",
            "QUEUE",
            "TOTAL ms",
            "BUSY/FULL AT",
            "RING",
            "WHY",
        ];
        let mut lines = vec![head.map(str::to_owned)];
        for row in &self.rows {
            let ms = |value: Option<f64>| value.map_or_else(|| "-".into(), |ms| format!("{ms:.1}"));
            lines.push([
                row.rank_in_order.map_or_else(String::new, |n| n.to_string()),
                match row.rank {
                    Some(rank) => format!("{} rank {rank}", row.endpoint),
                    None => row.endpoint.clone(),
                },
                row.pool.clone(),
                row.region.clone(),
                row.state.into(),
                match (row.cached_tokens, row.offloaded_tokens, row.tier) {
                    (Some(cached), Some(offloaded), Some(tier)) => {
                        format!("{cached} ({offloaded} {tier})")
                    }
                    (cached, ..) => cached.map_or_else(|| "-".into(), |n| n.to_string()),
                },
                ms(row.prefill_ms),
                ms(row.load_ms),
                ms(row.network_ms),
                ms(row.queue_ms),
                ms(row.total_ms),
                format!("{}/{}", row.busy, row.full_at.map_or("-".into(), |n| n.to_string())),
                row.ring_place.map_or_else(|| "-".into(), |place| format!("{place:.4}")),
                row.why.clone(),
            ]);
        }
        text + &columns(&lines)
    }
}

#[cfg(test)]
mod tests;
