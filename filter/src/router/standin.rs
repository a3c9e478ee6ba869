//! Stands in for `warmpath_routing::prompt` until that is there: reads the model's name, no prompt.

use std::borrow::Cow;

use serde::Deserialize;
use warmpath_routing::fingerprint::Fingerprint;

#[derive(Clone, Copy)]
pub(super) struct Api;

impl Api {
    pub(super) fn of_path(path: &str) -> Option<Self> {
        matches!(path, "/v1/chat/completions" | "/v1/completions").then_some(Self)
    }
}

#[derive(Deserialize)]
pub(super) struct Request<'a> {
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    cache_salt: Option<Cow<'a, str>>,
}

impl<'a> Request<'a> {
    pub(super) fn parse(_api: Api, body: &'a [u8]) -> Result<Self, ()> {
        serde_json::from_slice(body).map_err(|_| ())
    }

    pub(super) fn model(&self) -> &str {
        self.model.as_deref().unwrap_or_default()
    }

    pub(super) fn cache_salt(&self) -> &str {
        self.cache_salt.as_deref().unwrap_or_default()
    }
}

pub(super) struct Model;

impl Model {
    pub(super) fn load(_bytes: &[u8]) -> Result<Self, &'static str> {
        Err("prompts are not read yet")
    }
}

pub(super) struct Prefix {
    pub(super) names: Vec<Fingerprint>,
    pub(super) prompt_tokens: usize,
}

pub(super) enum PromptError {
    UnsupportedContent(&'static str),
}

pub(super) struct Prompter;

impl Prompter {
    pub(super) fn new(_model: Model, _memo_bytes: usize) -> Self {
        Self
    }

    #[expect(clippy::unused_self)]
    pub(super) fn prefix(
        &mut self,
        _request: &Request<'_>,
        _root: Fingerprint,
        _limit: usize,
        _now: i64,
    ) -> Result<Prefix, PromptError> {
        Err(PromptError::UnsupportedContent(""))
    }
}
