//! Reading prompts: the models that one VM has loaded.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use warmpath_prompt::{
    Api, Beginnings, CacheUse, End, Model, Prefix, PromptError, Prompter, Reach, Request,
    model_in_body,
};
use warmpath_routing::catalogue::{Wants, resolve};
use warmpath_routing::decision::Degrade;
use warmpath_routing::drift::Asked;
use warmpath_routing::fingerprint::Key;
use warmpath_routing::policy::Policy;
use warmpath_routing::requested::Requested;

use super::view::{KnownModel, View};
use crate::shared::{self, Data};

/// Beginnings of bodies may take this part of what a memo may take.
const BEGINNINGS_SHARE: usize = 8;

/// What a body says.
#[derive(Debug, Default)]
pub(super) struct Read<'a> {
    /// What it says of its model.
    pub(super) requested: Requested<'a>,
    /// Keys of the prompt's blocks.
    pub(super) keys: Vec<Key>,
    /// Tokens of the prompt, as far as known.
    pub(super) prompt_tokens: u32,
    /// A hash of what comes after the keys, if that was left out.
    pub(super) left_out: Option<u128>,
    /// Tokens that the memo knew, and tokens that were tokenized.
    pub(super) memo: (u64, u64),
    /// What an engine does with its cache for it.
    pub(super) cache_use: CacheUse,
    /// What the prompt is made of, and the messages of a chat, where they were counted.
    pub(super) asked: (Asked, u8),
    /// It began as others did, so that only its question was looked into.
    pub(super) beginning: bool,
    /// The stored response that it goes on from, by its id.
    pub(super) previous: Option<String>,
    /// Its own response is not to be stored.
    pub(super) unstored: bool,
    /// Why there are no keys, or not all.
    pub(super) degrade: Option<Degrade>,
}

/// A loaded tokenizer and chat template, or the fact that it can't be.
enum Slot {
    Ready(Box<Prompter>),
    Refused,
}

/// The models, by artefact. A VM has one of these, however often it is configured: a tokenizer
/// takes tens of megabytes, and memory that a VM has taken it never gives back.
pub(super) struct Prompts {
    slots: BTreeMap<[u8; 32], Slot>,
    beginnings: Beginnings,
    ratio: Ratio,
}

impl Default for Prompts {
    fn default() -> Self {
        Self { slots: BTreeMap::new(), beginnings: Beginnings::new(0), ratio: Ratio::default() }
    }
}

/// How many bytes of a body are a token of its prompt, by those that were read of late: that differs
/// with languages, tokenizers, and what clients write around a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio(f64);

impl Default for Ratio {
    /// English.
    fn default() -> Self {
        Self(4.0)
    }
}

impl Ratio {
    /// A body of so many bytes was a prompt of so many tokens.
    fn observe(&mut self, bytes: usize, tokens: u32) {
        const NEWEST: f64 = 1.0 / 16.0;
        // Long ones are guessed, so it is of those that it has to be right.
        const ENOUGH: u32 = 256;
        if tokens >= ENOUGH {
            let seen = (bytes as f64 / f64::from(tokens)).clamp(1.0, 64.0);
            self.0 += NEWEST * (seen - self.0);
        }
    }

    /// What a body of so many bytes may come to.
    fn tokens(self, bytes: usize) -> u32 {
        // A float that is too large becomes the largest.
        (bytes as f64 / self.0) as u32
    }
}

thread_local! {
    static OF_THIS_VM: RefCell<Weak<RefCell<Prompts>>> = const { RefCell::new(Weak::new()) };
}

/// What loading came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Loaded {
    /// There was nothing left to load.
    Nothing,
    /// A model is ready.
    Ready(String),
    /// A model can't be used, and why.
    Refused(String, String),
}

impl Prompts {
    /// Those of this VM.
    pub(super) fn of_this_vm() -> Rc<RefCell<Self>> {
        OF_THIS_VM.with_borrow_mut(|weak| {
            weak.upgrade().unwrap_or_else(|| {
                let fresh = Rc::default();
                *weak = Rc::downgrade(&fresh);
                fresh
            })
        })
    }

    /// Models that are ready.
    pub(super) fn ready(&self) -> usize {
        self.slots.values().filter(|slot| matches!(slot, Slot::Ready(_))).count()
    }

    /// Bytes that the memos take, about.
    pub(super) fn memo_bytes(&self) -> usize {
        let bytes = |slot: &Slot| match slot {
            Slot::Ready(prompter) => prompter.memo_bytes(),
            Slot::Refused => 0,
        };
        self.slots.values().map(bytes).sum::<usize>() + self.beginnings.bytes()
    }

    /// Loads one model that is known, whole and not loaded yet; forgets those that nobody knows
    /// any more. At most one at a time: each stops this worker for as long as it takes.
    pub(super) fn load_one(&mut self, view: &View, data: &impl Data, memo_bytes: usize) -> Loaded {
        let before = self.slots.len();
        self.slots.retain(|id, _| view.models.iter().any(|known| known.artefact == Some(*id)));
        if self.slots.len() < before {
            self.forget_beginnings(memo_bytes);
        }
        let wanted = view.models.iter().find_map(|known| {
            let id = known.artefact.filter(|id| !self.slots.contains_key(id))?;
            Some((id, *view.artefacts.get(&id)?, known.model.name.clone()))
        });
        let Some((id, place, name)) = wanted else { return Loaded::Nothing };
        let bytes = data.get(&shared::artefact_key(place)).ok().flatten().unwrap_or_default();
        // The place may have been given to another artefact since the index was read.
        if *blake3::hash(&bytes).as_bytes() != id {
            return Loaded::Nothing;
        }
        match Model::load(bytes) {
            Ok(model) => {
                let prompter = Prompter::new(model, memo_bytes);
                self.forget_beginnings(memo_bytes);
                self.slots.insert(id, Slot::Ready(Box::new(prompter)));
                Loaded::Ready(name)
            }
            Err(error) => {
                self.slots.insert(id, Slot::Refused);
                Loaded::Refused(name, error.to_string())
            }
        }
    }

    // What was learned with one prompter is of no use to another.
    fn forget_beginnings(&mut self, memo_bytes: usize) {
        self.beginnings = Beginnings::new(memo_bytes / BEGINNINGS_SHARE);
    }

    /// Reads a body: model, prompt, fingerprints; at least so far of its first
    /// [`Policy::prefix_tokens`].
    pub(super) fn read<'b>(
        &mut self,
        (policy, view): (&Policy, &View),
        api: Api,
        body: &'b [u8],
        reach: Reach,
        now_unix: u64,
    ) -> Read<'b> {
        let now_unix = i64::try_from(now_unix).unwrap_or(0);
        if api == Api::Chat
            && let Some(read) = self.read_after_beginning((policy, view), body, reach, now_unix)
        {
            return read;
        }
        let Ok(request) = Request::parse(api, body) else {
            let requested = model_in_body(None, body);
            return self.guess(requested, body.len()).because(Degrade::BadRequest);
        };
        let read = self.read_request((policy, view), api, body, &request, now_unix);
        let previous = request.previous_response().map(str::to_owned);
        let unstored = !request.stores();
        Read { previous, unstored, cache_use: request.cache_use(), ..read }
    }

    /// Reads the prompt of a request.
    fn read_request<'b>(
        &mut self,
        (policy, view): (&Policy, &View),
        api: Api,
        body: &'b [u8],
        request: &Request<'b>,
        now_unix: i64,
    ) -> Read<'b> {
        let requested = request.requested();
        let ratio = self.ratio;
        let unread = |requested, why| Read::guess(requested, ratio.tokens(body.len())).because(why);
        let Some((known, adapter)) = wanted((policy, view), &requested) else {
            // Before the relay was heard that is the cause.
            let silent = view.models.is_empty();
            let why = if silent { Degrade::StaleMap } else { Degrade::NoTokenizer };
            return unread(requested, why);
        };
        let slot = known.artefact.and_then(|id| self.slots.get_mut(&id));
        let Some(Slot::Ready(prompter)) = slot else {
            return unread(requested, Degrade::NoTokenizer);
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
            Err(error) => unread(request.requested(), degrade_of(&error)),
        }
    }

    /// What a body of so many bytes may come to of which nothing else is known.
    pub(super) fn guess<'a>(&self, requested: Requested<'a>, bytes: usize) -> Read<'a> {
        Read::guess(requested, self.ratio.tokens(bytes))
    }

    /// Reads a chat that begins as others did.
    fn read_after_beginning(
        &mut self,
        (policy, view): (&Policy, &View),
        body: &[u8],
        reach: Reach,
        now_unix: i64,
    ) -> Option<Read<'static>> {
        let found = self.beginnings.find(body, now_unix)?;
        let requested = Requested::by_name(found.model().to_owned());
        let (known, adapter) = wanted((policy, view), &requested)?;
        let root = known.root(adapter, found.cache_salt());
        let Slot::Ready(prompter) = self.slots.get_mut(&known.artefact?)? else { return None };
        let before = (prompter.memo_hits(), prompter.memo_misses());
        let prefix = prompter.prefix_after(&found, &root, policy.prefix_tokens, reach)?;
        let read = read_of(prompter, before, prefix, requested.clone());
        Some(Read { beginning: true, ..read })
    }
}

/// The model that is asked for, where the relay has told of it, and the adapter on it.
fn wanted<'a>(
    (policy, view): (&'a Policy, &'a View),
    requested: &'a Requested<'_>,
) -> Option<(&'a KnownModel, &'a str)> {
    let resolved = resolve(policy, view.told(), requested);
    let Wants::Model { adapter, .. } = resolved.wants else { return None };
    Some((view.models.get(resolved.told?)?, adapter))
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
        degrade: (prefix.end == End::Media).then_some(Degrade::Media),
        prompt_tokens: u32::try_from(prefix.prompt_tokens).unwrap_or(u32::MAX),
        ..Read::default()
    }
}

impl<'a> Read<'a> {
    /// Of a prompt that may have so many tokens.
    fn guess(requested: Requested<'a>, prompt_tokens: u32) -> Self {
        Self { requested, prompt_tokens, ..Self::default() }
    }

    /// The same, and why there are no keys.
    pub(super) fn because(self, why: Degrade) -> Self {
        Self { degrade: Some(why), ..self }
    }
}

fn degrade_of(error: &PromptError) -> Degrade {
    match error {
        PromptError::UnsupportedContent(_) => Degrade::Unfollowable,
        PromptError::NoTemplate
        | PromptError::TemplateRefused
        | PromptError::TemplateFailed(_)
        | PromptError::RequestTemplate => Degrade::Template,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_read_is_guessed_by_what_was() {
        let mut ratio = Ratio::default();
        assert_eq!(ratio.tokens(4_000_000), 1_000_000);
        for _ in 0..100 {
            ratio.observe(20_000, 10_000);
            // Mostly what is written around the prompt.
            ratio.observe(100_000, 20);
        }
        let near = |tokens: u32, is: u32| tokens.abs_diff(is) < is / 50;
        assert!(near(ratio.tokens(4_000_000), 2_000_000), "{ratio:?}");
        for _ in 0..1_000 {
            ratio.observe(usize::MAX, 256);
        }
        assert!(near(ratio.tokens(6_400), 100) && ratio.tokens(usize::MAX) == u32::MAX);
    }
}
