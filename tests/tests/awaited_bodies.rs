//! Bodies that don't end: what a gateway holds of them has a bound, and others are served meanwhile.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;
use warmpath_tests::{Client, Options, Stack, eventually, host};

const CHAT: &str = "/v1/chat/completions";

/// A chat of a megabyte, a byte short.
fn unfinished(stack: &Stack) -> TcpStream {
    let text = "x".repeat(1_000_000);
    let body =
        json!({"model": "demo", "messages": [{"role": "user", "content": text}]}).to_string();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        host("eu"),
        body.len()
    );
    let mut stream = TcpStream::connect(("127.0.0.1", stack.ports().gateway())).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&body.as_bytes()[..body.len() - 1]).unwrap();
    stream
}

/// What has come of an answer, if anything has.
fn answer(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let mut bytes = vec![0; 64 << 10];
    let read = stream.read(&mut bytes).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

#[test]
fn those_that_wait_longest_for_their_end_are_refused() {
    let mut options = Options::quickstart().unwrap();
    options.engine_flags = ["--speedup", "20"].map(String::from).into();
    // For each of two workers.
    let bound = "\"explain\": true, \"max_awaited_bytes\": 9000000,".to_owned();
    options.envoy_edits = vec![("\"explain\": true,".to_owned(), bound)];
    let stack = Stack::start(options).unwrap();
    let refused = || stack.stat("wasmcustom.warmpath.router.refused.bodies_awaited").unwrap();
    let mut streams: Vec<TcpStream> = (0..6).map(|_| unfinished(&stack)).collect();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(refused(), 0, "so many may wait");
    assert!(streams.iter_mut().all(|stream| answer(stream).is_empty()));

    streams.extend((0..34).map(|_| unfinished(&stack)));
    let mut answers = vec![String::new(); streams.len()];
    eventually("the first come to be refused", || {
        for (answered, stream) in answers.iter_mut().zip(&mut streams) {
            answered.push_str(&answer(stream));
        }
        answers.iter().filter(|answer| !answer.is_empty()).count() >= 22
    });
    // Two workers hold eight each, and no more than that.
    let told = answers.iter().filter(|answer| !answer.is_empty());
    for answer in told {
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.contains("bodies_awaited") && answer.contains("retry-after: 1"), "{answer}");
    }
    assert!(answers[38].is_empty() && answers[39].is_empty(), "who came last still waits");
    assert!((22..=32).contains(&refused()), "{}", refused());
    // Nobody else has noticed anything.
    for n in 0..20 {
        let client = Client::new(stack.ports().gateway());
        let answer = client.chat("eu", "Be brief.", &format!("Question {n}?")).unwrap();
        assert_eq!(answer.status, 200);
    }
    // And one that ends after all is served.
    streams[39].write_all(b"}").unwrap();
    eventually("its answer", || answer(&mut streams[39]).starts_with("HTTP/1.1"));
}
