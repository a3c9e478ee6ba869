//! Prompts that are longer than what is read of them, in a VM whose numbers have 32 bits.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use serde_json::json;
use warmpath_prompt::{Api, Model, ModelFiles, Prompter, Request, preprocess};
use warmpath_routing::fingerprint::Fingerprint;
use warmpath_routing::policy::PREFIX_TOKENS;
use warmpath_tests::{Options, Stack};

#[test]
fn what_is_not_read_of_a_prompt_is_in_proportion_to_what_is() {
    let options = Options::quickstart().unwrap();
    let files = ModelFiles::read_dir(&options.model).unwrap();
    let mut prompter = Prompter::new(Model::load(preprocess(&files).unwrap().bytes).unwrap(), 0);
    let stack = Stack::start(options).unwrap();
    let prose = include_str!("../../LICENSE");
    for bytes in [900_000, 3_000_000, 7_000_000] {
        let text: String = prose.chars().cycle().take(bytes).collect();
        let body = json!({"model": "demo", "max_tokens": 1, "messages": [
            {"role": "user", "content": text},
        ]})
        .to_string();
        let request = Request::parse(Api::Chat, body.as_bytes()).unwrap();
        let root = Fingerprint([1; 32]);
        let is = prompter.prefix(&request, root, usize::MAX, 0).unwrap().tokens;
        // Longer than the engine takes; that is no matter here.
        let path = "/v1/chat/completions";
        let answer = stack.client().post("eu", path, &[], body.as_bytes()).unwrap();
        let blocks: usize = answer.explained("blocks").parse().unwrap();
        assert_eq!(blocks, PREFIX_TOKENS / 16, "{answer:?}");
        let told: usize = answer.explained("prompt").parse().unwrap();
        assert!(told.abs_diff(is) < is / 20, "{told} of {is}");
    }
}
