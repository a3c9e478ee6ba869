//! Why a frame of events can't be read.

use super::MAX_EVENTS;

/// Why a frame was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The frame ends inside a value, or claims more values than it has bytes.
    #[error("the frame ends before its values do")]
    Truncated,
    /// A byte that no msgpack value begins with.
    #[error("not msgpack")]
    NotMsgpack,
    /// Bytes after the batch.
    #[error("bytes follow the batch")]
    Trailing,
    /// Not an array of time, events and rank.
    #[error("not a batch [time, events, rank]")]
    NotABatch,
    /// An event that is neither array nor map, or has no type.
    #[error("an event without a type")]
    NotAnEvent,
    /// More events than an engine sends.
    #[error("more than {MAX_EVENTS} events in one batch")]
    TooManyEvents,
    /// A field of another type than any engine sends.
    #[error("field {0} has an unexpected type or value")]
    Field(&'static str),
    /// A field without which the event says nothing.
    #[error("field {0} is missing")]
    Missing(&'static str),
}

impl DecodeError {
    /// A short name for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::NotMsgpack => "not_msgpack",
            Self::Trailing => "trailing",
            Self::NotABatch => "not_a_batch",
            Self::NotAnEvent => "not_an_event",
            Self::TooManyEvents => "too_many_events",
            Self::Field(_) => "field",
            Self::Missing(_) => "missing",
        }
    }
}
