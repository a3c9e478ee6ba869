//! Messages as a template gets them from SGLang: dumped by pydantic in the order of its own fields,
//! without those that are null (protocol.py, `ChatCompletionMessageParam`; and
//! parser/jinja_template_utils.py, `process_content_for_template_format`).

use std::borrow::Cow;

use super::text::text;
use crate::error::PromptError;
use crate::json::Json;
use crate::json::lenient;
use crate::json::tree::Tree;
use crate::request::limits::{MAX_VALUES, VERY_MANY_VALUES};
use crate::template::conversation::{Conversation, Field, Fields, Part, media_kind};

const REFUSED: PromptError = PromptError::UnsupportedContent("a message that SGLang refuses");

pub(crate) fn conversation<'a>(
    messages: &'a [Json<'a>],
    parts: bool,
) -> Result<Conversation<'a>, PromptError> {
    let mut conversation = Conversation::default();
    for message in messages {
        let fields = fields(message, parts, &mut conversation)?;
        conversation.messages.push(fields);
    }
    Ok(conversation)
}

/// Roles that are known, beside the user's.
const ROLES: [&str; 7] =
    ["system", "assistant", "tool", "function", "developer", "latest_reminder", "root"];

fn fields<'a>(
    message: &'a Json<'a>,
    parts: bool,
    conversation: &mut Conversation<'a>,
) -> Result<Fields<'a>, PromptError> {
    let role = text(message, "role")?.ok_or(REFUSED)?;
    let content = content(message.get("content"), role, parts, conversation)?;
    if role == "user" {
        let content = content.ok_or(REFUSED)?;
        return Ok(vec![("role", Field::Text(role.into())), ("content", content)]);
    }
    let role = ROLES.iter().find(|known| role.eq_ignore_ascii_case(known)).ok_or(REFUSED)?;
    if message.get("tools").is_some() {
        return Err(PromptError::UnsupportedContent("a message's tools"));
    }
    let mut fields = vec![("role", Field::Text((*role).into()))];
    // A list comes last.
    let (first, last) = match content {
        None => (Some(Field::Text("".into())), None),
        Some(Field::Parts(_)) => (None, content),
        Some(_) if parts && matches!(message.get("content"), Some(Json::List(_))) => {
            (None, content)
        }
        Some(_) => (content, None),
    };
    fields.extend(first.map(|content| ("content", content)));
    for name in ["tool_call_id", "name", "phase", "reasoning_content"] {
        if let Some(text) = text(message, name)? {
            fields.push((name, Field::Text(text.into())));
        }
    }
    if let Some(calls) = message.get("tool_calls") {
        let calls = tool_calls(calls, *role == "assistant", &mut conversation.values)?;
        fields.push(("tool_calls", Field::Other(calls)));
    }
    if let Some(prefix) = message.get("prefix") {
        let prefix = lenient::bool(prefix).ok_or(REFUSED)?;
        fields.push(("prefix", Field::Other(Tree::Own(Json::Bool(prefix)))));
    }
    fields.extend(last.map(|content| ("content", content)));
    Ok(fields)
}

/// A text as it is. Of a list the texts, by spaces, or as they are where the template goes over
/// them; but a tool's answer is one text.
fn content<'a>(
    content: Option<&'a Json<'a>>,
    role: &str,
    parts: bool,
    conversation: &mut Conversation<'a>,
) -> Result<Option<Field<'a>>, PromptError> {
    let list = match content {
        None => return Ok(None),
        Some(Json::Str(text)) => return Ok(Some(Field::Text(Cow::Borrowed(text.as_ref())))),
        Some(Json::List(list)) => list,
        Some(_) => return Err(REFUSED),
    };
    let mut found = Vec::with_capacity(list.len());
    let mut media = 0;
    for part in list {
        match part.get("type").and_then(Json::str) {
            Some("text") => {
                let text = text(part, "text")?.ok_or(REFUSED)?;
                found.push(Part::Text(Cow::Borrowed(text), &[]));
            }
            // Dropped, as templates have no place for them here.
            Some("thinking" | "reasoning") if role.eq_ignore_ascii_case("assistant") => {
                let given = [part.get("thinking"), part.get("text")];
                if given.iter().flatten().count() != 1 {
                    return Err(REFUSED);
                }
            }
            kind @ Some("image_url" | "video_url" | "audio_url" | "input_audio") => {
                found.push(Part::Media(media_kind(kind)));
                media += 1;
            }
            Some("tool_reference") => {
                return Err(PromptError::UnsupportedContent("tool_reference"));
            }
            _ => return Err(REFUSED),
        }
    }
    conversation.media += media;
    let is_tool = role.eq_ignore_ascii_case("tool");
    if media > 0 && (!parts || is_tool) {
        // Where their places are, and in which order, is up to the engine.
        return Err(PromptError::UnsupportedContent("media in a text"));
    }
    if parts && !is_tool {
        return Ok(Some(Field::Parts(found)));
    }
    let texts: Vec<_> = found
        .iter()
        .map(|part| match part {
            Part::Text(text, _) => text.as_ref(),
            Part::Media(_) => "",
        })
        .collect();
    Ok(Some(Field::Text(Cow::Owned(texts.join(" ")))))
}

/// Calls with all their fields, nulls among them. An assistant's arguments are an object.
fn tool_calls<'a>(
    calls: &'a Json<'a>,
    is_assistant: bool,
    values_in_texts: &mut usize,
) -> Result<Tree<'a>, PromptError> {
    let mut values = Vec::new();
    for call in calls.list().ok_or(REFUSED)? {
        let given = |json: Option<&'a Json<'a>>| json.map_or(Tree::Own(Json::Null), Tree::Json);
        let name = |json: Option<&'a Json<'a>>| match json {
            None | Some(Json::Str(_)) => Ok(given(json)),
            Some(_) => Err(REFUSED),
        };
        if call.get("type").is_some_and(|kind| kind.str() != Some("function")) {
            return Err(REFUSED);
        }
        let index = match call.get("index") {
            None => Json::Null,
            Some(index) => Json::Int(lenient::int(index).ok_or(REFUSED)?.into()),
        };
        let function = call.get("function").filter(|json| json.map().is_some()).ok_or(REFUSED)?;
        let arguments = match function.get("arguments") {
            Some(Json::Str(text)) if is_assistant => {
                let parsed = object(text)?;
                *values_in_texts += parsed.values();
                if *values_in_texts > MAX_VALUES {
                    return Err(PromptError::UnsupportedContent(VERY_MANY_VALUES));
                }
                Tree::Own(parsed)
            }
            json @ (None | Some(Json::Str(_) | Json::Map(_))) => given(json),
            Some(_) => return Err(REFUSED),
        };
        let inner = vec![("name", name(function.get("name"))?), ("arguments", arguments)];
        values.push(Tree::Map(vec![
            ("id", name(call.get("id"))?),
            ("index", Tree::Own(index)),
            ("type", Tree::Own(Json::Str("function".into()))),
            ("function", Tree::Map(inner)),
        ]));
    }
    Ok(Tree::List(values))
}

/// What `orjson` reads in a text, which is to be an object: else the request is refused.
fn object(text: &str) -> Result<Json<'_>, PromptError> {
    match serde_json::from_str(text) {
        Ok(object @ Json::Map(_)) => Ok(object),
        _ => Err(PromptError::UnsupportedContent("arguments that are no JSON object")),
    }
}

impl Conversation<'_> {
    /// No conversation ends with an assistant's text (`_handle_last_assistant_message`): it is given
    /// back if it is to be continued, else a user has said it.
    pub(crate) fn end_with_a_user(&mut self, continued: bool) -> Option<String> {
        let fields = self.messages.last_mut()?;
        let of = |name: &str| fields.iter().find(|(known, _)| *known == name).map(|(_, f)| f);
        let (Some(Field::Text(role)), Some(Field::Text(said))) = (of("role"), of("content")) else {
            return None;
        };
        if role != "assistant" {
            return None;
        }
        let said = said.clone();
        if continued {
            let said = said.into_owned();
            self.messages.pop();
            return Some(said).filter(|said| !said.is_empty());
        }
        *fields = vec![("role", Field::Text("user".into())), ("content", Field::Text(said))];
        None
    }
}
