//! A request never leaves its zone, whatever is warm, dead or silent elsewhere.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use warmpath_tests::{Options, Stack, eventually, system_prompt};

const SERVED: &str = "vllm:prompt_tokens_total";

#[test]
fn the_eu_zone_never_reaches_the_us() {
    let mut stack = Stack::start(Options::quickstart().unwrap()).unwrap();
    let client = stack.client();
    let system = system_prompt("residency");

    // Warm in the US, straight at its engines, so that the cache pulls there.
    for engine in [2, 3] {
        stack.engine_client(engine).chat("us", &system, "One?").unwrap();
    }
    eventually("the global zone to follow the cache abroad", || {
        let answer = client.chat("global", &system, "Two?").unwrap();
        answer.engine_region() == "us-east" && answer.explained("reason") == "warm"
    });
    let before: f64 = [2, 3].iter().map(|e| stack.engine_metric(*e, SERVED).unwrap()).sum();

    let eu = |stack: &Stack, what: &str| {
        for question in 0..10 {
            let answer = client.chat("eu", &system, &format!("{what} {question}?")).unwrap();
            if answer.status == 200 {
                assert_eq!(answer.engine_region(), "eu-west", "{what}: {answer:?}");
            } else {
                assert_eq!(answer.status, 503, "{what}: {answer:?}");
            }
        }
        let after: f64 = [2, 3].iter().map(|e| stack.engine_metric(*e, SERVED).unwrap()).sum();
        assert!((after - before).abs() < 0.5, "{what}: the US served a request of the EU");
    };
    eu(&stack, "all well");
    stack.kill_engine(0);
    eu(&stack, "one EU engine dead");
    stack.kill_engine(1);
    eu(&stack, "no EU engine left");
    stack.kill_relay();
    eu(&stack, "no EU engine and no relay");
    stack.kill_envoy();
    stack.start_envoy().unwrap();
    eu(&stack, "an Envoy that never heard of a replica");

    // The global zone may go on, by Envoy's own failover.
    let answer = stack.client().chat("global", &system, "Still there?").unwrap();
    assert_eq!((answer.status, answer.engine_region()), (200, "us-east"), "{answer:?}");
}

#[test]
fn a_whole_zone_dead_is_a_503_in_openais_shape() {
    let mut stack = Stack::start(Options::quickstart().unwrap()).unwrap();
    let client = stack.client();
    stack.kill_engine(0);
    stack.kill_engine(1);
    eventually("the relay to see both dead", || {
        let answer = client.chat("eu", "You help.", "Anybody?").unwrap();
        assert_eq!(answer.status, 503);
        answer.json().is_ok_and(|body| body["error"]["code"] == "no_replica")
            && answer.header("retry-after") == "1"
    });
    stack.start_engine(1).unwrap();
    eventually("service", || client.chat("eu", "You help.", "Now?").unwrap().status == 200);
}

#[test]
fn a_request_without_a_zone_is_refused() {
    let stack = Stack::start(Options::quickstart().unwrap()).unwrap();
    let client = stack.client();
    // A host that the quick start knows no zone for, and the zone claimed by the client itself.
    let body = br#"{"model":"demo","prompt":"hello","max_tokens":1}"#;
    let claims: [&[(&str, &str)]; 2] = [&[], &[("x-warmpath-zone", "eu")]];
    for headers in claims {
        let answer = client.post("nowhere", "/v1/completions", headers, body).unwrap();
        assert_eq!(answer.status, 403, "{answer:?}");
        assert_eq!(answer.json().unwrap()["error"]["code"], "zone_missing");
    }
    // A client of the EU can't claim another zone either.
    for _ in 0..5 {
        let headers = [("x-warmpath-zone", "global")];
        let answer = client.post("eu", "/v1/completions", &headers, body).unwrap();
        assert_eq!((answer.status, answer.explained("zone")), (200, "eu"));
    }
}
