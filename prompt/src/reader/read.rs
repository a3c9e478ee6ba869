//! What a request's body says, and what the decision asks by it.

use warmpath_routing::catalogue::Wants;
use warmpath_routing::decision::{Ask, Degrade};
use warmpath_routing::drift::Asked;
use warmpath_routing::fingerprint::Key;
use warmpath_routing::requested::Requested;
use warmpath_routing::residency::Claim;

use super::body::Body;
use crate::error::{PromptError, RequestError};
use crate::request::cache_use::CacheUse;

/// What a body says.
#[derive(Debug, Default)]
pub struct Read<'a> {
    /// What it says of its model.
    pub requested: Requested<'a>,
    /// Keys of the prompt's blocks.
    pub keys: Vec<Key>,
    /// Tokens of the prompt, as far as known.
    pub prompt_tokens: u32,
    /// A hash of what comes after the keys, if that was left out.
    pub left_out: Option<u128>,
    /// Tokens that the memo knew, and tokens that were tokenized.
    pub memo: (u64, u64),
    /// What an engine does with its cache for it.
    pub cache_use: CacheUse,
    /// What the prompt is made of, and the messages of a chat, where they were counted.
    pub asked: (Asked, u8),
    /// It began as others did, so that only its last message was read.
    pub beginning: bool,
    /// The stored response that it goes on from, by its id.
    pub previous: Option<String>,
    /// Its own response is not to be stored.
    pub unstored: bool,
    /// Why there are no keys, or not all.
    pub unread: Option<Unread>,
}

/// Why a prompt is not known, or not to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// The request has no body.
    #[error("there is no body")]
    NoBody,
    /// The path is none of the APIs' whose prompts are read.
    #[error("the path is no API whose prompt is read")]
    UnknownApi,
    /// The body has more bytes than the policy's `max_body_bytes`.
    #[error("the body is larger than max_body_bytes")]
    BodyTooLarge,
    /// The body can't be read as the API's.
    #[error("{0}")]
    BadRequest(RequestError),
    /// No relay has told of any model yet.
    #[error("no model is known yet")]
    NoModel,
    /// The model is not known, or has no tokenizer that is loaded and can be used.
    #[error("no tokenizer is loaded for the model")]
    NoTokenizer,
    /// The prompt can't be made as the engine makes it.
    #[error("{0}")]
    Prompt(PromptError),
    /// The prompt is known up to an image or another medium.
    #[error("the prompt is known up to its first image or other medium")]
    Media,
}

impl Unread {
    /// What the decision is told.
    pub fn degrade(&self) -> Degrade {
        match self {
            Self::NoBody => Degrade::NoBody,
            Self::UnknownApi => Degrade::UnknownApi,
            Self::BodyTooLarge => Degrade::BodyTooLarge,
            Self::BadRequest(_) => Degrade::BadRequest,
            // Before the relay was heard that is the cause.
            Self::NoModel => Degrade::StaleMap,
            Self::NoTokenizer => Degrade::NoTokenizer,
            Self::Prompt(PromptError::UnsupportedContent(_)) => Degrade::Unfollowable,
            Self::Prompt(
                PromptError::NoTemplate
                | PromptError::TemplateRefused
                | PromptError::TemplateFailed(_)
                | PromptError::RequestTemplate,
            ) => Degrade::Template,
            Self::Media => Degrade::Media,
        }
    }
}

impl<'a> Read<'a> {
    /// Of a prompt that may have so many tokens, and why it is not known.
    pub(super) fn guess(requested: Requested<'a>, prompt_tokens: u32, why: Unread) -> Self {
        Self { requested, prompt_tokens, unread: Some(why), ..Self::default() }
    }

    /// What the decision asks. `model` is what [`Self::requested`] resolves to; `refers`: the request
    /// refers to a stored response, which one replica holds.
    pub fn ask<'b>(
        &'b self,
        zone: Claim<'b>,
        model: Wants<'b>,
        refers: bool,
        body: Body<'_>,
        now_ms: u64,
    ) -> Ask<'b> {
        let unread = self.unread.as_ref().map(Unread::degrade);
        Ask {
            zone,
            model,
            keys: &self.keys,
            prompt_tokens: self.prompt_tokens,
            affinity: if self.keys.is_empty() { body.affinity(now_ms) } else { 0 },
            left_out: self.left_out,
            degrade: if refers { Some(Degrade::UnknownResponse) } else { unread },
        }
    }
}
