//! What an engine says that it really had cached: the `usage` of an answer.
//!
//! Answers are not held back for this. Where `usage` stands in one depends on the API and on the
//! engine:
//!
//! | API | vLLM 0.32 | SGLang 0.5.23 |
//! | --- | --- | --- |
//! | chat, completions | at the end; of a stream, in the last chunk before `[DONE]` | the same |
//! | Responses | near the end, before the client's `user`; of a stream, in `response.completed` | in the middle, before `tools`, `instructions`, `metadata` |
//! | Messages | at the end; of a stream, in `message_start` and, whole, in `message_delta` | the same, but the prompt in `message_start` only |
//!
//! (vLLM: `entrypoints/openai/responses/protocol.py`, `entrypoints/anthropic/serving.py`; SGLang:
//! `srt/entrypoints/openai/protocol.py`, `srt/entrypoints/anthropic/serving.py`.) So of chats and
//! completions the last bytes are kept and read when the answer has ended ([`Tail`]), and of
//! the others every byte is followed ([`Scan`]).

mod object;
mod scan;
mod tail;

pub use scan::Scan;
pub use tail::{TAIL_BYTES, Tail};

/// Token counts by the engine's own word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, the cached ones among them.
    pub prompt: Option<u32>,
    /// Those of them that were cached.
    pub cached: Reported,
}

/// What an answer says of cached tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reported {
    /// The field is not there.
    #[default]
    Absent,
    /// The field is null: none cached, or an engine that doesn't tell.
    Null,
    /// So many.
    Tokens(u32),
}

impl Reported {
    /// Tokens that were cached, as far as that can be known. Engines may say nothing where nothing was
    /// cached: `silence_is_none` of one that tells of cached tokens where there are some.
    pub fn tokens(self, silence_is_none: bool) -> Option<u32> {
        match self {
            Self::Tokens(tokens) => Some(tokens),
            Self::Null | Self::Absent => silence_is_none.then_some(0),
        }
    }
}

/// Answers of engines, as their tests need them.
#[cfg(test)]
mod answers;
