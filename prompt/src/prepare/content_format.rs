//! Whether a chat template takes a message's content as a list of parts or as one string.
//!
//! Engines look for a loop over a message's content in the template's syntax tree, and so does this.
//! It runs when a model is prepared, not in the workers.

use std::collections::BTreeSet;

use minijinja::machinery::ast::{CallArg, Expr, ForLoop, Macro, Stmt};

use crate::prepare::syntax::{Node, visit};
use crate::template::source::parsed;

/// Whether the template goes over the parts of a message's content ("openai" in vLLM's words).
///
/// Source: vllm/renderers/hf.py 0.32, `_detect_content_format`. Where that fails, as it does where
/// what it finds is given to anything but one name, it says "string".
pub(crate) fn takes_parts(source: &str) -> bool {
    parsed(source, |tree| Search::of(tree).content_loop()).flatten().unwrap_or(false)
}

/// The same as SGLang finds it (0.5.23, parser/jinja_template_utils.py,
/// `detect_jinja_template_content_format`): by words, or a loop over the content of what is called
/// `message`, `msg` or `m`.
pub(crate) fn sglang_takes_parts(source: &str) -> bool {
    let over_content = |tree: &Stmt<'_>| {
        Search::of(tree).loops.iter().any(|loop_| {
            ["message", "msg", "m"].iter().any(|name| is_access(&loop_.iter, name, Some("content")))
        })
    };
    ["image", "audio", "video", "vision"].iter().any(|word| source.contains(word))
        || parsed(source, over_content).unwrap_or(false)
}

/// What a tree has of that which matters.
#[derive(Default)]
struct Search<'t> {
    /// What is assigned, and its value.
    sets: Vec<(&'t Expr<'t>, &'t Expr<'t>)>,
    loops: Vec<&'t ForLoop<'t>>,
    macros: Vec<&'t Macro<'t>>,
    /// Calls of a name.
    calls: Vec<(&'t str, &'t [CallArg<'t>])>,
}

impl<'t> Search<'t> {
    fn of(tree: &'t Stmt<'t>) -> Self {
        let mut found = Self::default();
        visit(tree, &mut |node| match node {
            Node::Statement(Stmt::Set(set)) => found.sets.push((&set.target, &set.expr)),
            Node::Statement(Stmt::ForLoop(loop_)) => found.loops.push(loop_),
            Node::Statement(Stmt::Macro(macro_)) => found.macros.push(macro_),
            Node::Call(call) => {
                if let Expr::Var(name) = &call.expr {
                    found.calls.push((name.id, &call.args));
                }
            }
            Node::Statement(_) => {}
        });
        found
    }

    /// Whether there is a loop over content; `None` where the engine's search fails.
    fn content_loop(&self) -> Option<bool> {
        let messages = self.messages()?;
        let is_content =
            |value: &Expr<'_>| messages.iter().any(|name| is_access(value, name, Some("content")));
        let mut within = BTreeSet::new();
        let mut by_macro = BTreeSet::new();
        for macro_ in &self.macros {
            let given = self.given_content(macro_, is_content);
            for statement in &macro_.body {
                for loop_ in &Search::of(statement).loops {
                    within.insert(id(loop_));
                    if name_of(&loop_.iter).is_some_and(|name| given.contains(name)) {
                        by_macro.insert(id(loop_));
                    }
                }
            }
        }
        let found = self.loops.iter().find(|loop_| {
            is_content(&loop_.iter)
                || by_macro.contains(&id(loop_))
                || !within.contains(&id(loop_)) && name_of(&loop_.iter) == Some("content")
        });
        found.map_or(Some(false), |loop_| name_of(&loop_.target).map(|_| true))
    }

    /// What loops over messages call each of them.
    fn messages(&self) -> Option<Vec<&'t str>> {
        let mut lists = vec!["messages"];
        let mut at = 0;
        while let Some(list) = lists.get(at).copied() {
            for (target, value) in &self.sets {
                if is_access(value, list, None) {
                    let name = name_of(target)?;
                    if !lists.contains(&name) {
                        lists.push(name);
                    }
                }
            }
            at += 1;
        }
        let over = self
            .loops
            .iter()
            .filter(|loop_| lists.iter().any(|list| is_access(&loop_.iter, list, None)));
        over.map(|loop_| name_of(&loop_.target)).collect()
    }

    /// Parameters of a macro that are given a message's content.
    fn given_content(
        &self,
        macro_: &'t Macro<'t>,
        is_content: impl Fn(&Expr<'_>) -> bool,
    ) -> BTreeSet<&'t str> {
        let names: Vec<&str> = macro_.args.iter().filter_map(name_of).collect();
        let calls = self.calls.iter().filter(|(name, _)| *name == macro_.name);
        let mut given = BTreeSet::new();
        for (at, argument) in calls.flat_map(|(_, arguments)| arguments.iter().enumerate()) {
            let (name, value) = match argument {
                CallArg::Pos(value) => (names.get(at), value),
                CallArg::Kwarg(key, value) => (names.iter().find(|name| *name == key), value),
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => continue,
            };
            given.extend(name.filter(|_| is_content(value)).copied());
        }
        given
    }
}

/// Tells loops apart by where they stand.
fn id(loop_: &ForLoop<'_>) -> usize {
    std::ptr::from_ref(loop_).addr()
}

fn name_of<'t>(node: &'t Expr<'t>) -> Option<&'t str> {
    match node {
        Expr::Var(name) => Some(name.id),
        _ => None,
    }
}

/// Whether an expression is a variable, or an attribute of it, under filters, tests and slices.
fn is_access(node: &Expr<'_>, variable: &str, key: Option<&str>) -> bool {
    let is_variable = |node: &Expr<'_>| name_of(node) == Some(variable);
    match (node, key) {
        (Expr::Filter(filter), _) => {
            filter.expr.as_ref().is_some_and(|node| is_access(node, variable, key))
        }
        (Expr::Test(test), _) => is_access(&test.expr, variable, key),
        (Expr::Slice(slice), _) => is_access(&slice.expr, variable, key),
        (node, None) => is_variable(node),
        (Expr::GetAttr(access), Some(key)) => access.name == key && is_variable(&access.expr),
        (Expr::GetItem(access), Some(key)) => {
            let is_key = |node: &Expr<'_>| match node {
                Expr::Const(constant) => constant.value.as_str() == Some(key),
                _ => false,
            };
            is_key(&access.subscript_expr) && is_variable(&access.expr)
        }
        _ => false,
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
            (
                true,
                "{% for m in messages %}{% set content = m.content %}{% for c in content %}x{% endfor %}{% endfor %}",
            ),
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
            (false, "{# {% for c in content %} #}{{ '{% for c in content %}' }}"),
            (false, "{% for m in messages %}{% for c in m.content ~ '' %}{% endfor %}{% endfor %}"),
            (
                true,
                "{% for m in messages[:-1] | list %}{{ 'x' if m }}{% for c in m['content'][0:2] %}x{% endfor %}{% endfor %}",
            ),
            (
                true,
                "{% macro show(a, text=none) %}{% for c in text %}{% endfor %}{% endmacro %}\
                 {% for m in messages %}{{ show(1, text=m.content) }}{% endfor %}",
            ),
            (
                true,
                "{% autoescape false %}{% for m in messages %}{% for c in m.content %}x{% endfor %}\
                 {% endfor %}{% endautoescape %}",
            ),
            (
                true,
                "{% block all %}{% for m in messages %}{% for c in m.content %}x{% endfor %}\
                 {% endfor %}{% endblock %}",
            ),
            // The engine's search fails here, and then it takes strings.
            (false, "{% set ns.a = messages %}{% for c in content %}{% endfor %}"),
            (false, "{% for m in messages %}{% for a, b in m.content %}{% endfor %}{% endfor %}"),
        ] {
            assert_eq!(takes_parts(source), parts, "{source}");
        }
    }
}
