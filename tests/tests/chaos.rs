//! Parts die and come back while clients ask, politely and otherwise.
//!
//! Nothing may leave its zone, and nothing may be lost that a healthy replica of its zone could
//! have served, where engines die one after the other. `WARMPATH_CHAOS_SECONDS` makes it longer; `WARMPATH_CHAOS_SEED` another one.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use serde_json::json;
use warmpath_tests::{Client, Options, Stack, eventually, host, system_prompt};

const CLIENTS: u64 = 6;

/// By then relay and filter know that an engine has died, on a busy machine too.
const NOTICED: Duration = Duration::from_secs(1);

/// xorshift64*, so that a run can be had again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }
}

/// What the clients saw.
#[derive(Default)]
struct Seen {
    stop: AtomicBool,
    /// Grows when Envoy goes down and when it is back: odd while it is away.
    envoy: AtomicU64,
    served: AtomicU64,
    away: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

impl Seen {
    fn wrong(&self, what: String) {
        let mut wrong = self.wrong.lock().unwrap();
        if wrong.len() < 20 {
            wrong.push(what);
        }
    }
}

fn ask(client: &Client, seen: &Seen, dice: &mut Dice) {
    let zone = if dice.roll(2) == 0 { "eu" } else { "global" };
    let system = system_prompt(&format!("tenant {}", dice.roll(12)));
    let body = json!({
        "model": "demo", "max_tokens": 1 + dice.roll(8), "stream": false,
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": format!("Question {}?", dice.roll(1_000))}
        ]
    });
    let forged = [("x-warmpath-zone", "global"), ("x-gateway-destination-endpoint", "10.1.2.3:4")];
    let headers = if dice.roll(4) == 0 { &forged[..] } else { &[] };
    let epoch = seen.envoy.load(SeqCst);
    let answer = client.post(zone, "/v1/chat/completions", headers, body.to_string().as_bytes());
    match answer {
        Ok(answer) if answer.status == 200 => {
            seen.served.fetch_add(1, SeqCst);
            if zone == "eu" && answer.engine_region() != "eu-west" {
                seen.wrong(format!("left its zone: {answer:?}"));
            }
            if answer.json().is_err() {
                seen.wrong(format!("no whole answer: {answer:?}"));
            }
        }
        _ if epoch % 2 == 1 || seen.envoy.load(SeqCst) != epoch => {
            seen.away.fetch_add(1, SeqCst);
        }
        Ok(answer) => seen.wrong(format!(
            "lost: {} {} {}",
            answer.status,
            answer.header("x-warmpath-explain"),
            String::from_utf8_lossy(&answer.body)
        )),
        Err(error) => seen.wrong(format!("lost: {error:#}")),
    }
}

/// A stream that its client leaves, or something that is no request.
fn misbehave(port: u16, dice: &mut Dice) {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return };
    let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
    let (path, host) = ("/v1/chat/completions", host("eu"));
    let bodies = [
        r#"{"model":"demo","stream":true,"max_tokens":400,"messages":[{"role":"user","content":"Leave?"}]}"#,
        r#"{"model":"demo","messages":[{"role":7}]}"#,
        r#"{"model":"demo","messages":"#,
        "\u{0}\u{1}\u{2}",
        "",
    ];
    let body = bodies[dice.roll(bodies.len() as u64) as usize];
    // Some promise more than they send.
    let length = body.len() as u64 + dice.roll(2) * 100;
    let request =
        format!("POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n\r\n{body}");
    let _ = stream.write_all(request.as_bytes());
    let _ = stream.read(&mut [0; 512]);
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

#[test]
fn nothing_is_lost_and_nothing_leaves_its_zone() {
    let mut options = Options::quickstart().unwrap();
    options.engine_flags = ["--speedup", "20"].map(String::from).into();
    let mut stack = Stack::start(options).unwrap();
    let (seconds, seed) = (number("WARMPATH_CHAOS_SECONDS", 20), number("WARMPATH_CHAOS_SEED", 1));
    let port = stack.client().port();
    let seen = Seen::default();
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut done = [0; 3];
    std::thread::scope(|scope| {
        for worker in 0..CLIENTS {
            let seen = &seen;
            let mut dice = Dice((seed << 8 | worker).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            scope.spawn(move || {
                let client = Client::new(port);
                while !seen.stop.load(SeqCst) {
                    ask(&client, seen, &mut dice);
                    if dice.roll(20) == 0 {
                        misbehave(port, &mut dice);
                    }
                }
            });
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(seconds) {
            let pause = Duration::from_millis(200 + dice.roll(1_500));
            match dice.roll(8) {
                0 => {
                    stack.kill_relay();
                    std::thread::sleep(pause * 3);
                    stack.start_relay().unwrap();
                    done[1] += 1;
                }
                1 => {
                    seen.envoy.fetch_add(1, SeqCst);
                    stack.kill_envoy();
                    stack.start_envoy().unwrap();
                    std::thread::sleep(Duration::from_millis(100));
                    seen.envoy.fetch_add(1, SeqCst);
                    done[2] += 1;
                }
                // One of each region: the other one is healthy. Not in the same instant: what an engine
                // drops is repeated once, so that a prompt can't kill one after the other, and who is
                // sent from one that has just died to another is lost.
                _ => {
                    let pair = [dice.roll(2) as usize, 2 + dice.roll(2) as usize];
                    for engine in pair {
                        stack.kill_engine(engine);
                        std::thread::sleep(NOTICED);
                    }
                    std::thread::sleep(pause);
                    for engine in pair {
                        stack.start_engine(engine).unwrap();
                    }
                    done[0] += 2;
                    // Whoever is back is healthy only once Envoy and relay have seen it.
                    std::thread::sleep(Duration::from_millis(2_500));
                }
            }
        }
        seen.stop.store(true, SeqCst);
    });
    let wrong = seen.wrong.into_inner().unwrap();
    let (served, away) = (seen.served.into_inner(), seen.away.into_inner());
    eprintln!(
        "{served} served in {seconds} s, {away} while Envoy was away; killed: {} engines, {} \
         relays, {} Envoys",
        done[0], done[1], done[2]
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(served > 0);
    let drift = stack.stat("wasmcustom.warmpath.router.drift_began").unwrap();
    eprintln!("{drift} drifts since Envoy's last start");
    for gauge in ["in_flight", "cold_tokens"] {
        let name = format!("wasmcustom.warmpath.router.{gauge}");
        eventually(gauge, || stack.stat(&name).unwrap() == 0);
    }
    let crashes = stack.stat("wasm.warmpath-router.vm_reload").unwrap();
    assert_eq!(crashes, 0, "the filter trapped");
}
