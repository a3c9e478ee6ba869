//! What a prompt comes to: keys of its blocks, or its tokens, and why they end where they do.

use warmpath_routing::fingerprint::Key;

/// The prefix of a request's prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The key of each full block, from the start.
    pub keys: Vec<Key>,
    /// Tokens whose ids are known; at most the limit.
    pub tokens: usize,
    /// Tokens of the whole prompt: counted if `exact`, else estimated.
    pub prompt_tokens: usize,
    /// Whether `prompt_tokens` was counted.
    pub exact: bool,
    /// Why the known tokens end where they do.
    pub end: End,
    /// A hash of what comes after them, where that is little and was left out ([`Reach::News`]).
    pub left_out: Option<u128>,
}

/// How far a prompt is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To the first block that not all who begin like it share, where little comes after that. Held
    /// prefixes are closed: if nobody holds that block, nobody holds what comes after it.
    News,
    /// To its end, or the limit.
    Whole,
}

/// All about a prompt, for a person and for a simulated engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// The rendered text; none for a prompt of token ids.
    pub text: Option<String>,
    /// The token ids, up to the limit.
    pub ids: Vec<u32>,
    /// Why they end where they do.
    pub end: End,
}

/// Why a prefix ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The whole prompt is known.
    Complete,
    /// As many tokens as were asked for.
    Limit,
    /// An image, audio or another part that isn't text.
    Media,
    /// A word too long to be tokenized in a proxy.
    Word,
}

impl End {
    /// A stable name for metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Limit => "limit",
            Self::Media => "media",
            Self::Word => "word",
        }
    }
}
