//! `/v1/responses`, as `entrypoints/openai/responses/` of vLLM 0.32 answers where the model is not
//! gpt-oss. It has no `DELETE`, and no `input_items`.

mod shape;
mod store;
mod stream;
mod wire;

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use self::shape::Shape;
pub(crate) use self::store::Store;
use self::store::items;
use self::wire::{Echoed, Item, Outcome, Retrieve, Text, Usage};
use super::app::Shared;
use super::error::ApiError;
use super::generation::{now, run, unique};
use super::plan::{self, Api, Plan};

pub(super) async fn create(
    State(app): Shared,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut asked: Echoed = plan::read_json(&body)?;
    let store = app.responses.clone();
    if asked.background && (!store.is_enabled() || asked.stream == Some(true)) {
        let message = "background needs stored responses, and isn't streamed here".to_owned();
        return Err(ApiError::bad(Some("background"), message));
    }
    let previous = match &asked.previous_response_id {
        Some(id) => Some(store.get(id)?),
        None => None,
    };
    let items = items(&asked.input, previous.as_ref());
    let body = if previous.is_some() { go_on(&body, &items)? } else { body };
    let mut plan = Plan::new(&app, Api::Responses, &headers, body).await?;
    // One prompt makes one job.
    let Some(job) = plan.jobs.pop() else {
        return Err(ApiError::internal("no prompt".to_owned()));
    };
    let shape = Shape {
        id: asked.request_id.take().unwrap_or_else(|| format!("resp_{}", unique())),
        item: format!("msg_{}", unique()),
        created: now(),
        model: plan.model,
        most: job.most,
        store: if asked.store == Some(false) { Store::default() } else { store },
        items,
        asked,
    };
    if plan.stream {
        return Ok(stream::respond(plan.rank, job, plan.repeat, shape));
    }
    let block_size = app.block_size;
    let work = async move |shape: Shape| {
        let whole = run(Arc::clone(&plan.rank), job, 0, plan.repeat).await;
        let usage = Usage::new(whole.prompt_ids.len(), whole.cached, whole.ids.len(), block_size);
        let content = [Text::new(&whole.text)];
        let items = [shape.item(Item::COMPLETED, &content)];
        shape.keep(&Outcome::Ended(whole.finish, usage), &items, &whole.text)
    };
    if !shape.asked.background {
        return Ok(work(shape).await.into_response());
    }
    let queued = shape.keep(&Outcome::Queued, &[], "");
    let (store, id) = (shape.store.clone(), shape.id.clone());
    store.runs(&id, tokio::spawn(work(shape)).abort_handle());
    Ok(queued.into_response())
}

/// The same request with all of the conversation in it.
fn go_on(body: &Bytes, items: &[Value]) -> Result<Bytes, ApiError> {
    let mut whole: Value = plan::read_json(body)?;
    if let Value::Object(fields) = &mut whole {
        fields.remove("previous_response_id");
        fields.insert("input".into(), Value::Array(items.to_vec()));
    }
    Ok(whole.to_string().into())
}

pub(super) async fn retrieve(
    State(app): Shared,
    Path(id): Path<String>,
    Query(how): Query<Retrieve>,
) -> Result<Json<Value>, ApiError> {
    let kept = app.responses.get(&id)?;
    if how.stream == Some(true) {
        // Of those in the background only, which aren't streamed here.
        return Err(ApiError::bad(Some("response_id"), format!("Unknown response_id: {id}")));
    }
    Ok(Json(kept.body))
}

pub(super) async fn cancel(
    State(app): Shared,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.responses.cancel(&id).map(Json)
}
