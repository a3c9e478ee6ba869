//! The APIs, told by path or by body.

use crate::error::RequestError;
use crate::request::body::parse_fields;

/// The API that a request speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`, which is Anthropic's
    Messages,
}

impl Api {
    /// The API of a request path, by how it ends: a gateway may have put something before `/v1`,
    /// which the route takes off. A query string and slashes at the end don't matter.
    pub fn of_path(path: &str) -> Option<Self> {
        let path = path.split(['?', '#']).next().unwrap_or(path).trim_end_matches('/');
        [
            ("/v1/chat/completions", Self::Chat),
            ("/v1/completions", Self::Completions),
            ("/v1/responses", Self::Responses),
            ("/v1/messages", Self::Messages),
        ]
        .into_iter()
        .find_map(|(end, api)| path.ends_with(end).then_some(api))
    }

    /// The API that a body is for, by its shape: `messages` (with `system`, Anthropic's), `input`
    /// or `prompt`.
    ///
    /// # Errors
    /// [`RequestError`] if the body is no JSON object or has neither.
    pub fn of_body(body: &[u8]) -> Result<Self, RequestError> {
        let fields = parse_fields(body)?;
        match (fields.messages, fields.prompt, fields.input) {
            (Some(_), _, _) if fields.system.is_some() => Ok(Self::Messages),
            (Some(_), _, _) => Ok(Self::Chat),
            (None, Some(_), _) => Ok(Self::Completions),
            (None, None, Some(_)) => Ok(Self::Responses),
            (None, None, None) => Err(RequestError::NoPrompt("messages")),
        }
    }
}
