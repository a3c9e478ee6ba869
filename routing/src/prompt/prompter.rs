//! A model with its memo: from a request to its prefix.

use std::borrow::Cow;

use super::bpe::Scratch;
use super::error::PromptError;
use super::memo::{Known, LEAP_MISSES, Leap, Memo, Place, Walk};
use super::model::Model;
use super::render::render;
use super::request::{Prompt, Request};
use super::spaces::Opening;
use super::stretch::Stretches;
use super::tokenizer::Stop;
use crate::fingerprint::{BLOCK_TOKENS, Chain, Fingerprint};

/// Bytes per token that are assumed where none were counted.
const BYTES_PER_TOKEN: usize = 4;

/// The prefix of a request's prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The name of each full block, from the start.
    pub names: Vec<Fingerprint>,
    /// Tokens whose ids are known; at most the limit.
    pub tokens: usize,
    /// Tokens of the whole prompt: counted if `exact`, else estimated.
    pub prompt_tokens: usize,
    /// Whether `prompt_tokens` was counted.
    pub exact: bool,
    /// Why the known tokens end where they do.
    pub end: End,
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

/// A prompt as text, before it is tokenized.
pub(super) struct Text<'a> {
    pub(super) content: Cow<'a, str>,
    /// The ids that the tokenizer puts around a text are added.
    pub(super) marked: bool,
    /// The text ends where something that isn't text begins.
    pub(super) media: bool,
}

/// Stretches in a row that are worth a leap.
const LEAP_STRETCHES: usize = 3;

/// A prefix as far as it is known, while it is read.
struct Reached {
    chain: Chain,
    names: Vec<Fingerprint>,
    walk: Walk,
    /// Entries of the memo on the way.
    places: Vec<Place>,
}

/// A place between two stretches, on the way along a text.
struct At {
    chain: Chain,
    /// Names up to there.
    names: usize,
    walk: Walk,
    /// Bytes of text up to there, and what begins there.
    end: usize,
    opening: Opening,
}

/// Where a leap could be filed: from the end of the first stretch over others that were known.
struct Run {
    from: Place,
    start: At,
    /// Stretches since, or since the leap that is filed already.
    stretches: usize,
}

/// A model and what it tokenized before: one per worker and model.
pub struct Prompter {
    model: Model,
    memo: Memo,
    scratch: Scratch,
    ids: Vec<u32>,
    hits: u64,
    misses: u64,
}

impl Prompter {
    /// A prompter with a memo of at most about `memo_bytes`; 0 for none.
    pub fn new(model: Model, memo_bytes: usize) -> Self {
        Self {
            model,
            memo: Memo::new(memo_bytes),
            scratch: Scratch::default(),
            ids: Vec::new(),
            hits: 0,
            misses: 0,
        }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Tokens that were known so far without tokenizing.
    pub fn memo_hits(&self) -> u64 {
        self.hits
    }

    /// Tokens that had to be tokenized so far.
    pub fn memo_misses(&self) -> u64 {
        self.misses
    }

    /// Bytes that the memo takes now, about.
    pub fn memo_bytes(&self) -> usize {
        self.memo.bytes()
    }

    /// The fingerprints of the first `limit` tokens under `root`, the scope's. `now_unix` is the
    /// time in seconds since 1970, for templates that write the date.
    ///
    /// # Errors
    /// [`PromptError`] for a request whose prompt can't be told.
    pub fn prefix(
        &mut self,
        request: &Request<'_>,
        root: Fingerprint,
        limit: usize,
        now_unix: i64,
    ) -> Result<Prefix, PromptError> {
        let mut chain = Chain::from_root(root);
        let mut names = Vec::new();
        if let Some(what) = request.unsupported {
            return Err(PromptError::UnsupportedContent(what));
        }
        if let Prompt::Ids(ids) = &request.prompt {
            chain.push(ids.get(..limit).unwrap_or(ids), |name| names.push(name));
            return Ok(Prefix {
                names,
                tokens: ids.len().min(limit),
                prompt_tokens: ids.len(),
                exact: true,
                end: if ids.len() > limit { End::Limit } else { End::Complete },
            });
        }
        let text = text(&self.model, &request.prompt, now_unix)?;
        Ok(self.text_prefix(&text, chain, root, limit))
    }

    fn text_prefix(
        &mut self,
        text: &Text<'_>,
        mut chain: Chain,
        root: Fingerprint,
        limit: usize,
    ) -> Prefix {
        let tokenizer = &self.model.tokenizer;
        let mut names =
            Vec::with_capacity((text.content.len() / 64).min(limit / BLOCK_TOKENS + 64));
        if text.marked {
            chain.push(&tokenizer.before, |name| names.push(name));
        }
        let walk = self.memo.walk(&root, text.marked);
        let mut reached = Reached { chain, names, walk, places: Vec::new() };
        let mut stretches = Stretches::new(&text.content);
        let mut stop = Stop::End;
        let mut run: Option<Run> = None;
        let mut before = reached.at(&stretches);
        // Tokens and bytes of what was tokenized to the end of a stretch.
        let mut whole = (reached.chain.tokens(), 0);
        while reached.chain.tokens() < limit {
            before = reached.at(&stretches);
            let Some((stretch, safe)) = stretches.advance(tokenizer) else { break };
            let memo = safe && self.memo.is_on();
            let place = memo.then(|| reached.walk.then(stretch));
            if let Some(place) = place
                && let Some(known) = self.memo.get(&place)
            {
                self.hits += (known.chain.tokens() - reached.chain.tokens()) as u64;
                reached.take(place, known);
                if let Some(run) = &mut run {
                    run.stretches += 1;
                } else {
                    run = Some(Run { from: place, start: reached.at(&stretches), stretches: 0 });
                    let memo = &mut self.memo;
                    self.hits += leap(memo, &text.content, &mut reached, &mut stretches, limit);
                }
                whole = (reached.chain.tokens(), stretches.position());
                continue;
            }
            if let Some(run) = run.take() {
                file_leap(&mut self.memo, &text.content, &run, &reached.names, &before);
            }
            self.ids.clear();
            let left = limit - reached.chain.tokens();
            stop = tokenizer.encode_parts(
                &text.content,
                &stretches.parts,
                left,
                &mut self.scratch,
                &mut self.ids,
            );
            let first = reached.names.len();
            reached.chain.push(&self.ids, |name| reached.names.push(name));
            self.misses += self.ids.len() as u64;
            if stop != Stop::End {
                break;
            }
            whole = (reached.chain.tokens(), stretches.position());
            if let Some(place) = place {
                let names = reached.names.get(first..).unwrap_or_default().into();
                self.memo.put(place, Known { names, chain: reached.chain, leap: None });
                reached.places.push(place);
            }
        }
        if let Some(run) = run {
            file_leap(&mut self.memo, &text.content, &run, &reached.names, &before);
        }
        let Reached { mut chain, mut names, places, .. } = reached;
        self.memo.touch(&places);
        let at_end = stop == Stop::End && stretches.position() >= text.content.len();
        if at_end && text.marked && !text.media {
            chain.push(&tokenizer.after, |name| names.push(name));
        }
        let known = chain.tokens();
        names.truncate(limit / BLOCK_TOKENS);
        let end = match stop {
            Stop::Word => End::Word,
            _ if known > limit || !at_end => End::Limit,
            _ if text.media => End::Media,
            _ => End::Complete,
        };
        let exact = at_end && !text.media;
        let prompt_tokens = if exact {
            known
        } else {
            let (tokens, bytes) = whole;
            let guess = match bytes {
                0 => text.content.len() / BYTES_PER_TOKEN,
                bytes => text.content.len().saturating_mul(tokens) / bytes,
            };
            guess.max(known)
        };
        Prefix { names, tokens: known.min(limit), prompt_tokens, exact, end }
    }

    /// The rendered text and the token ids; of a long prompt only the first `limit`, if given.
    ///
    /// # Errors
    /// [`PromptError`] for a request whose prompt can't be told.
    pub fn tokens(
        &mut self,
        request: &Request<'_>,
        limit: Option<usize>,
        now_unix: i64,
    ) -> Result<Tokens, PromptError> {
        let limit = limit.unwrap_or(usize::MAX);
        if let Some(what) = request.unsupported {
            return Err(PromptError::UnsupportedContent(what));
        }
        if let Prompt::Ids(all) = &request.prompt {
            let ids = all.get(..limit).unwrap_or(all).to_vec();
            let end = if ids.len() < all.len() { End::Limit } else { End::Complete };
            return Ok(Tokens { text: None, ids, end });
        }
        let text = text(&self.model, &request.prompt, now_unix)?;
        let tokenizer = &self.model.tokenizer;
        let mut ids = Vec::with_capacity(text.content.len() / BYTES_PER_TOKEN);
        if text.marked {
            ids.extend_from_slice(&tokenizer.before);
        }
        let mut stretches = Stretches::new(&text.content);
        let mut stop = Stop::End;
        while stop == Stop::End && ids.len() < limit {
            if stretches.advance(tokenizer).is_none() {
                break;
            }
            stop = tokenizer.encode_parts(
                &text.content,
                &stretches.parts,
                limit,
                &mut self.scratch,
                &mut ids,
            );
        }
        let at_end = stop == Stop::End && stretches.position() >= text.content.len();
        if at_end && text.marked && !text.media {
            ids.extend_from_slice(&tokenizer.after);
        }
        let end = match stop {
            Stop::Word => End::Word,
            _ if ids.len() > limit || !at_end => End::Limit,
            _ if text.media => End::Media,
            _ => End::Complete,
        };
        ids.truncate(limit);
        Ok(Tokens { text: Some(text.content.into_owned()), ids, end })
    }
}

impl Reached {
    fn at(&self, stretches: &Stretches<'_>) -> At {
        At {
            chain: self.chain,
            names: self.names.len(),
            walk: self.walk,
            end: stretches.position(),
            opening: stretches.opening(),
        }
    }

    fn take(&mut self, place: Place, known: &Known) {
        self.names.extend_from_slice(&known.names);
        self.chain = known.chain;
        self.places.push(place);
    }
}

/// From the end of the first stretch, which was known, as far as texts that begin so were known
/// before, if this one is alike up to there. Gives the tokens on the way.
fn leap(
    memo: &mut Memo,
    text: &str,
    reached: &mut Reached,
    stretches: &mut Stretches<'_>,
    limit: usize,
) -> u64 {
    let Some(from) = reached.places.last().copied() else { return 0 };
    let Some(leap) = memo.get(&from).and_then(|known| known.leap.as_deref()) else { return 0 };
    let leap = leap.clone();
    let to = text.get(stretches.position()..leap.end).map(|over| {
        let mut walk = reached.walk;
        walk.then(over)
    });
    // Not beyond the limit, which stretch by stretch would not be passed either.
    let found = to.and_then(|to| Some((to, memo.get(&to)?)));
    let known = found.filter(|(_, known)| known.chain.tokens() <= limit);
    let well = known.is_some();
    let mut tokens = 0;
    if let Some((to, known)) = known {
        tokens = (known.chain.tokens() - reached.chain.tokens()) as u64;
        reached.take(to, known);
        reached.walk = leap.walk;
        stretches.leap(leap.end, leap.opening);
    }
    memo.leapt(&from, well);
    tokens
}

/// Files a leap over a run of stretches that were known, if it leads further than the one that is
/// there, or that one has led nowhere of late.
fn file_leap(memo: &mut Memo, text: &str, run: &Run, names: &[Fingerprint], to: &At) {
    let there = memo.get(&run.from).and_then(|known| known.leap.as_deref());
    let trusted = there.is_some_and(|leap| (1..LEAP_MISSES).contains(&leap.missed));
    if run.stretches < LEAP_STRETCHES || trusted {
        return;
    }
    let Some(over) = text.get(run.start.end..to.end) else { return };
    let mut walk = run.start.walk;
    let place = walk.then(over);
    let names = names.get(run.start.names..to.names).unwrap_or_default().into();
    let known = Known { names, chain: to.chain, leap: None };
    let leap = Leap { end: to.end, opening: to.opening, walk: to.walk, missed: 0 };
    memo.put_leap(&run.from, leap, place, known);
}

fn text<'r>(model: &Model, prompt: &'r Prompt<'_>, now_unix: i64) -> Result<Text<'r>, PromptError> {
    match prompt {
        Prompt::Chat(chat) => render(model, chat, now_unix),
        Prompt::Text { text, add_special_tokens } => Ok(Text {
            content: Cow::Borrowed(text.as_ref()),
            marked: *add_special_tokens,
            media: false,
        }),
        // Answered before a text is asked for.
        Prompt::Ids(_) => Ok(Text { content: Cow::Borrowed(""), marked: false, media: false }),
    }
}
