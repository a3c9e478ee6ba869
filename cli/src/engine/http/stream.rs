//! Answers as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use super::FINGERPRINT;
use super::generate::Generation;
use super::plan::{Api, Plan};
use super::wire::{Chunk, ChunkChoice, ChunkContent, Head, StreamUsage, Usage};

/// Lines that wait for a slow client before its generation waits too.
const QUEUE: usize = 64;

type Line = Result<Bytes, Infallible>;

/// Starts the answer. When the client goes away, the requests end at their next token.
pub(super) fn respond(plan: Plan, head: Head) -> Response {
    let (lines, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(run(plan, head, lines));
    let headers = [(CONTENT_TYPE, "text/event-stream; charset=utf-8"), (CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(ReceiverStream::new(receiver))).into_response()
}

async fn run(plan: Plan, head: Head, lines: mpsc::Sender<Line>) {
    let mut set = JoinSet::new();
    let shape = Arc::new(Shape {
        api: plan.api,
        head,
        return_token_ids: plan.return_token_ids,
        lines: lines.clone(),
    });
    for (index, job) in plan.jobs.into_iter().enumerate() {
        let (shape, rank) = (Arc::clone(&shape), Arc::clone(&plan.rank));
        set.spawn(async move {
            let starting = Generation::start(&rank, job, plan.repeat);
            let generation = tokio::select! {
                generation = starting => generation,
                () = shape.lines.closed() => return None,
            };
            one(&shape, generation, index).await
        });
    }
    let mut usage = Usage::default();
    while let Some(result) = set.join_next().await {
        let Ok(Some((prompt, cached, completion))) = result else { return };
        usage.add(prompt, cached, completion);
    }
    if plan.include_usage {
        let _ = shape.send(Vec::new(), Some(usage.into()), None).await;
    }
    let _ = lines.send(Ok(Bytes::from_static(b"data: [DONE]\n\n"))).await;
}

/// Streams one prompt's answer. Gives its tokens: prompt, cached, generated. None when the client
/// is gone.
async fn one(
    shape: &Shape,
    mut generation: Generation,
    index: usize,
) -> Option<(usize, usize, usize)> {
    let mut prompt_ids = shape.return_token_ids.then(|| generation.prompt_ids());
    if shape.api == Api::Chat {
        let delta = ChunkContent::Delta { role: Some("assistant"), content: String::new() };
        let choice = choice(index, delta, None, None);
        shape.send(vec![choice], None, prompt_ids.take()).await?;
    }
    let mut completion = 0;
    let mut pending = Vec::new();
    while let Some((token, finish)) = generation.next().await {
        completion += 1;
        pending.push(token.id);
        // Inside a word there is no text to show yet.
        if token.text.is_empty() && finish.is_none() {
            continue;
        }
        let content = match shape.api {
            Api::Chat => ChunkContent::Delta { role: None, content: token.text },
            Api::Completions => ChunkContent::Text(token.text),
        };
        let ids = std::mem::take(&mut pending);
        let mut choice = choice(
            index,
            content,
            finish.map(crate::engine::metrics::Finish::name),
            shape.return_token_ids.then_some(ids),
        );
        choice.prompt_token_ids = prompt_ids.take();
        shape.send(vec![choice], None, None).await?;
    }
    let (prompt, cached) = generation.prompt_tokens();
    Some((prompt, cached, completion))
}

fn choice(
    index: usize,
    content: ChunkContent,
    finish_reason: Option<&'static str>,
    token_ids: Option<Vec<u32>>,
) -> ChunkChoice {
    ChunkChoice { index, content, logprobs: (), finish_reason, token_ids, prompt_token_ids: None }
}

struct Shape {
    api: Api,
    head: Head,
    return_token_ids: bool,
    lines: mpsc::Sender<Line>,
}

impl Shape {
    /// None when the client is gone.
    async fn send(
        &self,
        choices: Vec<ChunkChoice>,
        usage: Option<StreamUsage>,
        prompt_token_ids: Option<Vec<u32>>,
    ) -> Option<()> {
        let head = &self.head;
        let chunk =
            Chunk { head, choices, system_fingerprint: FINGERPRINT, usage, prompt_token_ids };
        let json = serde_json::to_string(&chunk).ok()?;
        self.lines.send(Ok(Bytes::from(format!("data: {json}\n\n")))).await.ok()
    }
}
