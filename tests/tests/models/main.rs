//! A request goes to engines of its own model or to none, whatever the gateway knows of the models
//! and however the request says which one it is for.
//!
//! `WARMPATH_MODELS_REQUESTS` sends another number of requests, `WARMPATH_MODELS_SEED` others.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

mod fleet;
mod requests;
mod send;
mod verdict;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Poll;
use std::time::{Duration, Instant};

use fleet::{NAMES, ZONES, engines};
use requests::{Case, Dice, Expected};
use send::{Pieces, Request, Sender};
use tokio::runtime::Runtime;
use verdict::{By, Situation, judge};
use warmpath_tests::{Answer, Stack, eventually};

const CLIENTS: usize = 4;

/// What came of all requests.
#[derive(Default)]
struct Seen {
    wrong: Mutex<BTreeMap<String, (usize, String)>>,
    /// Answers of engines of another model, or of another zone.
    strangers: AtomicUsize,
    /// Requests that an engine served: by phase, zone and name.
    served: Mutex<BTreeMap<(&'static str, &'static str, &'static str), usize>>,
    sent: AtomicUsize,
}

struct Run {
    runtime: Runtime,
    seen: Seen,
    seed: u64,
}

impl Run {
    fn new() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let seed = number("WARMPATH_MODELS_SEED", 1);
        eprintln!("seed {seed}");
        Self { runtime: runtime.unwrap(), seen: Seen::default(), seed }
    }

    /// Sends so many requests from several clients, and meanwhile does something to the stack.
    fn phase(
        &mut self,
        name: &'static str,
        stack: &mut Stack,
        requests: usize,
        now: Situation,
        meanwhile: impl FnOnce(&mut Stack),
    ) {
        self.seed += 1;
        let start = Instant::now();
        let port = stack.ports().gateway();
        let endpoints: Vec<String> = (0..4).map(|engine| stack.endpoint(engine)).collect();
        let (seen, seed) = (&self.seen, self.seed);
        let client = |client: usize| {
            let mut dice = Dice::new(seed << 8 | client as u64);
            let endpoints = &endpoints;
            async move {
                let sender = Sender::new(port);
                for _ in 0..requests / CLIENTS {
                    let case = requests::next(&mut dice);
                    let answer = sender.send(case.zone, &case.request).await;
                    seen.note(name, &case, now, &answer, endpoints);
                }
            }
        };
        std::thread::scope(|scope| {
            let clients = scope.spawn(|| {
                self.runtime.block_on(async {
                    // The runtime's own threads read and write; what is to be sent is made here.
                    let mut clients: Vec<_> =
                        (0..CLIENTS).map(|number| Box::pin(client(number))).collect();
                    std::future::poll_fn(|context| {
                        clients.retain_mut(|client| client.as_mut().poll(context).is_pending());
                        if clients.is_empty() { Poll::Ready(()) } else { Poll::Pending }
                    })
                    .await;
                });
            });
            meanwhile(stack);
            clients.join().unwrap();
        });
        eprintln!("{name}: {requests} requests in {:.1} s", start.elapsed().as_secs_f64());
    }
}

impl Seen {
    fn note(
        &self,
        phase: &'static str,
        case: &Case,
        now: Situation,
        answer: &Result<Answer, String>,
        endpoints: &[String],
    ) {
        self.sent.fetch_add(1, Relaxed);
        let engine_at = |address: &str| endpoints.iter().position(|endpoint| endpoint == address);
        let verdict = match answer {
            Ok(answer) => judge(case, now, answer, engine_at),
            Err(error) => Err(error.clone().into()),
        };
        match (verdict, case.expected) {
            (Ok(By::Engine(_)), Expected::Model(name, _)) => {
                *self.served.lock().unwrap().entry((phase, case.zone, name)).or_default() += 1;
            }
            (Ok(_), _) => {}
            (Err(wrong), _) => {
                self.strangers.fetch_add(usize::from(wrong.stranger), Relaxed);
                let request = &case.request;
                let example = format!(
                    "{} {} {:?} in {}, to be {:?}: {}",
                    request.method,
                    request.path,
                    request.headers,
                    case.zone,
                    case.expected,
                    wrong.what
                );
                let mut all = self.wrong.lock().unwrap();
                all.entry(format!("{phase}: {}", case.kind)).or_insert((0, example)).0 += 1;
            }
        }
    }

    /// Fails if anything was wrong.
    fn conclude(&self) {
        let wrong = self.wrong.lock().unwrap();
        let lines: Vec<String> = wrong
            .iter()
            .map(|(kind, (count, example))| format!("{count} × {kind}, such as {example}"))
            .collect();
        let count: usize = wrong.values().map(|(count, _)| count).sum();
        let (sent, strangers) = (self.sent.load(Relaxed), self.strangers.load(Relaxed));
        eprintln!(
            "{sent} requests; {strangers} answered by engines that should not have; {count} wrong"
        );
        assert!(
            wrong.is_empty(),
            "{count} of {sent} wrong, {strangers} by engines that should not have answered:\n{}",
            lines.join("\n")
        );
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Waits until a request is served: Envoy listens before it knows which hosts are healthy.
fn wait_served(stack: &Stack) {
    eventually("a first answer", || {
        let body = br#"{"model":"demo","max_tokens":1,"prompt":"ready?"}"#;
        let client = stack.client();
        ["eu", "global"].iter().all(|zone| {
            client.post(zone, "/v1/completions", &[], body).is_ok_and(|a| a.status == 200)
        })
    });
}

#[test]
fn no_request_ever_reaches_an_engine_of_another_model() {
    let mut stack = Stack::start(fleet::options("")).unwrap();
    let mut run = Run::new();
    let all = number("WARMPATH_MODELS_REQUESTS", 10_200) as usize;
    let part = |per_cent: usize| all * per_cent / 100;
    let now = |heard| Situation { heard, dead: None, default_model: None };

    wait_served(&stack);
    run.phase("never started", &mut stack, part(33), now(Some(false)), |_| {});

    run.phase("being started", &mut stack, part(13), now(None), |stack| {
        stack.start_relay().unwrap();
    });
    stack.wait_fresh().unwrap();
    // More than a tick of each worker.
    std::thread::sleep(Duration::from_millis(300));
    run.phase("started late", &mut stack, part(20), now(Some(true)), |_| {});

    run.phase("being killed", &mut stack, part(10), now(Some(true)), Stack::kill_relay);
    // Long enough for the map to be stale.
    std::thread::sleep(Duration::from_secs(3));
    run.phase("killed", &mut stack, part(16), now(Some(true)), |_| {});
    // With a replica of a model gone, too, nobody else's takes its place.
    let dying = Situation { dead: Some(0), ..now(Some(true)) };
    run.phase("killed, an engine too", &mut stack, part(8), dying, |stack| stack.kill_engine(0));

    run.seen.conclude();
    let served = run.seen.served.lock().unwrap();
    for phase in ["never started", "started late", "killed"] {
        for (zone, _) in ZONES {
            for name in NAMES.iter().filter(|name| !engines(zone, name.name).is_empty()) {
                if phase == "never started" && !name.policy {
                    continue;
                }
                let count = served.get(&(phase, zone, name.name)).copied().unwrap_or(0);
                // Less than half of what is sent on the average.
                let least = all as u64 * name.share / 800;
                assert!(
                    count as u64 >= least,
                    "{phase}: {count} served of {} in {zone}, not {least}",
                    name.name
                );
            }
        }
    }
}

/// The answer to a request, sent by a client of its own.
fn ask(run: &Run, stack: &Stack, zone: &str, request: &Request) -> Answer {
    run.runtime.block_on(Sender::new(stack.ports().gateway()).send(zone, request)).unwrap()
}

#[test]
fn a_request_without_a_model_is_the_default_models() {
    let mut stack = Stack::start(fleet::options(r#""default_model": "demo","#)).unwrap();
    let mut run = Run::new();
    wait_served(&stack);
    let now = Situation { heard: Some(false), dead: None, default_model: Some("demo") };
    run.phase("a default", &mut stack, 800, now, |_| {});
    run.seen.conclude();
    // In front of all: what is not to be read is not the default's.
    let body = Pieces::new([bytes::Bytes::from(
        r#"{"messages":[{"role":"user","content":"Hi"}],"max_tokens":1}"#,
    )]);
    let request = Request::post("/v1/chat/completions", "application/json", body);
    for (zone, _) in ZONES {
        let answer = ask(&run, &stack, zone, &request);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(engines(zone, "demo").contains(&stack.engine_at(answer.engine()).unwrap()));
    }
}

/// An adapter that is loaded on one of two replicas only, as the engines themselves say.
#[test]
fn an_adapter_goes_only_where_it_is_loaded() {
    let mut options = fleet::options("");
    options.serves[0].adapters.clear();
    options.relay_edits = vec![("adapters: [demo-lora]".into(), "from_engine: true".into())];
    options.relay = true;
    let stack = Stack::start(options).unwrap();
    let run = Run::new();
    let ask = |zone: &str, number: u64| {
        let body =
            format!(r#"{{"model":"demo-lora","max_tokens":1,"prompt":"Question {number}?"}}"#);
        let body = Pieces::new([bytes::Bytes::from(body)]);
        ask(&run, &stack, zone, &Request::post("/v1/completions", "application/json", body))
    };
    eventually("the adapter to be known", || ask("global", 0).status == 200);
    for number in 0..40 {
        let answer = ask("global", number);
        assert_eq!((answer.status, answer.engine()), (200, &*stack.endpoint(2)), "{answer:?}");
        let answer = ask("eu", number);
        assert_eq!((answer.status, answer.engine()), (404, ""), "{answer:?}");
        assert_eq!(answer.json().unwrap()["error"]["code"], "model_not_found");
    }
}
