//! `/v1/responses` → a chat, as SGLang 0.5.23 makes it
//! (sglang/srt/entrypoints/openai/serving_responses.py and protocol.py).

use std::borrow::Cow;

use super::unsupported::Unsupported;
use crate::json::Json;
use crate::json::lenient;
use crate::request::body::parse_fields;
use crate::request::chat::{Chat, ToolChoice};
use crate::request::fields::Fields;
use crate::request::turn::tool;

/// What stands before what a developer says (entrypoints/openai/responses_adapters.py).
const DEVELOPER: &str = "Developer instructions:";

/// The chat of a body; `inline_system`: the template writes system messages where they stand.
pub(crate) fn chat(body: &[u8], inline_system: bool) -> Result<Chat<'_>, Unsupported> {
    let fields = parse_fields(body).map_err(|_| "a body that is not read")?;
    let Fields { input, instructions, tools, tool_choice, reasoning, .. } = fields;
    if fields.previous_response_id.is_some() {
        // The conversation so far is inside the engine.
        return Err("previous_response_id");
    }
    let mut messages = Vec::new();
    match instructions {
        None => {}
        Some(Json::Str(text)) if text.is_empty() => {}
        Some(text @ Json::Str(_)) => messages.push(message("system", [("content", text)])),
        Some(_) => return Err("instructions that are no text"),
    }
    match input {
        Some(text @ Json::Str(_)) => messages.push(message("user", [("content", text)])),
        Some(Json::List(items)) => {
            for item in items {
                messages.extend(item_message(item)?);
            }
        }
        _ => return Err("input that is no text or list"),
    }
    let mut messages = merged(messages)?;
    if !inline_system {
        messages = with_one_system(messages);
    }
    let tools = tools.map(chat_tools).transpose()?.filter(|list| !list.is_empty());
    // An effort is medium unless it is said, or null.
    let effort = match reasoning {
        Some(Json::Map(pairs)) => {
            let effort = pairs.into_iter().find(|(name, _)| name == "effort");
            effort.map_or(Some(Json::Str("medium".into())), |(_, effort)| Some(effort))
        }
        Some(_) => return Err("reasoning"),
        None => None,
    };
    Ok(Chat {
        messages,
        tools: tools.map(Json::List),
        tool_choice: choice(tool_choice),
        kwargs: fields.chat_template_kwargs,
        reasoning_effort: effort.filter(|effort| !effort.is_null()),
        keeps_own_effort: true,
        ..Chat::default()
    })
}

/// Of the choices that are objects only functions and custom tools count.
fn choice(choice: Option<Json<'_>>) -> ToolChoice<'_> {
    match &choice {
        Some(Json::Map(_)) => {
            let kind = choice.as_ref().and_then(|choice| choice.get("type")).and_then(Json::str);
            if !matches!(kind, Some("function" | "custom")) {
                return ToolChoice::Any;
            }
            ToolChoice::of(choice)
        }
        _ => ToolChoice::of(choice),
    }
}

fn message<'a, const N: usize>(
    role: &'static str,
    fields: [(&'static str, Json<'a>); N],
) -> Json<'a> {
    let role = ("role", Json::Str(role.into()));
    Json::object(std::iter::once(role).chain(fields))
}

/// The message of an item of the input; none for a thought that is empty.
fn item_message(mut item: Json<'_>) -> Result<Option<Json<'_>>, Unsupported> {
    if item.map().is_none() {
        return Err("an input item that is no object");
    }
    let kind = match item.take("type") {
        None => None,
        Some(Json::Str(kind)) => Some(kind),
        Some(_) => return Err("an input item of no type"),
    };
    match kind.as_deref() {
        Some("function_call") => {
            let arguments = match item.take("arguments") {
                Some(Json::Str(text)) => match serde_json::from_str(&text) {
                    Ok(Json::Map(_)) => Json::Str(text),
                    Ok(_) => Json::Str("{}".into()),
                    // What Python's reader takes and this one doesn't isn't to be told.
                    Err(_) if text.is_empty() => Json::Str("{}".into()),
                    Err(_) => return Err("arguments that are not JSON"),
                },
                Some(arguments @ Json::Map(_)) => arguments,
                _ => Json::Str("{}".into()),
            };
            let id = item.take("call_id").or_else(|| item.take("id"));
            let name = item.take("name");
            let function = [("name", name), ("arguments", Some(arguments))];
            let function = function.into_iter().filter_map(|(name, field)| Some((name, field?)));
            let mut call = vec![("type", Json::Str("function".into()))];
            call.extend(id.map(|id| ("id", id)));
            call.push(("function", Json::object(function)));
            let calls = Json::List(vec![Json::object(call)]);
            Ok(Some(message("assistant", [("tool_calls", calls)])))
        }
        Some("function_call_output") => {
            let id = item.take("call_id").unwrap_or(Json::Null);
            let output = match item.take("output") {
                Some(Json::List(parts)) => {
                    let texts = parts.iter().filter_map(|part| part.get("text"));
                    let texts: Option<String> = texts.map(Json::str).collect();
                    Json::Str(texts.ok_or("a part without text")?.into())
                }
                Some(text @ Json::Str(_)) => text,
                _ => return Err("an output that is no text or list"),
            };
            Ok(Some(message("tool", [("tool_call_id", id), ("content", output)])))
        }
        Some("reasoning") => {
            let mut said = texts(item.take("summary"))?;
            if said.is_empty() {
                said = texts(item.take("content"))?;
            }
            if said.is_empty() && item.get("encrypted_content").is_some() {
                return Err("encrypted reasoning");
            }
            let said = Json::Str(Cow::Owned(said));
            let empty = said.str() == Some("");
            Ok((!empty).then(|| message("assistant", [("reasoning_content", said)])))
        }
        None | Some("message") => Ok(Some(said(item)?)),
        // Custom tools are shown by words of the engine's own.
        Some(_) => Err("an input item of another type"),
    }
}

/// The texts that aren't empty, in lines.
fn texts(parts: Option<Json<'_>>) -> Result<String, Unsupported> {
    let Some(parts) = parts else { return Ok(String::new()) };
    let parts = parts.list().ok_or("reasoning that is no list")?;
    let texts = parts.iter().filter_map(|part| part.get("text"));
    let texts: Option<Vec<_>> = texts.map(Json::str).collect();
    let texts = texts.ok_or("reasoning without text")?;
    Ok(texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n"))
}

/// A message as it is, but for the parts' types; a developer's becomes the system's, and says so.
fn said(mut item: Json<'_>) -> Result<Json<'_>, Unsupported> {
    let role = item.take("role").and_then(Json::into_text).ok_or("a message without a role")?;
    let is_developer = role == "developer";
    let role = if is_developer { Cow::Borrowed("system") } else { role };
    let content = match item.take("content") {
        Some(Json::Str(text)) if is_developer => {
            Some(Json::Str(Cow::Owned(format!("{DEVELOPER}\n{text}"))))
        }
        Some(Json::List(mut parts)) => {
            for part in &mut parts {
                plain_part(part);
            }
            if is_developer {
                label(&mut parts);
            }
            Some(Json::List(parts))
        }
        other => other,
    };
    let mut pairs = vec![("role", Json::Str(role))];
    pairs.extend(content.map(|content| ("content", content)));
    for name in
        ["tool_call_id", "name", "phase", "reasoning_content", "tool_calls", "tools", "prefix"]
    {
        pairs.extend(item.take(name).map(|field| (name, field)));
    }
    Ok(Json::object(pairs))
}

/// What is in and what is out is all text.
fn plain_part(part: &mut Json<'_>) {
    match part.get("type").and_then(Json::str) {
        Some("input_text" | "output_text") => {
            let text = part.take("text").unwrap_or(Json::Str("".into()));
            *part = Json::object([("type", Json::Str("text".into())), ("text", text)]);
        }
        Some("input_image") => *part = Json::object([("type", Json::Str("image_url".into()))]),
        _ => {}
    }
}

/// Says before the first text whose they are.
fn label(parts: &mut Vec<Json<'_>>) {
    let text = |text| ("text", Json::Str(text));
    let kind = || ("type", Json::Str("text".into()));
    for part in parts.iter_mut() {
        if let Some(Json::Str(said)) = part.get("text") {
            let said = format!("{DEVELOPER}\n{said}");
            *part = Json::object([kind(), text(said.into())]);
            return;
        }
    }
    parts.insert(0, Json::object([kind(), text(DEVELOPER.into())]));
}

/// What an assistant says, thinks and calls one after the other is one message.
fn merged(messages: Vec<Json<'_>>) -> Result<Vec<Json<'_>>, Unsupported> {
    let is_assistant = |json: &Json<'_>| json.get("role").and_then(Json::str) == Some("assistant");
    let mut all: Vec<Json<'_>> = Vec::with_capacity(messages.len());
    for mut message in messages {
        let Some(last) = all.last_mut().filter(|last| is_assistant(last) && is_assistant(&message))
        else {
            all.push(message);
            continue;
        };
        if last.get("phase").is_some() || message.get("phase").is_some() {
            return Err("phases of an answer");
        }
        let mut before = std::mem::replace(last, Json::Null);
        let mut both = |name: &str| (before.take(name), message.take(name));
        let empty = |json: &Json<'_>| json.str() == Some("");
        let content = match both("content") {
            (before, None) => before,
            (before, Some(new)) if empty(&new) => before,
            (None, new) => new,
            (Some(before), new) if empty(&before) => new,
            (Some(Json::Str(before)), Some(Json::Str(new))) => {
                Some(Json::Str(Cow::Owned(format!("{before}\n\n{new}"))))
            }
            (Some(before), Some(new)) => {
                let mut parts = parts_of(before)?;
                parts.extend(parts_of(new)?);
                Some(Json::List(parts))
            }
        };
        let calls = match both("tool_calls") {
            (Some(Json::List(mut before)), Some(Json::List(new))) => {
                before.extend(new);
                Some(Json::List(before))
            }
            (before, new) => before.or(new),
        };
        let thought = match both("reasoning_content") {
            (Some(Json::Str(before)), Some(Json::Str(new))) => {
                Some(Json::Str(Cow::Owned(format!("{before}\n{new}"))))
            }
            (before, new) => before.or(new),
        };
        let name = both("name").0;
        let mut pairs = vec![("role", Json::Str("assistant".into()))];
        for (name, field) in [
            ("content", content),
            ("name", name),
            ("reasoning_content", thought),
            ("tool_calls", calls),
        ] {
            pairs.extend(field.map(|field| (name, field)));
        }
        *last = Json::object(pairs);
    }
    Ok(all)
}

fn parts_of(content: Json<'_>) -> Result<Vec<Json<'_>>, Unsupported> {
    match content {
        Json::List(parts) => Ok(parts),
        text @ Json::Str(_) => {
            Ok(vec![Json::object([("type", Json::Str("text".into())), ("text", text)])])
        }
        _ => Err("content that is no text or list"),
    }
}

/// All that the system says goes before the rest.
fn with_one_system(messages: Vec<Json<'_>>) -> Vec<Json<'_>> {
    let is_system = |json: &Json<'_>| json.get("role").and_then(Json::str) == Some("system");
    let (systems, mut others): (Vec<_>, Vec<_>) = messages.into_iter().partition(is_system);
    let mut texts = Vec::new();
    for system in &systems {
        match system.get("content") {
            Some(Json::Str(text)) => texts.push(text.as_ref()),
            Some(Json::List(parts)) => {
                texts
                    .extend(parts.iter().filter_map(|part| part.get("text")).filter_map(Json::str));
            }
            _ => {}
        }
    }
    if !texts.is_empty() {
        let text = Json::Str(Cow::Owned(texts.join("\n\n")));
        others.insert(0, message("system", [("content", text)]));
    }
    others
}

/// Functions; built-in tools aren't shown.
fn chat_tools(tools: Json<'_>) -> Result<Vec<Json<'_>>, Unsupported> {
    let Json::List(list) = tools else { return Err("tools") };
    let mut shown = Vec::with_capacity(list.len());
    for mut item in list {
        match item.get("type").and_then(Json::str) {
            Some("function") => {}
            Some("custom") => return Err("a custom tool"),
            Some(_) => continue,
            None => return Err("a tool without a type"),
        }
        let strict = match item.take("strict") {
            None => false,
            Some(strict) => lenient::bool(&strict).ok_or("tools")?,
        };
        let mut field = |name: &'static str| (name, Some(item.take(name).unwrap_or(Json::Null)));
        let (name, description) = (field("name"), field("description"));
        let parameters = field("parameters");
        shown.push(tool([name, description, parameters, ("strict", Some(Json::Bool(strict)))]));
    }
    Ok(shown)
}
