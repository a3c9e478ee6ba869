//! Templates out of numbers.
#![allow(clippy::indexing_slicing, clippy::format_push_string)] // Helpers of tests.

use super::random::{Choices, TEXTS};

/// A template of what scripts know, mostly.
pub(crate) fn template_source(choices: &mut Choices<'_>) -> String {
    let mut source = Source { choices, out: String::new(), items: Vec::new() };
    let mut count = 1 + source.choices.of(7);
    if source.choices.of(4) != 1 {
        source.out.push_str("{% set ns = namespace(x=1, y='') %}");
    }
    if source.choices.of(2) == 1 {
        source
            .out
            .push_str("{% set a = 'A' %}{% set b = '' %}{% set c = 2 %}{% set m = messages[0] %}");
    }
    if source.choices.of(3) == 1 {
        source.out.push_str("{% macro f(x, i='d', q=none) %}");
        source.block(2);
        source.out.push_str("{% endmacro %}");
    }
    while count > 0 {
        source.statement(3);
        count -= 1;
    }
    source.out
}

struct Source<'c, 'n> {
    choices: &'c mut Choices<'n>,
    out: String,
    /// Variables of the loops that are open.
    items: Vec<&'static str>,
}

const FIELDS: [&str; 18] = [
    "content",
    "role",
    "name",
    "reasoning",
    "reasoning_content",
    "tool_calls",
    "missing",
    "type",
    "text",
    "x",
    "tool_call_id",
    "extra",
    "function",
    "arguments",
    "parameters",
    "list",
    "n",
    "id",
];

impl Source<'_, '_> {
    fn of(&mut self, count: u16) -> u16 {
        self.choices.of(count)
    }

    fn tag(&mut self, inner: &str) {
        let open = self.choices.pick(&["{% ", "{%- ", "{% ", "{%+ "]);
        let close = self.choices.pick(&[" %}", " -%}", " %}"]);
        self.out.extend([open, inner, close]);
    }

    fn variable(&mut self) -> &'static str {
        match (self.of(4), self.items.last()) {
            (0 | 1, Some(item)) => item,
            _ => self.choices.pick(&[
                "a",
                "b",
                "c",
                "m",
                "kw",
                "enable_thinking",
                "bos_token",
                "k",
                "x",
                "q",
            ]),
        }
    }

    fn block(&mut self, depth: u16) {
        let mut count = self.of(4);
        while count > 0 {
            self.statement(depth);
            count -= 1;
        }
    }

    fn statement(&mut self, depth: u16) {
        let kind = if depth == 0 { self.of(6) } else { self.of(15) };
        match kind {
            0 => {
                let text = self.choices.pick(&["t", "\n", "  \n  ", " x ", "\n\n  "]);
                self.out.push_str(text);
            }
            1 | 2 => {
                let value = if kind == 1 { self.text(3) } else { self.any(3) };
                let open = self.choices.pick(&["{{ ", "{{- "]);
                self.out.extend([open, &value, " }}"]);
            }
            3 | 4 => {
                let name = self.choices.pick(&["a", "b", "c", "m"]);
                let value = if kind == 3 { self.text(3) } else { self.any(3) };
                self.tag(&format!("set {name} = {value}"));
            }
            5 => {
                let name = self.choices.pick(&["x", "y", "z"]);
                let value = self.any(2);
                self.tag(&format!("set ns.{name} = {value}"));
            }
            6..=8 => {
                let condition = self.boolean(3);
                self.tag(&format!("if {condition}"));
                self.block(depth - 1);
                if self.of(3) == 1 {
                    let condition = self.boolean(2);
                    self.tag(&format!("elif {condition}"));
                    self.block(depth - 1);
                }
                if self.of(2) == 1 {
                    self.tag("else");
                    self.block(depth - 1);
                }
                self.tag("endif");
            }
            9..=12 => {
                let item = self.choices.pick(&["m", "i", "a"]);
                let mut head = if self.of(5) == 1 {
                    let of = self.choices.pick(&[
                        "tools[0].function",
                        "(tools[0].function.parameters or {})",
                        "messages[0].tool_calls[0].function.arguments",
                        "tools[0]",
                    ]);
                    let items = self.choices.pick(&[".items()", " | items", ".items() | list"]);
                    format!("for k, {item} in {of}{items}")
                } else {
                    format!("for {item} in {}", self.list(2))
                };
                self.items.push(item);
                if self.of(4) == 1 {
                    let condition = self.boolean(2);
                    head.push_str(&format!(" if {condition}"));
                }
                self.tag(&head);
                self.block(depth - 1);
                if self.of(4) == 1 {
                    let condition = self.boolean(2);
                    let what = self.choices.pick(&["break", "continue"]);
                    self.tag(&format!("if {condition}"));
                    self.tag(what);
                    self.tag("endif");
                    self.block(depth - 1);
                }
                self.items.pop();
                if self.of(4) == 1 {
                    self.tag("else");
                    self.block(depth - 1);
                }
                self.tag("endfor");
            }
            13 => {
                let name = self.choices.pick(&["a", "b", "m"]);
                let value = self.any(2);
                self.tag(&format!("with {name} = {value}, c = {name}"));
                self.block(depth - 1);
                self.tag("endwith");
            }
            _ => {
                // Not taken, mostly.
                self.tag("if kw == 'no'");
                self.out
                    .push_str("{{ raise_exception('x') }}{% set d %}z{% endset %}{{ a|tojson }}");
                self.out.push_str("{% macro a() %}q{% endmacro %}{{ a() }}");
                self.tag("endif");
            }
        }
    }

    fn literal(&mut self) -> String {
        let text = self.choices.pick(&TEXTS);
        let text = text.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r");
        format!("'{}'", text.replace('\t', "\\t").replace('\'', "\\'"))
    }

    fn place(&mut self) -> String {
        let of = match self.of(5) {
            0 | 1 if !self.items.is_empty() => self.variable().to_owned(),
            0 | 2 => format!(
                "messages[{}]",
                self.choices.pick(&["0", "-1", "0", "loop.index0", "loop.index"])
            ),
            1 => self
                .choices
                .pick(&["tools[0].function", "messages[0].tool_calls[0].function", "tools[0]"])
                .to_owned(),
            3 => "ns".to_owned(), // Never as a value: it might then hold itself, which the engine writes for ever.
            _ if self.items.is_empty() => self.choices.pick(&["m", "messages[-1]", "a"]).to_owned(),
            _ => self.choices.pick(&["m", "a", "loop.previtem", "loop.nextitem"]).to_owned(),
        };
        let field = self.choices.pick(&FIELDS);
        match self.of(6) {
            0..=2 => format!("{of}.{field}"),
            3 | 4 => format!("{of}['{field}']"),
            _ => format!("{of}.get('{field}')"),
        }
    }

    fn text(&mut self, depth: u16) -> String {
        let kind = if depth == 0 { self.of(4) } else { self.of(20) };
        match kind {
            0 => self.literal(),
            1 | 2 => self.place(),
            3 => self.variable().to_owned(),
            4 | 5 => {
                let (a, b) = (self.text(depth - 1), self.text(depth - 1));
                if self.of(4) == 1 {
                    format!("({a} + ({b} + 'z'))")
                } else {
                    format!("({a} + {b})")
                }
            }
            6 => format!("({} ~ {})", self.text(depth - 1), self.any(depth - 1)),
            7 => format!("({} | trim)", self.text(depth - 1)),
            8 => {
                let method = self.choices.pick(&["strip", "lstrip", "rstrip"]);
                let argument = self.choices.pick(&["", "'\\n'", "' a'", "'x'"]);
                format!("{}.{method}({argument})", self.text(depth - 1))
            }
            9 => {
                let separator =
                    self.choices.pick(&["'</think>'", "'a'", "'aa'", "' '", "'<think>'"]);
                let index = self.choices.pick(&["0", "-1", "1", "2", "-2"]);
                format!("{}.split({separator})[{index}]", self.text(depth - 1))
            }
            10 => format!(
                "({} if {} else {})",
                self.text(depth - 1),
                self.boolean(depth - 1),
                self.text(depth - 1)
            ),
            11 => {
                let bounds = self.choices.pick(&["1:", ":-1", "-2:", "0:2", ":", "3:1", "-9:9"]);
                format!("({})[{bounds}]", self.text(depth - 1))
            }
            12 => format!("({} | default('d'))", self.text(depth - 1)),
            13 => {
                let what = self.choices.pick(&[
                    "upper",
                    "lower",
                    "string",
                    "replace('a', 'bb')",
                    "trim('x')",
                    "first",
                    "last",
                    "default('q', true)",
                ]);
                format!("({} | {what})", self.text(depth - 1))
            }
            14 => "strftime_now('%d %b %Y')".to_owned(),
            15 => format!("{}.replace('x', '')", self.text(depth - 1)),
            16 => format!("ns.{}", self.choices.pick(&["x", "y", "z"])),
            17 => format!("({} | tojson)", self.any(depth - 1)),
            18 => {
                let name = self.choices.pick(&["", "q=", "x=", "i="]);
                format!("f({}, {name}{})", self.text(depth - 1), self.any(depth - 1))
            }
            _ => format!("({} or {})", self.text(depth - 1), self.text(depth - 1)),
        }
    }

    fn int(&mut self, depth: u16) -> String {
        let kind = if depth == 0 { self.of(3) } else { self.of(9) };
        match kind {
            0 => self.choices.pick(&["0", "1", "2", "-1", "-3", "7"]).to_owned(),
            1 if self.items.is_empty() && self.choices.of(8) > 0 => "3".to_owned(),
            1 => format!(
                "loop.{}",
                self.choices.pick(&["index0", "index", "length", "revindex", "revindex0"])
            ),
            2 => "messages|length".to_owned(),
            3 => format!("({} | length)", self.text(depth - 1)),
            4 => format!("({} | length)", self.list(depth - 1)),
            5 => format!("(-{})", self.int(depth - 1)),
            6 => "ns.x".to_owned(),
            _ => {
                let operator = self.choices.pick(&["+", "-", "*", "%", "//"]);
                format!("({} {operator} {})", self.int(depth - 1), self.int(depth - 1))
            }
        }
    }

    fn boolean(&mut self, depth: u16) -> String {
        let kind = if depth == 0 { self.of(3) } else { self.of(14) };
        match kind {
            0 => self
                .choices
                .pick(&["true", "false", "add_generation_prompt", "enable_thinking"])
                .to_owned(),
            1 if self.items.is_empty() && self.choices.of(8) > 0 => "kw".to_owned(),
            1 => format!("loop.{}", self.choices.pick(&["first", "last"])),
            2 => format!(
                "{} == '{}'",
                self.place(),
                self.choices.pick(&["user", "system", "assistant", "text"])
            ),
            3 if self.of(4) == 1 => {
                let messages = ["messages[0]", "messages[-1]", "messages[1]", "m"];
                format!("({} == {})", self.choices.pick(&messages), self.choices.pick(&messages))
            }
            3 => {
                let operator = self.choices.pick(&["==", "!="]);
                format!("({} {operator} {})", self.any(depth - 1), self.any(depth - 1))
            }
            4 => {
                let operator = self.choices.pick(&["<", "<=", ">", ">=", "=="]);
                format!("({} {operator} {})", self.int(depth - 1), self.int(depth - 1))
            }
            5 | 6 => {
                let test = self.choices.pick(&[
                    "defined",
                    "undefined",
                    "none",
                    "string",
                    "mapping",
                    "iterable",
                    "sequence",
                    "true",
                    "false",
                    "boolean",
                    "number",
                    "integer",
                    "eq('user')",
                    "ne(1)",
                    "in(['a', 1])",
                ]);
                let not = self.choices.pick(&["", "not "]);
                format!("({} is {not}{test})", self.any(depth - 1))
            }
            7 => format!("({} and {})", self.boolean(depth - 1), self.any(depth - 1)),
            8 => format!("({} or {})", self.boolean(depth - 1), self.any(depth - 1)),
            9 => format!("(not {})", self.any(depth - 1)),
            10 => {
                let operator = self.choices.pick(&["in", "not in"]);
                let list = match self.of(3) {
                    0 => self.text(depth - 1),
                    1 => self.list(depth - 1),
                    _ => self
                        .choices
                        .pick(&["messages[0]", "m", "('user', 'a')", "['system', 'user', 1, none]"])
                        .to_owned(),
                };
                format!("({} {operator} {list})", self.any(depth - 1))
            }
            11 => {
                let method = self.choices.pick(&["startswith", "endswith"]);
                format!("{}.{method}({})", self.text(depth - 1), self.literal())
            }
            12 => format!(
                "({} < {} <= {})",
                self.int(depth - 1),
                self.int(depth - 1),
                self.int(depth - 1)
            ),
            _ => format!("({} < {})", self.text(depth - 1), self.text(depth - 1)),
        }
    }

    fn list(&mut self, depth: u16) -> String {
        let kind = if depth == 0 { self.of(3) } else { self.of(15) };
        match kind {
            0 => "messages".to_owned(),
            1 => self.place(),
            2 => self.choices.pick(&["[]", "['x', 'y']", "missing", "('p', 'q')"]).to_owned(),
            3..=5 => {
                let bounds =
                    self.choices.pick(&["1:", "::-1", ":-1", "-2:", ":", "1:3", "5:", "2:1"]);
                format!("({})[{bounds}]", self.list(depth - 1))
            }
            6 | 7 => {
                let filter = self.choices.pick(&["selectattr", "rejectattr"]);
                let arguments = self.choices.pick(&[
                    "'role', 'equalto', 'user'",
                    "'role', 'eq', 'system'",
                    "'tool_calls', 'undefined'",
                    "'content'",
                    "'name', 'defined'",
                    "'role', 'in', ['user', 'tool']",
                    "'role', 'ne', 'tool'",
                ]);
                format!("({} | {filter}({arguments}))", self.list(depth - 1))
            }
            8 => format!("({} | list)", self.list(depth - 1)),
            9 => format!("{}.split('a')", self.text(depth - 1)),
            10 => format!("({} or [])", self.list(depth - 1)),
            11 => format!("[{}, {}]", self.any(depth - 1), self.any(depth - 1)),
            12 => "(tools or [])".to_owned(),
            13 => self
                .choices
                .pick(&["tools", "m.tool_calls", "(messages[0].tool_calls or [])"])
                .to_owned(),
            _ => self.variable().to_owned(),
        }
    }

    fn any(&mut self, depth: u16) -> String {
        match self.of(10) {
            0..=2 => self.text(depth),
            3 | 4 => self.int(depth),
            5 | 6 if depth > 0 => self.boolean(depth - 1),
            7 => self.variable().to_owned(),
            8 if depth > 0 => self.list(depth - 1),
            _ => self
                .choices
                .pick(&[
                    "none",
                    "true",
                    "1",
                    "''",
                    "messages[0]",
                    "missing",
                    "loop",
                    "namespace",
                    "messages[-1]",
                ])
                .to_owned(),
        }
    }
}
