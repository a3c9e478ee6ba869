//! What a template is given beside messages and tools: the request's arguments, those that go with
//! the effort it asks for, and the server's (protocol.py, `normalize_reasoning_inputs`; and
//! `_process_messages`).

use minijinja::Value;

use crate::error::PromptError;
use crate::json::Json;
use crate::model::Model;
use crate::request::chat::Chat;

const REFUSED: PromptError = PromptError::UnsupportedContent("chat_template_kwargs");
const EFFORT: &str = "reasoning_effort";

/// Names that mean something else to the engine, or that it refuses.
const RESERVED: [&str; 9] = [
    "messages",
    "tools",
    "conversation",
    "chat_template",
    "tokenize",
    "strftime_now",
    "raise_exception",
    "add_generation_prompt",
    "return_dict",
];

/// Efforts that are words.
const TIERS: [&str; 8] = ["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"];

/// Later ones go before.
pub(crate) fn variables(
    model: &Model,
    chat: &Chat<'_>,
) -> Result<Vec<(String, Value)>, PromptError> {
    let mut variables = model.defaults.clone();
    let default = |name: &str| model.defaults.iter().find(|(known, _)| known == name);
    let (mut thinking, asked) = asked(chat)?;
    if let Some(effort) = &asked {
        thinking = Some(effort.as_str() != Some("none"));
    }
    if let Some(thinking) = thinking {
        variables.push(("thinking".to_owned(), thinking.into()));
        variables.push(("enable_thinking".to_owned(), thinking.into()));
    }
    let mut own_effort = None;
    if let Some(kwargs) = &chat.kwargs {
        for (name, json) in kwargs.map().ok_or(REFUSED)? {
            let is_off = matches!(json, Json::Bool(false) | Json::Null);
            let reserved =
                RESERVED.contains(&name.as_ref()) || name == "continue_final_message" && !is_off;
            if reserved {
                return Err(REFUSED);
            }
            match name.as_ref() {
                EFFORT => own_effort = Some(json),
                "documents" | "continue_final_message" => {}
                _ => variables.push((name.clone().into_owned(), json.to_value())),
            }
        }
    }
    // Of chats the request's own goes before what it asks for, and the server's before both.
    let own = own_effort.map(Json::to_value);
    let effort = match default(EFFORT) {
        Some((_, effort)) if !chat.keeps_own_effort || own.is_none() => Some(effort.clone()),
        _ if chat.keeps_own_effort => own.or(asked),
        _ => own.filter(|own| !own.is_none()).or(asked),
    };
    if let Some(effort) = effort {
        // It sets `low_effort` for templates of a kind that it finds out.
        if effort.as_str() == Some("low") && model.template.mentions("low_effort") {
            return Err(PromptError::UnsupportedContent(EFFORT));
        }
        variables.push((EFFORT.to_owned(), effort));
    }
    Ok(variables)
}

/// Whether a request wants thinking, where it says so otherwise than by an effort; and its effort.
fn asked(chat: &Chat<'_>) -> Result<(Option<bool>, Option<Value>), PromptError> {
    const WRONG: PromptError = PromptError::UnsupportedContent(EFFORT);
    let effort = |json: &Json<'_>| match json {
        Json::Str(tier) if TIERS.contains(&tier.as_ref()) => Ok(Value::from(tier.as_ref())),
        Json::Float(part) if (0.0..=0.99).contains(part) => Ok(Value::from(*part)),
        Json::Int(0) => Ok(Value::from(0.0)),
        _ => Err(WRONG),
    };
    let mut thinking = None;
    let mut asked = chat.reasoning_effort.as_ref();
    if let Some(reasoning) = chat.reasoning.as_ref().filter(|reasoning| reasoning.map().is_some()) {
        let inner = reasoning.get("effort").or_else(|| reasoning.get(EFFORT));
        asked = inner.or(asked);
        let enabled = reasoning.get("enabled").or_else(|| reasoning.get("enable"));
        let on = match enabled {
            None | Some(Json::Bool(false) | Json::Null) => false,
            Some(Json::Bool(true)) => true,
            Some(Json::Str(text)) => {
                let text = text.trim().to_lowercase();
                ["1", "true", "yes", "y", "on"].contains(&text.as_str())
            }
            Some(_) => return Err(PromptError::UnsupportedContent("reasoning")),
        };
        thinking = on.then_some(true);
    }
    Ok((thinking, asked.map(effort).transpose()?))
}
