//! What an engine's `/metrics` say: how busy it is, which ranks it has, whether it sleeps.

use std::collections::{BTreeMap, BTreeSet};

use super::ranks::Rank;
use super::report::{Engines, Load, Sleep};
use super::sample::Sample;

/// Data-parallel ranks that are believed of one API.
const MAX_RANKS: usize = 1024;

/// What `/metrics` says.
#[derive(Debug, PartialEq)]
pub(crate) struct Page {
    /// None where none of the known gauges is there.
    pub(crate) load: Option<Load>,
    pub(crate) engines: Engines,
    pub(crate) sleep: Option<Sleep>,
    /// Whether it keeps a prefix cache, where it says so: `vllm:cache_config_info`, whose labels are
    /// the fields of its `CacheConfig` (vLLM 0.32.0, `config/cache.py`, `metrics_info`).
    pub(crate) caches: Option<bool>,
    /// It speculates: vLLM 0.32.0 (`v1/spec_decode/metrics.py`) has such counters only then.
    pub(crate) speculates: bool,
}

/// Whose a gauge is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// It has no label of a rank.
    All,
    Rank(u32),
    /// Its label is no number.
    Other,
}

/// Reads vLLM's or SGLang's gauges out of Prometheus text. Gauges of several models or ranks add up
/// (KV usage: the highest), but for those with an `engine` or `dp_rank` label of another rank.
pub(crate) fn parse(text: &str, rank: Rank) -> Page {
    let mut loads: BTreeMap<Owner, (Load, bool)> = BTreeMap::new();
    let mut ranks = BTreeSet::new();
    let mut sleep = None;
    let mut caches = None;
    let mut speculates = false;
    let mut complete = true;
    let mut kind = None;
    for line in text.lines() {
        let name = Sample::name_of(line);
        let of = || KINDS.into_iter().find(|kind| name.strip_prefix(kind).is_some_and(is_of));
        speculates |= name.starts_with("vllm:spec_decode_");
        // Most lines are of other metrics: their labels aren't looked at.
        if !GAUGES.contains(&name) && (kind.is_some() || of().is_none()) {
            continue;
        }
        let Some(sample) = Sample::parse(line) else { continue };
        kind = kind.or_else(of);
        let (owner, vllm) = owner(&sample);
        let value = sample.value;
        let waits = match name {
            "vllm:num_requests_waiting" | "sglang:num_queue_reqs" => true,
            "vllm:num_requests_running" | "sglang:num_running_reqs" => false,
            "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" | "sglang:token_usage" => {
                if value.is_finite() {
                    let (load, _) = loads.entry(owner).or_default();
                    load.kv_usage = load.kv_usage.max(value.clamp(0.0, 1.0) as f32);
                }
                continue;
            }
            "vllm:engine_sleep_state" => {
                // The engines of an API sleep together.
                match sample.label("sleep_state") {
                    Some("awake") if value < 0.5 => sleep = sleep.or(Some(Sleep::Paused)),
                    Some("weights_offloaded" | "discard_all") if value > 0.5 => {
                        sleep = Some(Sleep::Emptied);
                    }
                    _ => {}
                }
                continue;
            }
            // The engines of an API are configured alike.
            "vllm:cache_config_info" => {
                match sample.label("enable_prefix_caching") {
                    Some("True") => caches = Some(true),
                    Some("False") => caches = caches.or(Some(false)),
                    _ => {}
                }
                continue;
            }
            _ => continue,
        };
        if let Owner::Rank(number) = owner
            && ranks.len() < MAX_RANKS
        {
            ranks.insert(number);
            complete &= vllm;
        }
        // Nobody has a billion requests: what says so is broken.
        if (0.0..1e9).contains(&value) {
            let (load, found) = loads.entry(owner).or_default();
            let gauge = if waits { &mut load.waiting } else { &mut load.running };
            *gauge = gauge.saturating_add(value as u32);
            *found = true;
        }
    }
    let complete = complete && !ranks.is_empty();
    let engines = Engines { ranks: ranks.into_iter().collect(), complete, kind };
    let wanted = rank.label(&engines).map(Owner::Rank);
    let mut sum = (Load::default(), false);
    for (owner, (load, found)) in loads {
        if owner == Owner::All || wanted.is_none_or(|wanted| wanted == owner) {
            sum.0.waiting = sum.0.waiting.saturating_add(load.waiting);
            sum.0.running = sum.0.running.saturating_add(load.running);
            sum.0.kv_usage = sum.0.kv_usage.max(load.kv_usage);
            sum.1 |= found;
        }
    }
    Page { load: sum.1.then_some(sum.0), engines, sleep, caches, speculates }
}

/// Kinds of engines, as the names of their metrics begin.
const KINDS: [&str; 2] = ["vllm", "sglang"];

/// The gauges that are read.
const GAUGES: [&str; 9] = [
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:engine_sleep_state",
    "vllm:cache_config_info",
    "sglang:num_queue_reqs",
    "sglang:num_running_reqs",
    "sglang:token_usage",
];

/// Whether a name that begins with an engine's kind is one of its metrics.
fn is_of(rest: &str) -> bool {
    rest.starts_with(':')
}

/// Whose the labels say it is, and whether in vLLM's way.
fn owner(sample: &Sample<'_>) -> (Owner, bool) {
    let rank = |label: &str| label.parse().map_or(Owner::Other, Owner::Rank);
    match (sample.label("engine"), sample.label("dp_rank")) {
        (Some(label), _) => (rank(label), true),
        (None, Some(label)) => (rank(label), false),
        (None, None) => (Owner::All, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str, header: Option<u32>) -> Option<Load> {
        parse(text, Rank { header, events: None }).load
    }

    #[test]
    fn reads_vllm() {
        let text = "# HELP vllm:num_requests_running Number\n\
            vllm:num_requests_running{engine=\"0\",model_name=\"a b, c\"} 3.0\n\
            vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 2.0\n\
            vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 9.0\n\
            vllm:num_requests_waiting{engine=\"1\",model_name=\"tiny\"} 5.0\n\
            vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.25\n\
            vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"tiny\"} 0.5\n";
        let all = Load { waiting: 7, running: 3, kv_usage: 0.5 };
        assert_eq!(load(text, None), Some(all));
        let first = Load { waiting: 2, running: 3, kv_usage: 0.25 };
        assert_eq!(load(text, Some(0)), Some(first));
        // A node of a hybrid deployment: its first rank is the third of all.
        let second =
            text.replace("engine=\"1\"", "engine=\"3\"").replace("engine=\"0\"", "engine=\"2\"");
        assert_eq!(load(&second, Some(0)), Some(first));
        assert_eq!(load(&second, Some(2)), Some(first));
        assert_eq!(load(&second, Some(7)), None);
        let page = parse(&second, Rank::default());
        assert_eq!(page.engines, Engines { ranks: vec![2, 3], complete: true, kind: Some("vllm") });
    }

    #[test]
    fn what_a_label_says_is_not_taken_for_another_label() {
        let text = "vllm:num_requests_running{model_name=\"a,engine=\\\"7\\\",b\",engine=\"1\"} 3.0\n\
            vllm:num_requests_waiting{model_name=\"x} 9\",engine=\"1\"} 2.0\n\
            vllm:engine_sleep_state{model_name=\"sleep_state=\\\"awake\\\"\",sleep_state=\"none\"} 0\n\
            vllm:cache_config_info{model=\"enable_prefix_caching=\\\"False\\\"\",engine=\"1\"} 1\n";
        let page = parse(text, Rank::default());
        assert_eq!(page.engines.ranks, [1]);
        let comma = "vllm:num_requests_running{model_name=\"a,engine=7\",engine=\"1\"} 3.0";
        assert_eq!(parse(comma, Rank::default()).engines.ranks, [1]);
        assert_eq!(page.load, Some(Load { waiting: 2, running: 3, kv_usage: 0.0 }));
        assert_eq!((page.sleep, page.caches), (None, None));
    }

    #[test]
    fn reads_whether_vllm_keeps_a_prefix_cache() {
        let page = |value: &str| {
            let labels =
                format!("block_size=\"32\",enable_prefix_caching=\"{value}\",engine=\"0\"");
            parse(&format!("vllm:cache_config_info{{{labels}}} 1.0\n"), Rank::default())
        };
        assert_eq!(page("True").caches, Some(true));
        assert_eq!(page("False").caches, Some(false));
        assert_eq!(page("None").caches, None, "another value says nothing");
        assert!(page("False").engines.ranks.is_empty(), "the label is no rank's load");
        assert_eq!(parse("vllm:num_requests_running 1\n", Rank::default()).caches, None);
    }

    #[test]
    fn reads_whether_vllm_speculates() {
        let text = "vllm:num_requests_running{engine=\"0\"} 1.0\n";
        assert!(!parse(text, Rank::default()).speculates);
        // From its start on, at 0.
        let counter = "vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"m\"} 0.0\n";
        assert!(parse(&format!("{text}{counter}"), Rank::default()).speculates);
    }

    #[test]
    fn reads_how_deep_vllm_sleeps() {
        let page = |awake: u8, offloaded: u8, discarded: u8| {
            let line = |state: &str, value: u8| {
                let labels = format!("engine=\"0\",model_name=\"m\",sleep_state=\"{state}\"");
                format!("vllm:engine_sleep_state{{{labels}}} {value}.0\n")
            };
            let states = [("awake", awake), ("weights_offloaded", offloaded)];
            let states = states.into_iter().chain([("discard_all", discarded)]);
            let text: String = states.map(|(state, value)| line(state, value)).collect();
            parse(&text, Rank::default()).sleep
        };
        assert_eq!(page(1, 0, 0), None);
        assert_eq!(page(0, 0, 0), Some(Sleep::Paused));
        assert_eq!(page(0, 1, 0), Some(Sleep::Emptied));
        assert_eq!(page(0, 0, 1), Some(Sleep::Emptied));
        assert_eq!(parse("", Rank::default()).sleep, None);
    }

    #[test]
    fn reads_sglang_and_refuses_the_rest() {
        let text = "sglang:num_queue_reqs{model_name=\"m\"} 4\n\
            sglang:num_running_reqs{model_name=\"m\"} 1.0 1700000000\n\
            sglang:token_usage{model_name=\"m\"} NaN\nsglang:token_usage 7\n";
        assert_eq!(load(text, None), Some(Load { waiting: 4, running: 1, kv_usage: 1.0 }));
        assert_eq!(load("", None), None);
        let ranks = parse("sglang:num_queue_reqs{dp_rank=\"1\"} 4", Rank::default()).engines;
        assert_eq!(ranks, Engines { ranks: vec![1], complete: false, kind: Some("sglang") });
        assert_eq!(
            load("vllm:num_requests_running{ -1\nvllm:num_requests_waiting nan", None),
            None
        );
    }
}
