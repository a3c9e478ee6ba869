//! `/v1/responses` → a chat, as vLLM 0.32 makes it
//! (vllm/entrypoints/openai/responses/utils.py and protocol.py).

use std::borrow::Cow;

use crate::error::RequestError;
use crate::json::Json;
use crate::request::chat::{Chat, ToolChoice};
use crate::request::fields::Fields;
use crate::request::turn::{Turn, tool};

/// What can't be followed, by name.
type Unsupported = &'static str;

/// The chat of a request; the inner error says what of it can't be followed.
pub(crate) fn chat(fields: Fields<'_>) -> Result<Result<Chat<'_>, Unsupported>, RequestError> {
    let Some(input) = fields.input else { return Err(RequestError::NoPrompt("input")) };
    let unsupported = [
        // The conversation so far is inside the engine.
        (fields.previous_response_id.is_some(), "previous_response_id"),
        (fields.previous_input_messages.is_some(), "previous_input_messages"),
        (fields.prompt.is_some(), "prompt"),
    ];
    if let Some((_, what)) = unsupported.iter().find(|(given, _)| *given) {
        return Ok(Err(what));
    }
    let mut messages = Vec::new();
    match fields.instructions {
        None => {}
        Some(Json::Str(text)) if text.is_empty() => {}
        Some(text @ Json::Str(_)) => messages.push(Turn::with_content("system", text).into_json()),
        Some(_) => return Err(RequestError::WrongType("instructions")),
    }
    let mut continued = false;
    match input {
        Json::Str(_) => messages.push(Turn::with_content("user", input).into_json()),
        Json::List(items) => {
            continued = items.last().is_some_and(is_partial);
            match turns(items) {
                Ok(turns) => messages.extend(turns.into_iter().map(Turn::into_json)),
                Err(what) => return Ok(Err(what)),
            }
        }
        _ => return Err(RequestError::WrongType("input")),
    }
    if messages.is_empty() {
        return Err(RequestError::NoPrompt("input"));
    }
    let tools = match fields.tools {
        None => None,
        Some(Json::List(list)) if list.is_empty() => None,
        Some(Json::List(list)) => match tools(list) {
            Ok(tools) => Some(tools),
            Err(what) => return Ok(Err(what)),
        },
        Some(_) => return Err(RequestError::WrongType("tools")),
    };
    Ok(Ok(Chat {
        messages,
        tools,
        tool_choice: ToolChoice::of(fields.tool_choice),
        kwargs: fields.chat_template_kwargs,
        reasoning_effort: fields.reasoning.and_then(|mut reasoning| reasoning.take("effort")),
        add_generation_prompt: !continued,
        continue_final_message: continued,
        // Alone of all APIs (protocol.py, `build_tok_params`, which leaves it at its default).
        add_special_tokens: true,
        ..Chat::default()
    }))
}

/// Whether the last item is an answer that is to be continued.
fn is_partial(item: &Json<'_>) -> bool {
    let kind = item.get("type").map_or(Some("message"), Json::str);
    matches!(kind, Some("message" | "reasoning"))
        && matches!(item.get("status").and_then(Json::str), Some("in_progress" | "incomplete"))
}

/// The messages of items; what an assistant says, thinks and calls is one message.
fn turns(items: Vec<Json<'_>>) -> Result<Vec<Turn<'_>>, Unsupported> {
    let mut turns: Vec<Turn<'_>> = Vec::new();
    for mut item in items {
        let kind = item.take("type").map(Json::into_text);
        let kind = match kind {
            None => None,
            Some(None) => return Err("an input item of no type"),
            Some(Some(kind)) => Some(kind),
        };
        match kind.as_deref() {
            Some("function_call") => {
                let mut name = text(&mut item, "name").ok_or("a function_call without a name")?;
                if let Some(namespace) = text(&mut item, "namespace").filter(|n| !n.is_empty()) {
                    name = Cow::Owned(format!("{namespace}__{name}"));
                }
                let id = text(&mut item, "call_id").ok_or("a function_call without a call_id")?;
                let arguments = item.take("arguments").filter(|value| value.str().is_some());
                let arguments = arguments.ok_or("a function_call without arguments")?;
                assistant(&mut turns, |_| true, |turn| turn.call(id, name, arguments));
            }
            Some("custom_tool_call") => {
                let name = text(&mut item, "name").ok_or("a custom_tool_call without a name")?;
                let id =
                    text(&mut item, "call_id").ok_or("a custom_tool_call without a call_id")?;
                let input = item.take("input").unwrap_or(Json::Str(Cow::Borrowed("")));
                let arguments = Json::object([("input", input)]);
                assistant(&mut turns, |_| true, |turn| turn.call(id, name, arguments));
            }
            Some("reasoning") => {
                let text = reasoning(&mut item)?;
                assistant(
                    &mut turns,
                    |turn| turn.reasoning.is_none(),
                    |turn| turn.reasoning = Some(text),
                );
            }
            Some("function_call_output" | "custom_tool_call_output") => {
                let id = text(&mut item, "call_id").ok_or("an output without a call_id")?;
                let output = item.take("output").unwrap_or(Json::Null);
                turns.push(Turn::tool(id, output));
            }
            None | Some("message") => message(&mut turns, item)?,
            Some(_) => return Err("an input item of another type"),
        }
    }
    Ok(turns)
}

/// Changes the last turn if it is an assistant's with room, or a new one.
fn assistant<'a>(
    turns: &mut Vec<Turn<'a>>,
    has_room: impl Fn(&Turn<'a>) -> bool,
    change: impl FnOnce(&mut Turn<'a>),
) {
    match turns.last_mut() {
        Some(turn) if turn.role == "assistant" && has_room(turn) => change(turn),
        _ => {
            let mut turn = Turn::new("assistant");
            change(&mut turn);
            turns.push(turn);
        }
    }
}

fn message<'a>(turns: &mut Vec<Turn<'a>>, mut item: Json<'a>) -> Result<(), Unsupported> {
    let role = text(&mut item, "role").ok_or("an input item without a role")?;
    let mut content = item.take("content");
    if role == "assistant" {
        // Of an answer's parts the first counts.
        let said = match &mut content {
            Some(Json::Str(_)) => content.take(),
            Some(Json::List(parts)) => parts.first_mut().and_then(|part| part.take("text")),
            _ => None,
        };
        if let Some(said) = said {
            if said.str().is_none() {
                return Err("a part without text");
            }
            assistant(turns, |turn| turn.content.is_none(), |turn| turn.content = Some(said));
            return Ok(());
        }
    }
    turns.push(Turn { content, ..Turn::new(role) });
    Ok(())
}

/// What was thought: the first part of the content, else of the summary.
fn reasoning<'a>(item: &mut Json<'a>) -> Result<Cow<'a, str>, Unsupported> {
    if item.get("encrypted_content").is_some_and(|text| text.str() != Some("")) {
        return Err("encrypted reasoning");
    }
    for list in ["content", "summary"] {
        if let Some(Json::List(parts)) = item.take(list)
            && let Some(mut part) = parts.into_iter().next()
        {
            return text(&mut part, "text").ok_or("reasoning without text");
        }
    }
    Ok(Cow::Borrowed(""))
}

/// Tools that the model is shown: functions, and custom tools as functions of one text.
fn tools(list: Vec<Json<'_>>) -> Result<Json<'_>, Unsupported> {
    let mut shown = Vec::with_capacity(list.len());
    for mut item in list {
        let kind = text(&mut item, "type");
        let mut field = |name: &'static str| (name, item.take(name));
        match kind.as_deref() {
            Some("function") => shown.push(tool([
                field("name"),
                field("description"),
                field("parameters"),
                field("strict"),
                field("defer_loading"),
            ])),
            Some("custom") => {
                let (name, description) = (field("name"), field("description"));
                shown.push(tool([name, description, ("parameters", Some(custom_parameters()))]));
            }
            Some("namespace") => return Err("a namespace of tools"),
            Some(_) => {}
            None => return Err("a tool without a type"),
        }
    }
    Ok(Json::List(shown))
}

fn custom_parameters<'a>() -> Json<'a> {
    let word = |text: &'static str| Json::Str(Cow::Borrowed(text));
    Json::object([
        ("type", word("object")),
        (
            "properties",
            Json::object([(
                "input",
                Json::object([
                    ("type", word("string")),
                    ("description", word("The freeform text payload for this tool.")),
                ]),
            )]),
        ),
        ("required", Json::List(vec![word("input")])),
        ("additionalProperties", Json::Bool(false)),
    ])
}

fn text<'a>(item: &mut Json<'a>, key: &str) -> Option<Cow<'a, str>> {
    item.take(key).and_then(Json::into_text)
}
