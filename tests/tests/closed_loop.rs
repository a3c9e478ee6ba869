//! What engines say of their caches comes back: forecasts are counted against it, and one that
//! drifts away from it is told of.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use serde_json::json;
use warmpath_tests::{Options, Stack, eventually, system_prompt};

const CHAT: &str = "/v1/chat/completions";

fn stat(stack: &Stack, name: &str) -> u64 {
    stack.stat(&format!("wasmcustom.warmpath.router.{name}")).unwrap()
}

fn told(stack: &Stack) -> [u64; 3] {
    [
        stat(stack, "told_expected_cached_tokens.demo"),
        stat(stack, "told_actual_cached_tokens.demo"),
        stat(stack, "answers.told"),
    ]
}

#[test]
fn forecasts_hold_for_answers_and_for_streams() {
    let mut options = Options::quickstart().unwrap();
    options.engine_flags = ["--speedup", "20"].map(String::from).into();
    let stack = Stack::start(options).unwrap();
    let client = stack.client();
    let system = system_prompt("the closed loop");
    eventually("a warm decision", || {
        client.chat("eu", &system, "Ready?").unwrap().explained("reason") == "warm"
    });
    for stream in [false, true] {
        let before = told(&stack);
        let mut actual = 0;
        for question in 0..20 {
            // What the engine stored for one question is announced before the next is asked.
            std::thread::sleep(std::time::Duration::from_millis(50));
            let body = json!({
                "model": "demo", "max_tokens": 3, "stream": stream,
                "stream_options": {"include_usage": true},
                "messages": [
                    {"role": "system", "content": system},
                    {"role": "user", "content": format!("Question {question}, {stream}?")}
                ]
            });
            let answer = client.post("eu", CHAT, &[], body.to_string().as_bytes()).unwrap();
            assert_eq!((answer.status, answer.explained("reason")), (200, "warm"));
            let text = String::from_utf8(answer.body).unwrap();
            let (_, cached) = text.split_once("\"cached_tokens\":").unwrap();
            let cached: u64 = cached.split_once('}').unwrap().0.parse().unwrap();
            actual += cached;
        }
        eventually("all answers to be counted", || told(&stack)[2] - before[2] == 20);
        let after = told(&stack);
        assert_eq!(after[1] - before[1], actual, "stream: {stream}");
        assert_eq!(after[0] - before[0], actual, "what was expected is what was");
    }
    assert_eq!(stat(&stack, "drift_began"), 0);
    // A stream that isn't asked for its usage says nothing, and that is not taken for a zero.
    let untold = stat(&stack, "answers.untold");
    let body = json!({"model": "demo", "max_tokens": 3, "stream": true, "prompt": system});
    for _ in 0..10 {
        client.post("eu", "/v1/completions", &[], body.to_string().as_bytes()).unwrap();
    }
    eventually("the silent to be counted", || stat(&stack, "answers.untold") - untold == 10);
    assert_eq!(stat(&stack, "drift_began"), 0);
    // Prices were learned from the streams of engines that are far faster than the default.
    let learned = stat(&stack, "learned_prefill_base_us.demo-eu-west");
    assert!((1..20_000).contains(&learned), "{learned}");
}

#[test]
fn a_wrong_template_shows_within_tens_of_requests() {
    let mut options = Options::quickstart().unwrap();
    options.engine_flags = ["--speedup", "20"].map(String::from).into();
    // The relay reads a template that is not the engines': one word more before each message.
    let model = options.model.canonicalize().unwrap();
    let other = tempfile::tempdir().unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        let text = std::fs::read_to_string(model.join(file)).unwrap();
        let wrong = text.replace("'<|im_start|>system\\\\n'", "'<|im_start|>dear system\\\\n'");
        assert_eq!(wrong == text, file == "tokenizer.json", "{file}");
        std::fs::write(other.path().join(file), wrong).unwrap();
    }
    let path = |path: &std::path::Path| path.to_string_lossy().into_owned();
    options.relay_edits = vec![(path(&model), path(other.path()))];
    let stack = Stack::start(options).unwrap();
    let client = stack.client();
    let secret = "xyzzy plugh";
    let system = system_prompt(secret);
    let mut asked = 0;
    eventually("the drift to be told", || {
        // What was sent up to 2 s before may well be cached and is no surprise: a client that
        // doesn't wait sends more requests in that time than are of interest here.
        std::thread::sleep(std::time::Duration::from_millis(100));
        client.chat("eu", &system, "Same?").unwrap();
        asked += 1;
        stat(&stack, "drift_began") > 0
    });
    assert!(asked <= 60, "{asked} requests");
    eventually("the gauge", || stat(&stack, "drifting.surprise") > 0);
    assert_eq!(stat(&stack, "drifting.missing"), 0);
    let logs = stack.logs();
    let line = logs.lines().find(|line| line.contains("drift apart")).unwrap();
    assert!(line.contains("demo at 127.0.0.1") && line.contains("suspect tokenizer"), "{line}");
    assert!(!logs.contains(secret));
}

#[test]
fn caches_that_are_emptied_behind_the_map_s_back_show_as_evictions() {
    let mut options = Options::quickstart().unwrap();
    options.engine_flags = ["--speedup", "20"].map(String::from).into();
    let stack = Stack::start(options).unwrap();
    let client = stack.client();
    let system = system_prompt("the forgetful engine");
    eventually("a warm decision", || {
        client.chat("eu", &system, "Ready?").unwrap().explained("reason") == "warm"
    });
    let mut broken = 0;
    eventually("the drift to be told", || {
        // The event that tells of a reset comes with the next batch, as with vLLM: too late for the
        // request that makes that batch.
        for engine in [0, 1] {
            let reset = stack.engine_client(engine).post("eu", "/reset_prefix_cache", &[], b"");
            assert_eq!(reset.unwrap().status, 200);
        }
        let answer = client.chat("eu", &system, "Still there?").unwrap();
        assert_eq!(answer.cached_tokens(), 0);
        broken += u64::from(answer.explained("cached") != "0");
        std::thread::sleep(std::time::Duration::from_millis(200));
        stat(&stack, "drift_began") > 0
    });
    assert!((4..=12).contains(&broken), "{broken} broken promises");
    eventually("the gauge", || stat(&stack, "drifting.missing") == 1);
    let logs = stack.logs();
    let line = logs.lines().find(|line| line.contains("drift apart")).unwrap();
    assert!(line.contains("missing") && line.contains("suspect evictions"), "{line}");
    // Once promises are kept again the drift ends.
    eventually("agreement", || {
        client.chat("eu", &system, "Still there?").unwrap();
        stat(&stack, "drifting.missing") == 0
    });
    assert!(stack.logs().contains("agree again"));
}
