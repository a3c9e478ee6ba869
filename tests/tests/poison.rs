//! What one request can do to engines, and what it can't do to everybody else.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;
use warmpath_tests::{Client, ENGINES, Options, Stack, host};

/// Nobody lives through this.
const DEADLY: &str = "a very deadly prompt";

/// More than Envoy holds for a retry, and far more than the filter looks into.
const GIANT: usize = 72 << 20;

fn start(flags: &[&str]) -> Stack {
    let mut options = Options::quickstart().unwrap();
    let speed = ["--speedup", "20"];
    options.engine_flags = speed.iter().chain(flags).map(ToString::to_string).collect();
    Stack::start(options).unwrap()
}

fn stat(stack: &Stack, name: &str) -> u64 {
    stack.stat(&format!("wasmcustom.warmpath.router.{name}")).unwrap()
}

fn dead(stack: &Stack) -> Vec<usize> {
    let lives = |engine: &usize| {
        stack.engine_client(*engine).get("eu", "/health").is_ok_and(|answer| answer.status == 200)
    };
    (0..ENGINES.len()).filter(|engine| !lives(engine)).collect()
}

/// A worker each, or so.
fn client(stack: &Stack) -> Client {
    Client::new(stack.client().port())
}

/// Sends a prompt again and again, as clients do, until it is refused; then it is refused whoever
/// sends it, and everybody else is served.
fn kills_two_engines_at_most(stream: bool) {
    let stack = start(&["--fault-crash-on", DEADLY]);
    let body = json!({
        "model": "demo", "max_tokens": 8, "stream": stream,
        "messages": [{"role": "user", "content": format!("This is {DEADLY}.")}]
    });
    let body = body.to_string();
    let path = "/v1/chat/completions";
    // A stream that breaks off is no whole answer.
    let send = || client(&stack).post("global", path, &[], body.as_bytes());
    let others = |what: usize| {
        let answer = client(&stack).chat("global", &format!("You are {what}."), "Hello?").unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
    };
    // So many answers that not all of them are looked into.
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let client = client(&stack);
            scope.spawn(move || {
                for what in 0..400 {
                    let system = format!("You are {thread} of {what}.");
                    assert_eq!(client.chat("global", &system, "Hello?").unwrap().status, 200);
                }
            });
        }
    });
    let mut tries = 0;
    loop {
        let answer = send();
        if answer.as_ref().is_ok_and(|answer| answer.status == 422) {
            break;
        }
        assert!(answer.is_err() || answer.unwrap().status == 503);
        tries += 1;
        assert!(tries < 8, "{:?} are dead", dead(&stack));
        // As long as any client waits at least.
        std::thread::sleep(Duration::from_millis(250));
        others(tries);
    }
    let victims = dead(&stack);
    assert_eq!(victims.len(), 2, "after {tries} tries");
    for what in 100..132 {
        let answer = send().unwrap();
        assert_eq!(answer.status, 422, "{answer:?}");
        assert_eq!(answer.json().unwrap()["error"]["code"], "poison");
        assert_eq!(answer.json().unwrap()["error"]["type"], "invalid_request_error");
        assert_eq!(answer.header("retry-after"), "");
        others(what);
    }
    assert_eq!(dead(&stack), victims);
    assert!(stat(&stack, "refused.poison") >= 33);
    assert_eq!(stat(&stack, "poison_prompts"), 1);
    assert_eq!(stat(&stack, "poison_deaths"), 2);
    let logs = stack.logs();
    let lines: Vec<&str> = logs.lines().filter(|line| line.contains("is refused for")).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    for engine in victims {
        assert!(lines[0].contains(&stack.endpoint(engine)), "{lines:?}");
    }
    assert!(!logs.contains(DEADLY));
}

#[test]
fn one_prompt_kills_two_engines_at_most() {
    kills_two_engines_at_most(false);
}

#[test]
fn nor_does_a_streamed_one_kill_more() {
    kills_two_engines_at_most(true);
}

/// Sends a giant body over a connection of its own, as far as anybody takes it. Gives what came back.
fn send_giant(stack: &Stack, number: usize) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", stack.client().port())).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
         content-length: {GIANT}\r\n\r\n{number:08}",
        host("eu")
    );
    let chunk = vec![b'x'; 1 << 20];
    let mut left = GIANT - 8;
    let _ = stream.write_all(head.as_bytes());
    while left > 0 && stream.write_all(&chunk[..left.min(chunk.len())]).is_ok() {
        left -= left.min(chunk.len());
    }
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut piece) {
        answer.extend_from_slice(&piece[..read]);
        if answer.ends_with(b"}") {
            break;
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn bodies_that_engines_reset_eject_nobody() {
    let stack = start(&["--fault-reset-over", "67108864"]);
    // At once, as Envoy forgets a failure where it gets a connection. Some of them it wants to repeat
    // while they come, and finds too large for that: those tell nobody anything.
    let mut sent = 0;
    while stat(&stack, "replica_failures") < 8 {
        std::thread::scope(|scope| {
            for number in sent..sent + 8 {
                let stack = &stack;
                scope.spawn(move || {
                    let answer = send_giant(stack, number);
                    assert!(!answer.contains(" 200 OK"), "{answer}");
                });
            }
        });
        sent += 8;
        assert!(sent < 80, "nobody resets them");
    }
    // Envoy's own ejections take a second at most.
    std::thread::sleep(Duration::from_millis(1_200));
    assert_eq!((stat(&stack, "ejections"), stat(&stack, "ejected")), (0, 0));
    let ejected = "cluster.eu.demo-eu-west.outlier_detection.ejections_enforced_total";
    assert_eq!(stack.stat(ejected).unwrap(), 0, "nor did Envoy");
    let mut served = [0; ENGINES.len()];
    for what in 0..40 {
        let answer = client(&stack).chat("eu", &format!("You are {what}."), "Hello?").unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        served[stack.engine_at(answer.engine()).unwrap()] += 1;
    }
    assert!(served[0] > 8 && served[1] > 8, "each has its half: {served:?}");

    // One of them again and again comes to both, and then to nobody.
    // Counted, not timed: a giant takes as long as the machine does.
    let refused = (0..40).any(|_| send_giant(&stack, sent).contains(" 422 "));
    assert!(refused, "sent 40 times, and never refused");
    // By then each worker knows.
    std::thread::sleep(Duration::from_millis(200));
    assert!(send_giant(&stack, sent).contains(" 422 "));
    assert!(!send_giant(&stack, sent + 1).contains(" 422 "));
}
