//! Responses that an engine stores: what refers to one reaches that engine, whichever worker has it,
//! and also where this gateway has never seen it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use serde_json::{Value, json};
use warmpath_tests::{Answer, Client, Options, Stack, host};

const RESPONSES: &str = "/v1/responses";

fn stack() -> Stack {
    let mut options = Options::quickstart().unwrap();
    options.engine_flags = ["--speedup", "50", "--enable-response-store"].map(String::from).into();
    Stack::start(options).unwrap()
}

/// A connection of its own each time: any of the workers may have it.
fn post(stack: &Stack, zone: &str, path: &str, body: &Value) -> Answer {
    let client = Client::new(stack.ports().gateway());
    client.post(zone, path, &[], body.to_string().as_bytes()).unwrap()
}

fn get(stack: &Stack, zone: &str, id: &str) -> Answer {
    Client::new(stack.ports().gateway()).get(zone, &format!("{RESPONSES}/{id}")).unwrap()
}

fn id(answer: &Answer) -> String {
    let text = String::from_utf8_lossy(&answer.body);
    let (_, rest) = text.split_once("\"id\":\"").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

fn degraded(stack: &Stack) -> u64 {
    stack.stat("wasmcustom.warmpath.router.degrade.unknown_response").unwrap()
}

#[test]
fn every_follow_up_reaches_the_engine_that_answered() {
    let stack = stack();
    for zone in ["eu", "global"] {
        let mut engines = std::collections::BTreeSet::new();
        for n in 0..20 {
            let stream = n % 2 == 1;
            let body = json!({"model": "demo", "input": format!("Question {n} in {zone}?"),
                "max_output_tokens": 3, "stream": stream});
            let first = post(&stack, zone, RESPONSES, &body);
            assert_eq!(first.status, 200);
            let id = id(&first);
            assert!(id.starts_with("resp_"), "{id}");
            let there = |answer: &Answer, status: u16| {
                assert_eq!(answer.status, status, "{}", String::from_utf8_lossy(&answer.body));
                assert_eq!(answer.engine(), first.engine(), "{n}, {zone}");
                assert_eq!(answer.explained("reason"), "response");
            };
            let next = json!({"model": "demo", "input": "And then?", "max_output_tokens": 3,
                "stream": !stream, "previous_response_id": id});
            there(&post(&stack, zone, RESPONSES, &next), 200);
            there(&get(&stack, zone, &id), 200);
            // What is over can't be cancelled, and vLLM has no DELETE.
            let cancel = post(&stack, zone, &format!("{RESPONSES}/{id}/cancel"), &json!({}));
            there(&cancel, 400);
            let delete = format!(
                "DELETE {RESPONSES}/{id} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
                host(zone)
            );
            let answer = Client::new(stack.ports().gateway()).raw(delete.as_bytes()).unwrap();
            assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
            assert!(answer.contains(&format!("x-warmpath-engine: {}", first.engine())), "{answer}");
            engines.insert(first.engine().to_owned());
        }
        assert!(engines.len() > 1, "{engines:?}");
    }
    assert_eq!(degraded(&stack), 0);
}

#[test]
fn one_that_this_gateway_never_saw_is_sought_within_its_zone() {
    let mut stack = stack();
    let first = |n: usize| {
        let body =
            json!({"model": "demo", "input": format!("Question {n}?"), "max_output_tokens": 3});
        post(&stack, "global", RESPONSES, &body)
    };
    let kept: Vec<(String, String)> =
        (0..12).map(first).map(|answer| (id(&answer), answer.engine().to_owned())).collect();
    // Another gateway as far as it knows.
    stack.kill_envoy();
    stack.start_envoy().unwrap();
    stack.wait_fresh().unwrap();
    for (n, (id, engine)) in kept.iter().enumerate() {
        let found = if n % 2 == 0 {
            get(&stack, "global", id)
        } else {
            let next = json!({"model": "demo", "input": "And?", "previous_response_id": id,
                "max_output_tokens": 3});
            post(&stack, "global", RESPONSES, &next)
        };
        assert_eq!((found.status, found.engine()), (200, engine.as_str()), "{n}");
        assert_eq!(found.explained("degrade"), "unknown_response");
        let again = get(&stack, "global", id);
        assert_eq!((again.status, again.engine()), (200, engine.as_str()), "{n}");
        assert_eq!(again.explained("reason"), "response");
    }
    assert_eq!(degraded(&stack), 12);
    let at = |zone: &str| {
        kept.iter().find(|(_, engine)| {
            let of_eu = stack.engine_at(engine).unwrap() < 2;
            of_eu == (zone == "eu")
        })
    };
    // An id of another region's engine says nothing here: no request leaves its zone for one.
    if let Some((id, _)) = at("us") {
        let answer = get(&stack, "eu", id);
        assert_eq!((answer.status, answer.engine_region()), (404, "eu-west"));
    }
    let failed = stack.stat("wasmcustom.warmpath.router.replica_failures").unwrap();
    assert_eq!(failed, 0, "an engine that does not have it has not failed");
}
