//! The HTTP side: vLLM's server, as far as routers and their tests use it.

mod app;
mod audio;
mod error;
mod generate;
mod generation;
mod messages;
mod plan;
mod responses;
mod sse;
mod stream;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use tokio_stream::StreamExt as _;

pub(crate) use self::app::App;
use self::app::{FINGERPRINT, Shared};
use self::error::ApiError;
pub(crate) use self::responses::Store;
use self::wire::{ModelCard, ModelList, TokenizeRequest, TokenizeResponse};
use super::fault::Cut;
use super::metrics;

/// Largest body taken.
const BODY_LIMIT: usize = 64 << 20;

/// The routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::completions))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/{id}", get(responses::retrieve))
        .route("/v1/responses/{id}/cancel", post(responses::cancel))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/audio/transcriptions", post(audio::transcriptions))
        .route("/v1/models", get(models))
        .route("/health", get(|| async { StatusCode::OK }))
        .route("/ping", get(|| async { StatusCode::OK }).post(|| async { StatusCode::OK }))
        .route("/metrics", get(metrics_page))
        .route("/version", get(version))
        .route("/load", get(load))
        .route("/kv_event_sources", get(event_sources))
        .route("/tokenize", post(tokenize))
        .route("/reset_prefix_cache", post(reset))
        .fallback(|| async {
            (StatusCode::NOT_FOUND, Json(serde_json::json!({"detail": "Not Found"})))
        })
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), mark))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), reset_large))
        .with_state(app)
}

/// Says on every response that it is simulated, and by whom.
async fn mark(State(app): Shared, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert("x-warmpath-simulated", HeaderValue::from_static("true"));
    let mut set = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    set("x-warmpath-engine", &app.address);
    if let Some(region) = &app.region {
        set("x-warmpath-engine-region", region);
    }
    response
}

/// Cuts the connection of a body that is too long, once so much of it is there.
async fn reset_large(State(app): Shared, request: Request, next: Next) -> Response {
    let Some(most) = app.faults.reset_over() else { return next.run(request).await };
    let length = request.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok()).unwrap_or(0);
    let connection = request.extensions().get::<ConnectInfo<Cut>>().cloned();
    let Some(ConnectInfo(connection)) = connection.filter(|_| length > most) else {
        return next.run(request).await;
    };
    let mut pieces = request.into_body().into_data_stream();
    let mut seen = 0;
    while seen < most
        && let Some(Ok(piece)) = pieces.next().await
    {
        seen += piece.len() as u64;
    }
    connection.cut();
    StatusCode::PAYLOAD_TOO_LARGE.into_response()
}

async fn models(State(app): Shared) -> Json<ModelList> {
    let card = |id: &str, parent: Option<String>| ModelCard {
        id: id.to_owned(),
        object: "model",
        created: app.started,
        owned_by: FINGERPRINT,
        root: if parent.is_some() { id.to_owned() } else { app.root.clone() },
        max_model_len: parent.is_none().then_some(app.max_model_len),
        parent,
    };
    let bases = app.names.iter().map(|name| card(name, None));
    let loras = app.loras.iter().map(|lora| card(&lora.name, Some(app.base_name().to_owned())));
    Json(ModelList { object: "list", data: bases.chain(loras).collect() })
}

async fn metrics_page(State(app): Shared) -> impl IntoResponse {
    let page = metrics::page(&app.ranks, app.base_name(), app.block_size, app.speculates);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page)
}

async fn version(State(app): Shared) -> impl IntoResponse {
    let version = format!("{}+warmpath.simulated", app.version);
    Json(serde_json::json!({ "version": version, "simulated": true }))
}

async fn load(State(app): Shared) -> impl IntoResponse {
    let load: usize = app.ranks.iter().map(|rank| rank.running() + rank.waiting()).sum();
    Json(serde_json::json!({ "server_load": load }))
}

async fn event_sources(State(app): Shared) -> impl IntoResponse {
    Json(app.event_sources.clone())
}

async fn reset(State(app): Shared) -> impl IntoResponse {
    let mut success = true;
    for rank in &app.ranks {
        success &= rank.reset();
    }
    Json(serde_json::json!({ "success": success }))
}

async fn tokenize(State(app): Shared, body: Bytes) -> Result<Json<TokenizeResponse>, ApiError> {
    let request: TokenizeRequest = plan::read_json(&body)?;
    app.adapter(request.model.as_deref())?;
    let max_model_len = app.max_model_len;
    let special = request.add_special_tokens.unwrap_or(true);
    let tokens = match (request.prompt, request.messages) {
        (Some(text), None) => {
            plan::tokens(&app, move |tokenizer| tokenizer.text(&text, special)).await?
        }
        (None, Some(_)) => plan::tokens(&app, move |tokenizer| tokenizer.chat(&body)).await?,
        _ => {
            let message = "give either `prompt` or `messages`".to_owned();
            return Err(ApiError::bad(None, message));
        }
    };
    Ok(Json(TokenizeResponse { count: tokens.len(), max_model_len, tokens, token_strs: () }))
}
