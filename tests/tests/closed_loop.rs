//! What engines say of their caches comes back: forecasts are counted against it, and one that
//! drifts away from it is told of.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use warmpath_tests::{Client, Options, Stack, eventually, system_prompt};

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
    forecasts_hold(options);
}

#[test]
fn forecasts_hold_of_engines_that_give_back_a_block() {
    let mut options = Options::quickstart().unwrap();
    let flags = ["--speedup", "20", "--speculative-config", r#"{"method": "mtp"}"#];
    options.engine_flags = flags.map(String::from).into();
    let said = "adapters: []\n    speculative_config: { method: mtp }";
    options.relay_edits = vec![("adapters: []".into(), said.into())];
    forecasts_hold(options);
}

#[test]
fn a_block_that_nobody_said_is_given_back_is_named() {
    let mut options = Options::quickstart().unwrap();
    let flags = ["--speedup", "20", "--speculative-config", r#"{"method": "mtp"}"#];
    options.engine_flags = flags.map(String::from).into();
    let stack = Stack::start(options).unwrap();
    let client = stack.client();
    // A block of 16 is much of a short prompt.
    let ask = |question: usize| {
        let prompt =
            format!("Please tell me which of these is the eighth day of a week: {}", question % 3);
        client.chat("eu", &prompt, "Say it in one word.").unwrap()
    };
    let mut asked = 0;
    while stat(&stack, "drift_began") == 0 {
        ask(asked);
        asked += 1;
        assert!(asked <= 4 * MOST, "never told");
        std::thread::sleep(Duration::from_millis(60));
    }
    let logs = stack.logs();
    assert!(logs.contains("suspect block_size:"), "{logs}");
}

/// Chats whose answers say what was expected, and an alarm that keeps quiet.
fn forecasts_hold(options: Options) {
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
            std::thread::sleep(Duration::from_millis(50));
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

/// Each cause has to be named within so many requests.
const MOST: usize = 25;

const SUSPECTS: [&str; 7] =
    ["tokenizer", "template", "version", "events", "evictions", "prefix_caching", "block_size"];

fn suspects(stack: &Stack) -> Vec<&'static str> {
    let is = |name: &&str| stat(stack, &format!("suspect.{name}")) > 0;
    SUSPECTS.into_iter().filter(is).collect()
}

fn fast() -> Options {
    let mut options = Options::quickstart().unwrap();
    options.engine_flags = ["--speedup", "20"].map(String::from).into();
    options
}

/// The model, with one of its files changed.
fn other_model(options: &Options, file: &str, from: &str, to: &str) -> tempfile::TempDir {
    let other = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let text = std::fs::read_to_string(options.model.join(name)).unwrap();
        let changed = if name == file { text.replace(from, to) } else { text.clone() };
        assert_eq!(changed != text, name == file, "{name}");
        std::fs::write(other.path().join(name), changed).unwrap();
    }
    other
}

/// The relay reads another model's files than the engines do.
fn misread(options: &mut Options, other: &Path) {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    options.relay_edits = vec![(path(&options.model.canonicalize().unwrap()), path(other))];
}

/// Chats of several system prompts, with questions of their own; nobody waits for the answers' events.
fn chats(client: &Client, from: usize, count: usize) {
    let words = ["harbour", "timetable", "invoice", "museum", "ferry", "weather", "bridge"];
    for n in from..from + count {
        let system = system_prompt(&format!("the {} office", words[n % 3]));
        let question: Vec<&str> = (0..3 + n % 5).map(|at| words[(n * 3 + at) % 7]).collect();
        let answer = client.chat("eu", &system, &question.join(" ")).unwrap();
        assert_eq!(answer.status, 200);
    }
}

/// Asks 25 times, and gives what is suspected then, and the log's lines.
fn alarm(stack: &Stack, ask: impl FnOnce()) -> (Vec<&'static str>, Vec<String>) {
    ask();
    // What became of the last answers shows in a moment.
    std::thread::sleep(Duration::from_millis(1_200));
    let logs = stack.logs();
    let told = logs.lines().filter(|line| line.contains("router: ") && line.contains("suspect "));
    (suspects(stack), told.map(str::to_owned).collect())
}

fn assert_named(stack: &Stack, told: &(Vec<&'static str>, Vec<String>), suspect: &str) {
    assert_eq!(told.0, [suspect], "{:#?}", told.1);
    assert!(stat(stack, "drift_began") > 0);
    assert!(!told.1.is_empty());
    for line in &told.1 {
        assert!(line.contains(&format!("suspect {suspect}: ")), "{line}");
        assert!(line.contains("demo at 127.0.0.1"), "{line}");
    }
    assert!(!stack.logs().contains("harbour"), "prompts stay out of logs");
}

#[test]
fn a_template_off_by_a_newline_is_named() {
    // As many tokens, or one more for each message.
    for (from, to) in [
        ("'<|im_start|>system\\\\n'", "'<|im_start|>system\\\\n\\\\n'"),
        ("'<|im_start|>system\\\\n'", "'<|im_start|>dear system\\\\n'"),
    ] {
        let mut options = fast();
        let other = other_model(&options, "tokenizer_config.json", from, to);
        misread(&mut options, other.path());
        let stack = Stack::start(options).unwrap();
        let told = alarm(&stack, || chats(&stack.client(), 0, MOST));
        assert_named(&stack, &told, "template");
        assert!(stat(&stack, "drifting.surprise") > 0);
        assert_eq!(stat(&stack, "drifting.missing"), 0);
    }
}

#[test]
fn a_wrong_tokenizer_is_named() {
    let mut options = fast();
    // Without some of its merges texts come to other tokens, and to more of them.
    let other = other_model(&options, "tokenizer.json", "[\"Ġ\",\"t\"],", "");
    misread(&mut options, other.path());
    let stack = Stack::start(options).unwrap();
    let told = alarm(&stack, || chats(&stack.client(), 0, MOST));
    assert_named(&stack, &told, "tokenizer");
}

#[test]
fn lost_events_are_named() {
    for same in [true, false] {
        let mut options = fast();
        options.engine_flags.push("--fault-lose-events".into());
        let stack = Stack::start(options).unwrap();
        let client = stack.client();
        if !same {
            // Where nothing was cached vLLM says nothing, so that once it has to have told.
            for _ in 0..2 {
                client.chat("eu", &system_prompt("the first"), "What?").unwrap();
            }
        }
        let told = alarm(&stack, || {
            for n in 0..MOST {
                // What was sent a moment before may well be cached, its events being under way.
                std::thread::sleep(Duration::from_millis(150));
                if same {
                    chats(&client, n, 1);
                } else {
                    // Nobody asks twice: there is nothing that an engine could have told of.
                    client.chat("eu", &format!("{n} {}", system_prompt("new")), "What?").unwrap();
                }
            }
        });
        assert_named(&stack, &told, "events");
        let kind = if same { "drifting.surprise" } else { "drifting.unannounced" };
        assert!(stat(&stack, kind) > 0);
    }
}

#[test]
fn an_engine_without_a_prefix_cache_is_named_before_any_request() {
    let mut options = fast();
    options.engine_flags.push("--no-enable-prefix-caching".into());
    let stack = Stack::start(options).unwrap();
    eventually("the hint", || stat(&stack, "suspect.prefix_caching") == 4);
    let told = alarm(&stack, || chats(&stack.client(), 0, MOST));
    assert_eq!(told.0, ["prefix_caching"], "{told:?}");
    assert_eq!(stat(&stack, "drifting.unannounced"), 4);
    assert_eq!(stat(&stack, "drift_began"), 4, "each once, by one of the workers");
}

#[test]
fn another_version_on_one_replica_is_named() {
    let mut options = fast();
    let newline = ("'<|im_start|>system\\\\n'", "'<|im_start|>system\\\\n\\\\n'");
    let other = other_model(&options, "tokenizer_config.json", newline.0, newline.1);
    options.models[0] = Some(other.path().to_owned());
    let stack = Stack::start(options).unwrap();
    let told = alarm(&stack, || chats(&stack.client(), 0, MOST));
    let odd = stack.endpoint(0);
    assert_named(&stack, &told, "version");
    assert!(told.1.iter().all(|line| line.contains(&odd)), "{odd}: {told:?}");
    assert_eq!(stat(&stack, "suspect.version"), 1);
}

#[test]
fn a_cache_shorter_than_what_is_in_flight_is_no_fault_of_the_map() {
    let mut options = fast();
    options.engine_flags = ["--speedup", "4", "--block-size", "32"].map(String::from).into();
    options.engine_flags.extend(["--num-gpu-blocks-override", "110"].map(String::from));
    let stack = Stack::start(options).unwrap();
    let port = stack.client().port();
    let (mut right, mut wrong) = (0, 0);
    std::thread::scope(|scope| {
        let talk = |worker: usize| {
            let client = Client::new(port);
            let (mut right, mut wrong) = (0, 0);
            let mut text = system_prompt(&format!("worker {worker}"));
            for turn in 0..20 {
                let answer = client.chat("eu", &text, "And then?").unwrap();
                assert_eq!(answer.status, 200);
                let expected = answer.explained("cached");
                if expected == answer.cached_tokens().to_string() {
                    right += 1;
                } else {
                    wrong += 1;
                }
                text.extend([" Answer ", &turn.to_string(), " was short."]);
            }
            (right, wrong)
        };
        let workers: Vec<_> = (0..8).map(|worker| scope.spawn(move || talk(worker))).collect();
        for worker in workers {
            let (r, w) = worker.join().unwrap();
            (right, wrong) = (right + r, wrong + w);
        }
    });
    std::thread::sleep(Duration::from_millis(1_200));
    assert!(wrong > 20, "{right} right, {wrong} wrong: nothing was caused");
    assert_eq!(stat(&stack, "drift_began"), 0, "{}", stack.logs());
    assert_eq!(suspects(&stack), ["evictions"], "{right} right, {wrong} wrong");
    let logs = stack.logs();
    let line = logs.lines().find(|line| line.contains("leave the cache")).unwrap();
    assert!(line.contains("evictions: the cache is too short"), "{line}");
}

#[test]
fn caches_that_are_emptied_show_as_evictions() {
    let stack = Stack::start(fast()).unwrap();
    let client = stack.client();
    let system = system_prompt("the forgetful engine");
    eventually("a warm decision", || {
        client.chat("eu", &system, "Ready?").unwrap().explained("reason") == "warm"
    });
    let mut broken = 0;
    eventually("the evictions to be told", || {
        // The event that tells of a reset comes with the next batch, as with vLLM: too late for the
        // request that makes that batch.
        for engine in [0, 1] {
            let reset = stack.engine_client(engine).post("eu", "/reset_prefix_cache", &[], b"");
            assert_eq!(reset.unwrap().status, 200);
        }
        let answer = client.chat("eu", &system, "Still there?").unwrap();
        assert_eq!(answer.cached_tokens(), 0);
        broken += u64::from(answer.explained("cached") != "0");
        std::thread::sleep(Duration::from_millis(200));
        stat(&stack, "suspect.evictions") == 1
    });
    assert!((4..=12).contains(&broken), "{broken} broken promises");
    assert_eq!(stat(&stack, "drift_began"), 0);
    // Once promises are kept again it is over.
    eventually("agreement", || {
        client.chat("eu", &system, "Still there?").unwrap();
        stat(&stack, "suspect.evictions") == 0
    });
    assert!(stack.logs().contains("agree again"));
}

#[test]
fn correct_traffic_of_all_apis_raises_no_alarm() {
    let stack = Stack::start(fast()).unwrap();
    let port = stack.client().port();
    std::thread::scope(|scope| {
        for worker in 0..6_usize {
            scope.spawn(move || {
                let client = Client::new(port);
                for n in 0..40 {
                    // Of very many answers a second only some are looked into.
                    std::thread::sleep(Duration::from_millis(100));
                    // Some share all, some nothing, and nobody waits for events.
                    let name = if n % 8 == 7 { format!("{worker} {n}") } else { "all".to_owned() };
                    let (system, question) = (system_prompt(&name), format!("Question {n}?"));
                    let stream = n % 3 == 0;
                    let messages = json!([{"role": "user", "content": question}]);
                    let (path, body) = match (worker + n) % 4 {
                        0 => (
                            CHAT,
                            json!({"stream_options": {"include_usage": true}, "messages": [
                                {"role": "system", "content": system},
                                {"role": "user", "content": question}]}),
                        ),
                        1 => (
                            "/v1/completions",
                            json!({"stream_options": {"include_usage": true},
                                "prompt": format!("{system} {question}")}),
                        ),
                        2 => (
                            "/v1/responses",
                            json!({"instructions": system, "input": question, "max_output_tokens": 3}),
                        ),
                        _ => ("/v1/messages", json!({"system": system, "messages": messages})),
                    };
                    let mut body = body;
                    body["model"] = json!("demo");
                    body["stream"] = json!(stream);
                    if path != "/v1/responses" {
                        body["max_tokens"] = json!(3);
                    }
                    let answer = client.post("eu", path, &[], body.to_string().as_bytes()).unwrap();
                    assert_eq!(answer.status, 200, "{path} {:?}", String::from_utf8(answer.body));
                }
            });
        }
    });
    std::thread::sleep(Duration::from_millis(1_200));
    assert!(stat(&stack, "answers.told") > 200);
    assert_eq!(stat(&stack, "drift_began"), 0, "{}", stack.logs());
    assert_eq!(suspects(&stack), Vec::<&str>::new());
}
