//! /v1/responses and /v1/messages against the chats that vLLM makes of them.
//!
//! tests/fixtures/conformance/apis.jsonl was written by tests/conformance/apis.py, out of vLLM's
//! own conversion: the body, and a chat body that gives the same prompt.
#![cfg(feature = "preprocess")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Tests, helpers included.

use std::path::{Path, PathBuf};

use serde_json::value::RawValue;
use warmpath_prompt::{Api, Model, ModelFiles, PromptError, Prompter, Request, preprocess};

#[derive(serde::Deserialize)]
struct Case {
    api: String,
    body: Box<RawValue>,
    chat: Box<RawValue>,
    /// The chat for a template that wants the system first.
    merged: Option<Box<RawValue>>,
}

/// The demo model, and those of the directory in `WARMPATH_SHARED` or of `../shared`.
fn models() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut models = vec![root.join("tests/fixtures/models/demo")];
    let shared = std::env::var_os("WARMPATH_SHARED").map_or(root.join("../shared"), PathBuf::from);
    match std::fs::read_dir(shared.join("tokenizers")) {
        Ok(entries) => models.extend(entries.map(|entry| entry.unwrap().path())),
        Err(_) => eprintln!("SKIPPED: no tokenizers in {}", shared.display()),
    }
    models
}

fn prompter(dir: &Path) -> Prompter {
    let artefact = preprocess(&ModelFiles::read_dir(dir).unwrap()).unwrap();
    Prompter::new(Model::load(artefact.bytes).unwrap(), 0)
}

fn text(prompter: &mut Prompter, api: Api, body: &str) -> Result<String, PromptError> {
    let request = Request::parse(api, body.as_bytes()).unwrap();
    Ok(prompter.tokens(&request, None, 0)?.text.unwrap())
}

#[test]
fn other_apis_are_chats() {
    let cases =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/conformance/apis.jsonl");
    let cases: Vec<Case> = std::fs::read_to_string(cases)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(cases.len() > 25);
    for dir in models() {
        let mut prompter = prompter(&dir);
        // By Jinja2 itself, as vLLM asks it; without `bos_token` the first two fail.
        let merges = match dir.file_name().unwrap().to_str().unwrap() {
            "llama3_1" | "mistral_nemo" => Some(true),
            "demo" | "deepseek_v3" | "qwen3" => Some(false),
            _ => None,
        };
        let mut equal = 0;
        for case in &cases {
            let path = format!("/v1/{}", case.api);
            let api = Api::of_path(&path).unwrap();
            let chat = match (&case.merged, merges) {
                (Some(_), None) => continue,
                (Some(merged), Some(true)) => merged,
                _ => &case.chat,
            };
            let expected = text(&mut prompter, Api::Chat, chat.get());
            let place = format!("{}: {}", dir.display(), case.body.get());
            match (text(&mut prompter, api, case.body.get()), expected) {
                (Ok(text), Ok(expected)) => {
                    assert_eq!(text, expected, "{place}");
                    equal += 1;
                }
                (Err(_), Err(_)) => {}
                (text, expected) => panic!("{place}: {text:?}, expected {expected:?}"),
            }
        }
        eprintln!("{}: {equal} of {} rendered, all as expected", dir.display(), cases.len());
        assert!(equal > 10, "{}: {equal}", dir.display());
    }
}

#[test]
fn what_cannot_be_followed_is_named() {
    let mut prompter = prompter(&models()[0]);
    for (api, body) in [
        (Api::Responses, r#"{"input":"x","previous_response_id":"resp_1"}"#),
        (Api::Responses, r#"{"input":"x","prompt":{"id":"p"}}"#),
        (Api::Responses, r#"{"input":[{"type":"item_reference","id":"x"}]}"#),
        (
            Api::Responses,
            r#"{"input":[{"type":"reasoning","summary":[],"encrypted_content":"x"}]}"#,
        ),
        (Api::Messages, r#"{"messages":[{"role":"assistant","content":[{"type":"tool_use"}]}]}"#),
        (Api::Messages, r#"{"messages":[{"role":"user","content":[{"type":"document"}]}]}"#),
    ] {
        let error = text(&mut prompter, api, body).unwrap_err();
        assert_eq!(error.name(), "unsupported_content", "{body}: {error}");
    }
    for (api, body) in [
        (Api::Responses, r#"{"input":[]}"#),
        (Api::Responses, r#"{"messages":[]}"#),
        (Api::Messages, r#"{"messages":[]}"#),
        (Api::Messages, r#"{"messages":[{"role":"user","content":"x"}],"system":3}"#),
    ] {
        Request::parse(api, body.as_bytes()).unwrap_err();
    }
}

#[test]
fn an_image_ends_the_prefix_here_too() {
    let mut prompter = prompter(&models()[0]);
    let body = r#"{"system":"Be kind to all who ask.","messages":[{"role":"user","content":[
        {"type":"image","source":{"type":"url","url":"x"}},{"type":"text","text":"?"}]}]}"#;
    let request = Request::parse(Api::Messages, body.as_bytes()).unwrap();
    let tokens = prompter.tokens(&request, None, 0).unwrap();
    assert_eq!(tokens.end.as_str(), "media");
    assert!(tokens.text.unwrap().contains("Be kind"));
}
