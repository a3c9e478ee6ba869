//! `warmpath status`: what relay and filter say of themselves, on one page.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use warmpath_routing::drift::Suspect;

use crate::http;
use crate::output;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The relay's admin endpoint
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:18901")]
    relay: String,
    /// Envoy's admin endpoint
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9901")]
    envoy: String,
    /// Write JSON
    #[arg(long)]
    json: bool,
}

/// Ends with 1 if one of the two can't be asked; what the other says is shown all the same.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (relay, envoy) = runtime.block_on(async {
        tokio::join!(
            http::get(&args.relay, "/status"),
            http::get(&args.envoy, "/stats?filter=wasmcustom.warmpath")
        )
    });
    let relay = relay.and_then(|text| {
        let raw: Value = serde_json::from_str(&text)
            .with_context(|| format!("{}/status is not a relay's status", args.relay))?;
        let status = Relay::deserialize(&raw)
            .with_context(|| format!("{}/status is not a relay's status", args.relay))?;
        Ok((raw, status))
    });
    let envoy = envoy.map(|text| Envoy::parse(&text));
    if args.json {
        let value = json!({
            "relay": relay.as_ref().ok().map(|(raw, _)| raw),
            "relay_error": relay.as_ref().err().map(|error| format!("{error:#}")),
            "envoy": envoy.as_ref().ok(),
            "envoy_error": envoy.as_ref().err().map(|error| format!("{error:#}")),
        });
        output::line(serde_json::to_string_pretty(&value)?)?;
    } else {
        let relay = match &relay {
            Ok((_, status)) => format!("relay {}: {}", args.relay, status.text()),
            Err(error) => format!("relay: {error:#}\n"),
        };
        let envoy = match &envoy {
            Ok(stats) => format!("envoy {}: {}", args.envoy, stats.text()),
            Err(error) => format!("envoy: {error:#}\n"),
        };
        output::print(format_args!("{relay}\n{envoy}"))?;
    }
    Ok(if relay.is_ok() && envoy.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What matters of the relay's `/status`. What a newer relay adds is passed over.
#[derive(Clone, Debug, Deserialize)]
struct Relay {
    streams: u64,
    #[serde(default)]
    streams_too_slow: u64,
    replicas: Vec<Replica>,
    #[serde(default)]
    pool_mismatches: Vec<PoolMismatch>,
}

/// A pool whose replicas get no requests from some gateways.
#[derive(Clone, Debug, Deserialize)]
struct PoolMismatch {
    pool: String,
    model: String,
    problem: String,
    #[serde(default)]
    policy_models: Vec<String>,
    gateways: u64,
    #[serde(default)]
    nodes: Vec<String>,
}

impl PoolMismatch {
    fn text(&self) -> String {
        let what = match self.problem.as_str() {
            "not_in_policy" => "not in the gateway's policy".to_owned(),
            "other_model" => format!(
                "its replicas serve model {}, the gateway's policy says {}",
                self.model,
                quoted(&self.policy_models)
            ),
            // A newer relay's.
            other => other.to_owned(),
        };
        let mut whose = format!("gateways: {}", self.gateways);
        let nodes: Vec<_> = self.nodes.iter().filter(|node| !node.is_empty()).collect();
        if !nodes.is_empty() {
            let _ = write!(whose, ", {}", quoted(nodes));
        }
        format!("pool {}: {what}; no requests come from there ({whose})", self.pool)
    }
}

/// What gateways say of themselves, so that nothing in it reaches a terminal as it is.
fn quoted<'a>(texts: impl IntoIterator<Item = &'a String>) -> String {
    texts.into_iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(", ")
}

#[derive(Clone, Debug, Deserialize)]
#[allow(clippy::struct_excessive_bools)] // Each is a fact of its own.
struct Replica {
    endpoint: String,
    rank: Option<u32>,
    pool: String,
    state: String,
    #[serde(default)]
    hears_events: bool,
    #[serde(default)]
    held_engine_blocks: u64,
    #[serde(default)]
    announced_prefixes: u64,
    requests_waiting: Option<u64>,
    requests_running: Option<u64>,
    kv_usage: Option<f64>,
    rtt_ms: Option<f64>,
    #[serde(default)]
    gaps: u64,
    rank_problem: Option<String>,
    #[serde(default)]
    engine_ranks: Vec<u32>,
    other_engine: Option<String>,
    root: Option<String>,
    #[serde(default)]
    other_root: bool,
    #[serde(default)]
    caches_nothing: bool,
    #[serde(default)]
    speculates_unsaid: bool,
}

impl Replica {
    fn name(&self) -> String {
        match self.rank {
            Some(rank) => format!("{} rank {rank}", self.endpoint),
            None => self.endpoint.clone(),
        }
    }
}

impl Relay {
    fn text(&self) -> String {
        let mut text = format!(
            "side-streams open: {}, ended as too slow: {}; replicas: {}\n",
            self.streams,
            self.streams_too_slow,
            self.replicas.len()
        );
        let head = [
            "REPLICA", "POOL", "STATE", "EVENTS", "HELD", "PREFIXES", "WAITING", "RUNNING", "KV",
            "RTT", "GAPS",
        ];
        let mut rows = vec![head.map(str::to_owned)];
        for replica in &self.replicas {
            let number = |value: Option<u64>| value.map_or_else(|| "-".into(), |n| n.to_string());
            rows.push([
                replica.name(),
                replica.pool.clone(),
                replica.state.to_lowercase(),
                if replica.hears_events { "heard" } else { "silent" }.into(),
                replica.held_engine_blocks.to_string(),
                replica.announced_prefixes.to_string(),
                number(replica.requests_waiting),
                number(replica.requests_running),
                replica.kv_usage.map_or_else(|| "-".into(), |kv| format!("{:.0} %", kv * 100.0)),
                replica.rtt_ms.map_or_else(|| "-".into(), |ms| format!("{ms:.1} ms")),
                replica.gaps.to_string(),
            ]);
        }
        text.push_str(&table(&rows));
        if self.streams == 0 {
            text.push_str("  No Envoy follows this relay: filters route by consistent hashing.\n");
        }
        for mismatch in &self.pool_mismatches {
            let _ = writeln!(text, "  {}", mismatch.text());
        }
        for replica in &self.replicas {
            let Some(problem) = &replica.rank_problem else { continue };
            let what = match problem.as_str() {
                "unranked" => "it is configured without a `rank`".to_owned(),
                "out_of_range" => "it answers 400 to the configured `rank`".to_owned(),
                "other_events" => "events come from another rank".to_owned(),
                // A newer relay's.
                other => other.to_owned(),
            };
            let _ = writeln!(
                text,
                "  {}: the engine has data-parallel ranks {:?}, and {what}.",
                replica.name(),
                replica.engine_ranks
            );
        }
        for replica in &self.replicas {
            let Some(engine) = &replica.other_engine else { continue };
            let _ = writeln!(
                text,
                "  {}: it runs {engine}, but its model's prompts are rendered for another engine.",
                replica.name()
            );
        }
        for replica in self.replicas.iter().filter(|replica| replica.caches_nothing) {
            let _ = writeln!(
                text,
                "  {}: prefix caching is off in its engine: no request finds its prefix there.",
                replica.name()
            );
        }
        for replica in self.replicas.iter().filter(|replica| replica.speculates_unsaid) {
            let _ = writeln!(
                text,
                "  {}: its engine speculates, and its model doesn't say how (`speculative_config`).",
                replica.name()
            );
        }
        for replica in self.replicas.iter().filter(|replica| replica.other_root) {
            let _ = writeln!(
                text,
                "  {}: its engine loaded the model from {:?}, other replicas of the model from \
                 elsewhere.",
                replica.name(),
                replica.root.as_deref().unwrap_or_default()
            );
        }
        for replica in self.replicas.iter().filter(|r| r.state == "READY" && !r.hears_events) {
            let _ = writeln!(
                text,
                "  {} is READY, but no events arrive from it: its cache is unknown.",
                replica.endpoint
            );
        }
        text
    }
}

/// Rows with columns under each other.
pub(crate) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(row) {
            let _ = write!(line, "  {cell:<width$}");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// The filter's metrics in Envoy, all workers together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Envoy {
    /// Requests by why their replica was chosen.
    decisions: BTreeMap<String, u64>,
    /// Requests whose prompt could not be used, by why.
    degrades: BTreeMap<String, u64>,
    /// Requests that were refused, by why.
    refusals: BTreeMap<String, u64>,
    /// Everything else of the router's.
    router: BTreeMap<String, u64>,
    /// Everything of the side-stream's.
    sidestream: BTreeMap<String, u64>,
}

impl Envoy {
    /// Reads Envoy's `/stats` text: `name: value` in lines. Histograms are left out.
    fn parse(text: &str) -> Self {
        let mut envoy = Self::default();
        for line in text.lines() {
            let Some((name, value)) = line.split_once(':') else { continue };
            let Ok(value) = value.trim().parse::<u64>() else { continue };
            let Some(name) = name.trim().strip_prefix("wasmcustom.warmpath.") else { continue };
            let Some((role, name)) = name.split_once('.') else { continue };
            let (map, name) = match (role, name.split_once('.')) {
                ("router", Some(("decision", name))) => (&mut envoy.decisions, name),
                ("router", Some(("degrade", name))) => (&mut envoy.degrades, name),
                ("router", Some(("refused", name))) => (&mut envoy.refusals, name),
                ("router", _) => (&mut envoy.router, name),
                ("sidestream", _) => (&mut envoy.sidestream, name),
                _ => continue,
            };
            map.insert(name.to_owned(), value);
        }
        envoy
    }

    fn text(&self) -> String {
        if self.router.is_empty() && self.sidestream.is_empty() {
            return "no Warmpath metrics here: the filter is not loaded\n".into();
        }
        let is = |map: &BTreeMap<String, u64>, name| map.get(name).is_some_and(|value| *value > 0);
        let fresh = match (is(&self.router, "map_fresh"), is(&self.sidestream, "synced")) {
            (true, _) => "the map is fresh",
            (false, true) => {
                "the map is stale though the side-stream is complete: is the relay silent?"
            }
            (false, false) => {
                "the map is stale: the side-stream is not complete; is the relay running?"
            }
        };
        let mut text = format!("{fresh}\n");
        for (name, map) in [
            ("decisions", &self.decisions),
            ("degrades", &self.degrades),
            ("refusals", &self.refusals),
        ] {
            let sum: u64 = map.values().sum();
            let parts: Vec<String> = map
                .iter()
                .filter(|(_, value)| **value > 0)
                .map(|(name, value)| {
                    format!("{name} {value} ({:.1} %)", *value as f64 * 100.0 / sum.max(1) as f64)
                })
                .collect();
            let parts = if parts.is_empty() { "none".to_owned() } else { parts.join(", ") };
            let _ = writeln!(text, "  {name:<11} {parts}");
        }
        for suspect in Suspect::ALL {
            let name = suspect.name();
            let count = self.router.get(&format!("suspect.{name}")).copied().unwrap_or(0);
            if count > 0 {
                let _ = writeln!(
                    text,
                    "  {name} is suspected at {count} replicas: {}.",
                    suspect.advice()
                );
            }
        }
        for (name, map) in [("router", &self.router), ("side-stream", &self.sidestream)] {
            let parts: Vec<String> =
                map.iter().map(|(name, value)| format!("{name} {value}")).collect();
            let _ = writeln!(text, "  {name:<11} {}", parts.join(", "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATS: &str = "wasmcustom.warmpath.router.decision.warm: 3\n\
        wasmcustom.warmpath.router.decision.cold: 1\n\
        wasmcustom.warmpath.router.degrade.stale_map: 0\n\
        wasmcustom.warmpath.router.refused.zone_missing: 2\n\
        wasmcustom.warmpath.router.map_fresh: 1\n\
        wasmcustom.warmpath.router.decide_us: P0(nan,1) P25(nan,2)\n\
        wasmcustom.warmpath.sidestream.synced: 1\n\
        cluster.x.y: 5\nnonsense\n: \n";

    #[test]
    fn the_filters_metrics_are_sorted_by_what_they_say() {
        let text = Envoy::parse(STATS).text();
        assert!(text.starts_with("the map is fresh\n"), "{text}");
        assert!(text.contains("decisions   cold 1 (25.0 %), warm 3 (75.0 %)"), "{text}");
        assert!(text.contains("degrades    none"), "{text}");
        assert!(text.contains("refusals    zone_missing 2 (100.0 %)"), "{text}");
        assert!(text.contains("side-stream synced 1"), "{text}");
        assert!(!text.contains("decide_us"), "{text}");
        assert!(!text.contains("is suspect"), "{text}");
        let drifts = format!("{STATS}wasmcustom.warmpath.router.suspect.template: 2\n");
        let drifts = Envoy::parse(&drifts).text();
        assert!(
            drifts.contains("  template is suspected at 2 replicas: the engine makes"),
            "{drifts}"
        );
        let stale = Envoy::parse(&STATS.replace("map_fresh: 1", "map_fresh: 0")).text();
        assert!(stale.starts_with("the map is stale though"), "{stale}");
        assert!(Envoy::parse("").text().contains("not loaded"));
    }

    #[test]
    fn replicas_stand_in_columns() {
        let status: Relay = serde_json::from_value(json!({
            "streams": 0, "streams_opened": 3, "new": true,
            "replicas": [
                {"endpoint": "10.0.0.1:8000", "rank": null, "pool": "p", "state": "READY",
                 "hears_events": true, "held_engine_blocks": 12, "kv_usage": 0.25,
                 "requests_waiting": 1, "requests_running": 2, "other_engine": "sglang"},
                {"endpoint": "10.0.0.2:8000", "rank": 1, "pool": "p", "state": "READY",
                 "rank_problem": "other_events", "engine_ranks": [2, 3],
                 "root": "/m/b", "other_root": true, "caches_nothing": true, "speculates_unsaid": true}
            ]
        }))
        .unwrap();
        let text = status.text();
        assert!(text.contains("  10.0.0.1:8000         p     ready  heard   12"), "{text}");
        assert!(text.contains("25 %"), "{text}");
        assert!(text.contains("No Envoy follows this relay"), "{text}");
        let ranks = "  10.0.0.2:8000 rank 1: the engine has data-parallel ranks [2, 3], and events";
        assert!(text.contains(ranks), "{text}");
        let other =
            "10.0.0.1:8000: it runs sglang, but its model's prompts are rendered for another";
        assert!(text.contains(other), "{text}");
        assert!(text.contains("10.0.0.2:8000 is READY, but no events arrive from it"), "{text}");
        assert!(
            text.contains("10.0.0.2:8000 rank 1: prefix caching is off in its engine"),
            "{text}"
        );
        assert!(
            text.contains("rank 1: its engine loaded the model from \"/m/b\", other"),
            "{text}"
        );
        assert!(text.contains("10.0.0.2:8000 rank 1: its engine speculates, and"), "{text}");
        assert!(!text.contains("10.0.0.1:8000: its engine"), "{text}");
    }

    #[test]
    fn pools_that_a_policy_cannot_use_are_named() {
        let status: Relay = serde_json::from_value(json!({
            "streams": 1, "replicas": [],
            "pool_mismatches": [
                {"pool": "demo-eu-wset", "model": "demo", "problem": "not_in_policy",
                 "policy_models": [], "gateways": 2, "nodes": ["", "edge-1"]},
                {"pool": "llama-eu", "model": "llama3", "problem": "other_model",
                 "policy_models": ["llama"], "gateways": 1, "nodes": [""]}
            ]
        }))
        .unwrap();
        let text = status.text();
        for line in [
            "  pool demo-eu-wset: not in the gateway's policy; no requests come from there \
             (gateways: 2, \"edge-1\")\n",
            "  pool llama-eu: its replicas serve model llama3, the gateway's policy says \"llama\"; no \
             requests come from there (gateways: 1)\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[tokio::test]
    async fn who_does_not_answer_is_named() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = http::get(&format!("http://{free}/"), "/status").await.unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains(&format!("http://{free}/status can't be reached")), "{text}");
        let error = http::get("https://x", "/").await.unwrap_err();
        assert!(error.to_string().contains("only http://"), "{error}");
    }
}
