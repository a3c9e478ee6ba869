//! The model's chat template, rendered as Hugging Face `transformers` renders it with Jinja2.

pub(crate) mod conversation;
pub(crate) mod loop_controls;
pub(crate) mod markup;
pub(crate) mod render;
pub(crate) mod rewrite;
pub(crate) mod script;
pub(crate) mod strftime;
pub(crate) mod text;
pub(crate) mod tools;

use std::fmt;
use std::ops::Range;

#[cfg(feature = "preprocess")]
use minijinja::machinery::ast::Stmt;
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, filters};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::artefact::TemplateDefinition;
use crate::error::{ArtefactError, PromptError};
use crate::json::print::{self, Dumps, FarFloat, LongInt};
use crate::json::tree::Tree;
use crate::template::conversation::Conversation;
use crate::template::loop_controls::leave_a_block;
use crate::template::markup::marked_as;
use crate::template::script::Script;
use crate::template::strftime::strftime;

const CHAT: &str = "chat";
const TOOLS: &str = "tools";

/// Instructions of the template engine per request: what they take holds up a worker, some 50 to 80
/// ms for a million. A chat with hundreds of tools and turns takes some hundred thousand.
const FUEL: u64 = 2_000_000;

/// The compiled templates of a model.
pub(crate) struct Template {
    environment: Environment<'static>,
    /// What renders without the engine as far as that goes, for each.
    scripts: [Option<Box<Script>>; 2],
    special: Vec<(String, Value)>,
    content_parts: [bool; 2],
    developer: [bool; 2],
    has: [bool; 2],
    chat_only: bool,
    merges_system: bool,
}

/// What a template is given beside the messages.
#[derive(Debug, Default)]
pub(crate) struct Context<'a> {
    pub(crate) tools: Option<Tree<'a>>,
    pub(crate) documents: Option<Tree<'a>>,
    pub(crate) add_generation_prompt: bool,
    /// Further variables by name; they go before the special tokens.
    pub(crate) variables: Vec<(String, Value)>,
    /// What `strftime_now` calls now, in seconds since 1970.
    pub(crate) now_unix: i64,
}

impl Template {
    pub(crate) fn compile(definition: &TemplateDefinition) -> Result<Self, ArtefactError> {
        let mut environment = environment();
        let mut scripts = [None, None];
        let mut template = |number: usize, name: &'static str, source: &Option<String>| {
            let Some(source) = source else { return Ok((false, false)) };
            let source = as_the_engine_has_it(source);
            // What is no template the environment says below.
            if let Ok(tree) = parse(&source, name, syntax()) {
                if leave_a_block(&tree) {
                    let what = "a break or continue leaves a block that is open within its loop";
                    return Err(ArtefactError::Template(what.to_owned()));
                }
                if let Some(script) = scripts.get_mut(number) {
                    let functions: Vec<_> = environment.globals().map(|(name, _)| name).collect();
                    *script = script::compile(&tree, &functions, &definition.special).map(Box::new);
                }
            }
            let rewritten = parse(&source, name, syntax()).ok();
            let rewritten = rewritten.as_ref().and_then(rewrite::with_own_sums);
            let developer = source.contains("\"developer\"") || source.contains("'developer'");
            environment
                .add_template_owned(name, rewritten.unwrap_or(source))
                .map_err(|error| ArtefactError::Template(describe(&error)))?;
            Ok((true, developer))
        };
        let chat = template(0, CHAT, &definition.source)?;
        let tools = template(1, TOOLS, &definition.tools_source)?;
        let merges_system = [(CHAT, &definition.source), (TOOLS, &definition.tools_source)]
            .iter()
            .any(|(name, source)| match source {
                Some(source) => system_must_be_first(&environment, name, source),
                None => *name == CHAT,
            });
        Ok(Self {
            environment,
            scripts,
            merges_system,
            special: definition
                .special
                .iter()
                .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
                .collect(),
            content_parts: [definition.content_parts, definition.tools_content_parts],
            has: [chat.0, tools.0],
            chat_only: definition.chat_only,
            developer: [chat.1, tools.1],
        })
    }

    /// The number of the template for a request with or without tools.
    pub(crate) fn choose(&self, tools: bool) -> Option<usize> {
        let [chat, other] = self.has;
        if tools && other {
            Some(1)
        } else if chat && !(tools && self.chat_only) {
            Some(0)
        } else {
            None
        }
    }

    /// Whether the template goes over the parts of a message's content.
    pub(crate) fn takes_parts(&self, number: usize) -> bool {
        self.content_parts.get(number) == Some(&true)
    }

    /// Whether the template knows the role `developer`.
    pub(crate) fn knows_developer(&self, number: usize) -> bool {
        self.developer.get(number) == Some(&true)
    }

    /// Whether vLLM puts Anthropic's later system messages into the first for this template.
    pub(crate) fn merges_system(&self) -> bool {
        self.merges_system
    }

    /// Whether a system message that isn't the first is written where it stands: SGLang's own test
    /// (0.5.23, parser/template_detection.py, `detect_inline_system_support`).
    pub(crate) fn writes_later_system(&self) -> bool {
        let message = |role, content| Value::from_pairs([("role", role), ("content", content)]);
        let messages: Value = [("system", "t"), ("user", "t"), ("system", LATER), ("user", "t")]
            .into_iter()
            .map(|(role, content)| message(role, content))
            .collect();
        let variables = [("messages", messages), ("add_generation_prompt", Value::from(false))];
        let template = self.environment.get_template(CHAT);
        let text = template.and_then(|template| {
            // It knows no `generation` blocks, which came to this.
            let known = !template.source().contains(GENERATION);
            if known { template.render(Value::from_pairs(variables)) } else { Ok(String::new()) }
        });
        text.is_ok_and(|text| text.contains(LATER))
    }

    /// A special token by its name.
    pub(crate) fn special(&self, name: &str) -> Option<&str> {
        self.special.iter().find(|(known, _)| known == name)?.1.as_str()
    }

    /// Whether a template's source has a word.
    pub(crate) fn mentions(&self, word: &str) -> bool {
        self.environment.get_template(CHAT).is_ok_and(|template| template.source().contains(word))
    }

    /// The text: by the script where that can tell it, else by the engine.
    pub(crate) fn render(
        &self,
        number: usize,
        conversation: &Conversation<'_>,
        context: &Context<'_>,
    ) -> Result<String, PromptError> {
        match self.script(number).and_then(|script| script.run(conversation, context)) {
            Some(text) => Ok(text),
            None => self.interpret(number, conversation.to_value(false), context),
        }
    }

    /// The script of a template, if there is one.
    pub(crate) fn script(&self, number: usize) -> Option<&Script> {
        self.scripts.get(number)?.as_deref()
    }

    /// From now on the engine renders all.
    pub(crate) fn forget_scripts(&mut self) {
        self.scripts = [None, None];
    }

    /// The text by the engine.
    pub(crate) fn interpret(
        &self,
        number: usize,
        messages: Value,
        context: &Context<'_>,
    ) -> Result<String, PromptError> {
        let mut variables: Vec<(Value, Value)> = Vec::with_capacity(16);
        let mut add = |name: &str, value: Value| variables.push((Value::from(name), value));
        // Later ones replace earlier ones of the same name.
        for (name, value) in &self.special {
            add(name, value.clone());
        }
        for (name, value) in &context.variables {
            add(name, value.clone());
        }
        let now_unix = context.now_unix;
        add("strftime_now", Value::from_function(move |format: &str| strftime(format, now_unix)));
        add("messages", messages);
        let given = |tree: &Option<Tree<'_>>| tree.as_ref().map_or(Value::from(()), Tree::to_value);
        add("tools", given(&context.tools));
        add("documents", given(&context.documents));
        add("add_generation_prompt", Value::from(context.add_generation_prompt));
        self.environment
            .get_template(if number == 1 { TOOLS } else { CHAT })
            .and_then(|template| template.render(Value::from_pairs(variables)))
            .map_err(|error| prompt_error(&error))
    }
}

/// Whether the template fails on a system message that isn't the first, with no other variables
/// than these: vLLM's own test (vllm/entrypoints/anthropic/serving.py, 0.32).
fn system_must_be_first(environment: &Environment<'_>, name: &str, source: &str) -> bool {
    let messages: Value = ["system", "user", "system", "user"]
        .iter()
        .map(|role| Value::from_pairs([("role", *role), ("content", "t")]))
        .collect();
    let variables =
        Value::from_pairs([("messages", messages), ("add_generation_prompt", Value::from(false))]);
    // It knows no `generation` blocks.
    source.contains("endgeneration")
        || environment.get_template(name).and_then(|template| template.render(variables)).is_err()
}

/// What a template is shown to find out whether a later system message comes out.
const LATER: &str = "__warmpath_later_system__";

/// An error of `raise_exception`.
#[derive(Debug)]
struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("raise_exception")
    }
}

impl std::error::Error for Refused {}

fn prompt_error(error: &Error) -> PromptError {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(inner) = source {
        if inner.is::<Refused>() {
            return PromptError::TemplateRefused;
        }
        source = inner.source();
    }
    // The message may hold parts of the prompt; the kind doesn't.
    PromptError::TemplateFailed(match error.kind() {
        ErrorKind::UndefinedError => "a value that is undefined",
        ErrorKind::UnknownFilter => "an unknown filter",
        ErrorKind::UnknownTest => "an unknown test",
        ErrorKind::UnknownFunction => "an unknown function",
        ErrorKind::UnknownMethod => "an unknown method",
        ErrorKind::MissingArgument | ErrorKind::TooManyArguments => "wrong arguments",
        ErrorKind::OutOfFuel => "too many steps",
        ErrorKind::InvalidOperation => "an operation on the wrong type",
        _ => "an error",
    })
}

fn describe(error: &Error) -> String {
    match error.line() {
        Some(line) => format!("line {line}: {error}"),
        None => error.to_string(),
    }
}

/// As `transformers` sets up Jinja2.
/// Shows the syntax tree of a template as the engine has it; `None` if it can't be parsed.
#[cfg(feature = "preprocess")]
pub(crate) fn parsed<T>(source: &str, see: impl FnOnce(&Stmt<'_>) -> T) -> Option<T> {
    let source = as_the_engine_has_it(source);
    parse(&source, CHAT, syntax()).ok().map(|tree| see(&tree))
}

fn syntax() -> SyntaxConfig {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    syntax.unwrap_or_default()
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax());
    environment.set_fuel(Some(FUEL));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_formatter(|output: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value| {
        let result = match value.as_str() {
            Some(text) => output.write_str(text),
            None => output.write_str(&print::str(value)),
        };
        result.map_err(|_| Error::from(ErrorKind::WriteFailure))
    });
    environment.set_unknown_method_callback(method);
    environment.add_function("raise_exception", |_: Rest<Value>| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "refused").with_source(Refused))
    });
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: Value| match value.kind() {
        ValueKind::String => value,
        _ => Value::from(print::str(&value)),
    });
    environment.add_filter("trim", |text: Value, chars: Option<String>| {
        marked_as(&text, strip(&print::str(&text), chars.as_deref(), true, true).to_owned())
    });
    environment
        .add_filter("upper", |text: Value| marked_as(&text, print::str(&text).to_uppercase()));
    environment
        .add_filter("lower", |text: Value| marked_as(&text, print::str(&text).to_lowercase()));
    environment.add_filter("title", |text: Value| {
        marked_as(&text, filters::title(print::str(&text).into()))
    });
    for name in ["e", "escape"] {
        environment.add_filter(name, markup::escape);
    }
    environment.add_filter("indent", |text: Value, width, first, blank| {
        markup::indent(&text, width, first, blank)
    });
    environment.add_filter(rewrite::SUM, |left: Value, right: Value| markup::sum(&left, &right));
    // It writes on several lines what Python writes on one.
    environment.remove_filter("pprint");
    environment.add_test("iterable", |value: &Value| {
        value.is_undefined()
            || matches!(
                value.kind(),
                ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable
            )
    });
    let is_number = |value: &Value| {
        value.kind() == ValueKind::Number || LongInt::is(value) || FarFloat::is(value)
    };
    environment.add_test("float", |value: &Value| {
        FarFloat::is(value) || value.kind() == ValueKind::Number && !value.is_integer()
    });
    environment.add_test("number", move |value: &Value| {
        is_number(value) || value.kind() == ValueKind::Bool
    });
    environment.add_test("integer", move |value: &Value| value.is_integer() || LongInt::is(value));
    for (name, rest) in [("even", 0), ("odd", 1)] {
        environment.add_test(name, move |value: &Value| match i128::try_from(value.clone()) {
            Ok(number) => Ok(number.rem_euclid(2) == rest),
            Err(_) => Err(Error::from(ErrorKind::InvalidOperation)),
        });
    }
    for (name, lower) in [("lower", true), ("upper", false)] {
        environment.add_test(name, move |value: &Value| {
            let text = print::str(value);
            let (wanted, other) = if lower {
                (text.contains(char::is_lowercase), text.contains(char::is_uppercase))
            } else {
                (text.contains(char::is_uppercase), text.contains(char::is_lowercase))
            };
            wanted && !other
        });
    }
    environment.add_test("sequence", |value: &Value| {
        value.is_undefined()
            || matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
    });
    environment
}

/// Methods of Python's types, where minijinja's own are not exactly Python's.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        let (start, end) = match name {
            "strip" => (true, true),
            "lstrip" => (true, false),
            "rstrip" => (false, true),
            "title" if args.is_empty() => {
                let title = markup::title(text).map(|title| marked_as(value, title));
                return title.ok_or_else(|| Error::from(ErrorKind::UnknownMethod));
            }
            // They escape what they are given.
            "replace" | "join" | "format" if value.is_safe() => {
                return Err(Error::from(ErrorKind::UnknownMethod));
            }
            _ => {
                let made = unknown_method_callback(state, value, name, args)?;
                return Ok(match made.as_str() {
                    Some(text) if value.is_safe() => Value::from_safe_string(text.to_owned()),
                    None if value.is_safe() && made.kind() == ValueKind::Seq => {
                        let safe = |item: Value| Value::from_safe_string(item.to_string());
                        made.try_iter()?.map(safe).collect()
                    }
                    _ => made,
                });
            }
        };
        let (chars,): (Option<&str>,) = minijinja::value::from_args(args)?;
        return Ok(marked_as(value, strip(text, chars, start, end).to_owned()));
    }
    unknown_method_callback(state, value, name, args)
}

/// What `str.strip()` leaves of a text, at its start or end or both.
pub(crate) fn strip<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    text.get(strip_range(text, chars, start, end)).unwrap_or_default()
}

/// From where to where that is.
pub(crate) fn strip_range(text: &str, chars: Option<&str>, start: bool, end: bool) -> Range<usize> {
    let takes = |char: char| match chars {
        Some(chars) => chars.contains(char),
        None => print::is_space(char),
    };
    let rest = if start { text.trim_start_matches(takes) } else { text };
    let from = text.len() - rest.len();
    from..from + if end { rest.trim_end_matches(takes) } else { rest }.len()
}

#[allow(clippy::needless_pass_by_value)] // What a filter is given.
fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let mut dumps = Dumps::default();
    let mut given = args.0.iter();
    let mut argument = |name: &str| -> Result<Option<Value>, Error> {
        match given.next() {
            Some(value) => Ok(Some(value.clone())),
            None => kwargs.get(name),
        }
    };
    if let Some(ensure_ascii) = argument("ensure_ascii")? {
        dumps.ensure_ascii = ensure_ascii.is_true();
    }
    match argument("indent")? {
        Some(indent) if indent.kind() == ValueKind::String => {
            dumps.indent = indent.as_str().map(str::to_owned);
        }
        Some(indent) if indent.kind() == ValueKind::Number => {
            dumps.indent = Some(" ".repeat(indent.as_usize().unwrap_or(0).min(64)));
        }
        _ => {}
    }
    if dumps.indent.is_some() {
        dumps.item_separator = ",".into();
    }
    if let Some(separators) = argument("separators")?
        && !separators.is_none()
    {
        dumps.item_separator = print::str(&separators.get_item_by_index(0)?);
        dumps.key_separator = print::str(&separators.get_item_by_index(1)?);
    }
    if let Some(sort_keys) = argument("sort_keys")? {
        dumps.sort_keys = sort_keys.is_true();
    }
    kwargs.assert_all_used()?;
    dumps
        .write(value)
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, "a value that JSON can't hold"))
}

/// The source with tags as the template engine has them: `{% generation %}`, which marks what the
/// assistant said, for training, renders what is inside; and the line break after `{% raw %}` stays,
/// as in Jinja2 (3.1, lexer.py: `TOKEN_RAW_BEGIN` takes none).
fn as_the_engine_has_it(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut raw = false;
    while let Some(at) = rest.find(if raw { "{%" } else { "{" }) {
        let (before, block) = rest.split_at(at);
        out.push_str(before);
        let end = match block.as_bytes().get(1) {
            Some(b'%') => block.find("%}").map(|end| end + 2),
            // What looks like a tag in a comment is none.
            Some(b'#') => block.find("#}").map(|end| end + 2),
            _ => Some(1),
        };
        let Some((tag, after)) = end.and_then(|end| block.split_at_checked(end)) else {
            rest = block;
            break;
        };
        rest = after;
        let Some(inner) = tag.strip_prefix("{%").and_then(|tag| tag.strip_suffix("%}")) else {
            out.push_str(tag);
            continue;
        };
        let (open, inner) = sign(inner, true);
        let (close, inner) = sign(inner, false);
        match inner.trim() {
            "endraw" => {
                raw = false;
                out.push_str(tag);
            }
            _ if raw => {
                // It may begin within what looks like a tag.
                out.push_str("{%");
                rest = block.get(2..).unwrap_or_default();
            }
            "raw" => {
                raw = true;
                let close = if close.is_empty() { "+" } else { close };
                out.extend(["{%", open, " raw ", close, "%}"]);
            }
            "generation" => out.extend(["{%", open, GENERATION, close, "%}"]),
            "endgeneration" => out.extend(["{%", open, " endif ", close, "%}"]),
            _ => out.push_str(tag),
        }
    }
    out.push_str(rest);
    out
}

/// What `generation` becomes; no one writes it so.
const GENERATION: &str = " if  true  ";

/// Takes the white space sign off one end of a tag.
fn sign(inner: &str, start: bool) -> (&str, &str) {
    let (sign, rest) = if start {
        match inner.as_bytes().first() {
            Some(b'-' | b'+') => inner.split_at(1),
            _ => ("", inner),
        }
    } else {
        match inner.as_bytes().last() {
            Some(b'-' | b'+') => {
                let (rest, sign) = inner.split_at(inner.len() - 1);
                (sign, rest)
            }
            _ => ("", inner),
        }
    };
    (sign, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: Value) -> Result<String, PromptError> {
        let definition = TemplateDefinition {
            source: Some(source.to_owned()),
            special: vec![("bos_token".into(), "<s>".into())],
            ..TemplateDefinition::default()
        };
        let context = Context {
            add_generation_prompt: true,
            variables: vec![("enable_thinking".into(), Value::from(false))],
            now_unix: 1_795_966_337,
            ..Context::default()
        };
        Template::compile(&definition).unwrap().interpret(0, messages, &context)
    }

    #[test]
    fn values_are_written_as_python_writes_them() {
        let messages = Value::from_pairs([("x", vec![Value::from("it's"), Value::from(())])]);
        for (source, text) in [
            ("{{ messages }}", "{'x': [\"it's\", None]}"),
            ("{{ messages.x|string + '!' }}", "[\"it's\", None]!"),
            ("{{ none }}{{ true }}{{ 1.0 }}{{ missing }}", "NoneTrue1.0"),
            ("{{ messages|tojson }}", "{\"x\": [\"it's\", null]}"),
            ("{{ messages|tojson(indent=1) }}", "{\n \"x\": [\n  \"it's\",\n  null\n ]\n}"),
            ("{{ 'a' is sequence }}{{ none is iterable }}", "TrueFalse"),
            ("{{ '\x1f a '.strip() }}|{{ 'xxa'.lstrip('x') }}", "a|a"),
            ("{{ messages.x[::-1] }}{{ 'abc'[:-1] }}", "[None, \"it's\"]ab"),
            ("{{ strftime_now('%d %b %Y') }}", "29 Nov 2026"),
            ("{{ bos_token }}{{ enable_thinking }}", "<s>False"),
            ("{%- for k, v in messages.items() -%} {{ k }} {%- break %}{%- endfor %}", "x"),
            ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
            ("a {%- generation -%} b {%- endgeneration %} c", "ab c"),
            ("{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}", "2"),
            // As Jinja2 3.1.6 renders them in the environment of transformers 5.19.
            ("a{% raw %}\n {{ x }}\n  {% endraw %}\nb", "a\n {{ x }}\nb"),
            ("a\n {%- raw -%}\n {% generation %}{%- endraw +%}\nb", "a{% generation %}\nb"),
            ("a{% raw %}{% generation %}{%{% endraw %}b", "a{% generation %}{%b"),
            ("a{# {% raw %} #}{% generation %}\nb{% endgeneration %}", "ab"),
        ] {
            assert_eq!(render(source, messages.clone()).as_deref(), Ok(text), "{source}");
        }
    }

    #[test]
    fn what_the_engine_would_panic_on_is_refused() {
        let loads = |body: &str| {
            let source = format!("{{% for m in messages %}}{body}{{% endfor %}}");
            let source = Some(source);
            Template::compile(&TemplateDefinition { source, ..TemplateDefinition::default() })
                .is_ok()
        };
        for control in ["{% break %}", "{% continue %}"] {
            for (open, close) in [
                ("{% with a = 1 %}", "{% endwith %}"),
                ("{% if m %}{% with a = 1 %}{% if a %}", "{% endif %}{% endwith %}{% endif %}"),
                ("{% set x %}", "{% endset %}"),
                ("{% filter upper %}", "{% endfilter %}"),
            ] {
                assert!(!loads(&format!("{open}{control}{close}")), "{open}{control}");
                let inner = format!("{open}{{% for n in m %}}{control}{{% endfor %}}{close}");
                assert!(loads(&inner), "{inner}");
            }
            assert!(loads(&format!("{{% if m %}}{control}{{% else %}}a{{% endif %}}")));
        }
    }

    /// As LFM2.5 collects the arguments of tool calls: each sum copies the list.
    #[test]
    fn lists_that_grow_item_by_item_are_counted() {
        let source = "{% set ns = namespace(all=[]) %}{% for item in messages %}\
                      {% set ns.all = ns.all + [item + '='] %}{% endfor %}{{ ns.all | join(', ') }}";
        let items = |count: usize| Value::from(vec!["a"; count]);
        let few = render(source, items(1000)).unwrap();
        assert!(few.starts_with("a=, a=, ") && few.len() == 3998);
        let texts = "{% set ns = namespace(all='') %}{% for item in messages %}\
                     {% set ns.all = ns.all + item %}{% endfor %}{{ ns.all }}";
        let long = "a".repeat(160);
        let texts = render(texts, Value::from(vec![long; 50_000]));
        assert_eq!(texts, Err(PromptError::TemplateFailed("too many steps")));
        let many = render(source, items(50_000));
        assert_eq!(many, Err(PromptError::TemplateFailed("too many steps")));
    }

    /// One template and what Jinja2 made of it, in the environment of transformers.
    #[derive(serde::Deserialize)]
    struct Rendered {
        source: String,
        /// None where it failed.
        text: Option<String>,
    }

    /// What templates of these cases are given as messages.
    const MESSAGES: &str = r#"[
        {"role": "user", "content": "it's <b>\"x\"</b> & é\n"},
        {"role": "assistant", "content": " a,b,,c ",
         "n": {"f": 1e20, "g": 0.5, "i": 3, "t": true, "z": null, "s": "it's"},
         "l": [1, 2.0, "a'b", null, false, {"k": -1e-7}],
         "e": {}, "w": "ﬁ Straße ǆ ŉ ΑΣΩ. ŒUVRE"}]"#;

    /// Where Jinja2 has a text, it is ours, or we have none: a template that fails here is told by its
    /// name, and routed without tokens.
    #[test]
    fn expressions_are_jinjas() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let frozen = root.join("tests/fixtures/conformance/templates.jsonl");
        let cases = std::env::var_os("WARMPATH_TEMPLATES").map_or(frozen, Into::into);
        let messages = crate::json::read::read(MESSAGES.as_bytes()).unwrap();
        let (mut equal, mut failed, mut wrong) = (0, Vec::new(), Vec::new());
        for line in std::fs::read_to_string(cases).unwrap().lines() {
            let case: Rendered = serde_json::from_str(line).unwrap();
            let Some(text) = case.text else { continue };
            match render(&case.source, messages.to_value()) {
                Ok(ours) if ours == text => equal += 1,
                Ok(ours) => wrong.push(format!("{}: {ours:?}, not {text:?}", case.source)),
                Err(error) => failed.push(format!("{}: {error}", case.source)),
            }
        }
        eprintln!("{equal} equal, {} failed, {} wrong", failed.len(), wrong.len());
        for line in wrong.iter().chain(&failed) {
            eprintln!("  {}", line.strip_prefix(SETS).unwrap_or(line));
        }
        assert!(wrong.is_empty(), "{} of {} differ", wrong.len(), equal + wrong.len());
        assert!(equal > failed.len(), "{} of {} fail", failed.len(), equal + failed.len());
    }

    const SETS: &str = "{% set m = messages[0] %}{% set a = messages[1] %}";

    #[test]
    fn a_refusal_is_told_from_a_failure() {
        assert_eq!(
            render("{{ raise_exception('no') }}", Value::from(())),
            Err(PromptError::TemplateRefused)
        );
        assert_eq!(
            render(
                "{% macro m() %}{{ raise_exception('no') }}{% endmacro %}{{ m() }}",
                Value::from(())
            ),
            Err(PromptError::TemplateRefused)
        );
        assert!(matches!(
            render("{{ messages.x.y.z }}", Value::from_pairs([("a", 1)])),
            Err(PromptError::TemplateFailed(_))
        ));
    }
}
