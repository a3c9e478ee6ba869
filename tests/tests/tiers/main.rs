//! What an engine holds in a slower tier, from its events through relay and Envoy to a decision.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

#[path = "../captures/engine.rs"]
mod engine;

use capture::Frame;
use engine::Engine;
use serde_json::json;
use warmpath_tests::{Answer, Options, Stack, eventually};

/// What the stand-in for an engine publishes.
mod capture {
    pub(crate) struct Frame {
        pub(crate) topic: String,
        pub(crate) seq: u64,
        pub(crate) payload: Vec<u8>,
    }
}

const BLOCK: usize = 16;
const BLOCKS: usize = 20;

fn array(bytes: &mut Vec<u8>, items: usize) {
    bytes.push(0xdc);
    bytes.extend((items as u16).to_be_bytes());
}

fn number(bytes: &mut Vec<u8>, number: u64) {
    bytes.push(0xcf);
    bytes.extend(number.to_be_bytes());
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.push(0xa0 | text.len() as u8);
    bytes.extend(text.as_bytes());
}

fn hashes(bytes: &mut Vec<u8>) {
    array(bytes, BLOCKS);
    (1..=BLOCKS as u64).for_each(|hash| number(bytes, hash));
}

/// A batch of one event as vLLM 0.23 writes it (arrays), of all blocks of the prompt in a medium.
fn batch(seq: u64, stored: bool, medium: &str) -> Frame {
    let mut payload = Vec::new();
    array(&mut payload, 2);
    payload.push(0xcb);
    payload.extend(1.0_f64.to_be_bytes());
    array(&mut payload, 1);
    array(&mut payload, if stored { 7 } else { 3 });
    text(&mut payload, if stored { "BlockStored" } else { "BlockRemoved" });
    hashes(&mut payload);
    if stored {
        payload.push(0xc0);
        array(&mut payload, BLOCKS * BLOCK);
        ids().for_each(|id| number(&mut payload, id));
        number(&mut payload, BLOCK as u64);
        payload.push(0xc0);
    }
    text(&mut payload, medium);
    Frame { topic: String::new(), seq, payload }
}

fn ids() -> impl Iterator<Item = u64> {
    100..100 + (BLOCKS * BLOCK) as u64
}

#[test]
fn what_only_a_slower_tier_holds_is_known_and_costs_its_way_in() {
    let mut options = Options::quickstart().unwrap();
    options.engines = false;
    let model = options.model.canonicalize().unwrap();
    options.relay_config = Some(relay_config(&model.to_string_lossy()));
    let engines = [0, 1].map(|at| {
        let [http, events, _] = options.ports.engine(at);
        Engine::start(http, events)
    });
    let stack = Stack::start(options).unwrap();
    engines.iter().for_each(Engine::wait_subscribed);
    let ask = || {
        let body = json!({"model": "demo", "max_tokens": 1, "prompt": ids().collect::<Vec<_>>()});
        let body = body.to_string();
        stack.client().post("eu", "/v1/completions", &[], body.as_bytes()).unwrap()
    };
    let says = |answer: &Answer, engine: usize, tier: &str| {
        answer.explained("replica") == stack.endpoint(engine) && answer.explained("tier") == tier
    };
    // Of the last block a token is computed anew.
    let cached = ((BLOCKS - 1) * BLOCK).to_string();
    engines[0].publish(&batch(0, true, "GPU"));
    eventually("what the GPU holds", || {
        let answer = ask();
        says(&answer, 0, "") && answer.explained("cached") == cached
    });
    engines[0].publish(&batch(1, true, "CPU"));
    engines[0].publish(&batch(2, false, "GPU"));
    let mut answer = ask();
    // What was sent there a moment ago counts as brought in: this is the price once that is over.
    let dear = |answer: &Answer| answer.explained("load_ms").parse().unwrap_or(0.0) > 1.0;
    eventually("what only the host's memory holds", || {
        answer = ask();
        says(&answer, 0, "cpu") && dear(&answer)
    });
    assert_eq!([answer.explained("cached"), answer.explained("offloaded")], [cached.as_str(); 2]);
    assert_eq!(answer.explained("reason"), "warm");
    assert!(stack.stat("wasmcustom.warmpath.router.tier.cpu").unwrap() > 0);
    // Another one that has it on its GPU is nearer.
    engines[1].publish(&batch(0, true, "GPU"));
    eventually("the GPU before the host's memory", || says(&ask(), 1, ""));
    engines[1].publish(&batch(1, false, "GPU"));
    eventually("the host's memory again", || says(&ask(), 0, "cpu"));
    engines[0].publish(&batch(3, false, "CPU"));
    eventually("nothing", || ask().explained("cached") == "0");
}

fn relay_config(model: &str) -> String {
    let replica = |at: u32| {
        format!(
            "- endpoint: 127.0.0.1:1800{at}\n  pool: demo-eu-west\n  model: demo\n  \
             events: {{ connect: \"tcp://127.0.0.1:1810{at}\" }}\n"
        )
    };
    format!(
        "listen: 127.0.0.1:18900\nadmin: 127.0.0.1:18901\nmodels:\n- name: demo\n  path: {model:?}\n  \
         version: \"1\"\nreplicas:\n{}{}",
        replica(1),
        replica(2)
    )
}
