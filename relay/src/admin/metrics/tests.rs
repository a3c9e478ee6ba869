//! That names, types, help and labels stay what dashboards and alerts were made for.

use std::collections::BTreeMap;

use super::render;
use crate::index::{GroupSummary, Judged, Seen};
use crate::state::{EndsSummary, PoolMismatch, ReplicaSummary, StoreSummary, Summary, TierSummary};

/// The text before metrics were encoded by a library.
const EXPECTED: &str = include_str!("expected.txt");

fn seen(from: u64) -> Seen {
    Seen {
        blocks_stored: from,
        blocks_removed: from + 1,
        clears: from + 2,
        stores_repeated: from + 3,
        removals_unknown: from + 4,
        blocks_nameless: from + 5,
        waiting_dropped: from + 6,
        evicted: from + 7,
        other_group: from + 8,
        other_medium: from + 9,
        events_unknown: from + 10,
        events_unusable: from + 11,
    }
}

/// A replica whose every value differs from the others'.
fn replica() -> ReplicaSummary {
    ReplicaSummary {
        endpoint: "10.0.0.1:8000".into(),
        rank: Some(3),
        events_rank: Some(3),
        engine_ranks: vec![3],
        engine_kind: Some("vllm"),
        other_engine: None,
        rank_problem: Some("out_of_range"),
        pool: "eu, \"west\" \\ 1\n".into(),
        model: "demo".into(),
        slot: 7,
        state: "READY",
        hears_events: true,
        silent_under_load: false,
        drained_by_hand: false,
        asleep: None,
        wrong_model: Some("other".into()),
        root: None,
        other_root: true,
        caches_nothing: false,
        speculates_unsaid: false,
        adapters: Some(vec!["a".into(), "b".into()]),
        last_sequence: Some(9),
        block_tokens: 32,
        dropped_tokens: 0,
        weight: 1.0,
        held_engine_blocks: 101,
        known_engine_blocks: 102,
        announced_prefixes: 5_000_000_000,
        joined_late: true,
        taught_prefixes: 104,
        taught: Judged { learned: 105, refuted: 106, expired: 107, crowded: 108, loose: 109 },
        tiers: vec![TierSummary { tier: "cpu", slot: 8, announced_prefixes: 110 }],
        groups: vec![GroupSummary {
            group: 1,
            what: "sliding window of 128 tokens".into(),
            block_tokens: 16,
            counted: true,
        }],
        ends: Some(EndsSummary { slot: 9, announced: 111 }),
        waiting_tokens: 112,
        requests_waiting: Some(1),
        requests_running: Some(2),
        kv_usage: Some(0.5),
        rtt_ms: Some(0.1),
        batches: 113,
        connects: 114,
        disconnects: 115,
        gaps: 116,
        restarts: 117,
        replays: 118,
        replays_failed: 119,
        polls_failed: 120,
        frames_skipped: BTreeMap::from([("other_rank", 121), ("parts", 122)]),
        view_cleared: BTreeMap::from([("gap", 123)]),
        events: seen(200),
    }
}

fn summary() -> Summary {
    let plain = ReplicaSummary {
        endpoint: "[::1]:8000".into(),
        rank: None,
        pool: "us".into(),
        state: "DOWN",
        tiers: Vec::new(),
        groups: Vec::new(),
        ends: None,
        adapters: None,
        frames_skipped: BTreeMap::new(),
        view_cleared: BTreeMap::new(),
        ..replica()
    };
    Summary {
        streams: 2,
        streams_opened: 3,
        streams_too_slow: 1,
        replicas: vec![replica(), plain],
        stores: vec![StoreSummary {
            store: "lm\"cache".into(),
            slot: 10,
            held_blocks: 300,
            announced_prefixes: 301,
            view_cleared: 302,
            events: seen(310),
        }],
        pool_mismatches: vec![PoolMismatch {
            pool: "eu".into(),
            model: "a\\b".into(),
            problem: "not_in_policy",
            policy_models: std::collections::BTreeSet::new(),
            gateways: 4,
            nodes: std::collections::BTreeSet::new(),
        }],
    }
}

#[test]
fn the_text_is_what_it_was_before() {
    let sources =
        vec![("dns/vllm".to_owned(), [1, 2, 3]), ("kubernetes/-/x".to_owned(), [0, 0, 7])];
    assert_eq!(render(summary(), sources).unwrap(), EXPECTED);
}

#[test]
fn a_relay_without_replicas_still_names_its_metrics() {
    let none = Summary { replicas: vec![], stores: vec![], pool_mismatches: vec![], ..summary() };
    let text = render(none, vec![]).unwrap();
    let types = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with('#')).map(str::to_owned).collect()
    };
    assert_eq!(types(&text), types(EXPECTED));
}
