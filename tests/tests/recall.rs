//! A relay that starts when an engine's replay no longer reaches back to the start: what the engine
//! holds from before, answers teach.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warmpath_tests::{Answer, Options, Stack, eventually, system_prompt};

const CHAT: &str = "/v1/chat/completions";

fn stat(stack: &Stack, name: &str) -> u64 {
    stack.stat(&format!("wasmcustom.warmpath.router.{name}")).unwrap()
}

/// Engines that keep a few batches, and so many blocks.
fn stack(blocks: usize) -> Stack {
    let mut options = Options::quickstart().unwrap();
    let blocks = blocks.to_string();
    let flags = ["--speedup", "20", "--kv-events-buffer-steps", "4"];
    options.engine_flags =
        flags.into_iter().chain(["--num-gpu-blocks-override", &blocks]).map(String::from).collect();
    Stack::start(options).unwrap()
}

/// Gives each engine more new prompts than it keeps batches of.
fn pass_the_replay(stack: &Stack, times: usize) {
    for engine in 0..4 {
        for n in 0..times {
            let prompt = system_prompt(&format!("something else, {engine} and {n}"));
            let body = json!({"model": "demo", "max_tokens": 1, "prompt": prompt});
            let client = stack.engine_client(engine);
            client.post("eu", "/v1/completions", &[], body.to_string().as_bytes()).unwrap();
        }
    }
}

fn restart_relay(stack: &mut Stack) {
    stack.kill_relay();
    stack.start_relay().unwrap();
    stack.wait_fresh().unwrap();
}

fn expected(answer: &Answer) -> u64 {
    answer.explained("cached").parse().unwrap()
}

#[test]
fn a_relay_that_comes_late_learns_hot_prefixes_from_answers() {
    let mut stack = stack(600);
    let client = stack.client();
    let system = system_prompt("the late relay");
    let ask = |question: &str| {
        // What the engine stored for one question is announced, and what its answer taught is known,
        // before the next is asked.
        std::thread::sleep(Duration::from_millis(400));
        client.chat("eu", &system, question).unwrap()
    };
    eventually("a warm decision", || ask("Ready?").explained("reason") == "warm");
    let home = ask("At home?").engine().to_owned();
    pass_the_replay(&stack, 6);
    restart_relay(&mut stack);

    // The engine holds it, and no event tells.
    let first = ask("Who knows?");
    assert_eq!((expected(&first), first.engine()), (0, home.as_str()), "its place on the ring");
    assert!(first.cached_tokens() > 400, "{}", first.cached_tokens());
    for question in 0..20 {
        let answer = ask(&format!("Question {question}?"));
        assert_eq!((answer.explained("reason"), answer.engine()), ("warm", home.as_str()));
        assert_eq!(expected(&answer), answer.cached_tokens(), "question {question}");
    }
    assert_eq!(stat(&stack, "drift_began"), 0);
    assert!(stat(&stack, "lessons.told") > 20);

    // The engine evicts all of it for others: what was taught ends with the answers that were
    // computed since, or at the latest by the next answer.
    let engine = stack.engine_at(&home).unwrap();
    for n in 0..30 {
        let prompt = system_prompt(&format!("crowd {n}"));
        let body = json!({"model": "demo", "max_tokens": 1, "prompt": prompt});
        let client = stack.engine_client(engine);
        client.post("eu", "/v1/completions", &[], body.to_string().as_bytes()).unwrap();
    }
    let gone = ask("Still there?");
    eprintln!("{} expected, {} cached", expected(&gone), gone.cached_tokens());
    let again = ask("And now?");
    assert_eq!(expected(&again), again.cached_tokens());
    assert!(again.cached_tokens() > 400, "it was computed and stored");
    assert_eq!(stat(&stack, "drift_began"), 0);
}

#[test]
fn an_answer_that_shows_less_is_believed() {
    let mut stack = stack(4_096);
    let client = stack.client();
    let system = system_prompt("the forgetful engine");
    let ask = |question: &str| {
        std::thread::sleep(Duration::from_millis(400));
        client.chat("eu", &system, question).unwrap()
    };
    eventually("a warm decision", || ask("Ready?").explained("reason") == "warm");
    pass_the_replay(&stack, 6);
    restart_relay(&mut stack);
    let home = ask("Who knows?").engine().to_owned();
    let warm = ask("And now?");
    assert_eq!(expected(&warm), warm.cached_tokens());
    // No event tells of this before the next request's, as with vLLM.
    let engine = stack.engine_client(stack.engine_at(&home).unwrap());
    assert_eq!(engine.post("eu", "/reset_prefix_cache", &[], b"").unwrap().status, 200);
    let gone = ask("Still there?");
    assert!(expected(&gone) > 400, "{}", expected(&gone));
    assert_eq!(gone.cached_tokens(), 0);
    let again = ask("And again?");
    assert_eq!(expected(&again), again.cached_tokens());
    assert_eq!(stat(&stack, "drift_began"), 0);
}

/// Figures, by hand: `cargo test --test recall -- --ignored --nocapture`. Conversations of some turns,
/// each under one of a few system prompts that stay hot; the relay restarts after a while.
#[test]
#[ignore = "it measures"]
fn how_soon_forecasts_are_exact_again() {
    const PROMPTS: usize = 12;
    const TURNS: usize = 5;
    let mut stack = stack(30_000);
    let client = stack.client();
    let mut dice = 1_u64;
    let mut roll = move |sides: usize| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) as usize % sides
    };
    let prompts: Vec<String> = (0..PROMPTS).map(|n| system_prompt(&format!("agent {n}"))).collect();
    let mut talks: Vec<Vec<Value>> = vec![Vec::new(); 24];
    let mut count = 0;
    let mut ask = |stack: &Stack| {
        let at = roll(talks.len());
        if talks[at].is_empty() || talks[at].len() >= 2 * TURNS {
            let system = &prompts[roll(PROMPTS)];
            talks[at] = vec![json!({"role": "system", "content": system})];
        }
        count += 1;
        let question = format!("Question {count}: {}?", "what of it ".repeat(5 + roll(30)));
        talks[at].push(json!({"role": "user", "content": question}));
        let body = json!({"model": "demo", "max_tokens": 40, "messages": talks[at]});
        let answer = client.post("eu", CHAT, &[], body.to_string().as_bytes()).unwrap();
        let text = answer.json().unwrap();
        let said = text.pointer("/choices/0/message/content").unwrap().clone();
        talks[at].push(json!({"role": "assistant", "content": said}));
        let first_turn = talks[at].len() == 3;
        std::thread::sleep(Duration::from_millis(100));
        let _ = stack;
        (expected(&answer), answer.cached_tokens(), first_turn)
    };
    let mut told = |stack: &Stack, what: &str, requests: usize| {
        let start = Instant::now();
        let (mut exact, mut firsts, mut exact_firsts) = (0, 0, 0);
        let mut sums = [0, 0];
        for _ in 0..requests {
            let (expected, cached, first) = ask(stack);
            exact += usize::from(expected == cached);
            firsts += usize::from(first);
            exact_firsts += usize::from(first && expected == cached);
            sums[0] += expected.min(cached);
            sums[1] += cached;
        }
        eprintln!(
            "{what}: {exact} of {requests} exact ({exact_firsts} of {firsts} first turns); {:.1} % \
             of {} cached tokens foreseen; {:.0} s",
            100.0 * sums[0] as f64 / sums[1].max(1) as f64,
            sums[1],
            start.elapsed().as_secs_f64(),
        );
    };
    told(&stack, "before", 300);
    restart_relay(&mut stack);
    for part in 0..6 {
        told(&stack, &format!("after, {} to {}", part * 50, part * 50 + 50), 50);
    }
    eprintln!("drift alarms: {}", stat(&stack, "drift_began"));
}
