//! Whether a chat template takes a message's content as a list of parts or as one string.
//!
//! vLLM looks for a loop over a message's content in the template's syntax tree
//! (vllm/renderers/hf.py, `_detect_content_format`, 0.32). This does the same on the statements of
//! the source. It runs when a model is prepared, not in the workers.

use std::collections::{BTreeMap, BTreeSet};

/// Whether the template goes over the parts of a message's content ("openai" in vLLM's words).
pub(crate) fn takes_parts(source: &str) -> bool {
    let statements = statements(source);
    let mut lists = BTreeSet::from(["messages".to_owned()]);
    // Names given to the messages or to a part of them, in any order.
    loop {
        let before = lists.len();
        for statement in &statements {
            if let Statement::Set { name, value } = statement
                && lists.iter().any(|list| is_access(value, list, None))
            {
                lists.insert(name.clone());
            }
        }
        if lists.len() == before {
            break;
        }
    }
    let messages: BTreeSet<&str> = statements
        .iter()
        .filter_map(|statement| match statement {
            Statement::For { name, over, .. } => {
                lists.iter().any(|list| is_access(over, list, None)).then_some(name.as_str())
            }
            _ => None,
        })
        .collect();
    let is_content =
        |value: &str| messages.iter().any(|message| is_access(value, message, Some("content")));
    // Parameters of macros that are given a message's content.
    let mut parameters: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for statement in &statements {
        if let Statement::Macro { name, parameters: names } = statement {
            let given = parameters.entry(name).or_default();
            for arguments in calls(source, name) {
                for (at, argument) in arguments.iter().enumerate() {
                    let (parameter, value) = match argument.split_once('=') {
                        Some((key, value)) if names.iter().any(|name| name == key.trim()) => {
                            (names.iter().find(|name| *name == key.trim()), value.trim())
                        }
                        _ => (names.get(at), argument.as_str()),
                    };
                    if let Some(parameter) = parameter
                        && is_content(value)
                    {
                        given.insert(parameter);
                    }
                }
            }
        }
    }
    statements.iter().any(|statement| match statement {
        Statement::For { over, within, .. } => {
            is_content(over)
                || match within {
                    Some(name) => {
                        parameters.get(name.as_str()).is_some_and(|set| set.contains(over.as_str()))
                    }
                    None => over == "content",
                }
        }
        _ => false,
    })
}

/// The same as SGLang finds it (0.5.23, parser/jinja_template_utils.py,
/// `detect_jinja_template_content_format`): by words, or a loop over the content of what is called
/// `message`, `msg` or `m`.
pub(crate) fn sglang_takes_parts(source: &str) -> bool {
    ["image", "audio", "video", "vision"].iter().any(|word| source.contains(word))
        || statements(source).iter().any(|statement| match statement {
            Statement::For { over, .. } => {
                ["message", "msg", "m"].iter().any(|name| is_access(over, name, Some("content")))
            }
            _ => false,
        })
}

#[derive(Debug)]
enum Statement {
    Set {
        name: String,
        value: String,
    },
    /// `within` is the macro that the loop stands in.
    For {
        name: String,
        over: String,
        within: Option<String>,
    },
    Macro {
        name: String,
        parameters: Vec<String>,
    },
}

fn statements(source: &str) -> Vec<Statement> {
    let mut found = Vec::new();
    let mut within = None;
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let Some(block) = rest.get(at + 2..) else { break };
        let Some(end) = block.find("%}") else { break };
        let inner = block.get(..end).unwrap_or_default();
        let inner = inner.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        rest = block.get(end + 2..).unwrap_or_default();
        let (word, body) = inner.split_once(char::is_whitespace).unwrap_or((inner, ""));
        match word {
            "set" => {
                if let Some((name, value)) = body.split_once('=')
                    && !value.starts_with('=')
                {
                    found.push(Statement::Set {
                        name: name.trim().to_owned(),
                        value: value.trim().to_owned(),
                    });
                }
            }
            "for" => {
                if let Some((name, over)) = body.split_once(" in ") {
                    let over = over.strip_suffix(" recursive").unwrap_or(over);
                    let over = over.split(" if ").next().unwrap_or(over);
                    found.push(Statement::For {
                        name: name.trim().to_owned(),
                        over: over.trim().to_owned(),
                        within: within.clone(),
                    });
                }
            }
            "macro" => {
                if let Some((name, parameters)) = body.split_once('(') {
                    let parameters = parameters.trim_end().trim_end_matches(')');
                    within = Some(name.trim().to_owned());
                    found.push(Statement::Macro {
                        name: name.trim().to_owned(),
                        parameters: arguments(parameters)
                            .iter()
                            .map(|p| p.split('=').next().unwrap_or(p).trim().to_owned())
                            .collect(),
                    });
                }
            }
            "endmacro" => within = None,
            _ => {}
        }
    }
    found
}

/// The arguments of every call of a macro.
fn calls(source: &str, name: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, _) in source.match_indices(name) {
        let before = source.get(..at).and_then(|text| text.chars().next_back());
        if before.is_some_and(|char| char.is_alphanumeric() || char == '_' || char == '.') {
            continue;
        }
        let Some(rest) = source.get(at + name.len()..).and_then(|text| text.strip_prefix('('))
        else {
            continue;
        };
        let mut depth = 1;
        let end = rest.find(|char| {
            match char {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        found.push(arguments(rest.get(..end.unwrap_or(rest.len())).unwrap_or_default()));
    }
    found
}

/// Splits at the commas that are outside of brackets.
fn arguments(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut depth = 0;
    let mut current = String::new();
    for char in text.chars() {
        match char {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(std::mem::take(&mut current).trim().to_owned());
                continue;
            }
            _ => {}
        }
        current.push(char);
    }
    if !current.trim().is_empty() {
        found.push(current.trim().to_owned());
    }
    found
}

/// Whether an expression is a variable, or an attribute of it, under filters, tests and slices.
fn is_access(expression: &str, variable: &str, key: Option<&str>) -> bool {
    let mut expression = expression.trim();
    loop {
        let shorter = expression
            .rsplit_once('|')
            .map(|(value, _)| value)
            .or_else(|| expression.split_once(" is ").map(|(value, _)| value))
            .or_else(|| {
                let (value, slice) = expression.strip_suffix(']')?.rsplit_once('[')?;
                slice.contains(':').then_some(value)
            });
        match shorter {
            Some(value) => expression = value.trim(),
            None => break,
        }
    }
    let Some(rest) = expression.strip_prefix(variable) else { return false };
    match key {
        None => rest.is_empty(),
        Some(key) => {
            rest.strip_prefix('.') == Some(key)
                || rest
                    .strip_prefix('[')
                    .and_then(|rest| rest.strip_suffix(']'))
                    .map(|rest| rest.trim().trim_matches(['"', '\'']))
                    == Some(key)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_over_content_means_parts() {
        for (parts, source) in [
            (false, "{% for message in messages %}{{ message['content'] }}{% endfor %}"),
            (
                true,
                "{%- for m in messages -%}{%- for c in m['content'] -%}{% endfor %}{% endfor %}",
            ),
            (
                true,
                "{% for m in messages[1:] %}{% for c in m.content | list %}{% endfor %}{% endfor %}",
            ),
            (
                true,
                "{% set loop_messages = messages %}{% for m in loop_messages %}\
                 {% for c in m[\"content\"] if c %}{% endfor %}{% endfor %}",
            ),
            (true, "{% for m in messages %}{% set content = m.content %}{% for c in content %}x"),
            (
                true,
                "{% macro show(text) %}{% for c in text %}{% endfor %}{% endmacro %}\
                 {% for m in messages %}{{ show(m.content) }}{% endfor %}",
            ),
            (
                false,
                "{% macro show(content) %}{% for c in content %}{% endfor %}{% endmacro %}\
                 {% for m in messages %}{{ show(m.role) }}{% endfor %}",
            ),
            (false, "{% for m in messages %}{% for t in m.tool_calls %}{% endfor %}{% endfor %}"),
        ] {
            assert_eq!(takes_parts(source), parts, "{source}");
        }
    }
}
