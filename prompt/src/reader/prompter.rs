//! A model with its memo: from a request to its prefix.

use super::prefix::{End, Prefix, Tokens};
use crate::template::text::{Media, Text};
use std::borrow::Cow;

use crate::dialect::Engine;
use crate::error::PromptError;
use crate::model::Model;
use crate::reader::memo::{self, Memo, Walk};
use crate::request::api::Api;
use crate::request::{Prompt, Request};
use crate::sglang;
use crate::template::render::render;
use crate::tokenizer::Stop;
use crate::tokenizer::bpe::Scratch;
use crate::tokenizer::spaces::Opening;
use crate::tokenizer::stretch::Stretches;
use warmpath_routing::fingerprint::{BLOCK_TOKENS, Chain, Fingerprint, Key};

/// Bytes per token that are assumed where none were counted.
const BYTES_PER_TOKEN: usize = 4;

/// Bytes before an image that tell how many of those behind it are a token.
const ENOUGH_BYTES: usize = 1 << 10;

/// Bytes of text that are tokenized for one prompt, where a memo keeps them: what comes after that is
/// looked at with the next of its like. Ordinary text has fewer in 131,072 tokens; the worst takes a
/// worker 0.06 s.
const MOST_COLD_BYTES: usize = 1 << 20;

/// Keys for which there is room from the start.
pub(super) const MOST_ROOM: usize = 512;

/// Where a text is tokenized from, and what came before.
pub(super) struct Start {
    pub(super) chain: Chain,
    pub(super) keys: Vec<Key>,
    pub(super) walk: Walk,
    /// What begins here.
    pub(super) opening: Opening,
    /// Bytes of the prompt before the text, and bytes after what is read of it that aren't in it.
    pub(super) before: usize,
    pub(super) unseen: usize,
    /// What is read is looked up in the memo, and kept there.
    pub(super) memo: bool,
}

/// Tokens of a text of so many bytes, where so many are in its first ones. A `usize` has 32 bits in a
/// proxy's VM, where a megabyte times ten thousand tokens is no number.
fn in_proportion(length: usize, tokens: usize, bytes: usize) -> usize {
    let all = (length as u64).saturating_mul(tokens as u64) / (bytes as u64).max(1);
    usize::try_from(all).unwrap_or(usize::MAX)
}

/// A model and what it tokenized before: one per worker and model.
pub struct Prompter {
    pub(super) model: Model,
    pub(super) memo: Memo,
    pub(super) scratch: Scratch,
    pub(super) ids: Vec<u32>,
    pub(super) hits: u64,
    pub(super) misses: u64,
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
        let own = own_prompt(&self.model, request)?;
        let prompt = own.as_ref().unwrap_or(&request.prompt);
        if let Prompt::Ids(ids) = prompt {
            let mut chain = Chain::from_root(root);
            let mut keys = Vec::new();
            chain.push(ids.get(..limit).unwrap_or(ids), |name| keys.push(name.key()));
            return Ok(Prefix {
                keys,
                tokens: ids.len().min(limit),
                prompt_tokens: ids.len(),
                exact: true,
                end: if ids.len() > limit { End::Limit } else { End::Complete },
                left_out: None,
            });
        }
        let text = text(&self.model, prompt, now_unix)?;
        let start = self.start(root, text.marked, text.content.len() / 64);
        Ok(self.text_prefix(&text, start, limit))
    }

    /// Before any text, with room for so many keys.
    pub(super) fn start(&self, root: Fingerprint, marked: bool, keys: usize) -> Start {
        let mut chain = Chain::from_root(root);
        let mut keys = Vec::with_capacity(keys.min(MOST_ROOM));
        if marked {
            chain.push(&self.model.tokenizer.before, |name| keys.push(name.key()));
        }
        let walk = self.memo.walk(&root, marked);
        let memo = self.memo.is_on();
        Start { chain, keys, walk, opening: Opening::Text, before: 0, unseen: 0, memo }
    }

    /// The prefix of a text that goes on from `start`.
    pub(super) fn text_prefix(&mut self, text: &Text<'_>, start: Start, limit: usize) -> Prefix {
        let tokenizer = &self.model.tokenizer;
        let Start { mut chain, mut keys, mut walk, opening, before, unseen, memo } = start;
        let beyond = text.media.map_or(0, |media| media.bytes);
        let length = before + text.content.len() + unseen + beyond;
        let mut places = Vec::new();
        let mut stretches = Stretches::new(&text.content, opening);
        let mut stop = Stop::End;
        // Tokens and bytes of what was tokenized to the end of a stretch.
        let mut whole = (chain.tokens(), before);
        // Bytes of text that nothing was known of.
        let mut cold = 0;
        while chain.tokens() < limit {
            let Some((stretch, safe)) = stretches.advance(tokenizer) else { break };
            let place = (safe && memo).then(|| walk.then(stretch));
            if let Some(place) = place
                && let Some(known) = self.memo.get(&place)
            {
                self.hits += (known.chain.tokens() - chain.tokens()) as u64;
                keys.extend_from_slice(&known.keys);
                chain = known.chain;
                if self.memo.has_aged(known) {
                    places.push(place);
                }
                if chain.tokens() > limit {
                    stop = Stop::Limit;
                    break;
                }
                whole = (chain.tokens(), before + stretches.position());
                continue;
            }
            cold += whole.1.abs_diff(before + stretches.position());
            if cold > MOST_COLD_BYTES && memo {
                stop = Stop::Limit;
                break;
            }
            self.ids.clear();
            let left = limit - chain.tokens();
            stop = tokenizer.encode_parts(
                &text.content,
                &stretches.parts,
                left,
                &mut self.scratch,
                &mut self.ids,
            );
            let first = keys.len();
            chain.push(&self.ids, |name| keys.push(name.key()));
            self.misses += self.ids.len() as u64;
            if stop != Stop::End {
                break;
            }
            if let Some(place) = place {
                let keys = keys.get(first..).unwrap_or_default().into();
                self.memo.put(place, memo::Known::new(keys, chain));
                places.push(place);
            }
            // Tokenized alone, it might have ended early: whether it is known changes no answer.
            if chain.tokens() > limit {
                stop = Stop::Limit;
                break;
            }
            whole = (chain.tokens(), before + stretches.position());
        }
        let tokens = chain.tokens().min(limit);
        self.memo.touch(&places);
        let at_end = stop == Stop::End && stretches.position() >= text.content.len();
        if at_end && text.marked && text.media.is_none() {
            chain.push(&tokenizer.after, |name| keys.push(name.key()));
        }
        // It isn't worth a place in the memo.
        let mut whole_end = at_end;
        let mut tokens = tokens;
        if at_end
            && text.media.is_none()
            && let Some(continued) = &text.continued
        {
            let left = limit.saturating_sub(chain.tokens());
            self.ids.clear();
            stop = add_continued(&self.model, continued, left, &mut self.scratch, &mut self.ids);
            chain.push(&self.ids, |name| keys.push(name.key()));
            tokens = chain.tokens().min(limit);
            whole_end = stop == Stop::End;
        }
        keys.truncate(limit / BLOCK_TOKENS);
        let end = match stop {
            Stop::Word => End::Word,
            _ if chain.tokens() > limit || !whole_end => End::Limit,
            _ if text.media.is_some() => End::Media,
            _ => End::Complete,
        };
        let exact = whole_end && text.media.is_none();
        let prompt_tokens = if exact {
            chain.tokens()
        } else {
            let (tokens, bytes) = whole;
            let guess = match bytes {
                // So little before an image is mostly the template's own.
                ..ENOUGH_BYTES if text.media.is_some() => {
                    tokens + length.saturating_sub(bytes) / BYTES_PER_TOKEN
                }
                0 => length / BYTES_PER_TOKEN,
                bytes => in_proportion(length, tokens, bytes),
            };
            guess.max(tokens).saturating_add(text.media.map_or(0, Media::tokens))
        };
        Prefix { keys, tokens, prompt_tokens, exact, end, left_out: None }
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
        let own = own_prompt(&self.model, request)?;
        let prompt = own.as_ref().unwrap_or(&request.prompt);
        if let Prompt::Ids(all) = prompt {
            let ids = all.get(..limit).unwrap_or(all).to_vec();
            let end = if ids.len() < all.len() { End::Limit } else { End::Complete };
            return Ok(Tokens { text: None, ids, end });
        }
        let text = text(&self.model, prompt, now_unix)?;
        let tokenizer = &self.model.tokenizer;
        let mut ids = Vec::with_capacity(text.content.len() / BYTES_PER_TOKEN);
        if text.marked {
            ids.extend_from_slice(&tokenizer.before);
        }
        let mut stretches = Stretches::new(&text.content, Opening::Text);
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
        if at_end && text.marked && text.media.is_none() {
            ids.extend_from_slice(&tokenizer.after);
        }
        let mut at_end = at_end;
        if at_end
            && text.media.is_none()
            && let Some(continued) = &text.continued
        {
            let left = limit.saturating_sub(ids.len());
            stop = add_continued(&self.model, continued, left, &mut self.scratch, &mut ids);
            at_end = stop == Stop::End;
        }
        let end = match stop {
            Stop::Word => End::Word,
            _ if ids.len() > limit || !at_end => End::Limit,
            _ if text.media.is_some() => End::Media,
            _ => End::Complete,
        };
        ids.truncate(limit);
        Ok(Tokens { text: Some(text.content.into_owned()), ids, end })
    }
}

/// The prompt where the model's engine makes another one of a request than vLLM.
fn own_prompt<'a>(model: &Model, request: &Request<'a>) -> Result<Option<Prompt<'a>>, PromptError> {
    let unsupported = match (model.engine(), request.api) {
        (Engine::Sglang, _) => request.unsupported_on_sglang,
        (Engine::Vllm023, Api::Responses) => Some("Responses of this vLLM"),
        (Engine::Vllm023, Api::Messages) => Some("Messages of this vLLM"),
        (Engine::Vllm | Engine::Vllm023, _) => request.unsupported,
    };
    if let Some(what) = unsupported {
        return Err(PromptError::UnsupportedContent(what));
    }
    match model.engine() {
        Engine::Sglang => sglang::prompt(model, request).transpose(),
        Engine::Vllm | Engine::Vllm023 => Ok(None),
    }
}

/// Adds the tokens of a text that is put behind a prompt after that was tokenized, at most about
/// `left`: as a text for itself, but that what a text begins with isn't there twice (SGLang 0.5.23,
/// serving_chat.py, `_append_assistant_prefix_to_prompt_ids`).
fn add_continued(
    model: &Model,
    text: &str,
    left: usize,
    scratch: &mut Scratch,
    ids: &mut Vec<u32>,
) -> Stop {
    let tokenizer = &model.tokenizer;
    let mut encode = |text: &str, ids: &mut Vec<u32>| {
        let most = ids.len().saturating_add(left);
        let mut stretches = Stretches::new(text, Opening::Text);
        let mut stop = Stop::End;
        while stop == Stop::End && stretches.advance(tokenizer).is_some() {
            stop = tokenizer.encode_parts(text, &stretches.parts, most, scratch, ids);
            if ids.len() > most {
                stop = Stop::Limit;
            }
        }
        stop
    };
    let start = ids.len();
    ids.extend_from_slice(&tokenizer.before);
    let stop = encode(text, ids);
    if stop == Stop::End {
        ids.extend_from_slice(&tokenizer.after);
    }
    let mut bos = Vec::new();
    if let Some(token) = model.template.special("bos_token") {
        encode(token, &mut bos);
    }
    if bos.len() == 1 && ids.get(start) == bos.first() {
        ids.remove(start);
    }
    stop
}

fn text<'r>(model: &Model, prompt: &'r Prompt<'_>, now_unix: i64) -> Result<Text<'r>, PromptError> {
    match prompt {
        Prompt::Chat(chat) => render(model, chat, now_unix),
        // SGLang has no such field (0.5.23, entrypoints/openai/protocol.py, `CompletionRequest`).
        Prompt::Text { text, add_special_tokens } => Ok(Text {
            content: Cow::Borrowed(text.as_ref()),
            marked: *add_special_tokens || model.engine() == Engine::Sglang,
            media: None,
            continued: None,
        }),
        // Answered before a text is asked for.
        Prompt::Ids(_) => {
            Ok(Text { content: Cow::Borrowed(""), marked: false, media: None, continued: None })
        }
    }
}
