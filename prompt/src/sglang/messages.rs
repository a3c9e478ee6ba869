//! Anthropic's `/v1/messages` → a chat, as SGLang 0.5.23 makes it
//! (sglang/srt/entrypoints/anthropic/serving.py and protocol.py).

use std::borrow::Cow;

use super::unsupported::Unsupported;
use crate::json::Json;
use crate::request::anthropic::tool_choice;
use crate::request::body::parse_fields;
use crate::request::chat::Chat;
use crate::request::fields::Fields;
use crate::request::turn::{Turn, tool};

/// The chat of a body; `inline_system`: the template writes system messages where they stand.
pub(crate) fn chat(body: &[u8], inline_system: bool) -> Result<Chat<'_>, Unsupported> {
    let fields = parse_fields(body).map_err(|_| "a body that is not read")?;
    let Fields { messages, system, tools, thinking, output_config, .. } = fields;
    // What switches thinking depends on the reasoning parser that the engine was started with.
    if thinking.is_some() {
        return Err("thinking");
    }
    let Some(Json::List(messages)) = messages else { return Err("messages that are no list") };
    let mut systems = Vec::new();
    match system {
        None => {}
        Some(Json::Str(text)) => systems.extend((!text.trim().is_empty()).then_some(text)),
        Some(Json::List(blocks)) => {
            for mut block in blocks {
                let text = text_of(&mut block)?;
                systems.extend(text.filter(|text| !text.is_empty()));
            }
        }
        Some(_) => return Err("a system that is no text or list"),
    }
    let mut turns = Vec::with_capacity(messages.len() + 1);
    for mut message in messages {
        let role =
            message.take("role").and_then(Json::into_text).ok_or("a message without a role")?;
        let content = message.take("content");
        if role == "system" && !inline_system {
            systems.extend(system_text(content)?);
            continue;
        }
        match content {
            Some(text @ Json::Str(_)) => turns.push(Turn::with_content(role, text)),
            Some(Json::List(blocks)) => convert(role, blocks, &mut turns)?,
            _ => return Err("content that is no text or list"),
        }
    }
    if !systems.is_empty() {
        let text = Cow::Owned(systems.join("\n"));
        turns.insert(0, Turn::with_content("system", Json::Str(text)));
    }
    let tools = tools.map(chat_tools).transpose()?.filter(|list| !list.is_empty());
    // It is set past the place that makes it switch thinking, so that it stands alone.
    if output_config.is_some_and(|config| config.get("effort").is_some()) {
        return Err("output_config.effort");
    }
    Ok(Chat {
        messages: turns.into_iter().map(Turn::into_json).collect(),
        tools: tools.map(Json::List),
        tool_choice: tool_choice(fields.tool_choice),
        // Not one of its fields: chat_template_kwargs.
        ..Chat::default()
    })
}

/// The text of a block of text.
fn text_of<'a>(block: &mut Json<'a>) -> Result<Option<Cow<'a, str>>, Unsupported> {
    match block.get("type").and_then(Json::str) {
        Some("text") => {
            Ok(Some(block.take("text").and_then(Json::into_text).ok_or("a text without text")?))
        }
        Some(_) => Ok(None),
        None => Err("a block without a type"),
    }
}

/// A later system message for the first one, without space around it.
fn system_text(content: Option<Json<'_>>) -> Result<Option<Cow<'_, str>>, Unsupported> {
    let text = match content {
        Some(Json::Str(text)) => text.trim().to_owned(),
        Some(Json::List(blocks)) => {
            let mut texts = Vec::new();
            for mut block in blocks {
                let text = text_of(&mut block)?.unwrap_or_default();
                texts.extend(Some(text.trim().to_owned()).filter(|text| !text.is_empty()));
            }
            texts.join("\n")
        }
        _ => return Err("content that is no text or list"),
    };
    Ok((!text.is_empty()).then_some(Cow::Owned(text)))
}

fn convert<'a>(
    role: Cow<'a, str>,
    blocks: Vec<Json<'a>>,
    turns: &mut Vec<Turn<'a>>,
) -> Result<(), Unsupported> {
    let is_user = role == "user";
    let mut turn = Turn::new(role);
    let mut parts = Vec::new();
    for mut block in blocks {
        let kind = block.get("type").and_then(Json::str).ok_or("a block without a type")?;
        match kind {
            "text" => {
                let text = block.take("text").and_then(Json::into_text);
                parts.push(part(text.ok_or("a text without text")?));
            }
            "image" => {
                if !matches!(block.get("source"), Some(Json::Map(source)) if !source.is_empty()) {
                    return Err("an image without a source");
                }
                parts.push(Json::object([("type", Json::Str("image_url".into()))]));
            }
            "tool_use" => {
                // Without an id the engine makes one up.
                let id = block.take("id").and_then(Json::into_text).filter(|id| !id.is_empty());
                let id = id.ok_or("a tool_use without an id")?;
                let name = block.take("name").and_then(Json::into_text).unwrap_or_default();
                let input = block.take("input").unwrap_or_else(|| Json::object([]));
                if input.map().is_none() {
                    return Err("a tool_use without an input");
                }
                turn.call(id, name, input);
            }
            "tool_result" if is_user => {
                // In the order in which they stand.
                if let Some(content) = content_of(&mut parts) {
                    turns.push(Turn::with_content("user", content));
                }
                let id = block.take("tool_use_id").or_else(|| block.take("id"));
                let id = id.and_then(Json::into_text).unwrap_or_default();
                turns.push(Turn::tool(id, result(block.take("content"))?));
            }
            "tool_result" => match block.take("content") {
                None => parts.push(part("Tool result: ".into())),
                Some(Json::Str(text)) => parts.push(part(format!("Tool result: {text}").into())),
                Some(_) => return Err("an assistant's tool_result"),
            },
            "thinking" | "redacted_thinking" => return Err("thinking"),
            _ => return Err("a block of another type"),
        }
    }
    turn.content = content_of(&mut parts);
    if turn.content.is_none() && turn.tool_calls.is_empty() {
        if is_user {
            return Ok(());
        }
        turn.content = Some(Json::Str("".into()));
    }
    turns.push(turn);
    Ok(())
}

/// Parts as a message's content: one text alone as it is.
fn content_of<'a>(parts: &mut Vec<Json<'a>>) -> Option<Json<'a>> {
    let mut parts = std::mem::take(parts);
    match parts.as_mut_slice() {
        [] => None,
        [part] if part.get("type").and_then(Json::str) == Some("text") => part.take("text"),
        _ => Some(Json::List(parts)),
    }
}

/// A tool's answer.
fn result(content: Option<Json<'_>>) -> Result<Json<'_>, Unsupported> {
    let blocks = match content {
        None => return Ok(Json::Str("".into())),
        Some(text @ Json::Str(_)) => return Ok(text),
        Some(Json::List(blocks)) => blocks,
        Some(_) => return Err("a tool_result that is no text or list"),
    };
    let mut parts = Vec::new();
    for mut block in blocks {
        let text = text_of(&mut block)?.ok_or("a tool_result of another type")?;
        parts.extend((!text.is_empty()).then(|| part(text)));
    }
    Ok(content_of(&mut parts).unwrap_or(Json::Str("".into())))
}

/// Tools of the client's own; those of Anthropic's have no schema, and aren't shown.
fn chat_tools(tools: Json<'_>) -> Result<Vec<Json<'_>>, Unsupported> {
    let Json::List(list) = tools else { return Err("tools") };
    let mut shown = Vec::with_capacity(list.len());
    for mut item in list {
        if item.get("type").and_then(Json::str).is_some_and(|kind| kind != "custom") {
            return Err("a tool of Anthropic's");
        }
        let Some(Json::Map(mut schema)) = item.take("input_schema") else {
            return Err("a tool without a schema");
        };
        if !schema.iter().any(|(name, _)| name == "type") {
            schema.push((Cow::Borrowed("type"), Json::Str("object".into())));
        }
        let name = item.take("name").ok_or("a tool without a name")?;
        let description = item.take("description").unwrap_or(Json::Str("".into()));
        let deferred = item.take("defer_loading");
        let mut tool = tool([
            ("name", Some(name)),
            ("description", Some(description)),
            ("parameters", Some(Json::Map(schema))),
            ("strict", Some(item.take("strict").unwrap_or(Json::Bool(false)))),
        ]);
        if let (Json::Map(pairs), Some(deferred)) = (&mut tool, deferred) {
            pairs.push((Cow::Borrowed("defer_loading"), deferred));
        }
        shown.push(tool);
    }
    Ok(shown)
}

fn part(text: Cow<'_, str>) -> Json<'_> {
    Json::object([("type", Json::Str(Cow::Borrowed("text"))), ("text", Json::Str(text))])
}
