//! A response as server-sent events, in the order in which vLLM 0.32 sends them
//! (`entrypoints/openai/responses/serving.py` and `streaming_events.py`). There is no `[DONE]`.

use std::sync::Arc;

use axum::response::Response;

use super::shape::Shape;
use super::wire::{Event, Item, Outcome, Text, Usage};
use crate::engine::counters::Finish;
use crate::engine::http::generation::Generation;
use crate::engine::http::plan::Job;
use crate::engine::http::sse::{self, Events};
use crate::engine::rank::Rank;

pub(super) fn respond(rank: Arc<Rank>, job: Job, repeat: bool, shape: Shape) -> Response {
    sse::respond(async move |events| {
        let mut stream = Stream { events, shape, sequence: 0 };
        stream.tell(&rank, job, repeat).await
    })
}

struct Stream {
    events: Events,
    shape: Shape,
    sequence: usize,
}

impl Stream {
    /// None when the client is gone.
    async fn tell(&mut self, rank: &Arc<Rank>, job: Job, repeat: bool) -> Option<()> {
        // Before the prompt is computed.
        for kind in ["response.created", "response.in_progress"] {
            self.send_response(kind, &Outcome::Begun, "").await?;
        }
        let block_size = job.prompt.block_size();
        let starting = Generation::start(rank, job, repeat);
        let mut generation = self.events.unless_gone(starting).await?;
        let (mut text, mut output, mut last) = (String::new(), 0, Finish::Length);
        while let Some((token, finish)) = generation.next().await {
            output += 1;
            if output == 1 {
                self.open().await?;
            }
            last = finish.unwrap_or(last);
            // Inside a word there is no text to show yet.
            if !token.text.is_empty() {
                self.delta(&token.text).await?;
                text.push_str(&token.text);
            }
        }
        self.close(&text).await?;
        let (prompt, cached) = generation.prompt_tokens();
        let usage = Usage::new(prompt, cached, output, block_size);
        let ended = Outcome::Ended(last, usage);
        self.keep(&ended, &text);
        self.send_response("response.completed", &ended, &text).await
    }

    async fn open(&mut self) -> Option<()> {
        let (id, sequence) = (self.shape.item.clone(), self.next());
        let item = Some(Item::new(&id, "in_progress", &[]));
        let kind = "response.output_item.added";
        self.send(Event { item, output_index: Some(0), ..event(kind, sequence) }).await?;
        let part =
            Event { part: Some(Text::empty()), ..self.of_part("response.content_part.added", &id) };
        self.send(part).await
    }

    async fn delta(&mut self, delta: &str) -> Option<()> {
        let id = self.shape.item.clone();
        let of_part = self.of_part("response.output_text.delta", &id);
        self.send(Event { delta: Some(delta), logprobs: Some([]), ..of_part }).await
    }

    async fn close(&mut self, text: &str) -> Option<()> {
        let id = self.shape.item.clone();
        let of_part = self.of_part("response.output_text.done", &id);
        self.send(Event { text: Some(text), logprobs: Some([]), ..of_part }).await?;
        let of_part = self.of_part("response.content_part.done", &id);
        self.send(Event { part: Some(Text::new(text)), ..of_part }).await?;
        let sequence = self.next();
        let content = [Text::new(text)];
        let item = Some(Item::new(&id, Item::COMPLETED, &content));
        let kind = "response.output_item.done";
        self.send(Event { item, output_index: Some(0), ..event(kind, sequence) }).await
    }

    fn keep(&self, ended: &Outcome, text: &str) {
        let content = [Text::new(text)];
        self.shape.keep(ended, &[self.shape.item(Item::COMPLETED, &content)], text);
    }

    async fn send_response(
        &mut self,
        kind: &'static str,
        outcome: &Outcome,
        text: &str,
    ) -> Option<()> {
        let sequence = self.next();
        let content = [Text::new(text)];
        let items = [self.shape.item(Item::COMPLETED, &content)];
        let items = if matches!(outcome, Outcome::Begun) { &[][..] } else { &items };
        let response = Some(self.shape.body(outcome, items));
        self.send(Event { response, ..event(kind, sequence) }).await
    }

    /// An event about the only part of the only item.
    fn of_part<'a>(&mut self, kind: &'static str, item: &'a str) -> Event<'a> {
        let sequence = self.next();
        Event {
            content_index: Some(0),
            item_id: Some(item),
            output_index: Some(0),
            ..event(kind, sequence)
        }
    }

    fn next(&mut self) -> usize {
        self.sequence += 1;
        self.sequence - 1
    }

    async fn send(&self, event: Event<'_>) -> Option<()> {
        self.events.named(event.kind, &event).await
    }
}

fn event(kind: &'static str, sequence_number: usize) -> Event<'static> {
    Event { sequence_number, kind, ..Event::default() }
}
