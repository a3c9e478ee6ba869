//! Prompts against ground truth by Hugging Face `transformers`.
//!
//! The frozen part is for the demo model and for small ones of SentencePiece's kind. scripts/conformance makes more for any model, and names
//! their directories in `WARMPATH_CONFORMANCE`.
#![cfg(feature = "preprocess")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Tests, helpers included.

use std::path::{Path, PathBuf};

use serde_json::value::RawValue;
use warmpath_routing::fingerprint::Fingerprint;
use warmpath_routing::prompt::{
    Api, End, Model, ModelFiles, PromptError, Prompter, Request, preprocess,
};

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
