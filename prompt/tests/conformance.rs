//! Prompts against ground truth by Hugging Face `transformers`.
//!
//! The frozen part is for the demo model and for small ones of SentencePiece's kind. scripts/conformance makes more for any model, and names
//! their directories in `WARMPATH_CONFORMANCE`.
#![cfg(feature = "preprocess")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Tests, helpers included.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use serde_json::value::RawValue;
use warmpath_prompt::{Api, End, Model, ModelFiles, PromptError, Prompter, Request, preprocess};
use warmpath_routing::fingerprint::Fingerprint;

#[derive(serde::Deserialize)]
struct Case {
    body: Box<RawValue>,
    text: Option<String>,
    ids: Option<Vec<u32>>,
    #[serde(default)]
    refused: bool,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Checks all cases; returns how many there were and what was wrong.
fn check(model: &Path, cases: &Path) -> (usize, Vec<String>) {
    let artefact = preprocess(&ModelFiles::read_dir(model).unwrap()).unwrap();
    let mut prompter = Prompter::new(Model::load(artefact.bytes).unwrap(), 1 << 20);
    let root = Fingerprint([3; 32]);
    let mut wrong = Vec::new();
    let mut count = 0;
    for (number, line) in std::fs::read_to_string(cases).unwrap().lines().enumerate() {
        let case: Case = serde_json::from_str(line).unwrap();
        count += 1;
        let body = case.body.get().as_bytes();
        let request = Request::parse(Api::of_body(body).unwrap(), body).unwrap();
        let place = format!("{}:{}", cases.display(), number + 1);
        match prompter.tokens(&request, None, 0) {
            Err(error) => {
                if !(case.refused
                    && matches!(
                        error,
                        PromptError::TemplateRefused | PromptError::TemplateFailed(_)
                    ))
                {
                    wrong.push(format!("{place}: {error}"));
                }
            }
            Ok(_) if case.refused => wrong.push(format!("{place}: not refused")),
            Ok(tokens) => {
                let ids = case.ids.unwrap();
                if tokens.text != case.text {
                    wrong.push(format!("{place}: another text: {:?}", tokens.text));
                } else if tokens.ids != ids || tokens.end != End::Complete {
                    wrong.push(format!("{place}: other ids"));
                }
                // With what the memo knows by now, and only the first tokens.
                for limit in [usize::MAX, 64] {
                    let prefix = prompter.prefix(&request, root, limit, 0).unwrap();
                    let known = ids.len().min(limit);
                    if prefix.tokens != known || prefix.keys.len() != known / 16 {
                        wrong.push(format!("{place}: {} tokens known", prefix.tokens));
                    }
                }
            }
        }
    }
    (count, wrong)
}

fn report(name: &str, (count, wrong): &(usize, Vec<String>)) {
    eprintln!("{name}: {} of {count} equal", count.saturating_sub(wrong.len()));
    for line in wrong.iter().take(20) {
        eprintln!("  {}", line.chars().take(600).collect::<String>());
    }
}

#[test]
fn the_frozen_part_is_equal() {
    let fixtures = root().join("tests/fixtures");
    let small = fixtures.join("conformance/models");
    for (name, model) in [
        ("demo", fixtures.join("models/demo")),
        ("prepend", small.join("prepend")),
        ("metaspace", small.join("metaspace")),
        ("gemma", small.join("gemma")),
    ] {
        let result = check(&model, &fixtures.join(format!("conformance/{name}.jsonl")));
        report(name, &result);
        assert!(result.0 > 100, "{name}: only {} cases", result.0);
        assert!(result.1.is_empty(), "{name}: {} cases differ", result.1.len());
    }
}

/// One tokenizer.json under one of the classes of `transformers`: what lies beside it, and what came
/// of it.
#[derive(serde::Deserialize)]
struct Under {
    model: String,
    changes: serde_json::Map<String, Value>,
    files: HashMap<String, Value>,
    class: String,
    special: HashMap<String, String>,
    texts: Vec<(String, Vec<u32>)>,
}

impl Under {
    fn prompter(&self) -> Prompter {
        let fixtures = root().join("tests/fixtures");
        let dir = match self.model.as_str() {
            "demo" => fixtures.join("models/demo"),
            name => fixtures.join("conformance/models").join(name),
        };
        let file = ModelFiles::read_dir(&dir).unwrap().tokenizer_json;
        let mut file: serde_json::Map<String, Value> = serde_json::from_slice(&file).unwrap();
        file.extend(self.changes.clone());
        let beside = |name: &str| self.files.get(name).map(|value| value.to_string().into_bytes());
        let files = ModelFiles {
            tokenizer_json: serde_json::to_vec(&file).unwrap(),
            tokenizer_config_json: beside("tokenizer_config.json"),
            config_json: beside("config.json"),
            special_tokens_map_json: beside("special_tokens_map.json"),
            added_tokens_json: beside("added_tokens.json"),
            chat_template_jinja: Some(
                self.names().map(|name| ["{{ ", name, " }}|"].concat()).collect(),
            ),
            ..ModelFiles::default()
        };
        Prompter::new(Model::load(preprocess(&files).unwrap().bytes).unwrap(), 0)
    }

    /// Of special tokens.
    fn names(&self) -> impl Iterator<Item = &str> {
        let all = ["bos_token", "eos_token", "unk_token", "pad_token", "cls_token"];
        all.into_iter().chain(self.special.keys().map(String::as_str))
    }
}

#[test]
fn classes_are_equal() {
    let frozen = root().join("tests/fixtures/conformance/classes.jsonl");
    let cases = std::env::var_os("WARMPATH_CLASSES").map_or(frozen, PathBuf::from);
    let mut count = 0;
    let mut wrong = Vec::new();
    for line in std::fs::read_to_string(cases).unwrap().lines() {
        let case: Under = serde_json::from_str(line).unwrap();
        let place = format!("{} for {:?}", case.class, case.files);
        let mut prompter = case.prompter();
        for (text, ids) in &case.texts {
            count += 1;
            let body = serde_json::json!({"prompt": text}).to_string();
            let request = Request::parse(Api::Completions, body.as_bytes()).unwrap();
            let ours = prompter.tokens(&request, None, 0).unwrap().ids;
            if ours != *ids {
                wrong.push(format!("{place}: {text:?}: {ours:?}, not {ids:?}"));
            }
        }
        let body = r#"{"messages":[{"role":"user","content":"x"}]}"#;
        let request = Request::parse(Api::Chat, body.as_bytes()).unwrap();
        let token = |name| case.special.get(name).cloned().unwrap_or_default() + "|";
        let expected: String = case.names().map(token).collect();
        let ours = prompter.tokens(&request, None, 0).unwrap().text.unwrap();
        if ours != expected {
            wrong.push(format!("{place}: special tokens {ours}, not {expected}"));
        }
    }
    report("classes", &(count, wrong.clone()));
    assert!(count > 250 && wrong.is_empty(), "{} of {count} differ", wrong.len());
}

#[test]
fn models_on_request() {
    let Some(models) = std::env::var_os("WARMPATH_CONFORMANCE") else {
        eprintln!("SKIPPED: WARMPATH_CONFORMANCE is not set; scripts/conformance sets it");
        return;
    };
    let mut wrong = 0;
    for model in std::env::split_paths(&models) {
        let name = model.file_name().unwrap().to_string_lossy().into_owned();
        let cases = root().join(format!("target/conformance/cases/{name}.jsonl"));
        let result = check(&model, &cases);
        report(&name, &result);
        wrong += result.1.len();
    }
    assert_eq!(wrong, 0, "cases that differ");
}
