//! Templates as engines render them.

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
        Template::compile(&TemplateDefinition { source, ..TemplateDefinition::default() }).is_ok()
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
