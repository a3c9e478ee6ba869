//! What `explain` says of requests on given states.

use std::path::Path;

use super::*;

const BODY: &str = concat!(
    r#"{"model": "demo", "messages": [{"role": "user", "content": "Please explain step by step "#,
    r#"how all of this works, what it would cost, and who would have to pay for it."}]}"#
);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The quick start's replicas, changed.
fn state(change: impl Fn(&mut Value)) -> State {
    let replica = |number: usize, pool: &str| {
        json!({"endpoint": format!("127.0.0.1:1800{number}"), "rank": null, "pool": pool,
            "model": "demo", "slot": number, "state": "READY", "hears_events": true,
            "block_tokens": 16, "requests_waiting": 0, "requests_running": 0, "kv_usage": 0.0})
    };
    let mut dump = json!({
        "streams": 1, "streams_opened": 1, "streams_too_slow": 0,
        "replicas": [replica(1, "demo-eu-west"), replica(2, "demo-eu-west"),
            replica(3, "demo-us-east"), replica(4, "demo-us-east")],
        "models": [{"name": "demo", "path": root().join("tests/fixtures/models/demo"), "version": "1"}]
    });
    change(&mut dump);
    let unique =
        format!("warmpath-explain-{}-{:?}.json", std::process::id(), std::thread::current().id());
    let file = std::env::temp_dir().join(unique);
    std::fs::write(&file, dump.to_string()).unwrap();
    let state = State::read(&file, None);
    std::fs::remove_file(&file).unwrap();
    state.unwrap()
}

fn report(state: &State, zone: Option<&str>, body: &str) -> Report {
    let text = std::fs::read_to_string(root().join("envoy/quickstart.yaml")).unwrap();
    let policy = check::policies(&text).unwrap().remove(0);
    let asked = Asked::read(state, &policy, None, body.as_bytes(), None, 0).unwrap();
    Report::new(&policy, state, zone, &asked)
}

fn field(report: &Report, name: &str) -> Value {
    report.json()["decision"][name].clone()
}

#[test]
fn the_cheapest_is_chosen_and_the_others_say_why_not() {
    let state = state(|dump| {
        dump["held"] = json!([{"endpoint": "127.0.0.1:18002", "blocks": 2},
            {"endpoint": "127.0.0.1:18004", "blocks": 1}]);
        dump["replicas"][0]["requests_waiting"] = json!(3);
    });
    let report = report(&state, Some("global"), BODY);
    assert_eq!(field(&report, "replica"), "127.0.0.1:18002");
    assert_eq!(field(&report, "reason"), "warm");
    assert_eq!(field(&report, "cached_tokens"), 32);
    assert_eq!(field(&report, "cluster"), "global.demo-eu-west");
    let of = |port: &str| report.rows.iter().find(|r| r.endpoint.ends_with(port)).unwrap();
    assert_eq!(report.rows.len(), 4);
    assert_eq!(report.rows[0].endpoint, "127.0.0.1:18002");
    assert_eq!(of("18002").why, "chosen: warm");
    assert_eq!(of("18001").queue_ms, Some(600.0));
    assert!(of("18001").why.contains("queue +600.0"), "{}", of("18001").why);
    assert_eq!(of("18004").cached_tokens, Some(16));
    assert!(of("18004").why.contains("network +79.0"), "{}", of("18004").why);
    for row in &report.rows {
        let parts = row.prefill_ms.unwrap() + row.network_ms.unwrap() + row.queue_ms.unwrap();
        assert!((parts - row.total_ms.unwrap()).abs() < 1e-9);
    }
    let text = report.text();
    let told = |line: &str| line.split_whitespace().eq(["zone_source", "--zone"]);
    assert!(text.contains("chosen: warm") && text.lines().any(told), "{text}");
}

#[test]
fn tiers_are_told_with_their_way_in() {
    let state = state(|dump| {
        dump["replicas"][1]["tiers"] =
            json!([{"tier": "CPU", "slot": 10, "announced_prefixes": 2}]);
        dump["held"] = json!([{"endpoint": "127.0.0.1:18002", "tier": "cpu", "blocks": 2}]);
    });
    let report = report(&state, Some("eu"), BODY);
    assert_eq!(field(&report, "replica"), "127.0.0.1:18002");
    assert_eq!(field(&report, "tier"), "cpu");
    assert_eq!(field(&report, "offloaded_tokens"), 32);
    assert_eq!(report.rows[0].load_ms, Some(0.48));
    assert!(report.text().contains("32 (32 cpu)"), "{}", report.text());
    assert!(report.rows[1].why.contains("load -0.5"), "{}", report.rows[1].why);
}

#[test]
fn the_order_is_the_decisions_own() {
    let state = state(|_| {});
    let report = report(&state, Some("eu"), BODY);
    assert_eq!(field(&report, "reason"), "cold");
    assert_eq!(field(&report, "replica"), report.rows[0].endpoint.as_str());
    assert!(report.rows[0].ring_place > report.rows[1].ring_place);
    assert_eq!(report.rows[1].why, "as cheap, later on the ring");
    for row in &report.rows[2..] {
        assert!(row.why.starts_with("outside zone eu: jurisdiction US"), "{}", row.why);
        assert_eq!((row.rank_in_order, row.total_ms), (None, None));
    }
}

#[test]
fn states_bounds_and_refusals_are_told() {
    let state = state(|dump| {
        dump["replicas"][0]["state"] = json!("DOWN");
        dump["replicas"][1]["in_flight"] = json!(40);
    });
    let routed = report(&state, Some("eu"), BODY);
    assert_eq!(routed.rows[0].endpoint, "127.0.0.1:18002", "the only one");
    assert_eq!((routed.rows[0].busy, routed.rows[0].full_at), (40, Some(52)));
    assert_eq!(routed.rows[1].why, "it does not answer");
    for (zone, code) in [(None, "zone_missing"), (Some("mars"), "zone_unknown")] {
        let refused = report(&state, zone, BODY);
        assert!(refused.refused);
        assert_eq!(field(&refused, "refused"), code);
    }
}

#[test]
fn a_prompt_that_is_not_read_says_why() {
    let unknown = state(|dump| dump["models"] = json!([]));
    let report_unknown = report(&unknown, Some("eu"), BODY);
    assert!(field(&report_unknown, "note").as_str().unwrap().contains("--relay"));
    let bad = report(&state(|_| {}), Some("eu"), "{");
    assert_eq!(field(&bad, "degrade"), "bad_request");
    let stale = state(|dump| dump["fresh"] = json!(false));
    assert_eq!(field(&report(&stale, Some("eu"), BODY), "degrade"), "stale_map");
}

#[test]
fn a_wrong_state_is_named() {
    let file = std::env::temp_dir().join(format!("warmpath-wrong-{}.json", std::process::id()));
    for (text, what) in [
        ("{}", "missing field `replicas`"),
        (r#"{"replicas": [{"endpoint": "a", "pool": "p", "state": "LOST"}]}"#, "\"LOST\""),
        (r#"{"replicas": [{"endpoint": 1}]}"#, "replicas[0].endpoint"),
        (r#"{"replicas": [], "held": [{"endpoint": "a"}]}"#, "held[0]: no replica"),
        (
            r#"{"replicas": [{"endpoint": "a", "pool": "p", "tiers": [{"tier": "tape", "slot": 9}]}]}"#,
            "\"tape\"",
        ),
        (
            r#"{"replicas": [{"endpoint": "a", "pool": "p"}], "held": [{"endpoint": "a", "tier": "cpu"}]}"#,
            "held[0].tier: a has no tier",
        ),
        (
            r#"{"replicas": [{"endpoint": "a", "pool": "p"}], "held": [{"endpoint": "a", "keys": ["zz"]}]}"#,
            "held[0].keys",
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = format!("{:#}", State::read(&file, None).err().unwrap());
        assert!(error.contains(what), "{error}");
    }
    std::fs::remove_file(&file).unwrap();
}
