//! Whatever a client sends is answered, and what only the gateway may say is not obeyed.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use warmpath_tests::{Answer, Options, Stack};

/// Internal headers, claimed by a client: all of them point abroad.
fn forged(stack: &Stack) -> Vec<(&'static str, String)> {
    vec![
        ("x-gateway-destination-endpoint", stack.endpoint(2)),
        ("x-warmpath-cluster", "global.demo-us-east".into()),
        ("x-warmpath-zone", "global".into()),
        ("x-warmpath-hash", "0".into()),
        ("x-data-parallel-rank", "7".into()),
        ("x-warmpath-explain", "forged".into()),
        ("x-envoy-original-dst-host", stack.endpoint(2)),
    ]
}

fn send(stack: &Stack, path: &str, body: &[u8]) -> Answer {
    let forged = forged(stack);
    let headers: Vec<(&str, &str)> = forged.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let answer = stack.client().post("eu", path, &headers, body).unwrap();
    if answer.status < 500 && answer.explained("refused").is_empty() {
        assert_eq!(answer.engine_region(), "eu-west", "{answer:?}");
        assert_eq!(answer.explained("zone"), "eu", "{answer:?}");
    }
    answer
}

#[test]
fn every_body_is_answered_and_no_forged_header_obeyed() {
    let stack = Stack::start(Options::quickstart().unwrap()).unwrap();
    let chat = "/v1/chat/completions";
    let padded = |size: usize| {
        let body = json!({"model": "demo", "max_tokens": 1, "prompt": ""}).to_string();
        let text = "lorem ipsum ".repeat(size / 12 + 1);
        body.replace("\"\"", &format!("\"{}\"", &text[..size - body.len()])).into_bytes()
    };

    let ten = send(&stack, chat, b"0123456789");
    assert_eq!((ten.status, ten.explained("degrade")), (400, "bad_request"));
    let none = send(&stack, chat, b"");
    assert_eq!(none.status, 400, "{none:?}");

    let body = padded((16 << 10) + 1);
    assert_eq!(body.len(), (16 << 10) + 1);
    let answer = send(&stack, "/v1/completions", &body);
    assert_eq!((answer.status, answer.explained("degrade")), (200, ""), "{answer:?}");

    // A megabyte is looked into, if only at its first tokens; the engine's context is shorter.
    let answer = send(&stack, "/v1/completions", &padded(1 << 20));
    assert!([200, 400].contains(&answer.status), "{answer:?}");
    assert_eq!(answer.explained("degrade"), "", "{answer:?}");

    // More than is looked into still arrives.
    let answer = send(&stack, "/v1/completions", &padded(9 << 20));
    assert!([200, 400, 413].contains(&answer.status), "{}", answer.status);
    assert_eq!(answer.explained("degrade"), "body_too_large", "{answer:?}");

    for body in [
        &b"{"[..],
        b"[]",
        b"null",
        b"\"text\"",
        b"\xff\xfe\x00",
        br#"{"model":"demo"}"#,
        br#"{"model":1,"messages":"x"}"#,
        br#"{"model":"demo","messages":[{"role":"user","content":{"a":1}}]}"#,
        br#"{"model":"demo","messages":[{"role":"\ud800"}]}"#,
    ] {
        let answer = send(&stack, chat, body);
        assert!([400, 404, 422].contains(&answer.status), "{}: {answer:?}", body.escape_ascii());
    }
    let deep = [b"{\"model\":\"demo\",\"messages\":".as_slice(), &vec![b'['; 100_000]].concat();
    assert_eq!(send(&stack, chat, &deep).explained("degrade"), "bad_request");

    let unknown =
        send(&stack, chat, br#"{"model":"gpt-9","messages":[{"role":"user","content":"Hi"}]}"#);
    assert_eq!((unknown.status, unknown.explained("refused")), (404, "model_not_found"));
    let error = unknown.json().unwrap()["error"].clone();
    assert_eq!(error["code"], "model_not_found");
    assert!(error["message"].as_str().unwrap().contains("which has demo"), "{error}");
    let other = send(&stack, "/v1/nothing/here", b"{}");
    assert_eq!((other.status, other.explained("degrade")), (404, "unknown_api"));
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut to = GzEncoder::new(Vec::new(), Compression::default());
    to.write_all(text).unwrap();
    to.finish().unwrap()
}

#[test]
fn compressed_bodies_grow_so_far_and_no_further() {
    let stack = Stack::start(Options::quickstart().unwrap()).unwrap();
    let send = |encoding: &str, body: &[u8]| {
        let headers = [("content-encoding", encoding)];
        stack.client().post("eu", "/v1/completions", &headers, body).unwrap()
    };
    let of = |blanks: usize| {
        let text = " ".repeat(blanks);
        format!(r#"{{"prompt":"Hello{text}","max_tokens":1,"model":"demo"}}"#).into_bytes()
    };
    for _ in 0..3 {
        let answer = send("gzip", &gzip(&of(30_000)));
        assert_eq!((answer.status, answer.explained("degrade")), (200, ""), "{answer:?}");
    }
    // A sixteenth of a megabyte comes, and 64 would be there.
    let bomb = gzip(&of(64 << 20));
    let whole = gzip(&of(100));
    for (encoding, body, status, code) in [
        ("gzip", &bomb[..], 413, "request_too_large"),
        ("gzip", &whole[..whole.len() - 4], 400, "bad_encoding"),
        ("gzip", b"{}", 400, "bad_encoding"),
        ("br", &whole, 400, "bad_encoding"),
        ("compress", &whole, 415, "unsupported_encoding"),
        ("gzip, gzip", &whole, 415, "unsupported_encoding"),
    ] {
        let answer = send(encoding, body);
        assert_eq!((answer.status, answer.explained("refused")), (status, code), "{encoding}");
        assert_eq!(answer.json().unwrap()["error"]["code"], code);
    }
}

#[test]
fn a_chunked_body_and_twice_the_same_header() {
    let stack = Stack::start(Options::quickstart().unwrap()).unwrap();
    let body = r#"{"model":"demo","max_tokens":1,"prompt":"a chunked body"}"#;
    let (one, two) = body.split_at(20);
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: eu.demo.local\r\nconnection: close\r\n\
         content-type: application/json\r\ntransfer-encoding: chunked\r\n\
         x-gateway-destination-endpoint: {us}\r\nx-gateway-destination-endpoint: {us}\r\n\
         X-Warmpath-Zone: global\r\nx-warmpath-zone: global\r\n\r\n\
         {:x}\r\n{one}\r\n{:x}\r\n{two}\r\n0\r\n\r\n",
        one.len(),
        two.len(),
        us = stack.endpoint(2),
    );
    let answer = stack.client().raw(request.as_bytes()).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("x-warmpath-engine-region: eu-west"), "{answer}");
    assert!(!answer.contains("degrade="), "{answer}");
}

#[test]
fn a_stream_is_passed_on_piece_by_piece() {
    let stack = Stack::start(Options::quickstart().unwrap()).unwrap();
    let body = json!({
        "model": "demo", "max_tokens": 5, "stream": true,
        "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "Stream, please."}]
    });
    let path = "/v1/chat/completions";
    let answer = stack.client().post("eu", path, &[], body.to_string().as_bytes()).unwrap();
    assert_eq!(answer.status, 200);
    let text = String::from_utf8(answer.body).unwrap();
    assert!(text.starts_with("data: {"), "{text}");
    assert!(text.trim_end().ends_with("data: [DONE]"), "{text}");
    assert!(text.contains("\"usage\":{"), "{text}");
}

#[test]
fn a_prompt_never_reaches_a_log() {
    let stack = Stack::start(Options::quickstart().unwrap()).unwrap();
    let secret = "xyzzy-plugh-4711";
    stack.client().chat("eu", secret, secret).unwrap();
    let bad = format!("{{\"model\":\"{secret}\",\"messages\":[{{\"role\":\"{secret}\"");
    send(&stack, "/v1/chat/completions", bad.as_bytes());
    let unknown = format!("{{\"model\":\"{secret}\",\"messages\":[]}}");
    send(&stack, "/v1/chat/completions", unknown.as_bytes());
    let logs = stack.logs();
    assert!(logs.contains("starting main dispatch loop"), "these are Envoy's logs");
    assert!(!logs.contains(secret));
}
