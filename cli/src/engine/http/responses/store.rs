//! Responses that are kept, as vLLM 0.32 keeps them with `VLLM_ENABLE_RESPONSES_API_STORE=1`
//! (`entrypoints/openai/responses/serving.py`): in memory, for the life of the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::task::AbortHandle;

use super::super::error::ApiError;
use crate::engine::lock::lock;

/// The responses of an engine; none where it keeps none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store(Option<Arc<Mutex<BTreeMap<String, Kept>>>>);

/// A response and what came before it.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    /// As it is given out.
    pub(super) body: Value,
    /// Input items up to it, system messages left out, and its text.
    pub(super) items: Vec<Value>,
    pub(super) text: String,
    /// Stops it, if it runs in the background.
    pub(super) task: Option<AbortHandle>,
}

impl Store {
    /// `enabled`: it keeps any.
    pub(crate) fn new(enabled: bool) -> Self {
        Self(enabled.then(Arc::default))
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// One that is kept.
    pub(super) fn get(&self, id: &str) -> Result<Kept, ApiError> {
        let found = self.0.as_ref().and_then(|kept| lock(kept).get(id).cloned());
        found.ok_or_else(|| ApiError::no_response(id))
    }

    /// Keeps one, in the place of what it was before, unless that was cancelled.
    pub(super) fn keep(&self, id: &str, kept: Kept) {
        let Some(all) = &self.0 else { return };
        let mut all = lock(all);
        if all.get(id).is_none_or(|before| status(&before.body) != Some("cancelled")) {
            all.insert(id.to_owned(), kept);
        }
    }

    /// Gives a response that runs in the background the handle to stop it by.
    pub(super) fn runs(&self, id: &str, task: AbortHandle) {
        let Some(all) = &self.0 else { return };
        if let Some(kept) = lock(all).get_mut(id) {
            kept.task = Some(task);
        }
    }

    /// Stops a response that runs in the background.
    pub(super) fn cancel(&self, id: &str) -> Result<Value, ApiError> {
        let Some(all) = &self.0 else { return Err(ApiError::no_response(id)) };
        let mut all = lock(all);
        let Some(kept) = all.get_mut(id) else { return Err(ApiError::no_response(id)) };
        if !matches!(status(&kept.body), Some("queued" | "in_progress")) {
            let message = "Cannot cancel a synchronous response.".to_owned();
            return Err(ApiError::bad(Some("response_id"), message));
        }
        if let Some(body) = kept.body.as_object_mut() {
            body.insert("status".into(), "cancelled".into());
        }
        if let Some(task) = &kept.task {
            task.abort();
        }
        Ok(kept.body.clone())
    }
}

/// A request's input as a list of items, after those of the response that it goes on from.
/// (`construct_input_messages` in `entrypoints/openai/responses/utils.py`.)
pub(super) fn items(input: &Value, previous: Option<&Kept>) -> Vec<Value> {
    let is_system = |item: &Value| item["role"] == "system";
    let mut items = Vec::new();
    if let Some(previous) = previous {
        items.extend(previous.items.iter().filter(|item| !is_system(item)).cloned());
        items.push(json!({"role": "assistant", "content": previous.text}));
    }
    match input {
        Value::Array(list) => items.extend(list.iter().cloned()),
        other => items.push(json!({"role": "user", "content": other})),
    }
    items
}

/// How far a response is.
fn status(body: &Value) -> Option<&str> {
    body.get("status").and_then(Value::as_str)
}
