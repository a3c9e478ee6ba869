//! What the filter makes of the request's body, by the filter's own reader.

use anyhow::Context as _;
use warmpath_prompt::{
    Api, Body, KnownModel, Large, ModelFiles, Reach, Read, Reader, Request, Unread, model_in_body,
    preprocess_for,
};
use warmpath_routing::catalogue::resolve;
use warmpath_routing::policy::Policy;
use warmpath_routing::requested::Requested;

use super::state::State;

/// A request, read.
pub(super) struct Asked<'a> {
    pub(super) read: Read<'a>,
    pub(super) body: Body<'a>,
    /// Why the prompt is not known, in words.
    pub(super) note: Option<String>,
}

/// Finds the model of a body that is too large to be read.
pub(super) fn large(policy: &Policy, body: &[u8]) -> Option<Large> {
    (body.len() > policy.max_body_bytes).then(|| {
        let mut large = Large::new(None);
        let part = |start: usize, most: usize| {
            let rest = body.get(start..).unwrap_or_default();
            Ok::<_, std::convert::Infallible>(rest.get(..most).unwrap_or(rest).to_vec())
        };
        let Ok(_) = large.feed(body.len(), true, part);
        large
    })
}

impl<'a> Asked<'a> {
    /// Reads a body as the filter does. `large` is what [`large`] made of it.
    ///
    /// # Errors
    /// Where the model's directory can't be read. A faulty request isn't an error: the filter routes it
    /// all the same.
    pub(super) fn read(
        state: &State,
        policy: &Policy,
        path: Option<&str>,
        body: &'a [u8],
        large: Option<&'a Large>,
        now: u64,
    ) -> anyhow::Result<Self> {
        let body = match large {
            _ if body.is_empty() => Body::None(&Requested::Nothing),
            Some(large) => Body::TooLarge(large, body),
            None => Body::Whole(body),
        };
        let mut by_shape = None;
        let api = match (path, body) {
            (Some(path), _) => Api::of_path(path),
            (None, Body::Whole(body)) => {
                Api::of_body(body).map_err(|error| by_shape = Some(error)).ok()
            }
            // It makes no difference of which API there is no prompt.
            (None, Body::None(_) | Body::TooLarge(..)) => Some(Api::Chat),
        };
        let mut reader = Reader::default();
        let mut why = None;
        let mut models: Vec<KnownModel> = Vec::new();
        let requested = match body {
            Body::Whole(body) => model_in_body(None, body),
            Body::None(_) | Body::TooLarge(..) => Requested::Nothing,
        };
        // A directory is read for a prompt that is made of it, and for no other.
        let is_read = match (api, body) {
            (Some(api), Body::Whole(body)) => Request::parse(api, body).is_ok(),
            _ => false,
        };
        let wanted = resolve(policy, state.models.iter().map(|(model, ..)| model), &requested).told;
        for (at, (model, dir, serving)) in state.models.iter().enumerate() {
            let mut model = model.clone();
            let mut artefact = None;
            if wanted == Some(at) && is_read {
                match dir {
                    None => {
                        why =
                            Some(format!("model {} has no directory with a tokenizer", model.name));
                    }
                    Some(dir) => {
                        let in_model = || format!("in the model directory {}", dir.display());
                        let files = ModelFiles::read_dir(dir).with_context(in_model)?;
                        let made = preprocess_for(&files, serving).with_context(in_model)?;
                        // As this directory has it, whatever the state says.
                        model.tokenizer_hash = made.tokenizer_hash;
                        let id = *blake3::hash(&made.bytes).as_bytes();
                        reader.load(id, made.bytes, 0).with_context(in_model)?;
                        artefact = Some(id);
                    }
                }
            }
            models.push(KnownModel::new(model, artefact));
        }
        let mut read = reader.read((policy, &models), api, body, None, Reach::Whole, now);
        if let Some(error) = by_shape {
            read.unread = Some(Unread::BadRequest(error));
        }
        let note = read.unread.as_ref().and_then(|unread| match unread {
            Unread::Media => None,
            Unread::UnknownApi => {
                Some(format!("{} is no API whose prompt is read", path.unwrap_or_default()))
            }
            Unread::BodyTooLarge => {
                Some(format!("the body has more than {} bytes", policy.max_body_bytes))
            }
            Unread::NoModel | Unread::NoTokenizer => Some(why.unwrap_or_else(|| {
                let name = match &read.requested {
                    Requested::Name(name) => name,
                    Requested::Nothing | Requested::Unreadable => "",
                };
                format!(
                    "the state has no model that serves {name:?}: give it as models, or --relay"
                )
            })),
            other => Some(other.to_string()),
        });
        Ok(Self { read, body, note })
    }
}
