//! What a chat comes to, whichever API it came by.

use std::borrow::Cow;

use crate::json::Json;

/// The fields of a chat request that a template sees.
#[allow(clippy::struct_excessive_bools)] // As in the API.
#[derive(Debug, Default)]
pub(crate) struct Chat<'a> {
    pub(crate) messages: Vec<Json<'a>>,
    pub(crate) tools: Option<Json<'a>>,
    pub(crate) tool_choice: ToolChoice<'a>,
    pub(crate) documents: Option<Json<'a>>,
    pub(crate) kwargs: Option<Json<'a>>,
    pub(crate) reasoning_effort: Option<Json<'a>>,
    /// `reasoning`, which SGLang's chats have, too.
    pub(crate) reasoning: Option<Json<'a>>,
    pub(crate) add_generation_prompt: bool,
    pub(crate) continue_final_message: bool,
    pub(crate) add_special_tokens: bool,
    pub(crate) own_template: bool,
    /// From Anthropic's API: later system messages go into the first if the template wants that.
    pub(crate) anthropic: bool,
    /// Anthropic's `thinking` is disabled: the effort for that depends on the template.
    pub(crate) thinking_disabled: bool,
    /// On SGLang: an effort among the template's arguments goes before the server's default.
    pub(crate) keeps_own_effort: bool,
}

/// `tool_choice`, as far as prompts differ by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice<'a> {
    /// Any of them may be called, or has to be.
    #[default]
    Any,
    /// None may.
    None,
    /// This one has to be.
    Named(Cow<'a, str>),
}

impl<'a> ToolChoice<'a> {
    /// Of chats and Responses, which have a named function's name in `function` or beside the type.
    pub(crate) fn of(value: Option<Json<'a>>) -> Self {
        match value {
            Some(Json::Str(text)) if text == "none" => Self::None,
            Some(mut choice @ Json::Map(_)) => {
                let inner = choice.take("function").and_then(|mut function| function.take("name"));
                let name = inner.or_else(|| choice.take("name")).and_then(Json::into_text);
                name.map_or(Self::Any, Self::Named)
            }
            _ => Self::Any,
        }
    }
}
