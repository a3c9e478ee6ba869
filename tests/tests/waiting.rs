//! Where every replica has as much to prefill as it may, requests wait in the gateway: bounded in
//! number and time, and none is lost.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use std::io::Write;
use std::net::TcpStream;
use std::thread;

use warmpath_tests::{Answer, Client, Options, Stack, eventually, host};

fn stat(stack: &Stack, name: &str) -> u64 {
    stack.stat(&format!("wasmcustom.warmpath.router.{name}")).unwrap()
}

/// A stack whose replicas take one such prompt at a time.
fn start(wait_ms: u64, flags: &[&str]) -> Stack {
    let mut options = Options::quickstart().unwrap();
    let admission = format!(
        "\"role\": \"router\",\n                              \"admission\": {{\"cold_tokens\": 500, \"wait_ms\": {wait_ms}}},"
    );
    options.envoy_edits = vec![("\"role\": \"router\",".into(), admission)];
    options.engine_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    Stack::start(options).unwrap()
}

/// About 400 tokens that nobody sent before.
fn body(seed: u32) -> String {
    let ids: Vec<u32> = (0..400).map(|at| if at == 0 { 3 + seed } else { 3 + at }).collect();
    format!(r#"{{"model":"demo","max_tokens":1,"prompt":{ids:?}}}"#)
}

fn all_at_once(stack: &Stack, seeds: std::ops::Range<u32>) -> Vec<Answer> {
    let port = stack.client().port();
    let sent: Vec<_> = seeds
        .map(|seed| {
            thread::spawn(move || {
                let body = body(seed);
                Client::new(port).post("eu", "/v1/completions", &[], body.as_bytes()).unwrap()
            })
        })
        .collect();
    sent.into_iter().map(|one| one.join().unwrap()).collect()
}

#[test]
fn what_finds_all_replicas_full_waits_until_one_has_room() {
    let stack = start(60_000, &[]);
    let answers = all_at_once(&stack, 0..10);
    assert!(
        answers.iter().all(|answer| answer.status == 200 && answer.engine_region() == "eu-west")
    );
    let waited = answers.iter().filter(|answer| !answer.explained("waited_ms").is_empty()).count();
    assert!(waited >= 2, "{waited} of 10 waited");
    assert_eq!(stat(&stack, "waited"), waited as u64);
    assert_eq!(stat(&stack, "waited_in_vain"), 0);
    eventually("nobody to wait", || stat(&stack, "waiting") == 0);
    eventually("zero", || stat(&stack, "in_flight") == 0);
}

#[test]
fn who_waited_long_enough_goes_all_the_same_and_who_vanishes_is_forgotten() {
    let stack = start(200, &["--prefill-base-ms", "3000"]);
    let answers = all_at_once(&stack, 0..6);
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert!(stat(&stack, "waited_in_vain") >= 2, "3 s of prefill are longer than 0.2 s");

    let before = stat(&stack, "waited");
    let mut streams: Vec<TcpStream> = (10..16)
        .map(|seed| {
            let mut stream = TcpStream::connect(("127.0.0.1", stack.client().port())).unwrap();
            let body = body(seed);
            let (host, length) = (host("eu"), body.len());
            let request = format!(
                "POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n\r\n{body}"
            );
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    eventually("some to wait", || stat(&stack, "waited") > before);
    streams.clear();
    eventually("nobody to wait", || stat(&stack, "waiting") == 0);
    eventually("zero", || stat(&stack, "in_flight") == 0);
    assert_eq!(all_at_once(&stack, 20..21)[0].status, 200);
}
