//! Chats and completions as server-sent events.

use std::sync::Arc;

use axum::response::Response;
use tokio::task::JoinSet;

use super::app::FINGERPRINT;
use super::generation::Generation;
use super::plan::{Api, Plan};
use super::sse::{self, Events};
use super::wire::{Chunk, ChunkChoice, ChunkContent, Head, StreamUsage, Usage};

/// Starts the answer. When the client goes away, the requests end at their next token.
pub(super) fn respond(plan: Plan, head: Head) -> Response {
    sse::respond(|events| run(plan, head, events))
}

async fn run(plan: Plan, head: Head, events: Events) {
    let mut set = JoinSet::new();
    let chunks = Arc::new(Chunks {
        api: plan.api,
        head,
        return_token_ids: plan.return_token_ids,
        events: events.clone(),
    });
    for (index, job) in plan.jobs.into_iter().enumerate() {
        let (chunks, rank) = (Arc::clone(&chunks), Arc::clone(&plan.rank));
        set.spawn(async move {
            let starting = Generation::start(&rank, job, plan.repeat);
            let generation = chunks.events.unless_gone(starting).await?;
            one(&chunks, generation, index).await
        });
    }
    let mut usage = Usage::default();
    while let Some(result) = set.join_next().await {
        let Ok(Some((index, prompt, cached, completion))) = result else { return };
        usage.add(prompt, completion);
        // As in vLLM, of several prompts the one that began first.
        if index == 0 {
            usage.set_cached(cached);
        }
    }
    if plan.include_usage {
        let _ = chunks.send(Vec::new(), Some(usage.into()), None).await;
    }
    let _ = events.text("data: [DONE]\n\n").await;
}

/// Streams one prompt's answer. Gives its index and its tokens: prompt, cached, generated. None when
/// the client is gone.
async fn one(
    chunks: &Chunks,
    mut generation: Generation,
    index: usize,
) -> Option<(usize, usize, usize, usize)> {
    let mut prompt_ids = chunks.return_token_ids.then(|| generation.prompt_ids());
    if chunks.api == Api::Chat {
        let delta = ChunkContent::Delta { role: Some("assistant"), content: String::new() };
        let choice = choice(index, delta, None, None);
        chunks.send(vec![choice], None, prompt_ids.take()).await?;
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
        let content = match chunks.api {
            Api::Completions => ChunkContent::Text(token.text),
            _ => ChunkContent::Delta { role: None, content: token.text },
        };
        let ids = std::mem::take(&mut pending);
        let mut choice = choice(
            index,
            content,
            finish.map(crate::engine::counters::Finish::name),
            chunks.return_token_ids.then_some(ids),
        );
        choice.prompt_token_ids = prompt_ids.take();
        chunks.send(vec![choice], None, None).await?;
    }
    let (prompt, cached) = generation.prompt_tokens();
    Some((index, prompt, cached, completion))
}

fn choice(
    index: usize,
    content: ChunkContent,
    finish_reason: Option<&'static str>,
    token_ids: Option<Vec<u32>>,
) -> ChunkChoice {
    ChunkChoice { index, content, logprobs: (), finish_reason, token_ids, prompt_token_ids: None }
}

struct Chunks {
    api: Api,
    head: Head,
    return_token_ids: bool,
    events: Events,
}

impl Chunks {
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
        self.events.data(&chunk).await
    }
}
