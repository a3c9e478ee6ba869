//! A chat request → the text that the engine tokenizes.

use std::borrow::Cow;

use minijinja::Value;

use crate::dialect::Engine;
use crate::error::PromptError;
use crate::json::Json;
use crate::json::tree::Tree;
use crate::model::Model;
use crate::request::chat::{Chat, ToolChoice};
use crate::request::turn::Turn;
use crate::sglang;
use crate::template::context::Context;
use crate::template::conversation::{Conversation, Style};
use crate::template::script::Shape;
use crate::template::text::{Text, cut_at_media, documents_of};
use crate::template::tools::tools;

/// What `transformers` puts at the end of a message that is to be continued.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Names in `chat_template_kwargs` that mean something else to the engine, or that it refuses.
const RESERVED: [&str; 8] = [
    "messages",
    "tools",
    "conversation",
    "chat_template",
    "tokenize",
    "strftime_now",
    "raise_exception",
    "sanitize_control_tokens",
];

pub(crate) fn render<'a>(
    model: &Model,
    chat: &Chat<'_>,
    now_unix: i64,
) -> Result<Text<'a>, PromptError> {
    if model.dialect.engine == Engine::Sglang {
        return sglang::render(model, chat, now_unix);
    }
    if chat.own_template {
        return Err(PromptError::RequestTemplate);
    }
    if chat.continue_final_message && chat.add_generation_prompt {
        return Err(PromptError::TemplateRefused);
    }
    let template = &model.template;
    let (number, style) = chosen(model, chat).ok_or(PromptError::NoTemplate)?;
    let merged = (chat.anthropic && template.merges_system())
        .then(|| with_one_system(&chat.messages))
        .flatten();
    let messages = merged.as_deref().unwrap_or(&chat.messages);
    let mut conversation = Conversation::new(messages, style)?;
    let mut continued = None;
    if chat.continue_final_message {
        let text = conversation
            .last_text_mut()
            .ok_or(PromptError::UnsupportedContent("continue_final_message without text"))?;
        continued = Some(text.trim().to_owned());
        text.to_mut().push_str(CONTINUE_TAG);
    }
    let context = context(model, chat, now_unix)?;
    let mut text = template.render(number, &conversation, &context)?;
    if let Some(continued) = continued {
        cut_at_tag(&mut text, &continued)?;
    }
    let (content, media) = cut_at_media(model, number, &conversation, &context, text)?;
    let content = Cow::Owned(content);
    Ok(Text { content, marked: chat.add_special_tokens, media, continued: None })
}

/// The prompt but for the last message's text; none where that takes more than a script, or where
/// the text matters to the prompt otherwise.
pub(crate) fn shape(model: &Model, chat: &Chat<'_>, now_unix: i64) -> Option<Shape> {
    let mut shape = match model.dialect.engine {
        Engine::Sglang => sglang::shape(model, chat, now_unix),
        Engine::Vllm | Engine::Vllm023 => vllm_shape(model, chat, now_unix),
    }?;
    shape.clock = model.dialect.clock.clone();
    Some(shape)
}

fn vllm_shape(model: &Model, chat: &Chat<'_>, now_unix: i64) -> Option<Shape> {
    if chat.own_template || chat.continue_final_message || chat.anthropic {
        return None;
    }
    let (number, style) = chosen(model, chat)?;
    let conversation = Conversation::new(&chat.messages, style).ok()?;
    let context = context(model, chat, now_unix).ok()?;
    model.template.script(number)?.shape(&conversation, &context)
}

/// The template for a chat, and how it wants the messages.
fn chosen(model: &Model, chat: &Chat<'_>) -> Option<(usize, Style)> {
    let template = &model.template;
    let number = template.choose(shown_tools(model, chat).is_some())?;
    let style =
        Style { parts: template.takes_parts(number), developer: template.knows_developer(number) };
    Some((number, style))
}

/// The request's tools, unless the engine leaves them out (`--exclude-tools-when-tool-choice-none`).
fn shown_tools<'c>(model: &Model, chat: &'c Chat<'_>) -> Option<&'c Json<'c>> {
    let left_out = model.dialect.excludes_tools && chat.tool_choice == ToolChoice::None;
    chat.tools.as_ref().filter(|_| !left_out)
}

fn context<'c>(
    model: &Model,
    chat: &'c Chat<'_>,
    now_unix: i64,
) -> Result<Context<'c>, PromptError> {
    Ok(Context {
        tools: shown_tools(model, chat).map(tools).transpose()?,
        documents: documents(chat)?.map(Tree::Json),
        add_generation_prompt: chat.add_generation_prompt,
        variables: variables(model, chat, now_unix)?,
        now_unix: model.dialect.clock.local(now_unix),
    })
}

/// The request's documents, or those among the template's arguments (vLLM 0.32,
/// vllm/entrypoints/openai/chat_completion/protocol.py, `build_chat_params`). What is no list of
/// objects transformers refuses.
fn documents<'c>(chat: &'c Chat<'_>) -> Result<Option<&'c Json<'c>>, PromptError> {
    let of_kwargs = || {
        let kwargs = chat.kwargs.as_ref()?.get("documents")?;
        (kwargs.str() != Some("auto")).then_some(kwargs)
    };
    documents_of(chat.documents.as_ref().or_else(of_kwargs))
}

/// The messages with all system messages in the first; none if they are so already.
fn with_one_system<'a>(messages: &[Json<'a>]) -> Option<Vec<Json<'a>>> {
    let is_system = |message: &Json<'_>| message.get("role").and_then(Json::str) == Some("system");
    if !messages.iter().skip(1).any(is_system) {
        return None;
    }
    let (systems, others): (Vec<_>, Vec<_>) = messages.iter().partition(|m| is_system(m));
    let text: String =
        systems.iter().filter_map(|m| m.get("content").and_then(Json::str)).collect();
    let first = Turn::with_content("system", Json::Str(Cow::Owned(text))).into_json();
    Some(std::iter::once(first).chain(others.into_iter().cloned()).collect())
}

/// The effort that stands for disabled thinking: the lowest, if the template refuses "none" or
/// makes no difference between it and another (vllm/entrypoints/anthropic/serving.py, 0.32).
fn disabled_effort(model: &Model, now_unix: i64) -> &'static str {
    let prompt = |effort: &'static str| {
        let text = |text| Json::Str(Cow::Borrowed(text));
        let chat = Chat {
            messages: vec![Turn::with_content("user", text("Hi")).into_json()],
            reasoning_effort: Some(text(effort)),
            add_generation_prompt: true,
            ..Chat::default()
        };
        render(model, &chat, now_unix).ok().map(|text| text.content)
    };
    model.disabled_effort.get_or_init(|| {
        let Some(none) = prompt("none") else { return "low" };
        let same = |effort| prompt(effort).as_ref() == Some(&none);
        if ["low", "medium", "high", "xhigh", "max"].into_iter().any(same) { "low" } else { "none" }
    })
}

fn variables(
    model: &Model,
    chat: &Chat<'_>,
    now_unix: i64,
) -> Result<Vec<(String, Value)>, PromptError> {
    const REFUSED: PromptError = PromptError::UnsupportedContent("chat_template_kwargs");
    // These are fields of a request, which go before.
    let is_field = |name: &str| name == "add_generation_prompt" || name == "continue_final_message";
    let defaults = model.defaults.iter().filter(|(name, _)| !is_field(name));
    let mut variables: Vec<_> = defaults.cloned().collect();
    let mut thinking = false;
    if let Some(kwargs) = &chat.kwargs {
        for (name, json) in kwargs.map().ok_or(REFUSED)? {
            if RESERVED.contains(&name.as_ref()) {
                return Err(REFUSED);
            }
            // As if they weren't there (vLLM 0.32, `merge_kwargs`).
            if json.is_null() || json.str() == Some("auto") || name == "documents" {
                continue;
            }
            thinking |= name == "enable_thinking";
            if !is_field(name) {
                variables.push((name.clone().into_owned(), json.to_value()));
            }
        }
    }
    let effort = match &chat.reasoning_effort {
        _ if chat.thinking_disabled => Some(disabled_effort(model, now_unix)),
        None => None,
        Some(Json::Str(name)) => Some(name.as_ref()),
        Some(_) => return Err(PromptError::UnsupportedContent("reasoning_effort")),
    };
    if let Some(name) = effort {
        variables.push(("reasoning_effort".to_owned(), Value::from(name)));
        if !thinking {
            variables.push(("enable_thinking".to_owned(), Value::from(name != "none")));
        }
    }
    Ok(variables)
}

/// Ends the text where the last message ends, as `transformers` does.
fn cut_at_tag(text: &mut String, continued: &str) -> Result<(), PromptError> {
    let tag = CONTINUE_TAG.trim_end();
    let at = text.rfind(tag).filter(|_| text.contains(continued));
    let Some(at) = at else { return Err(PromptError::TemplateRefused) };
    let spaced = text.get(at..).is_some_and(|rest| rest.starts_with(CONTINUE_TAG));
    text.truncate(at);
    if !spaced {
        let end = text.trim_end_matches(crate::json::print::is_space).len();
        text.truncate(end);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::api::Api;
    use crate::request::{Prompt, Request};

    /// vLLM 0.32's `build_chat_params` on the same fields.
    #[test]
    fn documents_may_stand_among_the_templates_arguments() {
        let of = |fields: &str| {
            let body = format!(r#"{{"messages":[{{"role":"user","content":"x"}}],{fields}}}"#);
            let request = Request::parse(Api::Chat, body.as_bytes()).unwrap();
            let Prompt::Chat(chat) = &request.prompt else { panic!() };
            let title = |documents: &Json<'_>| {
                let document = documents.list()?.first()?.get("title")?;
                Some(document.str()?.to_owned())
            };
            documents(chat).map(|found| found.and_then(title)).map_err(|error| error.name())
        };
        let kwargs = r#""chat_template_kwargs":{"documents":[{"title":"T1","text":"B"}]}"#;
        assert_eq!(of(kwargs), Ok(Some("T1".into())));
        let both = format!(r#"{kwargs},"documents":[{{"title":"T2","text":"B"}}]"#);
        assert_eq!(of(&both), Ok(Some("T2".into())));
        assert_eq!(of(r#""chat_template_kwargs":{"documents":null}"#), Ok(None));
        let wrong = r#""chat_template_kwargs":{"documents":{"title":"T1"}}"#;
        assert_eq!(of(wrong), Err("unsupported_content"));
    }
}
