//! A chat message that is put together from the items of another API.

use std::borrow::Cow;

use crate::json::Json;

/// A message for the chat template, as `/v1/chat/completions` would have it.
#[derive(Debug, Default)]
pub(crate) struct Turn<'a> {
    pub(crate) role: Cow<'a, str>,
    pub(crate) content: Option<Json<'a>>,
    pub(crate) reasoning: Option<Cow<'a, str>>,
    pub(crate) tool_calls: Vec<Json<'a>>,
    pub(crate) tool_call_id: Option<Cow<'a, str>>,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(role: impl Into<Cow<'a, str>>) -> Self {
        Self { role: role.into(), ..Self::default() }
    }

    pub(crate) fn with_content(role: impl Into<Cow<'a, str>>, content: Json<'a>) -> Self {
        Self { content: Some(content), ..Self::new(role) }
    }

    /// A tool's answer.
    pub(crate) fn tool(id: Cow<'a, str>, content: Json<'a>) -> Self {
        Self { tool_call_id: Some(id), ..Self::with_content("tool", content) }
    }

    /// Adds a call of a function; `arguments` is an object, or JSON text.
    pub(crate) fn call(&mut self, id: Cow<'a, str>, name: Cow<'a, str>, arguments: Json<'a>) {
        self.tool_calls.push(Json::object([
            ("id", Json::Str(id)),
            ("type", Json::Str(Cow::Borrowed("function"))),
            ("function", Json::object([("name", Json::Str(name)), ("arguments", arguments)])),
        ]));
    }

    pub(crate) fn into_json(self) -> Json<'a> {
        let mut pairs = vec![("role", Json::Str(self.role))];
        pairs.extend(self.content.map(|content| ("content", content)));
        pairs.extend(self.reasoning.map(|text| ("reasoning", Json::Str(text))));
        if !self.tool_calls.is_empty() {
            pairs.push(("tool_calls", Json::List(self.tool_calls)));
        }
        pairs.extend(self.tool_call_id.map(|id| ("tool_call_id", Json::Str(id))));
        Json::object(pairs)
    }
}

/// A tool as `/v1/chat/completions` has it.
pub(crate) fn tool<'a>(
    fields: impl IntoIterator<Item = (&'static str, Option<Json<'a>>)>,
) -> Json<'a> {
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
    Json::object([
        ("type", Json::Str(Cow::Borrowed("function"))),
        ("function", Json::object(fields)),
    ])
}
