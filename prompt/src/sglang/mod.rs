//! Prompts as SGLang 0.5.23 makes them (sglang/srt/entrypoints/openai/serving_chat.py, if no other
//! file is named). It shares nothing with vLLM's but the template engine and the tokenizer.

mod arguments;
mod message;
mod messages;
#[cfg(feature = "preprocess")]
mod renderers;
mod responses;
mod text;
mod tools;
mod unsupported;

use crate::error::PromptError;
use crate::json::tree::Tree;
use crate::model::Model;
use crate::request::api::Api;
use crate::request::chat::Chat;
use crate::request::{Prompt, Request};
use crate::template::context::Context;
use crate::template::conversation::Conversation;
use crate::template::script::Shape;
use crate::template::text::{Text, cut_at_media, documents_of};
use arguments::variables;
use message::conversation;
#[cfg(feature = "preprocess")]
pub(crate) use renderers::has_own_renderer;
use tools::{flat, tools};

/// The chat of a request of another API than the chats', or of completions.
pub(crate) fn prompt<'a>(
    model: &Model,
    request: &Request<'a>,
) -> Option<Result<Prompt<'a>, PromptError>> {
    let inline_system = || model.writes_later_system();
    let chat = match request.api {
        Api::Chat | Api::Completions => return None,
        Api::Responses => responses::chat(request.body, inline_system()),
        Api::Messages => messages::chat(request.body, inline_system()),
    };
    Some(chat.map(Prompt::Chat).map_err(PromptError::UnsupportedContent))
}

/// What is rendered.
struct Prepared<'c> {
    conversation: Conversation<'c>,
    context: Context<'c>,
    /// The last message, which is to be continued: it is tokenized by itself.
    continued: Option<String>,
}

fn prepare<'c>(
    model: &Model,
    chat: &'c Chat<'_>,
    now_unix: i64,
) -> Result<Prepared<'c>, PromptError> {
    let template = &model.template;
    template.choose(false).ok_or(PromptError::NoTemplate)?;
    let mut conversation = conversation(&chat.messages, template.takes_parts(0))?;
    let continued = conversation.end_with_a_user(chat.continue_final_message);
    let context = Context {
        tools: tools(chat)?,
        documents: documents_of(chat.kwargs.as_ref().and_then(|kwargs| kwargs.get("documents")))?
            .map(Tree::Json),
        add_generation_prompt: true,
        variables: variables(model, chat)?,
        now_unix: model.dialect.clock.local(now_unix),
    };
    Ok(Prepared { conversation, context, continued })
}

pub(crate) fn render<'a>(
    model: &Model,
    chat: &Chat<'_>,
    now_unix: i64,
) -> Result<Text<'a>, PromptError> {
    let Prepared { conversation, mut context, continued } = prepare(model, chat, now_unix)?;
    let mut text = model.template.render(0, &conversation, &context);
    // Some templates want the functions alone; they are asked again.
    if text.is_err()
        && let Some(tools) = context.tools.take()
    {
        context.tools = Some(flat(tools));
        text = model.template.render(0, &conversation, &context);
    }
    let (content, media) = cut_at_media(model, 0, &conversation, &context, text?)?;
    // Nothing is put around a chat, nor, where it is continued, before its last message.
    Ok(Text { content: content.into(), marked: false, media, continued })
}

/// As [`crate::template::render::shape`].
pub(crate) fn shape(model: &Model, chat: &Chat<'_>, now_unix: i64) -> Option<Shape> {
    let Prepared { conversation, context, continued } = prepare(model, chat, now_unix).ok()?;
    if continued.is_some() {
        return None;
    }
    model.template.script(0)?.shape(&conversation, &context)
}
