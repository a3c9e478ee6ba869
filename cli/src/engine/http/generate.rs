//! `/v1/chat/completions` and `/v1/completions`.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use tokio::task::JoinSet;

use super::app::{FINGERPRINT, Shared};
use super::error::ApiError;
use super::generation::{now, run, unique};
use super::plan::{Api, Plan};
use super::stream;
use super::wire::{ChatChoice, ChatMessage, ChatResponse, Head, TextChoice, TextResponse, Usage};
use crate::engine::rank::Rank;

pub(super) async fn chat(
    State(app): Shared,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    answer(Plan::new(&app, Api::Chat, &headers, body).await?, &headers).await
}

pub(super) async fn completions(
    State(app): Shared,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    answer(Plan::new(&app, Api::Completions, &headers, body).await?, &headers).await
}

async fn answer(plan: Plan, headers: &HeaderMap) -> Result<Response, ApiError> {
    let head = head(&plan);
    if plan.stream {
        return Ok(stream::respond(plan, head));
    }
    let rank = Arc::clone(&plan.rank);
    let mut response = whole(plan, head).await?;
    // vLLM does so for these two APIs only.
    if let Some(load) = headers.get("endpoint-load-metrics-format").and_then(|f| orca(&rank, f)) {
        response.headers_mut().insert("endpoint-load-metrics", load);
    }
    Ok(response)
}

async fn whole(plan: Plan, head: Head) -> Result<Response, ApiError> {
    // A client that goes away drops the set, and with it the requests.
    let mut set = JoinSet::new();
    for (index, job) in plan.jobs.into_iter().enumerate() {
        set.spawn(run(Arc::clone(&plan.rank), job, index, plan.repeat));
    }
    let mut results = Vec::with_capacity(set.len());
    while let Some(result) = set.join_next().await {
        results.push(result.map_err(|error| ApiError::internal(format!("failed: {error}")))?);
    }
    results.sort_by_key(|whole| whole.index);
    let mut usage = Usage::default();
    for whole in &results {
        usage.add(whole.prompt_ids.len(), whole.ids.len());
        // As in vLLM, of several prompts the last one.
        usage.set_cached(whole.cached);
    }
    let ids = |ids: Vec<u32>| plan.return_token_ids.then_some(ids);
    if plan.api == Api::Completions {
        let choices = results
            .into_iter()
            .map(|whole| TextChoice {
                index: whole.index,
                text: whole.text,
                logprobs: (),
                finish_reason: whole.finish.name(),
                stop_reason: (),
                token_ids: ids(whole.ids),
                prompt_logprobs: (),
                prompt_token_ids: ids(whole.prompt_ids),
                routed_experts: (),
            })
            .collect();
        return Ok(Json(TextResponse {
            head,
            choices,
            service_tier: (),
            system_fingerprint: FINGERPRINT,
            usage,
            kv_transfer_params: (),
            ec_transfer_params: (),
            metrics: (),
        })
        .into_response());
    }
    let mut prompt_token_ids = None;
    let choices = results
        .into_iter()
        .map(|whole| {
            prompt_token_ids = ids(whole.prompt_ids);
            ChatChoice {
                index: whole.index,
                message: ChatMessage {
                    role: "assistant",
                    content: whole.text,
                    refusal: (),
                    annotations: (),
                    audio: (),
                    function_call: (),
                    reasoning: (),
                },
                logprobs: (),
                finish_reason: whole.finish.name(),
                stop_reason: (),
                token_ids: ids(whole.ids),
                routed_experts: (),
            }
        })
        .collect();
    Ok(Json(ChatResponse {
        head,
        choices,
        service_tier: (),
        system_fingerprint: FINGERPRINT,
        usage,
        prompt_logprobs: (),
        prompt_token_ids,
        prompt_text: (),
        kv_transfer_params: (),
        ec_transfer_params: (),
        metrics: (),
    })
    .into_response())
}

fn head(plan: &Plan) -> Head {
    let (prefix, object) = match (plan.api, plan.stream) {
        (Api::Chat, false) => ("chatcmpl", "chat.completion"),
        (Api::Chat, true) => ("chatcmpl", "chat.completion.chunk"),
        (Api::Completions, _) => ("cmpl", "text_completion"),
        (Api::Responses, _) => ("resp", "response"),
        (Api::Messages, _) => ("chatcmpl", "message"),
    };
    let id = format!("{prefix}-{}", unique());
    Head { id, object, created: now(), model: plan.model.clone() }
}

/// The load report of vLLM's ORCA header; none for a format that it doesn't know.
fn orca(rank: &Rank, format: &HeaderValue) -> Option<HeaderValue> {
    let (waiting, usage) = (rank.waiting() as f64, rank.usage());
    let report = match format.to_str().ok()?.to_ascii_uppercase().as_str() {
        "TEXT" => format!(
            "TEXT named_metrics.num_requests_waiting={waiting:?}, \
             named_metrics.kv_cache_usage_perc={usage:?}"
        ),
        "JSON" => format!(
            "JSON {{\"named_metrics\": {{\"num_requests_waiting\": {waiting:?}, \
             \"kv_cache_usage_perc\": {usage:?}}}}}"
        ),
        _ => return None,
    };
    HeaderValue::from_str(&report).ok()
}
