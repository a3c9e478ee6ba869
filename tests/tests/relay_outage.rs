//! Without the relay requests go on, by the ring and saying so; with it they are exact again.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use std::time::Instant;

use warmpath_tests::{Options, Stack, eventually, system_prompt};

#[test]
fn a_dead_relay_costs_warmth_only_and_a_new_one_knows_everything_at_once() {
    let mut stack = Stack::start(Options::quickstart().unwrap()).unwrap();
    let client = stack.client();
    let system = system_prompt("the outage");
    client.chat("eu", &system, "One?").unwrap();
    let warm = |question: &str| {
        let answer = client.chat("eu", &system, question).unwrap();
        assert_eq!((answer.status, answer.engine_region()), (200, "eu-west"));
        answer
    };
    eventually("a warm decision", || warm("Two?").explained("reason") == "warm");
    let home = warm("Three?").engine().to_owned();

    stack.kill_relay();
    eventually("stale", || warm("Four?").explained("degrade") == "stale_map");
    for question in 0..10 {
        let answer = warm(&format!("Stale {question}?"));
        assert_eq!(answer.explained("reason"), "ring");
        assert_eq!(answer.explained("cached"), "0");
    }
    assert_eq!(stack.stat("wasmcustom.warmpath.router.map_fresh").unwrap(), 0);

    let started = Instant::now();
    stack.start_relay().unwrap();
    eventually("exact again", || {
        let answer = warm("Five?");
        answer.explained("reason") == "warm" && answer.engine() == home
    });
    eprintln!("exact {:?} after the relay's start", started.elapsed());
    let answer = warm("Six?");
    assert_eq!(answer.explained("cached").parse::<u64>().unwrap(), answer.cached_tokens());
}

#[test]
fn envoy_restarted_learns_everything_again() {
    let mut stack = Stack::start(Options::quickstart().unwrap()).unwrap();
    let client = stack.client();
    let system = system_prompt("a new Envoy");
    client.chat("eu", &system, "One?").unwrap();
    eventually("a warm decision", || {
        client.chat("eu", &system, "Two?").unwrap().explained("reason") == "warm"
    });
    stack.kill_envoy();
    stack.start_envoy().unwrap();
    stack.wait_fresh().unwrap();
    assert_eq!(client.chat("eu", &system, "Three?").unwrap().explained("reason"), "warm");
}
