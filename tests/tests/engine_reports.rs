//! What engines say of themselves: their load with each answer, their models at `/v1/models`.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use warmpath_tests::{Options, Stack, eventually, system_prompt};

#[test]
fn load_reports_are_read_and_adapters_are_learned() {
    let mut options = Options::quickstart().unwrap();
    let orca = "\"explain\": true, \"orca\": true,";
    options.envoy_edits = vec![("\"explain\": true,".into(), orca.into())];
    // Nobody tells the relay which adapters there are but the engines.
    options.engine_flags = ["--lora", "demo-lora"].map(String::from).into();
    options.relay_edits = vec![("adapters: []".into(), "from_engine: true".into())];
    let stack = Stack::start(options).unwrap();
    let reports = || stack.stat("wasmcustom.warmpath.router.load_reports").unwrap();
    let before = reports();
    for question in 0..5 {
        let question = format!("Question {question}?");
        let answer = stack.client().chat("eu", "You help.", &question).unwrap();
        assert_eq!((answer.status, answer.header("endpoint-load-metrics")), (200, ""));
    }
    eventually("each answer's report", || reports() >= before + 5);

    let prompt = system_prompt("adapters");
    let body = serde_json::json!({"model": "demo-lora", "max_tokens": 1, "prompt": prompt});
    let send =
        || stack.client().post("eu", "/v1/completions", &[], body.to_string().as_bytes()).unwrap();
    eventually("a warm decision", || send().explained("reason") == "warm");
    let warm = send();
    let expected: u64 = warm.explained("cached").parse().unwrap();
    assert!(expected > 300);
    assert_eq!(warm.cached_tokens(), expected);
}
