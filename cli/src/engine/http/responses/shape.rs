//! One response from its beginning on, and its body at each point.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::store::{Kept, Store};
use super::wire::{Echoed, Incomplete, Item, Outcome, ResponseBody, Text, Usage};
use crate::engine::counters::Finish;

/// What a response says from its beginning on.
pub(super) struct Shape {
    pub(super) id: String,
    /// The id of its only item.
    pub(super) item: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) most: usize,
    /// Where it is kept.
    pub(super) store: Store,
    /// The conversation up to it.
    pub(super) items: Vec<Value>,
    pub(super) asked: Echoed,
}

impl Shape {
    pub(super) fn item<'a>(&'a self, status: &'static str, content: &'a [Text<'a>]) -> Item<'a> {
        Item::new(&self.item, status, content)
    }

    pub(super) fn body<'a>(
        &'a self,
        outcome: &Outcome,
        output: &'a [Item<'a>],
    ) -> ResponseBody<'a> {
        let (status, usage) = match outcome {
            Outcome::Queued => ("queued", None),
            Outcome::Begun => ("in_progress", None),
            Outcome::Ended(Finish::Stop, usage) => ("completed", Some(*usage)),
            Outcome::Ended(Finish::Length, usage) => ("incomplete", Some(*usage)),
        };
        ResponseBody::new(self, status, usage, output)
    }

    /// Its body; keeps it, if it is to be kept.
    pub(super) fn keep(&self, outcome: &Outcome, output: &[Item<'_>], text: &str) -> JsonText {
        let json = serde_json::to_string(&self.body(outcome, output)).unwrap_or_default();
        if self.store.is_enabled() {
            let body = serde_json::from_str(&json).unwrap_or_default();
            let (items, text) = (self.items.clone(), text.to_owned());
            self.store.keep(&self.id, Kept { body, items, text, task: None });
        }
        JsonText(json)
    }
}

/// An answer's body as it was written, fields in their order.
pub(super) struct JsonText(String);

impl IntoResponse for JsonText {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, "application/json")], self.0).into_response()
    }
}

impl<'a> ResponseBody<'a> {
    fn new(
        shape: &'a Shape,
        status: &'static str,
        usage: Option<Usage>,
        output: &'a [Item<'a>],
    ) -> Self {
        let Shape { id, created, model, most, asked, .. } = shape;
        let incomplete = status == "incomplete";
        Self {
            id,
            created_at: *created,
            incomplete_details: incomplete.then_some(Incomplete { reason: "max_output_tokens" }),
            instructions: &asked.instructions,
            metadata: &asked.metadata,
            model,
            object: "response",
            output,
            parallel_tool_calls: &asked.parallel_tool_calls,
            temperature: &asked.temperature,
            tool_choice: &asked.tool_choice,
            tools: &asked.tools,
            top_p: &asked.top_p,
            background: asked.background,
            max_output_tokens: *most,
            max_tool_calls: &asked.max_tool_calls,
            previous_response_id: asked.previous_response_id.as_deref(),
            prompt: &asked.prompt,
            reasoning: &asked.reasoning,
            service_tier: &asked.service_tier,
            status,
            text: &asked.text,
            top_logprobs: &asked.top_logprobs,
            truncation: &asked.truncation,
            usage,
            user: &asked.user,
            presence_penalty: &asked.presence_penalty,
            frequency_penalty: &asked.frequency_penalty,
            kv_transfer_params: (),
            ec_transfer_params: (),
            input_messages: (),
            output_messages: (),
        }
    }
}
