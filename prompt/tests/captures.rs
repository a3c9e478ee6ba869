//! The token ids of real engines' own requests, equal to the last one.
//!
//! Reads captures and tokenizers from the directory in `WARMPATH_SHARED`, or from `../shared`
//! beside the repository; without them it passes and says so.
#![cfg(feature = "preprocess")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Tests, helpers included.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use warmpath_prompt::{Api, End, Model, ModelFiles, Prompter, Request, preprocess};
use warmpath_routing::fingerprint::{Chain, Scope};

fn shared() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let dir = std::env::var_os("WARMPATH_SHARED").map_or(beside, PathBuf::from);
    if dir.join("engine-captures").is_dir() {
        return Some(dir);
    }
    eprintln!("SKIPPED: no engine captures in {}; set WARMPATH_SHARED", dir.display());
    None
}

/// A line of a capture. The request stays as it was written: the order of its keys matters.
#[derive(serde::Deserialize)]
struct Line {
    label: String,
    t0: f64,
    req: Option<Box<RawValue>>,
    resp: Value,
}

fn lines<T: DeserializeOwned>(path: &Path) -> Vec<T> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap())
        .read_to_string(&mut text)
        .unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn prompter(shared: &Path, tokenizer: &str) -> Prompter {
    let files = ModelFiles::read_dir(&shared.join("tokenizers").join(tokenizer)).unwrap();
    let artefact = preprocess(&files).unwrap();
    let model = Model::load(artefact.bytes).unwrap();
    assert_eq!(model.tokenizer_hash(), &artefact.tokenizer_hash);
    Prompter::new(model, 8 << 20)
}

/// The ids that the engine says it made of a request.
fn engine_ids(answer: &Value) -> Option<Vec<u32>> {
    [
        &answer["prompt_token_ids"],
        &answer["choices"][0]["prompt_token_ids"],
        &answer["tokens"],
        &answer["token_ids"],
    ]
    .into_iter()
    .find_map(|ids| serde_json::from_value(ids.clone()).ok())
}

fn check(capture: &str, tokenizer: &str, at_least: usize) {
    let Some(shared) = shared() else { return };
    let mut prompter = prompter(&shared, tokenizer);
    let scope = Scope {
        model_version: "m",
        tokenizer_hash: &prompter.model().tokenizer_hash().clone(),
        adapter: "",
        salt: "",
    };
    let mut texts = 0;
    let file = shared.join("engine-captures").join(format!("{capture}.requests.jsonl.gz"));
    for line in lines::<Line>(&file) {
        let Some(expected) = engine_ids(&line.resp) else { continue };
        let Some(body) = line.req.as_ref().map(|body| body.get().as_bytes()) else { continue };
        let Ok(api) = Api::of_body(body) else { continue };
        let label = &line.label;
        let now = line.t0 as i64;
        let request = Request::parse(api, body).unwrap();
        let tokens = prompter.tokens(&request, None, now).unwrap();
        assert_eq!(tokens.ids, expected, "{capture}, {label}");
        assert_eq!(tokens.end, End::Complete);
        texts += usize::from(tokens.text.is_some());

        // Twice: without the memo's help, and with it.
        for _ in 0..2 {
            let prefix = prompter.prefix(&request, scope.root(), usize::MAX, now).unwrap();
            let mut keys = Vec::new();
            Chain::new(&scope).push(&expected, |name| keys.push(name.key()));
            assert_eq!(prefix.keys, keys, "{capture}, {label}");
            assert_eq!((prefix.prompt_tokens, prefix.exact), (expected.len(), true));
        }
    }
    eprintln!("{capture}: {texts} text requests equal");
    assert!(texts >= at_least, "{capture}: only {texts} text requests");
}

#[test]
fn llama31_default() {
    check("llama31_default", "llama3_1", 10);
}

#[test]
fn qwen3_bytes_lora() {
    check("qwen3_bytes_lora", "qwen3", 1);
}

#[test]
fn vllm023_llama31_bs32() {
    check("vllm023_llama31_bs32", "llama3_1", 1);
}

#[test]
fn rendered_texts_are_the_engines() {
    let Some(shared) = shared() else { return };
    let mut prompter = prompter(&shared, "llama3_1");
    let captures = shared.join("engine-captures");
    let requests = lines::<Line>(&captures.join("llama31_default.requests.jsonl.gz"));
    for line in lines::<Value>(&captures.join("llama31_default.rendered.jsonl.gz")) {
        let request = requests.iter().find(|request| line["label"] == request.label).unwrap();
        let body = request.req.as_ref().unwrap().get().as_bytes();
        let api = Api::of_body(body).unwrap();
        let request = Request::parse(api, body).unwrap();
        let tokens = prompter.tokens(&request, None, 0).unwrap();
        assert_eq!(tokens.text.as_deref(), line["rendered"].as_str(), "{}", line["label"]);
    }
}
