//! What engines say of their caches comes back whichever API was asked: forecasts are held against
//! it, and where they fail it is told of. What says nothing of the map is not held against it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use serde_json::{Value, json};
use warmpath_tests::{Answer, Client, Options, Stack, eventually, system_prompt};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

fn stack(change: impl FnOnce(&mut Options)) -> Stack {
    let mut options = Options::quickstart().unwrap();
    options.engine_flags = ["--speedup", "20"].map(String::from).into();
    change(&mut options);
    Stack::start(options).unwrap()
}

fn stat(stack: &Stack, name: &str) -> u64 {
    stack.stat(&format!("wasmcustom.warmpath.router.{name}")).unwrap()
}

/// Cached tokens as expected and as told, and how many answers told of them.
fn told(stack: &Stack) -> [u64; 3] {
    let [expected, actual] =
        ["expected", "actual"].map(|what| stat(stack, &format!("told_{what}_cached_tokens.demo")));
    [expected, actual, stat(stack, "answers.told")]
}

fn body(path: &str, system: &str, question: &str, stream: bool) -> Value {
    let user = json!([{"role": "user", "content": question}]);
    match path {
        COMPLETIONS => json!({
            "model": "demo", "max_tokens": 3, "stream": stream,
            "stream_options": {"include_usage": true}, "prompt": format!("{system} {question}")
        }),
        CHAT => json!({
            "model": "demo", "max_tokens": 3, "stream": stream,
            "stream_options": {"include_usage": true},
            "messages": [{"role": "system", "content": system}, user[0]]
        }),
        // What the client sends comes back, and has a `usage` of its own.
        RESPONSES => json!({
            "model": "demo", "max_output_tokens": 3, "stream": stream,
            "instructions": system, "input": question,
            "metadata": {"usage": "{\"input_tokens\":1}"}, "user": "x".repeat(3_000)
        }),
        _ => json!({
            "model": "demo", "max_tokens": 3, "stream": stream, "system": system, "messages": user
        }),
    }
}

fn ask(client: &Client, path: &str, system: &str, question: &str, stream: bool) -> Answer {
    let body = body(path, system, question, stream).to_string();
    let answer = client.post("eu", path, &[], body.as_bytes()).unwrap();
    assert_eq!(answer.status, 200, "{path}: {}", String::from_utf8_lossy(&answer.body));
    answer
}

/// Cached tokens by the engine's own word, the last of them.
fn cached(answer: &Answer, path: &str) -> u64 {
    let name = if path == MESSAGES { "cache_read_input_tokens" } else { "cached_tokens" };
    let text = String::from_utf8_lossy(&answer.body);
    let (_, rest) = text.rsplit_once(&format!("\"{name}\":")).unwrap();
    rest.split([',', '}']).next().unwrap().parse().unwrap()
}

#[test]
fn forecasts_hold_and_are_counted_in_every_api() {
    let stack = stack(|_| {});
    let client = stack.client();
    for path in [COMPLETIONS, CHAT, RESPONSES, MESSAGES] {
        let system = system_prompt(&format!("what {path} caches"));
        eventually("a warm decision", || {
            let answer = ask(&client, path, &system, "Ready?", false);
            answer.explained("reason") == "warm"
        });
        for stream in [false, true] {
            let before = told(&stack);
            let mut actual = 0;
            for question in 0..10 {
                // What the engine stored for one question is announced before the next is asked.
                std::thread::sleep(Duration::from_millis(50));
                let question = format!("Question {question}, {stream}?");
                let answer = ask(&client, path, &system, &question, stream);
                let cached = cached(&answer, path);
                assert_eq!(answer.explained("reason"), "warm");
                assert_eq!(answer.explained("cached"), cached.to_string(), "{path}, {stream}");
                assert!(cached > 500, "{cached}");
                actual += cached;
            }
            eventually("all answers to be counted", || told(&stack)[2] - before[2] == 10);
            let after = told(&stack);
            let grown = [after[0] - before[0], after[1] - before[1]];
            assert_eq!(grown, [actual; 2], "{path}, stream: {stream}");
        }
        for kind in ["missing", "surprise"] {
            assert_eq!(stat(&stack, &format!("drifting.{kind}")), 0, "{path}");
        }
    }
    assert_eq!(stat(&stack, "drift_began"), 0);
}

#[test]
fn a_wrong_template_shows_in_responses_and_in_messages_alone() {
    for path in [RESPONSES, MESSAGES] {
        let other = tempfile::tempdir().unwrap();
        let stack = stack(|options| {
            // The relay reads a template that is not the engines': one word more.
            let model = options.model.canonicalize().unwrap();
            for file in ["tokenizer.json", "tokenizer_config.json"] {
                let text = std::fs::read_to_string(model.join(file)).unwrap();
                let wrong =
                    text.replace("'<|im_start|>system\\\\n'", "'<|im_start|>dear system\\\\n'");
                assert_eq!(wrong == text, file == "tokenizer.json", "{file}");
                std::fs::write(other.path().join(file), wrong).unwrap();
            }
            let path = |path: &std::path::Path| path.to_string_lossy().into_owned();
            options.relay_edits = vec![(path(&model), path(other.path()))];
        });
        let client = stack.client();
        let system = system_prompt("a template");
        let mut asked = 0;
        eventually("the drift to be told", || {
            // What was sent a moment before may well be cached and is no surprise.
            std::thread::sleep(Duration::from_millis(100));
            ask(&client, path, &system, "Same?", asked % 2 == 0);
            asked += 1;
            stat(&stack, "drift_began") > 0
        });
        assert!(asked <= 60, "{path}: {asked} requests");
        eventually("the gauge", || stat(&stack, "drifting.surprise") > 0);
        let logs = stack.logs();
        let line = logs.lines().find(|line| line.contains("drift apart")).unwrap();
        assert!(line.contains("suspect template"), "{path}: {line}");
    }
}

#[test]
fn an_emptied_cache_shows_in_responses_and_in_messages_alone() {
    let stack = stack(|_| {});
    let client = stack.client();
    for path in [RESPONSES, MESSAGES] {
        let system = system_prompt(&format!("forgetting, by {path}"));
        eventually("a warm decision", || {
            ask(&client, path, &system, "Ready?", false).explained("reason") == "warm"
        });
        let mut asked = 0;
        eventually("the evictions to be told", || {
            for engine in [0, 1] {
                let reset = stack.engine_client(engine).post("eu", "/reset_prefix_cache", &[], b"");
                assert_eq!(reset.unwrap().status, 200);
            }
            let answer = ask(&client, path, &system, "Still there?", asked % 2 == 0);
            assert_eq!(cached(&answer, path), 0);
            asked += 1;
            std::thread::sleep(Duration::from_millis(200));
            stat(&stack, "suspect.evictions") == 1
        });
        assert!(asked <= 25, "{path}: {asked} requests");
        // The other engine may be suspect, too, and isn't asked.
        let agree = || stack.logs().matches("agree again").count();
        let before = agree();
        eventually("agreement", || {
            ask(&client, path, &system, "Still there?", false);
            agree() > before
        });
        assert_eq!(stat(&stack, "drift_began"), 0, "the map was right");
    }
}

#[test]
fn what_reads_no_cache_or_counts_other_prompts_raises_no_alarm() {
    let stack = stack(|_| {});
    let client = stack.client();
    let system = system_prompt("prompts that are read anew");
    eventually("a warm decision", || {
        ask(&client, COMPLETIONS, &system, "Ready?", false).explained("reason") == "warm"
    });
    let chat = |more: Value| (CHAT, body(CHAT, &system, "Ready?", false), more);
    let text = |more: Value| (COMPLETIONS, body(COMPLETIONS, &system, "Ready?", false), more);
    for ((path, mut body, more), unread) in [
        (text(json!({"echo": true, "logprobs": 1})), true),
        (chat(json!({"echo": true})), true),
        (text(json!({"prompt_logprobs": 0, "stream": true})), true),
        (text(json!({"prompt": [system, "something else, and short"]})), false),
    ] {
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let before = told(&stack);
        for _ in 0..12 {
            std::thread::sleep(Duration::from_millis(40));
            let answer = client.post("eu", path, &[], body.to_string().as_bytes()).unwrap();
            assert_eq!(answer.status, 200, "{more}");
            let reason = answer.explained("reason");
            assert_eq!(reason, if unread { "cold" } else { "warm" }, "{more}");
            if unread {
                assert_eq!(
                    (answer.cached_tokens(), answer.explained("cached")),
                    (0, "0"),
                    "{more}"
                );
            }
        }
        let after = told(&stack);
        assert_eq!(after[..2], before[..2], "none expected, none told: {more}");
        assert_eq!(stat(&stack, "drift_began"), 0, "{more}");
    }
}
