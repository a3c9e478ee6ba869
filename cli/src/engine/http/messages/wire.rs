//! Bodies, field by field in vLLM's order.

use serde::Serialize;

use crate::engine::counters::Finish;

/// Anthropic's name for why an answer ended.
pub(super) fn stop_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "end_turn",
        Finish::Length => "max_tokens",
    }
}

/// A message as a stream begins with it, in which nothing that is not known yet is left out.
#[derive(Debug, Serialize)]
pub(super) struct Message<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    content: &'a [Block<'a>],
    model: &'a str,
    stop_reason: (),
    stop_sequence: (),
    usage: Usage,
}

/// The same, whole: without what it has nothing to say of.
#[derive(Debug, Serialize)]
pub(super) struct WholeMessage<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    content: &'a [Block<'a>],
    model: &'a str,
    stop_reason: &'static str,
    usage: Usage,
}

impl<'a> Message<'a> {
    pub(super) fn new(id: &'a str, model: &'a str, content: &'a [Block<'a>], usage: Usage) -> Self {
        let (kind, role) = ("message", "assistant");
        Self { id, kind, role, content, model, stop_reason: (), stop_sequence: (), usage }
    }

    pub(super) fn whole(self, stop_reason: &'static str) -> WholeMessage<'a> {
        let Self { id, kind, role, content, model, usage, .. } = self;
        WholeMessage { id, kind, role, content, model, stop_reason, usage }
    }
}

/// A part of a message.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Block<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
}

impl<'a> Block<'a> {
    pub(super) fn text(text: &'a str) -> Self {
        Self { kind: "text", text }
    }
}

/// Tokens; those of the prompt are in three parts, of which the cached ones may not be known yet.
#[allow(clippy::struct_field_names, reason = "as in the API")]
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Usage {
    input_tokens: usize,
    output_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_creation_input_tokens: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_read_input_tokens: Option<usize>,
}

impl Usage {
    pub(super) fn new(prompt: usize, cached: usize, output: usize, block_size: usize) -> Self {
        let stored = (prompt / block_size * block_size).saturating_sub(cached);
        Self {
            input_tokens: prompt - cached - stored,
            output_tokens: output,
            cache_creation_input_tokens: Some(stored),
            cache_read_input_tokens: Some(cached),
        }
    }

    /// What a stream begins with.
    pub(super) fn of_start(prompt: usize) -> Self {
        Self {
            input_tokens: prompt,
            output_tokens: 0,
            cache_creation_input_tokens: None,
            cache_read_input_tokens: None,
        }
    }
}

/// The answer to who asks how long a prompt is.
#[derive(Debug, Serialize)]
pub(super) struct Count {
    pub(super) input_tokens: usize,
    pub(super) context_management: Management,
}

#[derive(Debug, Serialize)]
pub(super) struct Management {
    pub(super) original_input_tokens: usize,
}

/// An event of a stream.
#[derive(Debug, Serialize)]
pub(super) struct Event<'a> {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<Message<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) delta: Option<Delta<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content_block: Option<Block<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Usage>,
}

impl Event<'_> {
    pub(super) fn new(kind: &'static str) -> Self {
        Self { kind, message: None, delta: None, content_block: None, index: None, usage: None }
    }
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Delta<'a> {
    Text {
        #[serde(rename = "type")]
        kind: &'static str,
        text: &'a str,
    },
    End {
        stop_reason: &'static str,
        stop_sequence: (),
    },
}
