//! What `scripts/run` starts: the quick start with simulated engines, some conversations through
//! it, and a table of where each request went and why.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use serde_json::{Value, json};
use warmpath_tests::{Answer, ENGINES, Options, Ports, Stack, host, system_prompt};

#[derive(Parser)]
#[command(name = "scripts/run", about = "Starts the quick start and shows it working", long_about = None)]
struct Args {
    /// End after the table; fail unless warm requests met their prefix and none left its zone
    #[arg(long)]
    once: bool,
    /// A model directory (tokenizer.json and chat template) instead of the small one kept here
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
}

/// One conversation of the sample.
struct Conversation {
    zone: &'static str,
    topic: &'static str,
    /// Another conversation that shares its system prompt comes before it.
    follows: bool,
    turns: &'static [&'static str],
}

const CONVERSATIONS: [Conversation; 4] = [
    Conversation {
        zone: "eu",
        topic: "library",
        follows: false,
        turns: &["How long may I keep item 21?", "And item 28?", "What does a day too late cost?"],
    },
    Conversation {
        zone: "eu",
        topic: "library",
        follows: true,
        turns: &["May I keep item 70 for two weeks?", "Thank you. And item 77?"],
    },
    Conversation {
        zone: "eu",
        topic: "swimming pool",
        follows: false,
        turns: &["When must item 14 be back?", "Is item 35 the same?"],
    },
    Conversation {
        zone: "global",
        topic: "tool rental",
        follows: false,
        turns: &["I need item 49 for a month.", "Then item 56, please."],
    },
];

fn main() -> ExitCode {
    let args = Args::parse();
    let stop = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&stop);
    let handler = ctrlc::set_handler(move || set.store(true, Ordering::Relaxed));
    let result = handler.map_err(anyhow::Error::from).and_then(|()| run(&args, &stop));
    match result {
        Ok(true) => ExitCode::SUCCESS,
        _ if stop.load(Ordering::Relaxed) => {
            eprintln!("Stopped.");
            ExitCode::from(130)
        }
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("scripts/run: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Says whether everything went as it should.
fn run(args: &Args, stop: &Arc<AtomicBool>) -> anyhow::Result<bool> {
    let mut options = Options::quickstart()?;
    options.ports = Ports::fixed();
    options.stop = Arc::clone(stop);
    if let Some(model) = &args.model {
        let found = model.canonicalize();
        options.model = found.with_context(|| format!("--model {}", model.display()))?;
    }
    eprintln!("Starting {} SIMULATED engines, the relay and Envoy …", ENGINES.len());
    let start = Instant::now();
    let stack = Stack::start(options)?;
    eprintln!("All up after {:.1} s.\n", start.elapsed().as_secs_f64());

    println!(
        "{:<7} {:<14} {:>4}  {:<16} {:<8} {:<9} {:>6} {:>9} {:>7} {:>7}  verdict",
        "zone",
        "conversation",
        "turn",
        "engine",
        "region",
        "reason",
        "prompt",
        "expected",
        "cached",
        "ms"
    );
    let mut good = true;
    for conversation in &CONVERSATIONS {
        good &= converse(&stack, conversation)?;
        anyhow::ensure!(!stop.load(Ordering::Relaxed), "stopped");
    }
    println!(
        "\nexpected: prompt tokens that Warmpath expected to be cached; cached: what the engine \
         said was."
    );
    if args.once {
        println!("{}", if good { "All as it should be." } else { "NOT as it should be." });
        return Ok(good);
    }
    println!(
        "\nIt stays up until Ctrl-C. Try:\n\n  curl -si http://127.0.0.1:{}/v1/chat/completions \
         -H 'host: {}' -H 'content-type: application/json' \\\n    -d '{}'\n\nEnvoy's admin \
         interface: http://127.0.0.1:{}   the relay's: http://127.0.0.1:{}/status",
        stack.ports().gateway(),
        host("eu"),
        json!({
            "model": "demo", "max_tokens": 8,
            "messages": [{"role": "user", "content": "Hello!"}]
        }),
        stack.ports().admin(),
        stack.ports().relay_admin(),
    );
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(100));
    }
    eprintln!("Stopping.");
    Ok(good)
}

/// Holds one conversation, a line per turn. Says whether it went as it should.
fn converse(stack: &Stack, conversation: &Conversation) -> anyhow::Result<bool> {
    let system = system_prompt(conversation.topic);
    let mut messages = vec![json!({"role": "system", "content": system})];
    let mut good = true;
    let mut home = String::new();
    for (turn, question) in conversation.turns.iter().enumerate() {
        messages.push(json!({"role": "user", "content": question}));
        let body = json!({"model": "demo", "max_tokens": 12, "messages": messages}).to_string();
        let sent = Instant::now();
        let path = "/v1/chat/completions";
        let answer = stack.client().post(conversation.zone, path, &[], body.as_bytes())?;
        let took = sent.elapsed();
        let verdict = judge(conversation, turn, &home, &answer);
        println!(
            "{:<7} {:<14} {:>4}  {:<16} {:<8} {:<9} {:>6} {:>9} {:>7} {:>7.0}  {}",
            conversation.zone,
            conversation.topic,
            turn + 1,
            answer.engine(),
            answer.engine_region(),
            answer.explained("reason"),
            answer.explained("prompt"),
            answer.explained("cached"),
            answer.cached_tokens(),
            took.as_secs_f64() * 1000.0,
            verdict.as_ref().err().map_or("ok", String::as_str),
        );
        good &= verdict.is_ok();
        answer.engine().clone_into(&mut home);
        let reply = answer.json()?.pointer("/choices/0/message/content").cloned();
        let reply = reply.unwrap_or(Value::String(String::new()));
        messages.push(json!({"role": "assistant", "content": reply}));
        // A person reads the answer first.
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(good)
}

fn judge(
    conversation: &Conversation,
    turn: usize,
    home: &str,
    answer: &Answer,
) -> Result<(), String> {
    if answer.status != 200 {
        return Err(format!("status {}", answer.status));
    }
    if conversation.zone == "eu" && answer.engine_region() != "eu-west" {
        return Err("LEFT ITS ZONE".into());
    }
    if turn == 0 && !conversation.follows {
        return Ok(());
    }
    if answer.explained("reason") != "warm" {
        return Err("should be warm".into());
    }
    if turn > 0 && answer.engine() != home {
        return Err("went elsewhere".into());
    }
    if answer.explained("cached") != answer.cached_tokens().to_string() {
        return Err("expected differs from cached".into());
    }
    Ok(())
}
