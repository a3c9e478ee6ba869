//! What a request's path says: which API it speaks, and of which model, where the path has it.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::request::api::Api;
use warmpath_routing::requested::Requested;

const MODELS: &str = "/v1/models";

/// What a path asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// An API whose bodies are read.
    Api(Api),
    /// The list of models.
    Models,
    /// One model, by the name in the path.
    Model(Cow<'a, str>),
    /// A response that an engine keeps, by the id in the path.
    Response {
        /// The id.
        id: Cow<'a, str>,
        /// Something of it: `cancel`, `input_items`.
        below: bool,
    },
    /// Something else.
    Other,
}

impl<'a> Target<'a> {
    /// What a request's path asks for; a query string and slashes at the end don't matter.
    pub fn of_path(path: &'a str) -> Self {
        let path = path.split(['?', '#']).next().unwrap_or(path).trim_end_matches('/');
        if let Some(api) = Api::of_path(path) {
            return Self::Api(api);
        }
        // Only where it begins so: these are answered here, whatever a route says, and what stands
        // behind another prefix may be shut.
        match models_in(path) {
            Some((0, "")) => Self::Models,
            Some((0, name)) => Self::Model(decoded(name)),
            _ => response_in(path).unwrap_or(Self::Other),
        }
    }

    /// The API, if it is one whose bodies are read.
    pub fn api(&self) -> Option<Api> {
        match self {
            Self::Api(api) => Some(*api),
            Self::Models | Self::Model(_) | Self::Response { .. } | Self::Other => None,
        }
    }
}

/// Of a request without a body: the model's name in the path, or in the query string, where
/// OpenAI's realtime API has it.
pub fn model_in_path(path: &str) -> Requested<'_> {
    let (plain, query) = path.split_once('?').unwrap_or((path, ""));
    let plain = plain.split('#').next().unwrap_or(plain).trim_end_matches('/');
    if let Some((_, name)) = models_in(plain).filter(|(_, name)| !name.is_empty()) {
        return Requested::by_name(decoded(name));
    }
    let query = query.split('#').next().unwrap_or(query);
    let mut fields = query.split('&').filter_map(|field| field.split_once('='));
    match fields.find(|(name, _)| *name == "model") {
        Some((_, name)) => Requested::by_name(decoded(name)),
        None => Requested::Nothing,
    }
}

/// Where `/v1/models` begins in a path, and the name after it, or nothing. Names of models have
/// slashes themselves: all of the rest is the name.
fn models_in(path: &str) -> Option<(usize, &str)> {
    path.match_indices(MODELS).find_map(|(at, found)| match path.get(at + found.len()..)? {
        "" => Some((at, "")),
        rest => Some((at, rest.strip_prefix('/')?)),
    })
}

/// A path below `/v1/responses`, whatever is before that: ids have no slashes.
fn response_in(path: &str) -> Option<Target<'_>> {
    let (_, rest) = path.rsplit_once("/v1/responses/")?;
    let (id, more) = rest.split_once('/').unwrap_or((rest, ""));
    let is_one = !id.is_empty() && !more.contains('/');
    is_one.then(|| Target::Response { id: decoded(id), below: !more.is_empty() })
}

// What is no UTF-8 comes to a name that no model has.
fn decoded(text: &str) -> Cow<'_, str> {
    percent_decode_str(text).decode_utf8_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_apart() {
        let response = |below| Target::Response { id: "resp_1".into(), below };
        for (path, target) in [
            ("/v1/chat/completions?x=1", Target::Api(Api::Chat)),
            ("/v1/messages/", Target::Api(Api::Messages)),
            ("/v1/models", Target::Models),
            ("/v1/models/?limit=5", Target::Models),
            ("/v1/models/beta", Target::Model("beta".into())),
            ("/v1/models/meta-llama/Llama-3", Target::Model("meta-llama/Llama-3".into())),
            ("/v1/models/meta-llama%2FLlama-3?x", Target::Model("meta-llama/Llama-3".into())),
            ("/v1/models/a%FF%", Target::Model("a\u{fffd}%".into())),
            ("/v1/modelsx", Target::Other),
            ("/team-a/v1/chat/completions", Target::Api(Api::Chat)),
            ("/team-a/v1/models", Target::Other),
            ("/team-a/v1/models/beta", Target::Other),
            ("/v1/models/a/v1/models", Target::Model("a/v1/models".into())),
            ("/team-av1/models", Target::Other),
            ("/v1/embeddings", Target::Other),
            ("/v1/responses?x", Target::Api(Api::Responses)),
            ("/v1/responses/", Target::Api(Api::Responses)),
            ("/v1/responses/resp_1", response(false)),
            ("/v1/responses/resp_1/?stream=true", response(false)),
            ("/v1/responses/resp%5F1/cancel", response(true)),
            ("/team-a/v1/responses/resp_1/input_items", response(true)),
            ("/v1/responses//cancel", Target::Other),
            ("/v1/responses/resp_1/a/b", Target::Other),
            ("/v1/responsesx/resp_1", Target::Other),
            ("", Target::Other),
        ] {
            assert_eq!(Target::of_path(path), target, "{path}");
        }
    }

    #[test]
    fn a_request_without_a_body_may_name_its_model_in_the_path() {
        let name = |name: &'static str| Requested::Name(name.into());
        for (path, requested) in [
            ("/v1/models/beta", name("beta")),
            ("/team-a/v1/models/meta-llama/Llama-3/?x", name("meta-llama/Llama-3")),
            ("/team-a/v1/models", Requested::Nothing),
            ("/v1/realtime?x=1&model=a%20b", name("a b")),
            ("/team-a/v1/realtime?model=b", name("b")),
            ("/v1/realtime?model=", Requested::Nothing),
            ("/v1/realtime?models=x", Requested::Nothing),
            ("/v1/responses/resp_1", Requested::Nothing),
        ] {
            assert_eq!(model_in_path(path), requested, "{path}");
        }
    }
}
