//! Requests in flight are counted over all workers, however their streams end.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use warmpath_tests::{Options, Stack, eventually, host};

fn in_flight(stack: &Stack) -> u64 {
    stack.stat("wasmcustom.warmpath.router.in_flight").unwrap()
}

/// A stream of many tokens, of which the first have come.
fn stream(stack: &Stack, seed: usize) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", stack.ports().gateway())).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let body = format!(
        r#"{{"model":"demo","stream":true,"max_tokens":3000,"ignore_eos":true,"prompt":"{seed} tales"}}"#
    );
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        host("eu"),
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut got = Vec::new();
    while !got.windows(6).any(|window| window == b"data: ") {
        let mut piece = [0; 1_024];
        let size = stream.read(&mut piece).unwrap_or(0);
        assert!(size > 0, "{}", String::from_utf8_lossy(&got));
        got.extend_from_slice(&piece[..size]);
    }
    stream
}

#[test]
fn counts_follow_streams_and_return_to_zero() {
    let mut stack = Stack::start(Options::quickstart().unwrap()).unwrap();
    eventually("a quiet start", || in_flight(&stack) == 0);

    // Several connections, so that both workers have some.
    let mut streams: Vec<TcpStream> = (0..12).map(|seed| stream(&stack, seed)).collect();
    eventually("all to be counted", || in_flight(&stack) == 12);
    // Clients vanish.
    streams.truncate(5);
    eventually("those that stayed", || in_flight(&stack) == 5);
    // Engines die, and with them their streams.
    stack.kill_engine(0);
    stack.kill_engine(1);
    eventually("zero", || in_flight(&stack) == 0);
    drop(streams);

    stack.start_engine(0).unwrap();
    stack.start_engine(1).unwrap();
    eventually("service", || stack.client().chat("eu", "You help.", "Now?").unwrap().status == 200);
    let streams: Vec<TcpStream> = (0..4).map(|seed| stream(&stack, seed)).collect();
    eventually("new ones", || in_flight(&stack) == 4);
    // A relay that dies takes no count with it, and neither does the next one's new epoch.
    stack.kill_relay();
    stack.start_relay().unwrap();
    stack.wait_fresh().unwrap();
    eventually("the same ones", || in_flight(&stack) == 4);
    drop(streams);
    eventually("zero again", || in_flight(&stack) == 0);
    assert_eq!(stack.stat("wasmcustom.warmpath.router.cold_tokens").unwrap(), 0);
}
