//! The access log says how a request was routed, unless it is told not to.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use warmpath_tests::{Options, Stack, eventually};

/// The access log's lines of chats.
fn lines(stack: &Stack) -> Vec<String> {
    stack.client().chat("eu", "You help.", "A question?").unwrap();
    let lines = || -> Vec<String> {
        let logs = stack.logs();
        logs.lines()
            .filter(|l| l.contains("POST /v1/chat/completions"))
            .map(str::to_owned)
            .collect()
    };
    eventually("a line in the access log", || !lines().is_empty());
    lines()
}

#[test]
fn decisions_are_logged() {
    let stack = Stack::start(Options::quickstart().unwrap()).unwrap();
    let lines = lines(&stack);
    let says = |line: &String| {
        line.contains("warmpath: zone=\"eu\", region=\"eu-west\"") && line.contains("zone_from=")
    };
    assert!(lines.iter().all(says), "{lines:?}");
}

#[test]
fn or_not() {
    let mut options = Options::quickstart().unwrap();
    let silent = "\"explain\": true, \"log_decision\": false,";
    options.envoy_edits = vec![("\"explain\": true,".into(), silent.into())];
    let stack = Stack::start(options).unwrap();
    let lines = lines(&stack);
    assert!(lines.iter().all(|line| line.ends_with("warmpath: -")), "{lines:?}");
}
