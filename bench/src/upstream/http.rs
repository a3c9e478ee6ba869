//! An engine's HTTP side.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::bodies::label_in;

const ANSWER: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"demo","choices":[{"index":0,"message":{"role":"assistant","content":"Yes."},"finish_reason":"stop","logprobs":null}],"usage":{"prompt_tokens":2048,"completion_tokens":1,"total_tokens":2049,"prompt_tokens_details":{"cached_tokens":2032}}}"#;

const METRICS: &str = "vllm:num_requests_running{engine=\"0\",model_name=\"demo\"} 0.0\n\
    vllm:num_requests_waiting{engine=\"0\",model_name=\"demo\"} 0.0\n\
    vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"demo\"} 0.5\n";

const MODELS: &str = r#"{"object":"list","data":[{"id":"demo","object":"model","created":1700000000,"owned_by":"vllm","root":"demo","parent":null,"max_model_len":131072}]}"#;

/// What `/render` answers, made before.
type Rendered = BTreeMap<String, Bytes>;

/// Listens for one engine.
pub(super) async fn start(
    port: u16,
    prompts: Arc<BTreeMap<String, Vec<u32>>>,
) -> anyhow::Result<JoinHandle<()>> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let rendered = prompts.iter().map(|(label, ids)| (label.clone(), render(ids))).collect();
    let rendered: Arc<Rendered> = Arc::new(rendered);
    Ok(tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let rendered = Arc::clone(&rendered);
            tokio::spawn(async move {
                let service = service_fn(|request| answer(request, &rendered));
                let io = TokioIo::new(stream);
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
            });
        }
    }))
}

async fn answer(
    request: Request<Incoming>,
    rendered: &Rendered,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let json = |text: &'static str| Bytes::from_static(text.as_bytes());
    let answer = match (parts.method, parts.uri.path()) {
        (Method::POST, "/v1/chat/completions") => json(ANSWER),
        // vLLM's answer to who wants to know the token ids. The question's own are left out: the
        // peer that asks has less to read.
        (Method::POST, "/v1/chat/completions/render") => label_in(&body)
            .and_then(|label| rendered.get(label))
            .cloned()
            .unwrap_or_else(|| render(&[])),
        (_, "/metrics") => json(METRICS),
        (_, "/v1/models") => json(MODELS),
        _ => json("{}"),
    };
    let response = Response::builder().header("content-type", "application/json");
    Ok(response.body(Full::new(answer)).unwrap_or_default())
}

fn render(ids: &[u32]) -> Bytes {
    serde_json::json!({
        "request_id": "chatcmpl-1",
        "model": "demo",
        "token_ids": ids,
        "features": null,
        "sampling_params": {"max_tokens": 1},
        "stream": false,
        "cache_salt": null,
        "priority": 0,
        "kv_transfer_params": null,
    })
    .to_string()
    .into()
}
