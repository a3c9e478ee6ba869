//! `/v1/responses`, as `entrypoints/openai/responses/` of vLLM 0.32 answers where the model is not
//! gpt-oss. Nothing is stored: there is no response to go on from, or to get.

mod stream;
mod wire;

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use self::wire::{Asked, Item, Outcome, ResponseBody, Text, Usage};
use super::Shared;
use super::error::ApiError;
use super::generate::{now, run, unique};
use super::plan::{self, Api, Plan};
use crate::engine::metrics::Finish;

pub(super) async fn create(
    State(app): Shared,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let asked: Asked = plan::read_json(&body)?;
    if let Some(id) = &asked.previous_response_id {
        return Err(ApiError::no_response(id));
    }
    let mut plan = Plan::new(&app, Api::Responses, &headers, body).await?;
    // One prompt makes one job.
    let Some(job) = plan.jobs.pop() else {
        return Err(ApiError::internal("no prompt".to_owned()));
    };
    let shape = Shape {
        id: format!("resp_{}", unique()),
        item: format!("msg_{}", unique()),
        created: now(),
        model: plan.model,
        most: job.most,
        asked,
    };
    if plan.stream {
        return Ok(stream::respond(plan.rank, job, plan.repeat, shape));
    }
    let block_size = app.block_size;
    let whole = run(Arc::clone(&plan.rank), job, 0, plan.repeat).await;
    let usage = Usage::new(whole.prompt_ids.len(), whole.cached, whole.ids.len(), block_size);
    let content = [Text::new(&whole.text)];
    let items = [shape.item(Item::COMPLETED, &content)];
    Ok(Json(shape.body(&Outcome::Ended(whole.finish, usage), &items)).into_response())
}

/// What a response says from its beginning on.
struct Shape {
    id: String,
    /// The id of its only item.
    item: String,
    created: u64,
    model: String,
    most: usize,
    asked: Asked,
}

impl Shape {
    fn item<'a>(&'a self, status: &'static str, content: &'a [Text<'a>]) -> Item<'a> {
        Item::new(&self.item, status, content)
    }

    fn body<'a>(&'a self, outcome: &Outcome, output: &'a [Item<'a>]) -> ResponseBody<'a> {
        let (status, usage) = match outcome {
            Outcome::Begun => ("in_progress", None),
            Outcome::Ended(Finish::Stop, usage) => ("completed", Some(*usage)),
            Outcome::Ended(Finish::Length, usage) => ("incomplete", Some(*usage)),
        };
        ResponseBody::new(self, status, usage, output)
    }
}
