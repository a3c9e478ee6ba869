//! What an engine's version and command line change about prompts.
#![cfg(feature = "preprocess")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Tests, helpers included.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use warmpath_prompt::{
    Api, Beginnings, Clock, ContentFormat, Engine, Model, ModelFiles, Offset, PromptError,
    Prompter, Request, Serving, preprocess_for,
};
use warmpath_routing::fingerprint::Fingerprint;

/// Shows what a template is given.
const SHOW: &str = "{% for m in messages %}{{ m.content }}|{% endfor %}{{ (tools or []) | length }} \
                    {{ x }} {{ y }} {{ z }} {{ enable_thinking }}";

fn files(model: &str) -> ModelFiles {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    ModelFiles::read_dir(&fixtures.join(model)).unwrap()
}

fn prompter_of(files: &ModelFiles, serving: &Serving) -> Prompter {
    let artefact = preprocess_for(files, serving).unwrap();
    Prompter::new(Model::load(artefact.bytes).unwrap(), 1 << 20)
}

fn ids(prompter: &mut Prompter, api: Api, body: &str) -> Vec<u32> {
    prompter.tokens(&Request::parse(api, body.as_bytes()).unwrap(), None, 0).unwrap().ids
}

thread_local! {
    /// Of the demo model, by how it is served.
    static DEMO: RefCell<BTreeMap<String, Prompter>> = const { RefCell::new(BTreeMap::new()) };
}

fn text_at(serving: &Serving, api: Api, body: &str, now: i64) -> Result<String, PromptError> {
    DEMO.with_borrow_mut(|known| {
        let prompter = known
            .entry(format!("{serving:?}"))
            .or_insert_with(|| prompter_of(&files("models/demo"), serving));
        let tokens = prompter.tokens(&Request::parse(api, body.as_bytes()).unwrap(), None, now)?;
        Ok(tokens.text.unwrap())
    })
}

fn text(serving: &Serving, api: Api, body: &str) -> String {
    text_at(serving, api, body, 0).unwrap()
}

const SAID: &str = r#""messages":[{"role":"user","content":"Hi"}]"#;
const APIS: [(Api, &str); 3] = [
    (Api::Chat, r#""messages":[{"role":"user","content":"Hi"}]"#),
    (Api::Responses, r#""input":"Hi""#),
    (Api::Messages, r#""messages":[{"role":"user","content":"Hi"}]"#),
];

/// vLLM 0.32: `build_tok_params` of entrypoints/openai/{chat_completion,completion,responses}; the
/// Messages are chats. A real one's events begin so, with llama3.1's and gemma3's templates.
#[test]
fn only_responses_have_special_tokens_beside_the_templates() {
    // Its template begins with `bos_token`, its tokenizer with the same.
    let mut vllm = prompter_of(&files("conformance/models/gemma"), &Serving::default());
    let bos = ids(&mut vllm, Api::Completions, r#"{"prompt":"Hi"}"#)[0];
    let begins = |ids: &[u32]| ids.iter().take_while(|id| **id == bos).count();
    for (api, said) in APIS {
        let two = usize::from(api == Api::Responses);
        let ids = ids(&mut vllm, api, &format!("{{{said}}}"));
        assert_eq!(begins(&ids), 1 + two, "{api:?}");
    }
    let marked = format!(r#"{{{SAID},"add_special_tokens":true}}"#);
    assert_eq!(begins(&ids(&mut vllm, Api::Chat, &marked)), 2);
    let plain = r#"{"prompt":"Hi","add_special_tokens":false}"#;
    assert_eq!(begins(&ids(&mut vllm, Api::Completions, plain)), 0);
    assert_eq!(begins(&ids(&mut vllm, Api::Completions, &format!(r#"{{"prompt":[{bos}]}}"#))), 1);
    // The prefix is the same as the tokens say.
    let request = Request::parse(Api::Responses, br#"{"input":"Hi"}"#).unwrap();
    let all = vllm.tokens(&request, None, 0).unwrap().ids.len();
    assert_eq!(vllm.prefix(&request, Fingerprint([1; 32]), 999, 0).unwrap().tokens, all);
}

/// vLLM 0.32, renderers/params.py: `merge_kwargs`, `ChatParams.with_defaults`.
#[test]
fn a_requests_arguments_go_before_the_servers_unless_they_say_nothing() {
    let serving = Serving {
        chat_template: Some(SHOW.into()),
        template_kwargs: r#"{"x":1,"y":null,"z":"auto","enable_thinking":false}"#.into(),
        ..Serving::default()
    };
    for (api, said) in APIS {
        for (more, shown) in [
            ("", "1 None auto False"),
            (r#","chat_template_kwargs":{"x":null,"y":"auto","z":5}"#, "1 None 5 False"),
            (
                r#","chat_template_kwargs":{"x":"auto","y":2,"enable_thinking":true}"#,
                "1 2 auto True",
            ),
        ] {
            let text = text(&serving, api, &format!("{{{said}{more}}}"));
            assert!(text.ends_with(&format!("0 {shown}")), "{api:?} {more}: {text}");
        }
    }
    // An effort switches thinking on, whatever the server's default is.
    let effort = text(&serving, Api::Chat, &format!(r#"{{{SAID},"reasoning_effort":"low"}}"#));
    assert!(effort.ends_with("True"), "{effort}");
}

/// vLLM 0.32, renderers/online_renderer.py and entrypoints/openai/responses/utils.py.
#[test]
fn tools_are_left_out_where_none_may_be_called_if_the_engine_is_told_to() {
    let tool = |api| match api {
        Api::Chat => r#"{"type":"function","function":{"name":"now"}}"#,
        Api::Responses => r#"{"type":"function","name":"now","parameters":{}}"#,
        _ => r#"{"name":"now","input_schema":{"type":"object"}}"#,
    };
    let none = |api| if api == Api::Messages { r#"{"type":"none"}"# } else { r#""none""# };
    for (excludes_tools, with_none) in [(false, "1"), (true, "0")] {
        let chat_template = Some("{{ tools | length if tools is not none else 0 }}".into());
        let serving = Serving { chat_template, excludes_tools, ..Serving::default() };
        for (api, said) in APIS {
            let body = format!(r#"{{{said},"tools":[{}]"#, tool(api));
            assert_eq!(text(&serving, api, &format!("{body}}}")), "1", "{api:?}");
            let none = format!(r#"{body},"tool_choice":{}}}"#, none(api));
            assert_eq!(text(&serving, api, &none), with_none, "{api:?} {excludes_tools}");
        }
    }
}

#[test]
fn the_format_of_content_is_the_engines_where_it_is_given() {
    let body = format!("{{{SAID}}}");
    for (content_format, shown) in [
        (ContentFormat::Auto, "Hi|"),
        (ContentFormat::String, "Hi|"),
        (ContentFormat::OpenAi, "[{'type': 'text', 'text': 'Hi'}]|"),
    ] {
        let chat_template = Some(SHOW.into());
        let serving = Serving { chat_template, content_format, ..Serving::default() };
        let text = text(&serving, Api::Chat, &body);
        assert!(text.starts_with(shown), "{content_format:?}: {text}");
    }
}

/// America/Los_Angeles, winter.
fn west() -> Clock {
    Clock::new([Offset { from_unix: 0, seconds: -8 * 3600 }])
}

/// 2026-12-01 00:00 UTC.
const MIDNIGHT: i64 = 1_796_083_200;

#[test]
fn dates_are_those_of_the_engines_clock() {
    let chat_template = Some("{{ strftime_now('%d %b %Y %H %Z') }}".to_owned());
    let body = format!("{{{SAID}}}");
    let three = MIDNIGHT + 3 * 3600;
    let utc = Serving { chat_template, ..Serving::default() };
    assert_eq!(text_at(&utc, Api::Chat, &body, three).as_deref(), Ok("01 Dec 2026 03 "));
    for engine in [Engine::Vllm, Engine::Sglang] {
        let serving = Serving { engine, clock: west(), ..utc.clone() };
        assert_eq!(text_at(&serving, Api::Chat, &body, three).as_deref(), Ok("30 Nov 2026 19 "));
    }
}

#[test]
fn a_beginning_with_a_date_holds_until_the_engines_midnight() {
    let chat_template =
        "{{ strftime_now('%d %b') }}{% for m in messages %} {{ m.content }}{% endfor %}";
    let chat_template = Some(chat_template.to_owned());
    let serving = Serving { chat_template, clock: west(), ..Serving::default() };
    let mut prompter = prompter_of(&files("models/demo"), &serving);
    let mut beginnings = Beginnings::new(1 << 20);
    let (root, limit) = (Fingerprint([1; 32]), 4096);
    let system = "Be kind to all who ask. ".repeat(200);
    let body = |question: &str| {
        format!(
            r#"{{"messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{question}"}}]}}"#
        )
    };
    let day = MIDNIGHT + 8 * 3600;
    for question in ["one", "two", "three", "four"] {
        let body = body(question);
        let request = Request::parse(Api::Chat, body.as_bytes()).unwrap();
        prompter.prefix(&request, root, limit, day - 60).unwrap();
        beginnings.learn(body.as_bytes(), &request, &mut prompter, root, limit, day - 60);
    }
    let next = body("five");
    assert!(beginnings.find(next.as_bytes(), day - 1).is_some());
    assert!(beginnings.find(next.as_bytes(), day - 8 * 3600 - 1).is_some());
    assert!(beginnings.find(next.as_bytes(), day).is_none());
}

#[test]
fn what_is_not_known_of_an_engine_is_refused_by_name() {
    let refusal = |serving: &Serving, api, body: &str| {
        text_at(serving, api, body, 0).unwrap_err().to_string()
    };
    let old = Serving { engine: Engine::Vllm023, ..Serving::default() };
    assert!(text(&old, Api::Chat, &format!("{{{SAID}}}")).contains("Hi"));
    for (api, said) in &APIS[1..] {
        let error = refusal(&old, *api, &format!("{{{said}}}"));
        assert!(error.ends_with("of this vLLM"), "{error}");
    }
    let sglang = Serving { engine: Engine::Sglang, ..Serving::default() };
    for (api, more, why) in [
        (Api::Chat, r#""extra_key":"k""#, "extra_key"),
        (Api::Chat, r#""input_ids":[1]"#, "input_ids"),
        (Api::Chat, r#""lora_path":"a""#, "lora_path"),
        (Api::Chat, r#""chat_template_kwargs":{"chat_template":"x"}"#, "chat_template_kwargs"),
        (
            Api::Chat,
            r#""tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"type":"varchar"}}}}}]"#,
            "a type that SGLang renames",
        ),
        (Api::Messages, r#""thinking":{"type":"disabled"}"#, "thinking"),
        (Api::Messages, r#""output_config":{"effort":"low"}"#, "output_config.effort"),
    ] {
        let error = refusal(&sglang, api, &format!("{{{SAID},{more}}}"));
        assert!(error.ends_with(why), "{more}: {error}");
    }
    let tools = r#"{"input":"x","tools":[{"type":"custom","name":"p"}]}"#;
    assert!(refusal(&sglang, Api::Responses, tools).ends_with("a custom tool"));
    let before = r#"{"input":"x","previous_response_id":"resp_1"}"#;
    assert!(refusal(&sglang, Api::Responses, before).ends_with("previous_response_id"));
    // An effort sets another argument of this template's kind.
    let low = Serving { chat_template: Some("{{ low_effort }}".into()), ..sglang.clone() };
    let error = refusal(&low, Api::Chat, &format!(r#"{{{SAID},"reasoning_effort":"low"}}"#));
    assert!(error.ends_with("reasoning_effort"), "{error}");
}

#[test]
fn models_whose_chats_sglang_renders_otherwise_have_no_template_there() {
    let sglang = Serving { engine: Engine::Sglang, ..Serving::default() };
    let error = |files: &ModelFiles, serving: &Serving| {
        let body = format!("{{{SAID}}}");
        let request = Request::parse(Api::Chat, body.as_bytes()).unwrap();
        prompter_of(files, serving).tokens(&request, None, 0).err()
    };
    for (model, config, on_vllm) in [
        ("models/demo", r#"{"architectures":["DeepseekV4ForCausalLM"]}"#, true),
        ("models/demo", r#"{"architectures":["GptOssForCausalLM"],"model_type":"gpt_oss"}"#, true),
        ("models/demo", r#"{"architectures":["MiniMaxM3VLForCausalLM"]}"#, false),
        ("models/demo", r#"{"model_type":"internvl_chat"}"#, false),
    ] {
        let files = ModelFiles { config_json: Some(config.into()), ..files(model) };
        assert_eq!(error(&files, &sglang), Some(PromptError::NoTemplate), "{config}");
        assert_eq!(error(&files, &Serving::default()).is_some(), on_vllm, "{config}");
    }
    // Prompts of models for images are tokenized again from their text, with special tokens.
    let seeing = |model: &str| {
        let mut files = files(model);
        let config = files.config_json.take().unwrap_or_else(|| b"{}".to_vec());
        let config = String::from_utf8(config).unwrap();
        let more = if config.trim() == "{}" { "" } else { "," };
        let rest = config.trim().trim_start_matches('{').to_owned();
        files.config_json = Some(format!(r#"{{"vision_config":{{}}{more}{rest}"#).into());
        files
    };
    let marked = seeing("conformance/models/gemma");
    assert_eq!(error(&marked, &sglang), Some(PromptError::NoTemplate));
    assert_eq!(error(&marked, &Serving::default()), None);
    assert_eq!(error(&seeing("models/demo"), &sglang), None);
}

#[test]
fn named_templates_are_sglangs_first() {
    let config = br#"{"chat_template":[{"name":"rag","template":"rag"},{"name":"default",
        "template":"default"},{"name":"tool_use","template":"tools"}]}"#;
    let files = ModelFiles { tokenizer_config_json: Some(config.to_vec()), ..files("models/demo") };
    let tools = r#""tools":[{"function":{"name":"f"}}]"#;
    for (engine, more, shown) in [
        (Engine::Vllm, "", "default"),
        (Engine::Vllm, tools, "tools"),
        (Engine::Sglang, "", "rag"),
        (Engine::Sglang, tools, "rag"),
    ] {
        let more = if more.is_empty() { String::new() } else { format!(",{more}") };
        let body = format!("{{{SAID}{more}}}");
        let mut prompter = prompter_of(&files, &Serving { engine, ..Serving::default() });
        let request = Request::parse(Api::Chat, body.as_bytes()).unwrap();
        let text = prompter.tokens(&request, None, 0).unwrap().text.unwrap();
        assert_eq!(text, shown, "{engine} {body}");
    }
}

#[test]
fn sglangs_messages_have_no_salt() {
    for (engine, api, salt) in [
        (Engine::Vllm, Api::Messages, "s"),
        (Engine::Sglang, Api::Messages, ""),
        (Engine::Sglang, Api::Chat, "s"),
    ] {
        let prompter =
            prompter_of(&files("models/demo"), &Serving { engine, ..Serving::default() });
        let body = format!(r#"{{{SAID},"cache_salt":"s"}}"#);
        let request = Request::parse(api, body.as_bytes()).unwrap();
        assert_eq!(prompter.model().cache_salt(&request), salt, "{engine} {api:?}");
    }
}
