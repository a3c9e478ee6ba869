//! What the filter would make of the request's body.

use anyhow::Context as _;
use warmpath_routing::catalogue::{Wants, resolve};
use warmpath_routing::decision::Degrade;
use warmpath_routing::fingerprint::{Key, Scope};
use warmpath_routing::policy::Policy;
use warmpath_routing::prompt::{
    Api, End, Model, ModelFiles, Prompter, Request, Requested, preprocess_for,
};

use super::state::State;

/// How much of an unread body tells requests apart, in bytes, as in the filter.
const AFFINITY_BYTES: usize = 2_048;

/// A request, read.
pub(super) struct Asked {
    /// What it says of its model.
    pub(super) requested: Requested<'static>,
    pub(super) keys: Vec<Key>,
    pub(super) prompt_tokens: u32,
    pub(super) affinity: u128,
    pub(super) degrade: Option<Degrade>,
    /// Why the prompt is not known, in words.
    pub(super) note: Option<String>,
}

impl Asked {
    /// Reads a body.
    ///
    /// # Errors
    /// Where the model's directory can't be read. A faulty request isn't an error: the filter routes it
    /// all the same.
    pub(super) fn read(
        state: &State,
        policy: &Policy,
        path: Option<&str>,
        body: &[u8],
        now: i64,
    ) -> anyhow::Result<Self> {
        let start = body.get(..AFFINITY_BYTES).unwrap_or(body);
        let hash = blake3::hash(start);
        let unread = |requested: Requested<'_>, degrade, note: String| Self {
            requested: requested.into_owned(),
            keys: Vec::new(),
            prompt_tokens: u32::try_from(body.len() / 4).unwrap_or(u32::MAX),
            affinity: hash.as_bytes().first_chunk().map_or(0, |first| u128::from_le_bytes(*first)),
            degrade,
            note: Some(note),
        };
        let peeked = || Requested::of_body(None, body);
        if body.is_empty() {
            return Ok(unread(
                Requested::Nothing,
                Some(Degrade::NoBody),
                "there is no body".into(),
            ));
        }
        if body.len() > policy.max_body_bytes {
            let note = format!("the body has more than {} bytes", policy.max_body_bytes);
            return Ok(unread(peeked(), Some(Degrade::BodyTooLarge), note));
        }
        let api = match path {
            Some(path) => {
                let Some(api) = Api::of_path(path) else {
                    let note = format!("{path} is not an API whose prompts are read");
                    return Ok(unread(peeked(), Some(Degrade::UnknownApi), note));
                };
                api
            }
            None => match Api::of_body(body) {
                Ok(api) => api,
                Err(error) => {
                    return Ok(unread(peeked(), Some(Degrade::BadRequest), error.to_string()));
                }
            },
        };
        let request = match Request::parse(api, body) {
            Ok(request) => request,
            Err(error) => {
                return Ok(unread(peeked(), Some(Degrade::BadRequest), error.to_string()));
            }
        };
        let requested = Requested::by_name(request.model());
        let resolved = resolve(policy, state.models.iter().map(|(model, ..)| model), &requested);
        let known = resolved.told.and_then(|at| state.models.get(at));
        let (Wants::Model { adapter, .. }, Some((model, dir, serving))) = (resolved.wants, known)
        else {
            let note = format!(
                "the state has no model that serves {:?}: give it as models, or --relay",
                request.model()
            );
            return Ok(unread(requested.clone(), Some(Degrade::NoTokenizer), note));
        };
        let Some(dir) = dir else {
            let note = format!("model {} has no directory with a tokenizer", model.name);
            return Ok(unread(requested.clone(), Some(Degrade::NoTokenizer), note));
        };
        let in_model = || format!("in the model directory {}", dir.display());
        let files = ModelFiles::read_dir(dir).with_context(in_model)?;
        let artefact = preprocess_for(&files, serving).with_context(in_model)?;
        let mut prompter = Prompter::new(Model::load(artefact.bytes).with_context(in_model)?, 0);
        let scope = Scope {
            // As this directory has it, whatever the state says.
            tokenizer_hash: &artefact.tokenizer_hash,
            ..model.scope(adapter, prompter.model().cache_salt(&request))
        };
        match prompter.prefix(&request, scope.root(), policy.prefix_tokens, now) {
            Ok(prefix) => Ok(Self {
                affinity: if prefix.keys.is_empty() {
                    unread(Requested::Nothing, None, String::new()).affinity
                } else {
                    0
                },
                degrade: (prefix.end == End::Media).then_some(Degrade::Media),
                keys: prefix.keys,
                prompt_tokens: u32::try_from(prefix.prompt_tokens).unwrap_or(u32::MAX),
                requested: requested.clone().into_owned(),
                note: None,
            }),
            Err(error) => {
                use warmpath_routing::prompt::PromptError;
                let degrade = match &error {
                    PromptError::UnsupportedContent(_) => Degrade::Unfollowable,
                    _ => Degrade::Template,
                };
                Ok(unread(requested.clone(), Some(degrade), error.to_string()))
            }
        }
    }
}
