//! Prompts as SGLang makes them, for each API.
//!
//! tests/fixtures/conformance/sglang.jsonl was written by tests/conformance/sglang.py, out of SGLang's
//! own request code.
#![cfg(feature = "preprocess")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Tests, helpers included.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::value::RawValue;
use warmpath_prompt::{
    Api, End, Engine, Model, ModelFiles, Prompter, Request, Serving, preprocess_for,
};
use warmpath_routing::fingerprint::Fingerprint;

#[derive(serde::Deserialize)]
struct Case {
    model: String,
    api: String,
    body: Box<RawValue>,
    template: Option<String>,
    defaults: Option<Box<RawValue>>,
    ids: Option<Vec<u32>>,
    text: Option<String>,
    #[serde(default)]
    refused: bool,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures")
}

fn prompter(model: &str, serving: &Serving) -> Prompter {
    let kept = ["models", "conformance/models"].map(|dir| fixtures().join(dir).join(model));
    let dir = kept.iter().find(|dir| dir.exists()).unwrap();
    let artefact = preprocess_for(&ModelFiles::read_dir(dir).unwrap(), serving).unwrap();
    Prompter::new(Model::load(artefact.bytes).unwrap(), 1 << 20)
}

#[test]
fn prompts_are_sglangs() {
    let cases = fixtures().join("conformance/sglang.jsonl");
    let mut prompters = BTreeMap::new();
    let (mut equal, mut refused, mut wrong) = (0, 0, Vec::new());
    for line in std::fs::read_to_string(cases).unwrap().lines() {
        let case: Case = serde_json::from_str(line).unwrap();
        let defaults = case.defaults.as_ref().map(|json| json.get().to_owned());
        let key = (case.model.clone(), case.template.clone(), defaults.clone());
        let prompter = prompters.entry(key).or_insert_with(|| {
            let serving = Serving {
                engine: Engine::Sglang,
                chat_template: case.template.clone(),
                template_kwargs: defaults.unwrap_or_default(),
                ..Serving::default()
            };
            prompter(&case.model, &serving)
        });
        let api = Api::of_path(&format!("/v1/{}", case.api)).unwrap();
        let body = case.body.get();
        let told = Request::parse(api, body.as_bytes()).map_err(|error| error.to_string());
        let told = told.and_then(|request| {
            let tokens = prompter.tokens(&request, None, 0).map_err(|error| error.to_string())?;
            // The same again, by the way of the gateway.
            let prefix = prompter.prefix(&request, Fingerprint([3; 32]), 1 << 20, 0).unwrap();
            assert_eq!((prefix.tokens, prefix.exact), (tokens.ids.len(), true), "{body}");
            Ok(tokens)
        });
        match told {
            Ok(_) if case.refused => wrong.push(format!("{line}: not refused")),
            Ok(tokens) => {
                let same_ids = case.ids.is_none_or(|ids| ids == tokens.ids);
                let same_text = case.text.is_none_or(|text| Some(text) == tokens.text);
                if same_ids && same_text && tokens.end == End::Complete {
                    equal += 1;
                } else {
                    wrong.push(format!("{line}: {:?}", tokens.text));
                }
            }
            Err(_) if case.refused => refused += 1,
            Err(error) => wrong.push(format!("{line}: {error}")),
        }
    }
    eprintln!("{equal} equal, {refused} refused, {} wrong", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(equal > 300, "only {equal} cases");
}
