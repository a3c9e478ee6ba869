//! Anthropic's `/v1/messages` → a chat, as vLLM 0.32 makes it
//! (vllm/entrypoints/anthropic/serving.py and protocol.py).

use std::borrow::Cow;

use crate::error::RequestError;
use crate::json::Json;
use crate::request::chat::{Chat, ToolChoice};
use crate::request::fields::Fields;
use crate::request::turn::{Turn, tool};

/// Claude Code's line that is another in every request: vLLM drops texts that start so.
const BILLING: &str = "x-anthropic-billing-header";

/// What can't be followed, by name.
type Unsupported = &'static str;

/// The chat of a request; the inner error says what of it can't be followed.
pub(crate) fn chat(mut fields: Fields<'_>) -> Result<Result<Chat<'_>, Unsupported>, RequestError> {
    let messages = match fields.messages.take() {
        None => return Err(RequestError::NoPrompt("messages")),
        Some(Json::List(list)) if list.is_empty() => {
            return Err(RequestError::NoPrompt("messages"));
        }
        Some(Json::List(list)) => list,
        Some(_) => return Err(RequestError::WrongType("messages")),
    };
    let mut turns = Vec::with_capacity(messages.len() + 1);
    match fields.system.take() {
        None => {}
        // Unlike a list of blocks, a text is taken as it is; a billing line goes later.
        Some(Json::Str(text)) if text.is_empty() => {}
        Some(text @ Json::Str(_)) => turns.push(Turn::with_content("system", text)),
        Some(Json::List(blocks)) => {
            if let Some(text) = system_text(blocks) {
                turns.push(Turn::with_content("system", Json::Str(text)));
            }
        }
        Some(_) => return Err(RequestError::WrongType("system")),
    }
    for message in messages {
        if let Err(what) = convert(message, &mut turns) {
            return Ok(Err(what));
        }
    }
    let tools = match fields.tools.take() {
        None => None,
        Some(Json::List(list)) => Some(tools(list)),
        Some(_) => return Err(RequestError::WrongType("tools")),
    };
    let thinking = fields.thinking.take().and_then(|mut thinking| thinking.take("type"));
    let effort = fields.output_config.take().and_then(|mut config| config.take("effort"));
    Ok(Ok(Chat {
        messages: turns.into_iter().map(Turn::into_json).collect(),
        tools,
        tool_choice: tool_choice(fields.tool_choice.take()),
        kwargs: fields.chat_template_kwargs,
        reasoning_effort: effort,
        add_generation_prompt: true,
        anthropic: true,
        thinking_disabled: thinking.is_some_and(|kind| kind.str() == Some("disabled")),
        ..Chat::default()
    }))
}

pub(crate) fn tool_choice(choice: Option<Json<'_>>) -> ToolChoice<'_> {
    let Some(mut choice) = choice else { return ToolChoice::Any };
    match choice.get("type").and_then(Json::str) {
        Some("none") => ToolChoice::None,
        Some("tool") => match choice.take("name").and_then(Json::into_text) {
            Some(name) => ToolChoice::Named(name),
            None => ToolChoice::Any,
        },
        _ => ToolChoice::Any,
    }
}

/// The texts of blocks, as one.
fn system_text(blocks: Vec<Json<'_>>) -> Option<Cow<'_, str>> {
    let mut texts = blocks.into_iter().filter_map(|mut block| {
        let is_text = block.get("type").and_then(Json::str) == Some("text");
        let text = is_text.then(|| block.take("text"))?.and_then(Json::into_text)?;
        (!text.is_empty() && !text.starts_with(BILLING)).then_some(text)
    });
    let mut all = texts.next()?;
    for text in texts {
        all.to_mut().push_str(&text);
    }
    Some(all)
}

fn convert<'a>(mut message: Json<'a>, turns: &mut Vec<Turn<'a>>) -> Result<(), Unsupported> {
    let role = message.take("role").and_then(Json::into_text).ok_or("a message without a role")?;
    let content = message.take("content");
    if role == "system" {
        let text = match content {
            Some(Json::Str(text)) => (!text.starts_with(BILLING)).then_some(text),
            Some(Json::List(blocks)) => {
                let changes = |block: &Json<'_>| {
                    matches!(
                        block.get("type").and_then(Json::str),
                        Some("tool_addition" | "tool_removal")
                    )
                };
                if blocks.iter().any(changes) {
                    return Err("a change of tools");
                }
                system_text(blocks)
            }
            _ => None,
        };
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            turns.push(Turn::with_content("system", Json::Str(text)));
        }
        return Ok(());
    }
    let blocks = match content {
        Some(text @ Json::Str(_)) => {
            turns.push(Turn::with_content(role, text));
            return Ok(());
        }
        Some(Json::List(blocks)) => blocks,
        _ => return Err("content that is no text or list"),
    };
    let mut turn = Turn::new(role);
    let mut parts = Vec::new();
    for block in blocks {
        convert_block(block, &mut turn, &mut parts, turns)?;
    }
    turn.content = match parts.as_mut_slice() {
        [] => None,
        [part] if part.get("type").and_then(Json::str) == Some("text") => part.take("text"),
        _ => Some(Json::List(parts)),
    };
    if turn.role != "user" || turn.content.is_some() {
        turns.push(turn);
    }
    Ok(())
}

fn convert_block<'a>(
    mut block: Json<'a>,
    turn: &mut Turn<'a>,
    parts: &mut Vec<Json<'a>>,
    turns: &mut Vec<Turn<'a>>,
) -> Result<(), Unsupported> {
    let kind = block.take("type").and_then(Json::into_text).ok_or("a block without a type")?;
    match kind.as_ref() {
        "text" => {
            if let Some(text) = block.take("text").and_then(Json::into_text)
                && !text.is_empty()
            {
                parts.push(text_part(text));
            }
        }
        "image" => {
            if matches!(block.get("source"), Some(Json::Map(source)) if !source.is_empty()) {
                parts.push(image_part());
            }
        }
        "thinking" => {
            if let Some(text) = block.take("thinking").and_then(Json::into_text) {
                match &mut turn.reasoning {
                    None => turn.reasoning = Some(text),
                    Some(all) => all.to_mut().push_str(&text),
                }
            }
        }
        // Opaque to the engine too.
        "redacted_thinking" | "tool_reference" => {}
        "tool_use" => {
            // Without an id the engine puts the time there.
            let id = block.take("id").and_then(Json::into_text).filter(|id| !id.is_empty());
            let id = id.ok_or("a tool_use without an id")?;
            let name = block.take("name").and_then(Json::into_text).unwrap_or_default();
            let input = block.take("input").unwrap_or_else(|| Json::object([]));
            turn.call(id, name, input);
        }
        "tool_result" if turn.role == "user" => tool_result(block, turns)?,
        "tool_result" => {
            let said = match block.take("content") {
                None => Cow::Borrowed(""),
                Some(Json::Str(text)) => text,
                Some(Json::List(list)) if list.is_empty() => Cow::Borrowed(""),
                Some(_) => return Err("an assistant's tool_result"),
            };
            parts.push(text_part(Cow::Owned(format!("Tool result: {said}"))));
        }
        _ => return Err("a block of another type"),
    }
    Ok(())
}

/// A tool's answer is a message of its own, before what the user says beside it.
fn tool_result<'a>(mut block: Json<'a>, turns: &mut Vec<Turn<'a>>) -> Result<(), Unsupported> {
    let id = block.take("tool_use_id").and_then(Json::into_text).unwrap_or_default();
    let mut said = Cow::Borrowed("");
    let mut images = Vec::new();
    match block.take("content") {
        Some(Json::Str(text)) => said = text,
        Some(Json::List(items)) => {
            let mut first = true;
            for mut item in items {
                match item.get("type").and_then(Json::str) {
                    Some("text") => {
                        let text = item.take("text").and_then(Json::into_text).unwrap_or_default();
                        if first {
                            said = text;
                        } else {
                            said.to_mut().push('\n');
                            said.to_mut().push_str(&text);
                        }
                        first = false;
                    }
                    Some("image") => images.push(image_part()),
                    Some("tool_reference") => return Err("tool_reference"),
                    _ => {}
                }
            }
        }
        _ => {}
    }
    turns.push(Turn::tool(id, Json::Str(said)));
    if !images.is_empty() {
        turns.push(Turn::with_content("user", Json::List(images)));
    }
    Ok(())
}

fn tools(list: Vec<Json<'_>>) -> Json<'_> {
    let tools = list.into_iter().map(|mut item| {
        let mut schema = item.take("input_schema");
        if let Some(Json::Map(pairs)) = &mut schema
            && !pairs.iter().any(|(name, _)| name == "type")
        {
            pairs.push((Cow::Borrowed("type"), Json::Str(Cow::Borrowed("object"))));
        }
        let mut field = |name: &'static str| (name, item.take(name));
        tool([
            field("name"),
            field("description"),
            ("parameters", schema),
            field("strict"),
            field("defer_loading"),
        ])
    });
    Json::List(tools.collect())
}

fn text_part(text: Cow<'_, str>) -> Json<'_> {
    Json::object([("type", Json::Str(Cow::Borrowed("text"))), ("text", Json::Str(text))])
}

/// Only that there is an image matters: a prefix ends there.
fn image_part<'a>() -> Json<'a> {
    Json::object([("type", Json::Str(Cow::Borrowed("image_url")))])
}
