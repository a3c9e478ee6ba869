//! A prefix that a replica holds attracts the requests that share it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use warmpath_tests::{Options, Stack, eventually, system_prompt};

#[test]
fn followers_go_where_their_prefix_is_and_leave_a_dead_engine() {
    let mut stack = Stack::start(Options::quickstart().unwrap()).unwrap();
    let client = stack.client();
    let system = system_prompt("Harbour Street library");

    let first = client.chat("eu", &system, "How long may I keep item 21?").unwrap();
    assert_eq!((first.status, first.explained("reason")), (200, "cold"), "{first:?}");
    let home = first.engine().to_owned();
    assert_eq!(
        first.explained("replica"),
        home,
        "the engine that was named is the one that served"
    );

    // The engine publishes the blocks after its prefill; the relay and Envoy follow.
    eventually("a warm decision", || {
        let answer = client.chat("eu", &system, "And item 28?").unwrap();
        answer.explained("reason") == "warm"
    });
    for question in 0..20 {
        // What the engine stored for one question is announced before the next is asked.
        std::thread::sleep(Duration::from_millis(100));
        let answer = client.chat("eu", &system, &format!("Question {question}?")).unwrap();
        assert_eq!(answer.engine(), home);
        assert_eq!(answer.explained("reason"), "warm");
        let expected: u64 = answer.explained("cached").parse().unwrap();
        assert!(expected > 300, "{expected} tokens of the system prompt");
        assert_eq!(answer.cached_tokens(), expected, "what was expected cached was cached");
    }

    // The engine dies: the very next request is served elsewhere in its zone.
    let dead = stack.engine_at(&home).unwrap();
    stack.kill_engine(dead);
    for question in 0..5 {
        let answer = client.chat("eu", &system, &format!("After {question}?")).unwrap();
        assert_eq!((answer.status, answer.engine_region()), (200, "eu-west"));
        assert_ne!(answer.engine(), home);
    }

    // It comes back empty: nobody believes that it still holds the prefix.
    stack.start_engine(dead).unwrap();
    eventually("the other replica alone is warm", || {
        let answer = client.chat("eu", &system, "Back again?").unwrap();
        assert_eq!(answer.status, 200);
        let expected: u64 = answer.explained("cached").parse().unwrap();
        if answer.engine() == home {
            assert_eq!(expected, answer.cached_tokens(), "a stale hit");
        }
        answer.explained("reason") == "warm" && answer.cached_tokens() == expected
    });
    assert_eq!(stack.client().get("eu", "/v1/models").unwrap().status, 200);
}

#[test]
fn a_reset_cache_is_forgotten() {
    let stack = Stack::start(Options::quickstart().unwrap()).unwrap();
    let client = stack.client();
    let system = system_prompt("the reset");
    client.chat("eu", &system, "One?").unwrap();
    let mut home = String::new();
    eventually("a warm decision", || {
        let answer = client.chat("eu", &system, "Two?").unwrap();
        home = answer.engine().to_owned();
        answer.explained("reason") == "warm"
    });
    let engine = stack.engine_at(&home).unwrap();
    let reset = stack.engine_client(engine).post("eu", "/reset_prefix_cache", &[], b"").unwrap();
    assert_eq!(reset.status, 200);
    // As with vLLM, the clearing event comes with the next batch.
    let other = system_prompt("something else");
    stack.engine_client(engine).chat("eu", &other, "Three?").unwrap();
    eventually("the clear to arrive", || {
        let answer = client.chat("eu", &system_prompt("the reset"), "Four?").unwrap();
        let expected: u64 = answer.explained("cached").parse().unwrap();
        answer.cached_tokens() == expected
    });
}

#[test]
fn adapters_and_salts_have_caches_of_their_own() {
    let mut options = Options::quickstart().unwrap();
    options.engine_flags = ["--lora", "demo-lora"].map(String::from).into();
    options.relay_edits = vec![("adapters: []".into(), "adapters: [demo-lora]".into())];
    let stack = Stack::start(options).unwrap();
    let client = stack.client();
    let prompt = system_prompt("scopes");
    let send = |model: &str, salt: Option<&str>| {
        let mut body = serde_json::json!({"model": model, "max_tokens": 1, "prompt": prompt});
        if let Some(salt) = salt {
            body["cache_salt"] = salt.into();
        }
        client.post("eu", "/v1/completions", &[], body.to_string().as_bytes()).unwrap()
    };
    for (model, salt) in [
        ("demo", None),
        ("demo", Some("tenant-a")),
        ("demo", Some("tenant-b")),
        ("demo-lora", None),
        ("demo-lora", Some("tenant-a")),
    ] {
        let cold = send(model, salt);
        assert_eq!((cold.status, cold.explained("reason")), (200, "cold"), "{model} {salt:?}");
        assert_eq!(cold.cached_tokens(), 0, "{model} {salt:?}");
        eventually("a warm decision", || send(model, salt).explained("reason") == "warm");
        let warm = send(model, salt);
        let expected: u64 = warm.explained("cached").parse().unwrap();
        assert!(expected > 300);
        assert_eq!(warm.cached_tokens(), expected, "{model} {salt:?}");
    }
}
