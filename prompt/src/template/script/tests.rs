//! The law of scripts: what one says is what the engine says. On published templates, and on
//! templates and conversations of all kinds.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Helpers too.

use std::path::{Path, PathBuf};

use minijinja::Value;
use proptest::prelude::*;

use super::random::{Choices, TEXTS, conversation, functions};
use super::random_template::template_source;
use crate::artefact::TemplateDefinition;
use crate::json::Json;
use crate::json::tree::Tree;
use crate::prepare::content_format::takes_parts;
use crate::request::api::Api;
use crate::request::{Prompt, Request};
use crate::template::Template;
use crate::template::context::Context;
use crate::template::conversation::{Conversation, Style};
use crate::template::tools::tools;

/// The template of a model directory; its tokenizer isn't needed.
fn template_of(dir: &Path) -> Option<Template> {
    let config = std::fs::read(dir.join("tokenizer_config.json")).ok()?;
    let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    let source = match std::fs::read_to_string(dir.join("chat_template.jinja")) {
        Ok(source) => source,
        Err(_) => config["chat_template"].as_str()?.to_owned(),
    };
    let special = config.as_object().unwrap().iter().filter_map(|(name, value)| {
        let text = value.as_str().or_else(|| value["content"].as_str())?;
        name.ends_with("_token").then(|| (name.clone(), text.to_owned()))
    });
    Some(compiled(&source, special.collect()))
}

pub(crate) fn compiled(source: &str, special: Vec<(String, String)>) -> Template {
    Template::compile(&TemplateDefinition {
        content_parts: takes_parts(source),
        source: Some(source.to_owned()),
        special,
        ..TemplateDefinition::default()
    })
    .unwrap()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The small models of the repository, and larger ones where they are.
fn model_directories() -> Vec<PathBuf> {
    let root = repository();
    let shared =
        std::env::var_os("WARMPATH_SHARED").map_or_else(|| root.join("../shared"), PathBuf::from);
    let mut dirs = vec![root.join("tests/fixtures/models/demo")];
    for folder in [root.join("tests/fixtures/conformance/models"), shared.join("tokenizers")] {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        dirs.extend(entries.map(|entry| entry.unwrap().path()));
    }
    let more = std::env::var_os("WARMPATH_CONFORMANCE").unwrap_or_default();
    dirs.extend(std::env::split_paths(&more).filter(|path| path.is_dir()));
    dirs
}

/// The templates of those models, compiled once.
fn each_published(what: impl FnMut(&Template)) {
    thread_local! {
        static TEMPLATES: Vec<Template> =
            model_directories().iter().filter_map(|dir| template_of(dir)).collect();
    }
    TEMPLATES.with(|templates| templates.iter().for_each(what));
}

fn style(template: &Template) -> Style {
    Style { parts: template.takes_parts(0), developer: template.knows_developer(0) }
}

/// Whether the script answered; it panics if that wasn't the engine's answer.
pub(crate) fn agree(
    template: &Template,
    conversation: &Conversation<'_>,
    context: &Context<'_>,
) -> bool {
    let said = template.script(0).and_then(|script| script.run(conversation, context));
    let Some(said) = said else { return false };
    let engine = template.interpret(0, conversation.to_value(false), context);
    assert_eq!(Ok(said), engine);
    true
}

pub(crate) fn messages(turns: &[(&'static str, &'static str)]) -> Vec<Json<'static>> {
    let message = |(role, content): &(&'static str, &'static str)| {
        let text = |text: &'static str| Json::Str(text.into());
        Json::object([("role", text(role)), ("content", text(content))])
    };
    turns.iter().map(message).collect()
}

#[test]
fn plain_chats_need_no_engine() {
    let chats: [&[(&str, &str)]; 4] = [
        &[("user", "Hi")],
        &[("system", "Be brief."), ("user", " Hi \n")],
        &[("user", "Hi"), ("assistant", "Hello."), ("user", "Bye")],
        &[
            ("system", "Be brief."),
            ("user", "Hi"),
            ("assistant", "<think>\nHm.\n</think>\n\nHello."),
            ("user", "And?"),
            ("assistant", ""),
            ("user", "Bye"),
        ],
    ];
    for dir in model_directories() {
        let Some(template) = template_of(&dir) else { continue };
        for chat in chats {
            for add_generation_prompt in [false, true] {
                let messages = messages(chat);
                let conversation = Conversation::new(&messages, style(&template)).unwrap();
                let variables = vec![("enable_thinking".to_owned(), Value::from(false))];
                let context = Context { add_generation_prompt, variables, ..Context::default() };
                let engine = template.interpret(0, conversation.to_value(false), &context);
                if engine.is_ok() {
                    let name = dir.display();
                    assert!(agree(&template, &conversation, &context), "{name}: {chat:?}");
                }
            }
        }
    }
}

#[test]
fn conformance_bodies_are_the_engines() {
    let fixtures = repository().join("tests/fixtures/conformance");
    let mut bodies = Vec::new();
    for file in ["demo.jsonl", "gemma.jsonl", "apis.jsonl"] {
        for line in std::fs::read_to_string(fixtures.join(file)).unwrap().lines() {
            let case: serde_json::Value = serde_json::from_str(line).unwrap();
            bodies.push(case["body"].to_string());
        }
    }
    for dir in model_directories() {
        let Some(template) = template_of(&dir) else { continue };
        let (mut answered, mut all) = (0, 0);
        for body in &bodies {
            let api = Api::of_body(body.as_bytes()).unwrap();
            let Ok(request) = Request::parse(api, body.as_bytes()) else { continue };
            let Prompt::Chat(chat) = &request.prompt else { continue };
            let Ok(conversation) = Conversation::new(&chat.messages, style(&template)) else {
                continue;
            };
            let kwargs = chat.kwargs.as_ref().and_then(Json::map).unwrap_or_default();
            let context = Context {
                tools: chat.tools.as_ref().and_then(|tools| self::tools(tools).ok()),
                documents: chat.documents.as_ref().map(Tree::Json),
                add_generation_prompt: chat.add_generation_prompt,
                variables: kwargs.iter().map(|(k, v)| (k.to_string(), v.to_value())).collect(),
                now_unix: 1_795_966_337,
            };
            all += 1;
            answered += usize::from(agree(&template, &conversation, &context));
        }
        eprintln!("{}: {answered} of {all} without the engine", dir.display());
        assert!(answered * 4 >= all, "{}: {answered} of {all}", dir.display());
    }
}

fn variables(choices: &mut Choices<'_>) -> Vec<(String, Value)> {
    let mut variables = Vec::new();
    for name in ["enable_thinking", "a", "kw"] {
        let value = match choices.of(8) {
            1 => Value::from(true),
            2 => Value::from(false),
            3 => Value::from(" kw\u{a0}"),
            4 => Value::from(3),
            5 => Value::from(1.5),
            6 => Value::from(vec![Value::from("x")]),
            7 => Value::from(""),
            _ => continue,
        };
        variables.push((name.to_owned(), value));
    }
    variables
}

/// What a template is given beside the messages.
fn random_context<'a>(choices: &mut Choices<'_>, functions: Option<&'a Json<'a>>) -> Context<'a> {
    Context {
        tools: functions.map(|functions| tools(functions).unwrap()),
        add_generation_prompt: choices.of(2) == 1,
        variables: variables(choices),
        ..Context::default()
    }
}

/// Whether engine and script answered, for a template, a conversation and a context out of numbers.
fn random_agreement(source: &[u16], talk: &[u16]) -> Option<[bool; 2]> {
    let source = template_source(&mut Choices::new(source));
    let definition = TemplateDefinition {
        content_parts: takes_parts(&source),
        source: Some(source.clone()),
        special: vec![("bos_token".into(), "<s>".into())],
        ..TemplateDefinition::default()
    };
    let template = Template::compile(&definition).ok()?;
    let mut choices = Choices::new(talk);
    let messages = conversation(&mut choices);
    let functions = functions(&mut choices);
    let context =
        Context { now_unix: 1_795_966_337, ..random_context(&mut choices, functions.as_ref()) };
    let parts = if choices.of(3) == 0 { !template.takes_parts(0) } else { template.takes_parts(0) };
    let style = Style { parts, developer: choices.of(2) == 1 };
    let conversation = Conversation::new(&messages, style).ok()?;
    let said = template.script(0).and_then(|script| script.run(&conversation, &context));
    let engine = template.interpret(0, conversation.to_value(false), &context);
    let answered = [engine.is_ok(), said.is_some()];
    if let Some(said) = said {
        assert_eq!(Ok(said), engine, "{source}\n{messages:?}\n{context:?}");
    }
    Some(answered)
}

fn cases() -> u32 {
    std::env::var("WARMPATH_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(1500)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn random_templates_render_as_by_the_engine(
        source in proptest::collection::vec(any::<u16>(), 0..160),
        talk in proptest::collection::vec(any::<u16>(), 0..120),
    ) {
        random_agreement(&source, &talk);
    }

    #[test]
    fn random_conversations_render_as_by_the_engine(
        talk in proptest::collection::vec(any::<u16>(), 0..200),
    ) {
        each_published(|template| {
            let mut choices = Choices::new(&talk);
            let messages = conversation(&mut choices);
            let functions = functions(&mut choices);
            let context = random_context(&mut choices, functions.as_ref());
            if let Ok(conversation) = Conversation::new(&messages, style(template)) {
                agree(template, &conversation, &context);
            }
        });
    }
}

/// The messages with this as the last one's text.
fn with_question(messages: &[Json<'static>], question: &str) -> Vec<Json<'static>> {
    let mut messages = messages.to_vec();
    messages.pop();
    let text = |text: &str| Json::Str(text.to_owned().into());
    messages.push(Json::object([("role", text("user")), ("content", text(question))]));
    messages
}

/// How many questions of these a shape answers, which is held against the engine.
fn shape_agreement(
    template: &Template,
    style: Style,
    messages: &[Json<'static>],
    questions: [&str; 3],
    context: &mut Context<'_>,
) -> Option<usize> {
    let learned = with_question(messages, questions[0]);
    let conversation = Conversation::new(&learned, style).ok()?;
    let shape = template.script(0)?.shape(&conversation, context)?;
    let mut answered = 0;
    for (question, later) in questions.iter().zip([0, 3_600, 40 * 86_400]) {
        context.now_unix += later;
        if !shape.takes(question, context.now_unix) {
            continue;
        }
        let messages = with_question(messages, question);
        let conversation = Conversation::new(&messages, style).unwrap();
        let engine = template.interpret(0, conversation.to_value(false), context);
        let said = [&shape.before, shape.part(question), &shape.after].concat();
        assert_eq!(Ok(said), engine, "{question:?}");
        answered += 1;
    }
    Some(answered)
}

/// A template that writes the texts of messages, and asks about them.
fn asking_source(choices: &mut Choices<'_>) -> String {
    const TEXTS: [&str; 14] = [
        "m.content",
        "m.content | trim",
        "m['content'].strip()",
        "m.content.lstrip()",
        "(m.content | trim).rstrip()",
        "'<' + m.content + '>'",
        "m.role ~ (m.content | trim) ~ 1",
        "(('a' + m.content) + 'b')",
        "c",
        "' x ' + c",
        "(m.content + 'a') | trim",
        "m.content | default('d', true)",
        "f(m.content)",
        "m.content or 'x'",
    ];
    const CONDITIONS: [&str; 17] = [
        "m.content.startswith('<tool_response>')",
        "m.content.endswith('</tool_response>')",
        "'</think>' in m.content",
        "m.content",
        "not m.content",
        "m.content is string",
        "m.content is not none",
        "m.content is defined and m.content.startswith('a')",
        "(m.content | trim).startswith('a')",
        "'a' in (m.content | trim)",
        "m.content.strip().endswith('x')",
        "m.content == 'user'",
        "m.content in ['user', 'x']",
        "m.content | length > 3",
        "c and 'a' in c",
        "loop.last",
        "strftime_now('%d %b') == '29 Nov'",
    ];
    let mut source = "{%- macro f(t) %}[{{ t }}]{% endmacro %}{%- for m in messages -%}".to_owned();
    if choices.of(2) == 1 {
        source.extend(["{%- set c = ", choices.pick(&TEXTS), " -%}"]);
    }
    for _ in 0..=choices.of(3) {
        source.extend(["{% if ", choices.pick(&CONDITIONS), " %}"]);
        source.extend([choices.pick(&["yes", "{{ strftime_now('%d') }}", "{{ m.role }}"])]);
        source.extend(["{% else %}", choices.pick(&["", "no", "{{ m.content }}"]), "{% endif %}"]);
    }
    source.extend(["{{ ", choices.pick(&TEXTS), " }}", "{%- endfor %}"]);
    source
}

/// The same for numbers: the first for the template, the others for the rest.
fn random_shape(source: &[u16], talk: &[u16]) -> Option<usize> {
    let mut choices = Choices::new(source);
    let asking = choices.of(4) > 0;
    let source = if asking { asking_source(&mut choices) } else { template_source(&mut choices) };
    let definition = TemplateDefinition {
        content_parts: takes_parts(&source),
        source: Some(source),
        ..TemplateDefinition::default()
    };
    let template = Template::compile(&definition).ok()?;
    let mut choices = Choices::new(talk);
    let questions = [0; 3].map(|_| choices.pick(&TEXTS));
    let messages = conversation(&mut choices);
    let functions = functions(&mut choices);
    let mut context = random_context(&mut choices, functions.as_ref());
    context.now_unix = 1_795_966_337;
    let style = Style { parts: choices.of(2) == 1, developer: choices.of(2) == 1 };
    shape_agreement(&template, style, &messages, questions, &mut context)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn shapes_of_random_templates_hold_for_all_questions_that_they_take(
        source in proptest::collection::vec(any::<u16>(), 0..160),
        talk in proptest::collection::vec(any::<u16>(), 0..120),
    ) {
        random_shape(&source, &talk);
    }

    #[test]
    fn shapes_of_published_templates_hold_for_all_questions_that_they_take(
        talk in proptest::collection::vec(any::<u16>(), 0..200),
    ) {
        each_published(|template| {
            let mut choices = Choices::new(&talk);
            let questions = [0; 3].map(|_| choices.pick(&TEXTS));
            let messages = conversation(&mut choices);
            let functions = functions(&mut choices);
            let mut context = random_context(&mut choices, functions.as_ref());
            shape_agreement(template, style(template), &messages, questions, &mut context);
        });
    }
}

#[test]
fn plain_chats_have_shapes() {
    let questions = ["When does it close?", " And\n\"the\" train?\n", "</think><tool_response>x"];
    for dir in model_directories() {
        let Some(template) = template_of(&dir) else { continue };
        let messages = messages(&[("user", "Hi"), ("assistant", "Hello."), ("user", "")]);
        let mut context = Context { add_generation_prompt: true, ..Context::default() };
        let answered =
            shape_agreement(&template, style(&template), &messages, questions, &mut context);
        eprintln!("{}: {answered:?} of 3", dir.display());
        assert!(answered.is_some_and(|answered| answered >= 2), "{}", dir.display());
    }
}

/// So many numbers, time after time others.
fn numbers(mut seed: u32) -> impl FnMut(usize) -> Vec<u16> {
    move |count| {
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) as u16
        };
        (0..count).map(|_| next()).collect()
    }
}

#[test]
fn enough_random_templates_have_shapes() {
    // Else their law says little.
    let mut numbers = numbers(3);
    let answers: Vec<usize> =
        (0..1000).filter_map(|_| random_shape(&numbers(90), &numbers(80))).collect();
    let answered = answers.iter().filter(|answered| **answered > 1).count();
    eprintln!("{} shapes, {answered} for more than the question of which they are", answers.len());
    assert!(answered > 50, "{answered}");
}

#[test]
fn enough_random_templates_are_answered() {
    // Else the law above says little.
    let mut numbers = numbers(1);
    let outcomes: Vec<[bool; 2]> =
        (0..1000).filter_map(|_| random_agreement(&numbers(90), &numbers(80))).collect();
    let answered = |who: usize| outcomes.iter().filter(|answered| answered[who]).count();
    let (engine, script) = (answered(0), answered(1));
    eprintln!("of {}: the engine {engine}, scripts {script}", outcomes.len());
    assert!(engine > 200 && script * 2 > engine, "{engine}, {script}");
}

/// What a render takes, by script and by engine; says, never judges:
/// `cargo test --release -p warmpath-routing --features preprocess --lib script -- --ignored --nocapture`
#[test]
#[ignore = "measures"]
fn speed() {
    let answer = "It closes at nine, and the next train goes at ten past. ".repeat(20);
    let answer: &'static str = answer.leak();
    let turns = [
        ("system", "You are helpful."),
        ("user", "When does it close?"),
        ("assistant", answer),
        ("user", "And the train?"),
        ("assistant", answer),
        ("user", "Thanks."),
    ];
    for dir in model_directories() {
        let Some(template) = template_of(&dir) else { continue };
        let messages = messages(&turns);
        let context = Context { add_generation_prompt: true, ..Context::default() };
        let script = template.script(0).unwrap();
        let time = |what: &dyn Fn() -> usize| {
            let mut all: Vec<f64> = (0..500)
                .map(|_| {
                    let start = std::time::Instant::now();
                    for _ in 0..10 {
                        std::hint::black_box(what());
                    }
                    start.elapsed().as_secs_f64() * 1e5
                })
                .collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let conversation = Conversation::new(&messages, style(&template)).unwrap();
        let new = time(&|| Conversation::new(&messages, style(&template)).unwrap().len());
        let run = time(&|| script.run(&conversation, &context).map_or(0, |text| text.len()));
        let interpreted = time(&|| {
            let messages = conversation.to_value(false);
            template.interpret(0, messages, &context).map_or(0, |text| text.len())
        });
        eprintln!(
            "{}: conversation {new:.2} µs, script {run:.2} µs, engine {interpreted:.2} µs; the script has {size} bytes",
            dir.file_name().unwrap().to_string_lossy(),
            size = script.size(),
        );
    }
}
