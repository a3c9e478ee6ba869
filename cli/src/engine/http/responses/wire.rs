//! Bodies, field by field in vLLM's order.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::counters::Finish;

/// The query of who asks for a stored response.
#[derive(Debug, Deserialize)]
pub(in super::super) struct Retrieve {
    pub(super) stream: Option<bool>,
}

/// What a request says that its response repeats, unread, and whether it is kept.
#[derive(Debug, Deserialize)]
#[serde(default)]
pub(super) struct Echoed {
    pub(super) instructions: Value,
    pub(super) metadata: Value,
    pub(super) parallel_tool_calls: Value,
    pub(super) temperature: Value,
    pub(super) tool_choice: Value,
    pub(super) tools: Value,
    pub(super) top_p: Value,
    pub(super) max_tool_calls: Value,
    pub(super) previous_response_id: Option<String>,
    pub(super) request_id: Option<String>,
    pub(super) input: Value,
    pub(super) store: Option<bool>,
    pub(super) background: bool,
    pub(super) stream: Option<bool>,
    pub(super) prompt: Value,
    pub(super) reasoning: Value,
    pub(super) service_tier: Value,
    pub(super) text: Value,
    pub(super) top_logprobs: Value,
    pub(super) truncation: Value,
    pub(super) user: Value,
    pub(super) presence_penalty: Value,
    pub(super) frequency_penalty: Value,
}

impl Default for Echoed {
    fn default() -> Self {
        Self {
            instructions: Value::Null,
            metadata: Value::Null,
            parallel_tool_calls: true.into(),
            temperature: 1.0.into(),
            tool_choice: "auto".into(),
            tools: Value::Array(Vec::new()),
            top_p: 1.0.into(),
            max_tool_calls: Value::Null,
            previous_response_id: None,
            request_id: None,
            input: Value::Null,
            store: None,
            background: false,
            stream: None,
            prompt: Value::Null,
            reasoning: Value::Null,
            service_tier: "auto".into(),
            text: Value::Null,
            top_logprobs: 0.into(),
            truncation: "disabled".into(),
            user: Value::Null,
            presence_penalty: 0.0.into(),
            frequency_penalty: 0.0.into(),
        }
    }
}

/// How far it has come.
pub(super) enum Outcome {
    Queued,
    Begun,
    Ended(Finish, Usage),
}

#[derive(Debug, Serialize)]
pub(super) struct ResponseBody<'a> {
    pub(super) id: &'a str,
    pub(super) created_at: u64,
    pub(super) incomplete_details: Option<Incomplete>,
    pub(super) instructions: &'a Value,
    pub(super) metadata: &'a Value,
    pub(super) model: &'a str,
    pub(super) object: &'static str,
    pub(super) output: &'a [Item<'a>],
    pub(super) parallel_tool_calls: &'a Value,
    pub(super) temperature: &'a Value,
    pub(super) tool_choice: &'a Value,
    pub(super) tools: &'a Value,
    pub(super) top_p: &'a Value,
    pub(super) background: bool,
    pub(super) max_output_tokens: usize,
    pub(super) max_tool_calls: &'a Value,
    pub(super) previous_response_id: Option<&'a str>,
    pub(super) prompt: &'a Value,
    pub(super) reasoning: &'a Value,
    pub(super) service_tier: &'a Value,
    pub(super) status: &'static str,
    pub(super) text: &'a Value,
    pub(super) top_logprobs: &'a Value,
    pub(super) truncation: &'a Value,
    pub(super) usage: Option<Usage>,
    pub(super) user: &'a Value,
    pub(super) presence_penalty: &'a Value,
    pub(super) frequency_penalty: &'a Value,
    pub(super) kv_transfer_params: (),
    pub(super) ec_transfer_params: (),
    pub(super) input_messages: (),
    pub(super) output_messages: (),
}

/// Why it isn't whole.
#[derive(Debug, Serialize)]
pub(super) struct Incomplete {
    pub(super) reason: &'static str,
}

/// A message of the answer.
#[derive(Debug, Serialize)]
pub(super) struct Item<'a> {
    id: &'a str,
    content: &'a [Text<'a>],
    role: &'static str,
    status: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    phase: (),
}

impl<'a> Item<'a> {
    pub(super) const COMPLETED: &'static str = "completed";

    pub(super) fn new(id: &'a str, status: &'static str, content: &'a [Text<'a>]) -> Self {
        Self { id, content, role: "assistant", status, kind: "message", phase: () }
    }
}

/// A part of it.
#[allow(clippy::struct_field_names, reason = "as in the API")]
#[derive(Debug, Serialize)]
pub(super) struct Text<'a> {
    annotations: [(); 0],
    text: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    logprobs: Option<[(); 0]>,
}

impl<'a> Text<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { annotations: [], text, kind: "output_text", logprobs: None }
    }

    /// As it is when it begins.
    pub(super) fn empty() -> Self {
        Self { logprobs: Some([]), ..Self::new("") }
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Usage {
    input_tokens: usize,
    input_tokens_details: InputDetails,
    output_tokens: usize,
    output_tokens_details: OutputDetails,
    total_tokens: usize,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct InputDetails {
    cached_tokens: usize,
    cache_write_tokens: usize,
    // Only gpt-oss fills these.
    input_tokens_per_turn: [usize; 0],
    cached_tokens_per_turn: [usize; 0],
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct OutputDetails {
    reasoning_tokens: usize,
    tool_output_tokens: usize,
    output_tokens_per_turn: [usize; 0],
    tool_output_tokens_per_turn: [usize; 0],
}

impl Usage {
    pub(super) fn new(prompt: usize, cached: usize, output: usize, block_size: usize) -> Self {
        let stored = (prompt / block_size * block_size).saturating_sub(cached);
        Self {
            input_tokens: prompt,
            input_tokens_details: InputDetails {
                cached_tokens: cached,
                cache_write_tokens: stored,
                input_tokens_per_turn: [],
                cached_tokens_per_turn: [],
            },
            output_tokens: output,
            output_tokens_details: OutputDetails::default(),
            total_tokens: prompt + output,
        }
    }
}

/// An event of a stream; each kind has some of the fields, in their order of the alphabet.
#[derive(Debug, Default, Serialize)]
pub(super) struct Event<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) item: Option<Item<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) item_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) logprobs: Option<[(); 0]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) output_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) part: Option<Text<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response: Option<ResponseBody<'a>>,
    pub(super) sequence_number: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<&'a str>,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
}
