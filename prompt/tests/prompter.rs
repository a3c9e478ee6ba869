//! Prefixes with the demo model: the memo, limits, media, and every kind of request.
#![cfg(feature = "preprocess")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Tests, helpers included.

use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use warmpath_prompt::{
    Api, End, Model, ModelFiles, Prefix, PromptError, Prompter, Request, preprocess,
};
use warmpath_routing::fingerprint::Fingerprint;

const ROOT: Fingerprint = Fingerprint([5; 32]);

static ARTEFACT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/demo");
    preprocess(&ModelFiles::read_dir(&demo).unwrap()).unwrap().bytes
});

fn prompter(memo_bytes: usize) -> Prompter {
    Prompter::new(Model::load(ARTEFACT.clone()).unwrap(), memo_bytes)
}

fn prefix(prompter: &mut Prompter, body: &str, limit: usize) -> Result<Prefix, PromptError> {
    let api = Api::of_body(body.as_bytes()).unwrap();
    let request = Request::parse(api, body.as_bytes()).unwrap();
    prompter.prefix(&request, ROOT, limit, 0)
}

fn text(prompter: &mut Prompter, body: &str) -> Result<String, PromptError> {
    let api = Api::of_body(body.as_bytes()).unwrap();
    let request = Request::parse(api, body.as_bytes()).unwrap();
    Ok(prompter.tokens(&request, None, 0)?.text.unwrap())
}

fn chat(messages: &[(&str, &str)]) -> String {
    let messages: Vec<_> = messages
        .iter()
        .map(|(role, content)| serde_json::json!({"role": role, "content": content}))
        .collect();
    serde_json::json!({"model": "demo", "messages": messages}).to_string()
}

#[test]
fn a_second_turn_is_mostly_known() {
    let system = "You are a helpful assistant. Answer briefly and in plain words. ".repeat(100);
    let first = chat(&[("system", &system), ("user", "How long may I keep the book?")]);
    let second = chat(&[
        ("system", &system),
        ("user", "How long may I keep the book?"),
        ("assistant", "Eleven days."),
        ("user", "And then?"),
    ]);
    let mut warm = prompter(1 << 20);
    let one = prefix(&mut warm, &first, usize::MAX).unwrap();
    assert_eq!((warm.memo_hits(), warm.memo_misses()), (0, one.tokens as u64));
    let two = prefix(&mut warm, &second, usize::MAX).unwrap();
    assert!(warm.memo_hits() > one.tokens as u64 * 9 / 10, "{} hits", warm.memo_hits());
    assert_eq!(two, prefix(&mut prompter(0), &second, usize::MAX).unwrap());
    assert!(two.keys.starts_with(&one.keys[..one.keys.len() - 1]));
}

#[test]
fn a_limit_is_kept_and_the_rest_estimated() {
    let body = chat(&[("user", &"The night train opens the broken clock on Monday. ".repeat(400))]);
    let all = prefix(&mut prompter(0), &body, usize::MAX).unwrap();
    assert_eq!((all.end, all.exact, all.tokens), (End::Complete, true, all.prompt_tokens));
    let mut warm = prompter(1 << 20);
    for _ in 0..2 {
        let some = prefix(&mut warm, &body, 1000).unwrap();
        assert_eq!((some.end, some.exact, some.tokens), (End::Limit, false, 1000));
        assert_eq!(some.keys, all.keys[..62]);
        let off = some.prompt_tokens.abs_diff(all.tokens);
        assert!(off * 10 < all.tokens, "{} for {}", some.prompt_tokens, all.tokens);
    }
    assert!(warm.memo_misses() < 1300, "{} tokenized", warm.memo_misses());
    let none = prefix(&mut warm, &body, 0).unwrap();
    assert_eq!((none.keys.len(), none.tokens, none.end), (0, 0, End::Limit));
}

/// Known stretches reach beyond a limit at which tokenizing would have stopped: CI, 2026-11-29.
#[test]
fn the_memo_changes_nothing_at_any_limit() {
    let texts = [
        "The night train opens the broken clock on Monday. ".repeat(40),
        "One line.\nAnd two.\n\n".repeat(60),
        "a b c d e f g h ".repeat(50),
    ];
    for text in texts {
        let body = serde_json::json!({"model": "demo", "prompt": text}).to_string();
        let mut warm = prompter(1 << 20);
        let all = prefix(&mut warm, &body, usize::MAX).unwrap();
        for limit in 1..=all.tokens + 2 {
            let cold = prefix(&mut prompter(0), &body, limit).unwrap();
            assert_eq!(prefix(&mut warm, &body, limit).unwrap(), cold, "limit {limit}");
        }
    }
}

#[test]
fn token_ids_are_used_as_they_are() {
    let ids: Vec<u32> = (0..40).collect();
    let body = serde_json::json!({"prompt": ids}).to_string();
    let all = prefix(&mut prompter(0), &body, usize::MAX).unwrap();
    assert_eq!((all.keys.len(), all.tokens, all.end), (2, 40, End::Complete));
    let some = prefix(&mut prompter(0), &body, 33).unwrap();
    assert_eq!((some.keys.len(), some.tokens, some.end), (2, 33, End::Limit));
    assert_eq!((some.prompt_tokens, some.exact), (40, true));
}

#[test]
fn a_prefix_ends_before_an_image() {
    let words = "Please explain step by step how this works. ".repeat(20);
    let with = serde_json::json!({"messages": [
        {"role": "system", "content": words},
        {"role": "user", "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": "data:,"}},
        ]},
    ]})
    .to_string();
    let without = chat(&[("system", &words), ("user", "What else?")]);
    let mut prompter = prompter(1 << 20);
    let media = prefix(&mut prompter, &with, usize::MAX).unwrap();
    let plain = prefix(&mut prompter, &without, usize::MAX).unwrap();
    assert_eq!((media.end, media.exact), (End::Media, false));
    assert!(media.tokens > 150 && plain.keys.starts_with(&media.keys));
    assert!(!text(&mut prompter, &with).unwrap().contains("media"));
}

/// What comes behind an image is to be computed like any other text, and so is the image.
#[test]
fn text_behind_an_image_counts() {
    let words = "Please explain step by step how this works. ".repeat(1500);
    let image = serde_json::json!({"type": "image_url", "image_url": {"url": "data:,"}});
    let of = |before: &str, images: usize| {
        let mut parts = vec![serde_json::json!({"type": "text", "text": before}); 1];
        parts.extend(vec![image.clone(); images]);
        parts.push(serde_json::json!({"type": "text", "text": words}));
        let body = serde_json::json!({"messages": [{"role": "user", "content": parts}]});
        prefix(&mut prompter(1 << 20), &body.to_string(), 8192).unwrap()
    };
    let text = of("", 0).prompt_tokens;
    assert!(text > 10_000, "{text}");
    for (before, images) in [("", 1), ("", 3), (&words[..30_000], 1), (&words, 2)] {
        let (media, plain) = (of(before, images), of(before, 0));
        let expected = plain.prompt_tokens + images * 1024;
        let close = expected / 2..expected * 2;
        assert!(
            close.contains(&media.prompt_tokens),
            "{images}: {} {expected}",
            media.prompt_tokens
        );
        assert!(media.prompt_tokens > media.tokens + images * 1024 && !media.exact);
    }
}

#[test]
fn roots_do_not_share_what_is_known() {
    let body = chat(&[("user", &"The river returns every question. ".repeat(100))]);
    let request = Request::parse(Api::Chat, body.as_bytes()).unwrap();
    let mut prompter = prompter(1 << 20);
    let one = prompter.prefix(&request, ROOT, 4096, 0).unwrap();
    let other = prompter.prefix(&request, Fingerprint([6; 32]), 4096, 0).unwrap();
    assert_eq!(prompter.memo_hits(), 0);
    assert_ne!(one.keys, other.keys);
}

#[test]
fn messages_are_normalised_as_the_engine_does() {
    let mut prompter = prompter(0);
    for (messages, expected) in [
        (r#"[{"role":"user","content":[{"type":"text","text":"a"},"b"]}]"#, "user\na\nb<|im_end|>"),
        (
            r#"[{"role":"system","content":"x-anthropic-billing-header: 1\nBe kind."}]"#,
            "<|im_start|>system\nBe kind.<|im_end|>",
        ),
        (
            r#"[{"role":"user","content":"q"},{"role":"developer","content":"d"}]"#,
            "<|im_start|>system\nd<|im_end|>\n<|im_start|>user\nq",
        ),
        (
            r#"[{"role":"assistant","content":null,"tool_calls":[{"type":"function","id":"1",
               "function":{"name":"f","arguments":"{\"b\": 1.0, \"a\": [true, null, \"<é>\"]}"}}]}]"#,
            r#""arguments": {"b": 1.0, "a": [true, null, "<é>"]}}"#,
        ),
        (
            r#"[{"role":"assistant","tool_calls":[{"type":"function","id":"1",
               "function":{"name":"f","arguments":"no json"}}]}]"#,
            r#""arguments": {}}"#,
        ),
    ] {
        let body = format!("{{\"messages\":{messages}}}");
        let text = text(&mut prompter, &body).unwrap();
        assert!(text.contains(expected), "{messages}: {text}");
    }
    let tools = r#"{"messages":[{"role":"user","content":"q"}],"tools":[{"function":
        {"strict":true,"parameters":{"z":1,"a":2},"name":"f","unknown":1},"type":"function"}]}"#;
    let expected = r#"{"type": "function", "function": {"name": "f", "description": null, "parameters": {"z": 1, "a": 2}, "strict": true}}"#;
    assert!(text(&mut prompter, tools).unwrap().contains(expected));
    let continued = r#"{"messages":[{"role":"assistant","content":"The answer is "}],
        "continue_final_message":true,"add_generation_prompt":false}"#;
    assert!(text(&mut prompter, continued).unwrap().ends_with("assistant\nThe answer is "));
}

/// vLLM joins the texts that are not empty, and leaves template arguments out that are null or
/// "auto"; arguments that are cut off are none.
#[test]
fn what_the_engine_passes_over_is_passed_over() {
    let mut prompter = prompter(0);
    let mut of = |fields: &str| text(&mut prompter, &format!("{{{fields}}}")).unwrap();
    let plain = of(r#""messages":[{"role":"user","content":"b"}]"#);
    for parts in [
        r#"[{"type":"text","text":""},{"type":"text","text":"b"}]"#,
        r#"[{"type":"text","text":"b"},{"type":"text","text":""}]"#,
    ] {
        assert_eq!(of(&format!(r#""messages":[{{"role":"user","content":{parts}}}]"#)), plain);
    }
    for kwargs in [r#"{"note":null,"enable_thinking":"auto"}"#, r#"{"bos_token":"auto"}"#] {
        let body = format!(
            r#""messages":[{{"role":"user","content":"b"}}],"chat_template_kwargs":{kwargs}"#
        );
        assert_eq!(of(&body), plain, "{kwargs}");
    }
    let call = |arguments: &str| {
        format!(
            r#""messages":[{{"role":"assistant","content":"","tool_calls":[{{"type":"function","id":"a","function":{{"name":"f","arguments":"{arguments}"}}}}]}}]"#
        )
    };
    assert_eq!(of(&call(r#"{\"a\":"#)), of(&call("{}")));
}

#[test]
fn what_cannot_be_told_is_refused_by_name() {
    let mut prompter = prompter(0);
    for (fields, name) in [
        (r#""messages":[{"role":"alien","content":"x"}]"#, "template_refused"),
        (r#""messages":[{"content":"x"}]"#, "unsupported_content"),
        (r#""messages":[{"role":"user","content":5}]"#, "unsupported_content"),
        (r#""messages":[{"role":"user","content":"x"}],"chat_template":"x""#, "request_template"),
        (
            r#""messages":[{"role":"user","content":"x"}],"truncate_prompt_tokens":5"#,
            "unsupported_content",
        ),
        (
            r#""messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"tokenize":1}"#,
            "unsupported_content",
        ),
        (
            r#""messages":[{"role":"user","content":"x"}],"continue_final_message":true"#,
            "template_refused",
        ),
        (
            r#""messages":[{"role":"user","content":"x"}],"kv_transfer_params":{"prompt_token_ids":[1]}"#,
            "unsupported_content",
        ),
        (
            r#""messages":[{"role":"assistant","tool_calls":[{"type":"function","id":"a","function":
               {"name":"f","arguments":"{\"a\":\"\\ud800\"}"}}]}]"#,
            "unsupported_content",
        ),
        (
            r#""messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"documents":["x"]}"#,
            "unsupported_content",
        ),
    ] {
        let error = prefix(&mut prompter, &format!("{{{fields}}}"), 4096).unwrap_err();
        assert_eq!(error.name(), name, "{fields}: {error}");
    }
}

/// As Python 3.11's `json.dumps` writes what its `json.loads` read.
#[test]
fn numbers_are_written_as_python_writes_them() {
    let mut prompter = prompter(0);
    let numbers = "[1e20, 12345678901234567890123, -1234567890123456789012345678901234567890123, NaN, -Infinity, 1e999, -0, -0.0, 1E-7]";
    let written = "[1e+20, 12345678901234567890123, -1234567890123456789012345678901234567890123, NaN, -Infinity, Infinity, 0, -0.0, 1e-07]";
    let tools = format!(
        r#"{{"messages":[{{"role":"user","content":"q"}}],"tools":[{{"type":"function","function":
            {{"name":"f","strict":"yes","parameters":{{"maximum":{numbers}}}}}}}]}}"#
    );
    let text_of = text(&mut prompter, &tools).unwrap();
    let expected = format!(r#""parameters": {{"maximum": {written}}}, "strict": true}}"#);
    assert!(text_of.contains(&expected), "{text_of}");
    let calls = serde_json::json!({"messages": [{"role": "assistant", "tool_calls": [{"type": "function",
        "id": "a", "function": {"name": "f", "arguments": format!("{{\"a\": {numbers}}}")}}]}]});
    let text_of = text(&mut prompter, &calls.to_string()).unwrap();
    assert!(text_of.contains(&format!(r#""arguments": {{"a": {written}}}"#)), "{text_of}");
}

/// Arguments are texts in a body: what is in them counts all the same, over all calls.
#[test]
fn very_many_values_in_arguments_are_not_followed() {
    let body = |calls: usize, values: usize| {
        let arguments = serde_json::json!({ "a": vec![0; values] }).to_string();
        let call = |_| {
            serde_json::json!({"type": "function", "id": "a",
            "function": {"name": "f", "arguments": arguments}})
        };
        let calls: Vec<_> = (0..calls).map(call).collect();
        serde_json::json!({"messages": [{"role": "assistant", "tool_calls": calls}]}).to_string()
    };
    let mut prompter = prompter(0);
    assert!(prefix(&mut prompter, &body(3, 10_000), 64).is_ok());
    for (calls, values) in [(1, 33_000), (4, 10_000)] {
        let error = prefix(&mut prompter, &body(calls, values), 64).unwrap_err();
        assert_eq!(error, PromptError::UnsupportedContent("very many values"));
    }
}

/// DeepSeek V3's files say `add_bos_token`, and engines of transformers 5 add none: what
/// tokenizer.json says goes around a text.
#[test]
fn add_bos_token_beside_a_tokenizer_json_adds_nothing() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/demo");
    let mut files = ModelFiles::read_dir(&dir).unwrap();
    let config = files.tokenizer_config_json.as_deref().unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(config).unwrap();
    config["add_bos_token"] = true.into();
    config["bos_token"] = "<|im_start|>".into();
    files.tokenizer_config_json = Some(config.to_string().into());
    let mut marked = Prompter::new(Model::load(preprocess(&files).unwrap().bytes).unwrap(), 0);
    let body = br#"{"prompt":"The night train"}"#;
    let request = Request::parse(Api::Completions, body).unwrap();
    let tokens = marked.tokens(&request, None, 0).unwrap();
    assert_eq!(tokens.ids, prompter(0).tokens(&request, None, 0).unwrap().ids);
}

#[test]
fn a_model_of_mistral_common_is_refused_by_name() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/demo");
    for file in ["tekken.json", "tokenizer.model.v3"] {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        std::fs::copy(demo.join("tokenizer.json"), dir.join("tokenizer.json")).unwrap();
        preprocess(&ModelFiles::read_dir(&dir).unwrap()).unwrap();
        std::fs::write(dir.join(file), "").unwrap();
        let error = preprocess(&ModelFiles::read_dir(&dir).unwrap()).unwrap_err();
        assert!(error.to_string().starts_with(&format!("{file} makes vLLM go by")), "{error}");
    }
}

fn words() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        prop_oneof![
            6 => "[ ]?[a-z]{2,8}",
            1 => Just("<|im_end|>\n".to_owned()),
            1 => "[ \\n.,0-9'é漢]{1,5}",
        ],
        0..500,
    )
    .prop_map(|pieces| pieces.concat())
}

/// Artefacts of a byte-level tokenizer and of SentencePiece's kinds, in which it matters what stands
/// before a word.
static KINDS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    ["models/demo", "conformance/models/metaspace", "conformance/models/prepend"]
        .map(|name| preprocess(&ModelFiles::read_dir(&fixtures.join(name)).unwrap()).unwrap().bytes)
        .into()
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_memo_changes_nothing(
        head in words(),
        tails in proptest::collection::vec(words(), 1..5),
        limit in prop_oneof![Just(usize::MAX), 0usize..900],
        memo_bytes in prop_oneof![Just(1usize << 20), Just(2000)],
    ) {
        let mut warm = prompter(memo_bytes);
        let mut cold = prompter(0);
        for tail in &tails {
            let body = chat(&[("system", &head), ("user", tail)]);
            let with = prefix(&mut warm, &body, limit).unwrap();
            let without = prefix(&mut cold, &body, limit).unwrap();
            prop_assert_eq!(&with.keys, &without.keys);
            prop_assert_eq!((with.tokens, with.end), (without.tokens, without.end));
            prop_assert!(warm.memo_bytes() <= memo_bytes);
        }
    }

    #[test]
    fn no_body_panics(body in r#"\{"(messages|prompt|tools)":[\[\]{}",:a-z0-9 \\]{0,60}"#) {
        for api in [Api::Chat, Api::Completions] {
            if let Ok(request) = Request::parse(api, body.as_bytes()) {
                let _ = prompter(0).prefix(&request, ROOT, 64, 0);
            }
        }
    }

    #[test]
    fn no_message_panics(
        fields in proptest::collection::vec(
            (
                prop_oneof![
                    Just("role"), Just("content"), Just("tool_calls"), Just("name"),
                    Just("reasoning"), Just("type"), Just("function"),
                ],
                prop_oneof![
                    Just("\"assistant\""), Just("\"user\""), Just("null"), Just("[]"), Just("{}"),
                    Just("[{\"type\":\"text\"}]"), Just("[{\"function\":{\"arguments\":\"[1]\"}}]"),
                    Just("1e400"), Just("3"), Just("\"\\u0000\""),
                ],
            ),
            0..6,
        ),
    ) {
        let fields: Vec<_> =
            fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        let body = format!("{{\"messages\":[{{{}}}]}}", fields.join(","));
        if let Ok(request) = Request::parse(Api::Chat, body.as_bytes()) {
            let _ = prompter(0).prefix(&request, ROOT, 64, 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Long texts that part from each other anywhere, also right at a cut, of every kind of model.
    #[test]
    fn what_is_known_of_texts_that_begin_alike_changes_nothing(
        head in proptest::collection::vec(words(), 6..10),
        asked in proptest::collection::vec((any::<proptest::sample::Index>(), words()), 4..12),
        limit in prop_oneof![Just(usize::MAX), 900usize..4000],
    ) {
        let head = head.concat();
        let cuts: Vec<usize> = head.char_indices().map(|(at, _)| at).collect();
        for model in KINDS.iter() {
            let [mut warm, mut cold] = [1 << 20, 0].map(|bytes| {
                Prompter::new(Model::load(model.clone()).unwrap(), bytes)
            });
            for (at, (cut, tail)) in asked.iter().enumerate() {
                // Most have all of it.
                let start = if at % 3 == 2 { &head[..cuts[cut.index(cuts.len())]] } else { &head };
                let body = serde_json::json!({"prompt": format!("{start}{tail}")}).to_string();
                let request = Request::parse(Api::Completions, body.as_bytes()).unwrap();
                for _ in 0..2 {
                    let with = warm.prefix(&request, ROOT, limit, 0).unwrap();
                    let without = cold.prefix(&request, ROOT, limit, 0).unwrap();
                    prop_assert_eq!(&with.keys, &without.keys);
                    prop_assert_eq!((with.tokens, with.end), (without.tokens, without.end));
                    prop_assert_eq!(with.exact, without.exact);
                }
            }
        }
    }
}

/// A prompt of more text than a worker looks at in one go is known further with each time.
#[test]
fn a_very_long_text_is_read_a_part_at_a_time() {
    let body = serde_json::json!({"model": "m", "messages": [
        {"role": "user", "content": "Read this, and all of the rest. ".repeat(100_000)},
    ]})
    .to_string();
    let whole = prefix(&mut prompter(0), &body, usize::MAX).unwrap();
    let mut warm = prompter(64 << 20);
    let mut before = 0;
    for time in 1..=4 {
        let read = prefix(&mut warm, &body, usize::MAX).unwrap();
        assert_eq!(read.keys, whole.keys[..read.keys.len()]);
        let grown = read.tokens - before;
        let most = whole.tokens * (1 << 20) / body.len();
        assert!((1..=most + 16).contains(&grown), "{time}: {grown}");
        before = read.tokens;
        // What is left is estimated.
        let (told, is) = (read.prompt_tokens as f64, whole.prompt_tokens as f64);
        assert!((told / is - 1.0).abs() < 0.05, "{told} {is}");
        assert_eq!(read.end == End::Complete, time == 4, "{time}");
    }
}
