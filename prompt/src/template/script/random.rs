//! Conversations out of numbers: fewer and smaller ones make simpler ones.
#![allow(clippy::indexing_slicing)] // Helpers of tests.

use crate::json::Json;

/// Numbers that decide, one after the other; zeros when they are used up.
pub(crate) struct Choices<'n> {
    numbers: std::slice::Iter<'n, u16>,
}

impl<'n> Choices<'n> {
    pub(crate) fn new(numbers: &'n [u16]) -> Self {
        Self { numbers: numbers.iter() }
    }

    /// One of so many.
    pub(crate) fn of(&mut self, count: u16) -> u16 {
        self.numbers.next().map_or(0, |number| number % count)
    }

    pub(crate) fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[usize::from(self.of(from.len() as u16))]
    }
}

pub(crate) const TEXTS: [&str; 22] = [
    "Hi",
    "",
    " a b ",
    "\n\nx\n",
    "</think>",
    "<think>\nhm\n</think>\n\nwell",
    "é漢字🙂",
    "\u{a0}x\u{2003}",
    "\u{1c}y\u{1f}",
    "<tool_response>",
    "<tool_response>r</tool_response>",
    "user",
    "system",
    "a",
    "aaa",
    "ab</think>cd</think>",
    "\u{200b}",
    "x",
    "it's \"q\"",
    "7",
    "None",
    "\r\n\t",
];

pub(crate) fn conversation(choices: &mut Choices<'_>) -> Vec<Json<'static>> {
    // Rather two than none.
    let count = (choices.of(6) + 2) % 6;
    (0..count).map(|_| message(choices)).collect()
}

/// Tools, or none.
pub(crate) fn functions(choices: &mut Choices<'_>) -> Option<Json<'static>> {
    let count = choices.of(5);
    if count < 3 {
        return None;
    }
    let function = |choices: &mut Choices<'_>| {
        let parameters = Json::object([
            ("type", text(choices)),
            ("n", Json::Float(0.5)),
            ("big", Json::Unsigned(u64::MAX)),
            ("long", Json::Long("12345678901234567890123".into())),
            ("longer", Json::Long("1234567890123456789012345678901234567890".into())),
            ("nan", Json::Float(f64::NAN)),
            ("list", Json::List(vec![Json::Null, Json::Int(-3), text(choices)])),
            ("empty", Json::Map(Vec::new())),
        ]);
        let mut function = vec![("name".into(), text(choices))];
        if choices.of(2) == 1 {
            function.push(("parameters".into(), parameters));
        }
        Json::object([("type", Json::Str("function".into())), ("function", Json::Map(function))])
    };
    Some(Json::List((3..count).map(|_| function(choices)).collect()))
}

fn text(choices: &mut Choices<'_>) -> Json<'static> {
    let mut text = choices.pick(&TEXTS).to_owned();
    if choices.of(3) == 1 {
        text.push_str(choices.pick(&TEXTS));
    }
    Json::Str(text.into())
}

fn message(choices: &mut Choices<'_>) -> Json<'static> {
    let role = choices.pick(&[
        "user",
        "assistant",
        "system",
        "user",
        "assistant",
        "tool",
        "developer",
        "other",
    ]);
    let mut pairs = vec![("role".into(), Json::Str(role.into()))];
    match choices.of(10) {
        8 => {}
        9 => {
            let count = choices.of(3);
            let parts = (0..count).map(|_| {
                let mut part =
                    vec![("type".into(), Json::Str("text".into())), ("text".into(), text(choices))];
                if choices.of(4) == 1 {
                    part.push(("extra".into(), Json::Bool(true)));
                }
                Json::Map(part)
            });
            pairs.push(("content".into(), Json::List(parts.collect())));
        }
        _ => pairs.push(("content".into(), text(choices))),
    }
    for name in ["name", "reasoning", "tool_call_id", "tool_calls"] {
        if choices.of(5) != 1 {
            continue;
        }
        let value = match (name, choices.of(3)) {
            ("tool_calls", _) => {
                let function = Json::object([
                    ("name", text(choices)),
                    (
                        "arguments",
                        Json::Str(r#"{"a": 1, "é": [null, 2.0, {}], "b": false}"#.into()),
                    ),
                ]);
                Json::List(vec![Json::object([("id", text(choices)), ("function", function)])])
            }
            ("reasoning", 2) => Json::List(vec![Json::Int(1)]),
            _ => text(choices),
        };
        pairs.push((name.into(), value));
    }
    Json::Map(pairs)
}
