//! What scripts know: each construct is answered, and as by the engine.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Helpers too.

use minijinja::Value;

use super::tests::{agree, compiled, messages};
use crate::json::Json;
use crate::template::context::Context;
use crate::template::conversation::{Conversation, Style};
use crate::template::tools::tools;

/// What scripts do: each answers, and as the engine does.
const KNOWN: [&str; 85] = [
    "a{% if add_generation_prompt %}\n  b\n{%- endif %}\n c {{- 'd' }}",
    "{{ none }}{{ true }}{{ 7 }}{{ -3 }}{{ missing }}{{ bos_token }}{{ kw }}{{ flag }}{{ number }}",
    "{% for m in messages %}{{ m.role }}:{{ m['content'] }};{{ m.missing }}{% endfor %}",
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{% endfor %}",
    "{% for m in messages %}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{% endfor %}",
    "{% for m in messages %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for m in messages %}{% if not loop.first %}{{ loop.previtem.role }}{% endif %}{% endfor %}",
    "{% for m in messages %}{% if not loop.last %}{{ loop.nextitem.role }}{% endif %}{% endfor %}",
    "{% for m in messages %}{% break %}{% else %}none{% endfor %}",
    "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}x{% else %}none{% endfor %}",
    "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}x{% endfor %}",
    "{% for m in [] %}x{% else %}none{% endfor %}{% for m in missing %}x{% else %}none{% endfor %}",
    "{% for m in messages %}{% if loop.first %}{% set a = 'q' %}{% endif %}{{ a }},{% endfor %}{{ a }}",
    "{% set a = 1 %}{% for m in messages %}{{ a }}{% set a = a + 1 %}{{ a }}{% endfor %}{{ a }}",
    "{% set a = 1 %}{% if flag %}{% set a = 2 %}{% else %}{% set a = 3 %}{% endif %}{{ a }}",
    "{% if flag %}{% else %}{% set kw = 3 %}{% endif %}{{ kw }}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content }}{{ loop.last }}{% endfor %}",
    "{% for m in messages %}{% for n in messages if loop.first %}{{ n.role }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for m in ['x', 'y'] %}{{ m }}{% endfor %}{{ m.role }}{% endfor %}",
    "{% for m in messages[1:] %}{{ m.role }}{% endfor %}{% for m in messages[:-1] %}{{ m.role }}{% endfor %}",
    "{% for m in messages[::-1] %}{{ m.role }}{{ loop.index0 }}{% endfor %}",
    "{% for m in (messages[1:])[::-1] %}{{ m.role }}{% endfor %}{{ (messages[::-1])[1:] | length }}",
    "{% for m in (messages[::-1])[1:-1] %}{{ m.role }}{% endfor %}{{ (messages[::-1])[0].role }}",
    "{{ messages[-1].role }}{{ messages[9] is defined }}{{ messages[-9] is defined }}",
    "{{ messages is sequence }}{{ messages[1:] is sequence }}{{ messages[::-1] is sequence }}",
    "{{ messages[1:] is iterable }}{{ (messages[1:] | list) is sequence }}{{ messages[0] is mapping }}",
    "{{ 'x' is string }}{{ 1 is number }}{{ true is number }}{{ true is integer }}{{ 1 is boolean }}",
    "{{ none is none }}{{ missing is none }}{{ missing is undefined }}{{ missing is iterable }}",
    "{{ true is true }}{{ 1 is true }}{{ flag is false }}{{ none is sequence }}{{ 'a' is sequence }}",
    "{{ 'a' is in(['a']) }}{{ 'a' is eq('a') }}{{ 2 is ne(2) }}{{ 'a' is not string }}",
    "{{ 1 == true }}{{ 0 == false }}{{ '1' == 1 }}{{ none == false }}{{ missing == missing }}{{ none == missing }}",
    "{{ 'a' < 'b' }}{{ 2 >= 3 }}{{ 1 < 2 <= 2 }}{{ 1 < 2 > 3 }}{{ 'ab' > 'a' }}{{ 3 != 4 }}",
    "{{ 7 - 9 }}{{ 3 * -4 }}{{ -7 % 3 }}{{ 7 % -3 }}{{ -7 // 2 }}{{ 7 // -2 }}{{ 6 // 3 }}{{ 1 + 2 + 3 }}",
    "{{ 1 + (2 + 3) }}{{ 'a' + ('b' + 'c') + kw }}{{ 'a' ~ 1 ~ 'b' }}{{ 1 ~ 2 }}",
    "{{ messages[0].content + '\\n' + messages[1].role }}{{ messages[0].content ~ kw }}",
    "{% set a = kw + 'x' %}{% set b = a + 'y' %}{% set c = a + 'z' %}{{ a }}{{ b }}{{ c }}",
    "{% set a = kw + 'x' %}{% set b = 'q' + a %}{% set a = a + a %}{{ a }}{{ b }}",
    "{% set ns = namespace(x=1, y='') %}{% for m in messages %}{% set ns.x = ns.x + 1 %}{% endfor %}{{ ns.x }}{{ ns.z }}",
    "{% set ns = namespace() %}{% set ns.a = 'p' %}{% set other = namespace(a='q') %}{{ ns.a }}{{ other.a }}",
    "{{ true and 'x' }}{{ '' or 'y' }}{{ 0 and 1 }}{{ missing or none or 3 }}{{ not '' }}",
    "{{ 'a' if flag else 'b' }}{{ 'a' if flag }}{{ 'c' if missing else 'd' }}",
    "{{ 'ab' in 'cabd' }}{{ 'x' not in 'y' }}{{ 'a' in ['b', 'a'] }}{{ 1 in ['1', true] }}{{ 'q' in missing }}",
    "{{ 'role' in messages[0] }}{{ 'tool_calls' in messages[0] }}{{ 'b' in ('a', 'b') }}",
    "{{ ' x\u{1f}\u{a0}' | trim }}|{{ '\u{200b} x ' | trim }}|{{ 'xax' | trim('x') }}",
    "{{ ' x '.strip() }}|{{ ' x '.lstrip() }}|{{ ' x '.rstrip() }}|{{ 'xxaxx'.lstrip('x') }}{{ 'aabb'.rstrip('b') }}",
    "{{ 'a</think>b</think>c'.split('</think>')[0] }}{{ 'a</think>b'.split('</think>')[-1] }}",
    "{{ 'aaa'.split('aa')[-1] }}{{ 'aaaa'.split('aa')[0] }}{{ 'abc'.split('x')[-1] }}{{ 'a-b-c'.split('-')[1] }}",
    "{% for p in 'a-b--c'.split('-') %}<{{ p }}>{% endfor %}{{ 'a-b'.split('-') | length }}",
    "{% set t = 'x' + kw %}{{ t.strip('x') }}{{ t.split('w')[0] }}{{ t[1:] }}{{ t[:-1] | upper }}",
    "{{ 'é漢🙂x'[1:3] }}{{ 'é漢🙂x'[-2:] }}{{ 'abc'[2:1] }}{{ 'abc'[5:] }}{{ 'é漢' | length }}",
    "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith('ab') }}{{ 'Abc' | upper }}{{ 'ABC'.lower() }}",
    "{{ 'a.b.c'.replace('.', '--') }}{{ 'abc' | replace('b', '') }}{{ 'x' | string }}",
    "{{ missing | default('d') }}{{ '' | default('d') }}{{ '' | default('d', true) }}{{ none | default('d') }}",
    "{{ messages | length }}{{ missing | length }}{{ (messages | first).role }}{{ (messages | last).role }}",
    "{{ [] | first }}{{ ([1, 2] | last) }}{{ [3, 'x'] | length }}{{ messages[0].get('role') }}{{ messages[0].get('q', 'z') }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "{% for m in messages | rejectattr('role', 'eq', 'user') %}{{ m.role }}{% endfor %}",
    "{{ messages | selectattr('tool_calls') | list | length }}{{ messages | selectattr('name', 'defined') | list | length }}",
    "{{ (messages | rejectattr('role', 'in', ['user', 'tool']) | list)[-1].role }}",
    "{% with a = kw, b = a %}{{ b }}{% set a = 'in' %}{{ a }}{% endwith %}{{ a }}",
    "{% for m in messages %}{% with x = m.role %}{{ x }}{% endwith %}{{ x }}{% endfor %}",
    "{{ strftime_now('%d %b %Y') }}{{ strftime_now is defined }}{{ namespace is defined }}{{ range is defined }}",
    "{% for t in tools %}{{ t | tojson }}{{ t.function.name }}{{ t.type }}{{ loop.last }}{% endfor %}",
    "{{ tools is none }}{{ tools | length }}{{ tools[0].function.parameters | tojson }}{{ tools is sequence }}",
    "{{ documents is none }}{{ tools[0].function.description is none }}{{ tools[0] is mapping }}",
    "{% for k, v in tools[0].function.items() %}{{ k }}={{ v is string }}{{ loop.last }};{% endfor %}",
    "{% for k, v in tools[0].function | items if k != 'name' %}{{ k }}={{ v | tojson }}{% else %}no{% endfor %}",
    "{% for m in messages if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{{ c.id }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{{ m.tool_calls is defined }}{{ m.tool_calls is iterable }}{{ 'yes' if m.tool_calls else 'no' }}{% endfor %}",
    "{% for m in messages %}{{ m.reasoning_content }}{{ m.reasoning_content is string }}{{ m.tool_call_id }}{% endfor %}",
    "{{ messages[0] == messages[0] }}{{ messages[0] == messages[1] }}{{ messages[1] == messages[4] }}{{ messages[0] != 'x' }}",
    "{% for m in messages %}{{ m.content is string }}{{ m.content | trim | length }}{% endfor %}",
    "{% if kw == 'no' %}{{ raise_exception('x') }}{% macro a() %}{% endmacro %}{{ a() }}{% set b %}{% endset %}{% endif %}",
    "{% generation %}x{% endgeneration %}{# a comment #}{% raw %}{{ x }}{% endraw %}",
    "{{ tools | tojson(indent=4) }}{{ tools[0] | tojson(ensure_ascii=True) }}{{ tools | tojson(indent=0) }}",
    "{{ tools | tojson(ensure_ascii=false, indent=99) }}{{ 'é' | tojson(ensure_ascii=true) }}{{ 1 | tojson(indent=2) }}",
    "{% macro a(x, y='d', z=none) %}[{{ x }}{{ y }}{{ z }}{{ w }}{{ kw }}]{% endmacro %}{{ a(1) }}{{ a(1, 2) }}{{ a(z='q', x='p') }}{{ a() }}{{ a(missing, missing) }}",
    "{% macro a(m) %}{{ m.role }}{% for n in messages %}{{ loop.index }}{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}{% endmacro %}{% for m in messages %}{{ loop.index }}{{ a(m) }}{{ loop.index0 }}{% endfor %}",
    "{% macro a(x) %}<{{ x }}>{% endmacro %}{% macro b(x) %}({{ a(x) + a('y') }}){% set x = 'z' %}{{ x }}{% endmacro %}{{ b(b('i') | trim) }}{% set t = b('k') %}{{ t }}{{ x }}",
    "{% macro a(x) %}{% if x is string %}{{ x }}{% elif x is iterable %}{% for p in x %}{{ p }}{% endfor %}{% endif %}{% endmacro %}{{ a('s') ~ a(['t', 1]) }}{{ 'q' if a('') else 'r' }}{{ a('x') == 'x' }}",
    "{% macro a() %}{% if loop is defined %}y{% endif %}{% set q = 1 %}{{ q }}{% endmacro %}{% for m in messages %}{{ a() }}{% endfor %}{{ a is defined }}",
    "{% macro a(x) %}{{- x }}\\n {% endmacro %}{{ a('1') }}|{{- a('2') | length }}{% for m in messages if a(m.role) == a('user') %}{{ m.content }}{% endfor %}",
    "{{ tools[0].items() is sequence }}{{ (tools[0] | items | list) is sequence }}{{ tools[0].items() | length }}",
    "{% macro a(x) %}{% if x %}{% set q = x %}{% endif %}{{ q }};{% endmacro %}{{ a('1') }}{{ a('') }}",
    "{{ 'x' | tojson }}{{ none | tojson }}{{ true | tojson }}{{ -3 | tojson }}{{ '\"é\n' | tojson }}{{ tools[0].function.parameters.n }}{{ 'n' in tools[0].function.parameters }}",
];

/// What only the engine does.
const UNKNOWN: [&str; 31] = [
    "{{ raise_exception('x') }}",
    "{{ messages }}",
    "{{ missing.x }}",
    "{{ 'a' + 1 }}",
    "{{ 1 / 2 }}",
    "{{ 1.5 }}",
    "{% set a %}x{% endset %}{{ a }}",
    "{% set x = 1 %}{% macro a() %}{{ x }}{% endmacro %}{{ a() }}",
    "{% macro a() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ a() }}",
    "{% macro a(x) %}{{ a(x) }}{% endmacro %}{{ a(1) }}",
    "{{ a() }}{% macro a() %}x{% endmacro %}",
    "{% macro a() %}x{% endmacro %}{% macro a() %}y{% endmacro %}{{ a() }}",
    "{% macro a() %}x{% endmacro %}{{ a(1) }}",
    "{% macro a(x) %}x{% endmacro %}{{ a(1, x=2) }}{{ a(y=2) }}",
    "{% macro a() %}x{% endmacro %}{% for a in messages %}{{ a() }}{% endfor %}",
    "{% if true %}{% macro a() %}x{% endmacro %}{% endif %}{{ a() }}",
    "{% macro a(x=messages[0].role) %}{{ x }}{% endmacro %}{{ a() }}",
    "{% macro a() %}x{{ caller() }}{% endmacro %}{% call a() %}y{% endcall %}",
    "{{ namespace(a=1) == namespace(a=1) }}",
    "{% for m in messages recursive %}{{ m.role }}{% endfor %}",
    "{{ [1] == [1] }}",
    "{{ messages[0] | tojson }}",
    "{{ tools == [] }}",
    "{% for pair in tools[0].items() %}{{ pair }}{% endfor %}",
    "{% for k, v in tools[0].function.parameters.none | items %}{% endfor %}",
    "{{ tools[0].function.parameters.none.items() | length }}",
    "{{ tools | tojson(2) }}",
    "{{ tools | tojson(indent=-1) }}",
    "{{ ''.split('')[0] }}",
    "{% for m in messages %}{{ loop }}{% endfor %}",
    "{% for m in messages %}{{ loop.cycle('a', 'b') }}{% endfor %}",
];

#[test]
fn what_scripts_know_and_what_they_do_not() {
    let body = r#"[
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Hi \u00a0", "name": "Jo"},
        {"role": "assistant", "content": "Well", "reasoning": "hm", "tool_calls":
            [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1.0}"}}]},
        {"role": "tool", "content": "r", "tool_call_id": "1"},
        {"role": "user", "content": "Bye"}
    ]"#;
    let functions = r#"[{"type": "function", "function": {"name": "f", "parameters":
        {"n": "m", "none": [], "list": [1, null, {}], "é": true}}}]"#;
    let messages: Vec<Json<'_>> = serde_json::from_str(body).unwrap();
    let functions: Json<'_> = serde_json::from_str(functions).unwrap();
    let conversation =
        Conversation::new(&messages, Style { parts: false, developer: true }).unwrap();
    let context = Context {
        tools: Some(tools(&functions).unwrap()),
        add_generation_prompt: true,
        variables: vec![
            ("kw".to_owned(), Value::from("kw")),
            ("flag".to_owned(), Value::from(false)),
            ("number".to_owned(), Value::from(4)),
        ],
        now_unix: 1_795_966_337,
        ..Context::default()
    };
    let special = || vec![("bos_token".to_owned(), "<s>".to_owned())];
    for source in KNOWN {
        let template = compiled(source, special());
        assert!(agree(&template, &conversation, &context), "not answered: {source}");
    }
    for source in UNKNOWN {
        let template = compiled(source, special());
        assert!(!agree(&template, &conversation, &context), "answered: {source}");
    }
}

#[test]
fn parts_of_contents_are_read_where_they_lie() {
    let body = r#"[{"role": "user", "content": [
        {"type": "text", "text": " one "}, {"type": "text", "text": "", "extra": {"a": [1]}, "data": 1}, "two"
    ]}]"#;
    let messages: Vec<Json<'_>> = serde_json::from_str(body).unwrap();
    let conversation =
        Conversation::new(&messages, Style { parts: true, developer: true }).unwrap();
    for source in [
        "{% for p in messages[0].content %}{{ p.type }}{{ p['text'] | trim }}{{ loop.last }}{% endfor %}",
        "{% for p in messages[0].content %}{{ p.data is defined }}{{ p.extra | default('q') is mapping }}{% endfor %}",
        "{{ messages[0].content is string }}{{ messages[0].content | length }}{{ messages[0].content[0].text }}",
        "{{ messages[0].content | selectattr('type', 'eq', 'text') | list | length }}",
    ] {
        let template = compiled(source, Vec::new());
        assert!(agree(&template, &conversation, &Context::default()), "not answered: {source}");
    }
}

#[test]
fn a_variable_named_as_a_function_or_a_context_goes_where_the_engine_has_it() {
    let conversation = Conversation::default();
    for (source, variable, answered) in [
        ("{{ namespace(a=1).a }}", "namespace", false),
        ("{{ namespace }}", "namespace", false),
        ("{{ range }}", "range", true),
        ("{{ bos_token }}", "bos_token", true),
        ("{{ loop }}", "loop", true),
        ("{{ strftime_now('%Y') }}{{ add_generation_prompt }}", "add_generation_prompt", true),
    ] {
        let template = compiled(source, vec![("bos_token".to_owned(), "<s>".to_owned())]);
        let context = Context {
            variables: vec![(variable.to_owned(), Value::from("v"))],
            ..Context::default()
        };
        assert_eq!(agree(&template, &conversation, &context), answered, "{source}");
    }
}

#[test]
fn a_run_is_bounded() {
    let texts = vec![("user", "x"); 900];
    let messages = messages(&texts);
    let conversation =
        Conversation::new(&messages, Style { parts: false, developer: true }).unwrap();
    for source in [
        "{% for a in messages %}{% for b in messages %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='0123456789') %}{% for a in messages %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% for a in messages %}{% set x = namespace(a=1) %}{% endfor %}",
        "{% for a in messages %}{% for b in messages | list %}{% set c = [a, b, a, b] %}{% endfor %}{% endfor %}",
    ] {
        let template = compiled(source, Vec::new());
        let script = template.script(0).unwrap();
        assert_eq!(script.run(&conversation, &Context::default()), None, "{source}");
    }
    let deep = format!("{}x{}", "{% if true %}".repeat(140), "{% endif %}".repeat(140));
    let template = compiled(&deep, Vec::new());
    assert!(!agree(&template, &conversation, &Context::default()));
    let long = format!("{{{{ 'a'{} }}}}", " + messages[0].content".repeat(300));
    let template = compiled(&long, Vec::new());
    assert!(agree(&template, &conversation, &Context::default()));
}
