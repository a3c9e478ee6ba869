//! `/v1/messages` and `/v1/messages/count_tokens`, as `entrypoints/anthropic/` of vLLM 0.32 answers.

mod stream;
mod wire;

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use self::wire::{Block, Count, Management, Message, Usage, stop_reason};
use super::app::Shared;
use super::error::{AnthropicError, ApiError};
use super::generation::{run, unique};
use super::plan::{self, Api, Plan};
use super::wire::Request;

pub(super) async fn create(
    State(app): Shared,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, AnthropicError> {
    let mut plan = Plan::new(&app, Api::Messages, &headers, body).await?;
    // One prompt makes one job.
    let Some(job) = plan.jobs.pop() else {
        return Err(ApiError::internal("no prompt".to_owned()).into());
    };
    let id = format!("chatcmpl-{}", unique());
    if plan.stream {
        return Ok(stream::respond(plan, job, id));
    }
    let block_size = app.block_size;
    let whole = run(Arc::clone(&plan.rank), job, 0, plan.repeat).await;
    let usage = Usage::new(whole.prompt_ids.len(), whole.cached, whole.ids.len(), block_size);
    let content = [Block::text(&whole.text)];
    let message = Message::new(&id, &plan.model, &content, usage);
    Ok(Json(message.whole(stop_reason(whole.finish))).into_response())
}

pub(super) async fn count_tokens(
    State(app): Shared,
    body: Bytes,
) -> Result<Response, AnthropicError> {
    let request: Request = plan::read_json(&body)?;
    app.adapter(request.model.as_deref())?;
    if request.messages.is_none() {
        return Err(ApiError::unreadable("Field required: messages".to_owned()).into());
    }
    let tokens = plan::tokens(&app, move |tokenizer| tokenizer.messages(&body)).await?;
    let input_tokens = tokens.len();
    let context_management = Management { original_input_tokens: input_tokens };
    Ok(Json(Count { input_tokens, context_management }).into_response())
}
