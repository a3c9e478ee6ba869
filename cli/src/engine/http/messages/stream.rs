//! A message as server-sent events, in the order in which vLLM 0.32 sends them
//! (`entrypoints/anthropic/serving.py`, `message_stream_converter`).

use axum::response::Response;

use super::wire::{Block, Delta, Event, Message, Usage, stop_reason};
use crate::engine::counters::Finish;
use crate::engine::http::generation::Generation;
use crate::engine::http::plan::{Job, Plan};
use crate::engine::http::sse::{self, Events};

pub(super) fn respond(plan: Plan, job: Job, id: String) -> Response {
    sse::respond(async move |events| tell(&events, &plan, job, &id).await)
}

/// None when the client is gone.
async fn tell(events: &Events, plan: &Plan, job: Job, id: &str) -> Option<()> {
    let block_size = job.prompt.block_size();
    let starting = Generation::start(&plan.rank, job, plan.repeat);
    let mut generation = events.unless_gone(starting).await?;
    let (prompt, cached) = generation.prompt_tokens();
    // Here as late as the first token; what was cached isn't said yet.
    let message = Message::new(id, &plan.model, &[], Usage::of_start(prompt));
    send(events, Event { message: Some(message), ..Event::new("message_start") }).await?;
    let block = Some(Block::text(""));
    let mut begun = false;
    let (mut output, mut last) = (0, Finish::Length);
    while let Some((token, finish)) = generation.next().await {
        output += 1;
        last = finish.unwrap_or(last);
        // Inside a word there is no text to show yet.
        if token.text.is_empty() {
            continue;
        }
        if !begun {
            begun = true;
            let start = Event::new("content_block_start");
            send(events, Event { content_block: block, index: Some(0), ..start }).await?;
        }
        let delta = Some(Delta::Text { kind: "text_delta", text: &token.text });
        let event = Event::new("content_block_delta");
        send(events, Event { delta, index: Some(0), ..event }).await?;
    }
    if begun {
        send(events, Event { index: Some(0), ..Event::new("content_block_stop") }).await?;
    }
    let delta = Some(Delta::End { stop_reason: stop_reason(last), stop_sequence: () });
    let usage = Some(Usage::new(prompt, cached, output, block_size));
    send(events, Event { delta, usage, ..Event::new("message_delta") }).await?;
    send(events, Event::new("message_stop")).await
}

async fn send(events: &Events, event: Event<'_>) -> Option<()> {
    events.named(event.kind, &event).await
}
