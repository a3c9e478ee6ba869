//! What Envoy's admin interface tells of the router's metrics.

use std::collections::BTreeMap;

use anyhow::Context;
use serde_json::Value;
use warmpath_tests::Client;

/// Counts by the lower bound of what was counted, in nanoseconds, and that one's width.
pub(crate) type Buckets = BTreeMap<(u64, u64), u64>;

/// Decisions so far for a reason, or for one of several with `|` between them.
pub(crate) fn decisions(admin: u16, reason: &str) -> u64 {
    let text = all_decisions(admin);
    let of = |reason: &str| -> Option<u64> {
        let name = format!("decision.{reason}: ");
        text.lines().find_map(|line| line.split_once(&name)?.1.parse().ok())
    };
    reason.split('|').filter_map(of).sum()
}

/// What one of the router's histograms of microseconds has counted since Envoy's start.
pub(crate) fn histogram(admin: u16, name: &str) -> anyhow::Result<Buckets> {
    let filter = format!("/stats?filter=warmpath.router.{name}");
    let path = format!("{filter}&histogram_buckets=detailed&format=json");
    let stats: Value = serde_json::from_slice(&Client::new(admin).get("", &path)?.body)?;
    let totals = stats.pointer("/stats/0/histograms/details/0/totals").and_then(Value::as_array);
    let bucket = |bucket: &Value| {
        let nanos = |field| Some((bucket.get(field)?.as_f64()? * 1e3).round() as u64);
        Some(((nanos("lower_bound")?, nanos("width")?), bucket.get("count")?.as_u64()?))
    };
    let totals = totals.with_context(|| format!("Envoy has counted no {name}"))?;
    Ok(totals.iter().filter_map(bucket).collect())
}

/// Tokens of all prompts so far.
pub(crate) fn prompt_tokens(admin: u16) -> u64 {
    let text = stats(admin, "prompt_tokens");
    text.rsplit_once(": ").and_then(|(_, count)| count.trim().parse().ok()).unwrap_or(0)
}

/// All decisions so far.
pub(crate) fn decided(admin: u16) -> u64 {
    let text = all_decisions(admin);
    text.lines().filter_map(|line| line.rsplit_once(": ")?.1.parse::<u64>().ok()).sum()
}

pub(super) fn all_decisions(admin: u16) -> String {
    stats(admin, "decision")
}

/// The router's counters whose names begin so, a line each.
fn stats(admin: u16, name: &str) -> String {
    let answer = Client::new(admin).get("", &format!("/stats?filter=warmpath.router.{name}"));
    answer.map(|a| String::from_utf8_lossy(&a.body).into_owned()).unwrap_or_default()
}
