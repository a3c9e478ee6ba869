//! The one way from a request's body to what the decision asks, and what a worker remembers for it.

pub(crate) mod beginnings;
mod body;
mod known_model;
mod known_start;
mod large;
pub(crate) mod memo;
pub(crate) mod prefix;
pub(crate) mod prompter;
mod ratio;
mod read;

pub use body::Body;
pub use known_model::KnownModel;
pub use large::Large;
pub use read::{Read, Unread};

use std::collections::BTreeMap;

use warmpath_routing::catalogue::{Wants, resolve};
use warmpath_routing::policy::Policy;
use warmpath_routing::requested::Requested;

use crate::error::ArtefactError;
use crate::model::Model;
use crate::request::Request;
use crate::request::api::Api;
use crate::request::requested::model_in_body;
use beginnings::Beginnings;
use prefix::{End, Prefix, Reach};
use prompter::Prompter;
use ratio::Ratio;

/// Beginnings of bodies may take this part of what a memo may take.
const BEGINNINGS_SHARE: usize = 8;

/// A loaded tokenizer and chat template, or the fact that it can't be.
enum Loaded {
    Ready(Box<Prompter>),
    Refused,
}

/// Reads bodies with the models that are loaded, by artefact. One per VM or process: a tokenizer
/// takes tens of megabytes, and memory that a wasm VM has taken it never gives back.
pub struct Reader {
    models: BTreeMap<[u8; 32], Loaded>,
    beginnings: Beginnings,
    ratio: Ratio,
}

impl Default for Reader {
    fn default() -> Self {
        Self { models: BTreeMap::new(), beginnings: Beginnings::new(0), ratio: Ratio::default() }
    }
}

impl Reader {
    /// Models that are ready.
    pub fn ready(&self) -> usize {
        self.models.values().filter(|loaded| matches!(loaded, Loaded::Ready(_))).count()
    }

    /// Bytes that the memos take, about.
    pub fn memo_bytes(&self) -> usize {
        let bytes = |loaded: &Loaded| match loaded {
            Loaded::Ready(prompter) => prompter.memo_bytes(),
            Loaded::Refused => 0,
        };
        self.models.values().map(bytes).sum::<usize>() + self.beginnings.bytes()
    }

    /// Whether an artefact was loaded, or found to be unusable.
    pub fn has(&self, artefact: &[u8; 32]) -> bool {
        self.models.contains_key(artefact)
    }

    /// Forgets the artefacts that nobody knows any more. A memo may have `memo_bytes`.
    pub fn retain(&mut self, memo_bytes: usize, is_known: impl Fn(&[u8; 32]) -> bool) {
        let before = self.models.len();
        self.models.retain(|id, _| is_known(id));
        if self.models.len() < before {
            self.forget_beginnings(memo_bytes);
        }
    }

    /// Loads an artefact, which takes a moment. Its memo may have `memo_bytes`.
    ///
    /// # Errors
    /// [`ArtefactError::Artefact`] for bytes that are no artefact of a format that is known; it is
    /// not tried again.
    pub fn load(
        &mut self,
        id: [u8; 32],
        bytes: Vec<u8>,
        memo_bytes: usize,
    ) -> Result<(), ArtefactError> {
        match Model::load(bytes) {
            Ok(model) => {
                self.forget_beginnings(memo_bytes);
                let prompter = Box::new(Prompter::new(model, memo_bytes));
                self.models.insert(id, Loaded::Ready(prompter));
                Ok(())
            }
            Err(error) => {
                self.models.insert(id, Loaded::Refused);
                Err(error)
            }
        }
    }

    // What was learned with one prompter is of no use to another.
    fn forget_beginnings(&mut self, memo_bytes: usize) {
        self.beginnings = Beginnings::new(memo_bytes / BEGINNINGS_SHARE);
    }

    /// Reads a request: model, prompt, fingerprints, of its first [`Policy::prefix_tokens`]; of a
    /// known beginning at least so far as `reach` says. `api` is that of the path, `form` the body's
    /// type if it is a form, `now_unix` the time in seconds since 1970, which templates see.
    pub fn read<'b>(
        &mut self,
        (policy, models): (&Policy, &[KnownModel]),
        api: Option<Api>,
        body: Body<'b>,
        form: Option<&[u8]>,
        reach: Reach,
        now_unix: u64,
    ) -> Read<'b> {
        let (requested, bytes, why) = match (api, body) {
            (Some(api), Body::Whole(body)) => {
                let now_unix = i64::try_from(now_unix).unwrap_or(0);
                return self.read_whole((policy, models), api, body, reach, now_unix);
            }
            (None, Body::Whole(body)) => {
                (model_in_body(form, body), body.len(), Unread::UnknownApi)
            }
            (None, Body::None(requested)) => (requested.clone(), 0, Unread::UnknownApi),
            (Some(_), Body::None(requested)) => (requested.clone(), 0, Unread::NoBody),
            (_, Body::TooLarge(large, _)) => {
                (large.requested(), large.bytes(), Unread::BodyTooLarge)
            }
        };
        Read::guess(requested, self.ratio.tokens(bytes), why)
    }

    fn read_whole<'b>(
        &mut self,
        known: (&Policy, &[KnownModel]),
        api: Api,
        body: &'b [u8],
        reach: Reach,
        now_unix: i64,
    ) -> Read<'b> {
        if api == Api::Chat
            && let Some(read) = self.read_after_beginning(known, body, reach, now_unix)
        {
            return read;
        }
        let request = match Request::parse(api, body) {
            Ok(request) => request,
            Err(error) => {
                let tokens = self.ratio.tokens(body.len());
                let requested = model_in_body(None, body);
                return Read::guess(requested, tokens, Unread::BadRequest(error));
            }
        };
        let read = self.read_request(known, api, body, &request, now_unix);
        let previous = request.previous_response().map(str::to_owned);
        let unstored = !request.stores();
        Read { previous, unstored, cache_use: request.cache_use(), ..read }
    }

    /// Reads the prompt of a request.
    fn read_request<'b>(
        &mut self,
        (policy, models): (&Policy, &[KnownModel]),
        api: Api,
        body: &'b [u8],
        request: &Request<'b>,
        now_unix: i64,
    ) -> Read<'b> {
        let requested = request.requested();
        let ratio = self.ratio;
        let unread = |requested, why| Read::guess(requested, ratio.tokens(body.len()), why);
        let Some((known, adapter)) = wanted((policy, models), &requested) else {
            let why = if models.is_empty() { Unread::NoModel } else { Unread::NoTokenizer };
            return unread(requested, why);
        };
        let loaded = known.artefact.and_then(|id| self.models.get_mut(&id));
        let Some(Loaded::Ready(prompter)) = loaded else {
            return unread(requested, Unread::NoTokenizer);
        };
        let root = known.root(adapter, prompter.model().cache_salt(request));
        let before = (prompter.memo_hits(), prompter.memo_misses());
        match prompter.prefix(request, root, policy.prefix_tokens, now_unix) {
            Ok(prefix) => {
                if prefix.exact {
                    let tokens = u32::try_from(prefix.prompt_tokens).unwrap_or(u32::MAX);
                    self.ratio.observe(body.len(), tokens);
                }
                let read = read_of(prompter, before, prefix, request.requested());
                if api == Api::Chat {
                    let beginnings = &mut self.beginnings;
                    let limit_tokens = policy.prefix_tokens;
                    beginnings.learn(body, request, prompter, root, limit_tokens, now_unix);
                }
                Read { asked: request.asked(), ..read }
            }
            Err(error) => unread(request.requested(), Unread::Prompt(error)),
        }
    }

    /// Reads a chat that begins as others did.
    fn read_after_beginning(
        &mut self,
        known: (&Policy, &[KnownModel]),
        body: &[u8],
        reach: Reach,
        now_unix: i64,
    ) -> Option<Read<'static>> {
        let found = self.beginnings.find(body, now_unix)?;
        let requested = Requested::by_name(found.model().to_owned());
        let (model, adapter) = wanted(known, &requested)?;
        let root = model.root(adapter, found.cache_salt());
        let Loaded::Ready(prompter) = self.models.get_mut(&model.artefact?)? else { return None };
        let before = (prompter.memo_hits(), prompter.memo_misses());
        let prefix = prompter.prefix_after(&found, &root, known.0.prefix_tokens, reach)?;
        let read = read_of(prompter, before, prefix, requested.clone());
        Some(Read { beginning: true, ..read })
    }
}

/// The model that is asked for, where the relay has told of it, and the adapter on it.
fn wanted<'a>(
    (policy, models): (&'a Policy, &'a [KnownModel]),
    requested: &'a Requested<'_>,
) -> Option<(&'a KnownModel, &'a str)> {
    let resolved = resolve(policy, models.iter().map(|known| &known.model), requested);
    let Wants::Model { adapter, .. } = resolved.wants else { return None };
    Some((models.get(resolved.told?)?, adapter))
}

fn read_of<'a>(
    prompter: &Prompter,
    before: (u64, u64),
    prefix: Prefix,
    requested: Requested<'a>,
) -> Read<'a> {
    Read {
        requested,
        memo: (prompter.memo_hits() - before.0, prompter.memo_misses() - before.1),
        keys: prefix.keys,
        left_out: prefix.left_out,
        unread: (prefix.end == End::Media).then_some(Unread::Media),
        prompt_tokens: u32::try_from(prefix.prompt_tokens).unwrap_or(u32::MAX),
        ..Read::default()
    }
}
