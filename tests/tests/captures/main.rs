//! Real engines' frames and requests, replayed: the relay hears the frames over a real ZeroMQ
//! socket, Envoy gets the requests, and what the filter made of them is compared with the token
//! ids that the engine itself reported.
//!
//! The captures are too large, and their tokenizers not ours, to be kept in the repository: where
//! they are missing, this says so and checks nothing.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

mod capture;
mod engine;

use std::collections::HashSet;

use capture::{Block, Capture};
use engine::Engine;
use warmpath_prompt::{ModelFiles, preprocess};
use warmpath_routing::fingerprint::{Chain, Scope};
use warmpath_tests::{Options, Stack, eventually, shared};

#[test]
fn llama31_default() {
    replay("llama31_default", "llama3_1");
}

#[test]
fn qwen3_bytes_lora() {
    replay("qwen3_bytes_lora", "qwen3");
}

#[test]
fn vllm023_llama31_bs32() {
    replay("vllm023_llama31_bs32", "llama3_1");
}

fn replay(name: &str, tokenizer: &str) {
    let Some(shared) = shared() else {
        eprintln!("NOT CHECKED: no captures here (WARMPATH_SHARED); {name} was not replayed");
        return;
    };
    let capture = Capture::read(&shared.join("engine-captures"), name);
    let model = shared.join("tokenizers").join(tokenizer);
    let tokenizer_hash = preprocess(&ModelFiles::read_dir(&model).unwrap()).unwrap().tokenizer_hash;

    let mut options = Options::quickstart().unwrap();
    options.engines = false;
    options.model = model;
    options.relay_config = Some(relay_config(&options.model.to_string_lossy()));
    let [http, events, _] = options.ports.engine(0);
    let engine = Engine::start(http, events);
    let stack = Stack::start(options).unwrap();
    engine.wait_subscribed();

    let mut held = HashSet::<Block>::new();
    let mut frames = capture.frames.iter().peekable();
    let mut compared = 0;
    for request in &capture.requests {
        while let Some(frame) = frames.next_if(|frame| frame.at < request.sent) {
            frame.apply(&mut held);
            engine.publish(frame);
        }
        let expected = request.cached_by(&held, capture.block_tokens);
        if let Some(cached) = request.cached_tokens {
            assert_eq!(expected, cached, "{name} {}: the test's own model", request.label);
        }
        let scope = Scope {
            model_version: "1",
            tokenizer_hash: &tokenizer_hash,
            adapter: &request.adapter,
            salt: &request.salt,
        };
        let mut last = None;
        Chain::new(&scope).push(&request.prompt_token_ids, |block| last = Some(block));

        let send = || {
            let body = request.body.as_bytes();
            let answer = stack.client().post("eu", &request.path, &[], body).unwrap();
            assert_eq!(answer.status, 200, "{name} {}: {answer:?}", request.label);
            assert_eq!(answer.explained("degrade"), "", "{name} {}: {answer:?}", request.label);
            answer
        };
        let mut answer = send();
        eventually(&format!("{name} {}: {expected} cached tokens", request.label), || {
            answer = send();
            answer.explained("cached") == expected.to_string()
        });
        // Equal names of the last block mean equal ids up to its end.
        let blocks = request.prompt_token_ids.len() / 16;
        assert_eq!(answer.explained("blocks"), blocks.to_string(), "{name} {}", request.label);
        let last = last.map(|name| format!("{:?}", name.key())).unwrap_or_default();
        assert_eq!(answer.explained("last"), last, "{name} {}: token ids differ", request.label);
        let length = request.prompt_token_ids.len().to_string();
        assert_eq!(answer.explained("prompt"), length, "{name} {}", request.label);
        compared += 1;
    }
    assert!(compared >= 10, "{name}: only {compared} requests");
    eprintln!("{name}: {compared} requests, all ids equal, all predictions as the events say");
}

fn relay_config(model: &str) -> String {
    format!(
        "listen: 127.0.0.1:18900\n\
         admin: 127.0.0.1:18901\n\
         models:\n\
         - name: demo\n  \
           path: {model:?}\n  \
           version: \"1\"\n  \
           served_names: [demo, tiny]\n  \
           adapters: [lora-a, lora-b]\n\
         replicas:\n\
         - endpoint: 127.0.0.1:18001\n  \
           pool: demo-eu-west\n  \
           model: demo\n  \
           events: {{ connect: \"tcp://127.0.0.1:18101\" }}\n"
    )
}
