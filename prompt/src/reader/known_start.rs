//! What a prompt starts with that was read before, so that only what comes after it is read.

use std::borrow::Cow;

use siphasher::sip128::SipHasher13;
use warmpath_routing::fingerprint::{BLOCK_TOKENS, Chain, Fingerprint, Key};
use warmpath_routing::recent::is_little;

use super::memo::Walk;
use super::prefix::{End, Prefix, Reach};
use super::prompter::{MOST_ROOM, Prompter, Start};
use crate::request::{Prompt, Request};
use crate::template::render::shape;
use crate::template::script::Shape;
use crate::template::text::Text;
use crate::tokenizer::Stop;
use crate::tokenizer::spaces::Opening;
use crate::tokenizer::stretch::Stretches;

/// Bytes after a known start that are tokenized each time: to keep them, which are mostly others
/// each time, would cost about as much.
const MOST_BRIEF: usize = 512;

/// Bytes after a known start that may be left out. A token has a byte at least.
const MOST_LEFT_OUT: usize = 256;

/// Bytes between the end of a stretch and the last cut before a question: mostly less than a stretch
/// has.
const MOST_TO_CUT: usize = 2 << 10;

/// Bytes after the last stretch that is read: there is always more to come than what it needs.
const LOOK_AHEAD: usize = 1 << 10;

/// A place in a text, and what its prompt comes to up to there.
#[derive(Clone, Copy)]
struct Place {
    before: usize,
    opening: Opening,
    keys: usize,
    chain: Chain,
    walk: Walk,
}

/// What a prompt starts with, as far as that is tokenized, and the rest of it that isn't.
pub(crate) struct KnownStart {
    /// From the last stretch's end on.
    text: Box<str>,
    keys: Box<[Key]>,
    /// Where the last stretch ends.
    stretch: Place,
    /// Where the last safe cut after that is, if there is one.
    cut: Option<Place>,
    /// Bytes of the rest beyond the limit, which aren't in the text.
    unseen: usize,
    marked: bool,
}

impl KnownStart {
    /// Bytes that it takes, about.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.text.len() + size_of_val(&*self.keys)
    }
}

impl Prompter {
    /// What a chat comes to up to its question: what the template makes of it, and its tokens.
    pub(crate) fn beginning(
        &mut self,
        request: &Request<'_>,
        question: &str,
        root: Fingerprint,
        limit: usize,
        now_unix: i64,
    ) -> Option<(Shape, KnownStart)> {
        let Prompt::Chat(chat) = &request.prompt else { return None };
        let mut shape = shape(&self.model, chat, now_unix)?;
        let before = std::mem::take(&mut shape.before);
        let content = [&before, shape.part(question), &shape.after].concat();
        let text = Text {
            content: Cow::Owned(content),
            marked: chat.add_special_tokens,
            media: None,
            continued: None,
        };
        let known = self.known_start(&text, root, before.len(), limit)?;
        Some((shape, known))
    }

    /// How far a text is known whatever comes after its first `to` bytes: to the end of its last
    /// stretch there, each of which the memo knows, and on to the last safe cut. `None` if it isn't
    /// known at all. Where a stretch ends may depend on what comes next, if that makes an added token.
    fn known_start(
        &mut self,
        text: &Text<'_>,
        root: Fingerprint,
        to: usize,
        limit: usize,
    ) -> Option<KnownStart> {
        let content = text.content.as_ref();
        let Start { mut chain, mut keys, mut walk, opening, .. } =
            self.start(root, text.marked, content.len() / 64);
        let tokenizer = &self.model.tokenizer;
        let ahead = tokenizer.raw.longest() + 2;
        let mut stretches = Stretches::new(content, opening);
        // What is known at the end of the last stretch that is.
        let mut here = Place { before: 0, opening, keys: keys.len(), chain, walk };
        let mut end = None;
        while chain.tokens() < limit {
            let (stretch, safe) = stretches.advance(tokenizer)?;
            let before = stretches.position();
            if !safe || before + ahead > to {
                break;
            }
            let place = walk.then(stretch);
            let left = limit - chain.tokens();
            let reaches_limit = if let Some(known) = self.memo.get(&place) {
                keys.extend_from_slice(&known.keys);
                chain = known.chain;
                chain.tokens() >= limit
            } else {
                // The memo keeps only what is whole.
                let (scratch, ids) = (&mut self.scratch, &mut self.ids);
                ids.clear();
                let stop = tokenizer.encode_parts(content, &stretches.parts, left, scratch, ids);
                if stop == Stop::End && ids.len() < left {
                    break;
                }
                true
            };
            if reaches_limit {
                // Nothing is read beyond this one.
                end = Some(content.floor_char_boundary(before + ahead.max(LOOK_AHEAD)).min(to));
                break;
            }
            here = Place { before, opening: stretches.opening(), keys: keys.len(), chain, walk };
        }
        keys.truncate(here.keys);
        let cut = match end {
            Some(_) => None,
            None => self.on_to_cut(content.get(..to)?, here, ahead, limit, &mut keys),
        };
        let end = end.unwrap_or(to);
        (here.before > 0 || cut.is_some()).then_some(())?;
        Some(KnownStart {
            text: content.get(here.before..end)?.into(),
            keys: keys.into(),
            stretch: here,
            cut,
            unseen: to - end,
            marked: text.marked,
        })
    }

    /// From a place on to the last safe cut of a text whose last `ahead` bytes may belong to an
    /// added token that goes on after it, if that isn't far. Adds its keys.
    fn on_to_cut(
        &mut self,
        text: &str,
        here: Place,
        ahead: usize,
        limit: usize,
        keys: &mut Vec<Key>,
    ) -> Option<Place> {
        let Place { before, mut chain, mut walk, .. } = here;
        let tokenizer = &self.model.tokenizer;
        let (cut, opening) = tokenizer.last_cut(text, before, ahead)?;
        let part = text.get(before..cut).filter(|part| part.len() <= MOST_TO_CUT)?;
        let left = limit.checked_sub(chain.tokens())?;
        let mut stretches = Stretches::new(part, here.opening);
        self.ids.clear();
        while stretches.advance(tokenizer).is_some() {
            let (parts, scratch, ids) = (&stretches.parts, &mut self.scratch, &mut self.ids);
            let stop = tokenizer.encode_parts(part, parts, left, scratch, ids);
            if stop != Stop::End || ids.len() >= left {
                return None;
            }
        }
        chain.push(&self.ids, |name| keys.push(name.key()));
        walk.then(part);
        Some(Place { before: cut, opening, keys: keys.len(), chain, walk })
    }

    /// The prefix of a known start and what comes after it.
    pub(crate) fn prefix_of_known(
        &mut self,
        known: &KnownStart,
        rest: [&str; 2],
        limit: usize,
        reach: Reach,
    ) -> Prefix {
        // A token has a byte at least, mostly. Where the limit is reached, what comes after it is
        // estimated by where stretches end, which a cut isn't.
        let [question, after] = rest;
        let bytes = known.text.len() + question.len() + after.len();
        if let Some(cut) = known.cut.filter(|cut| cut.chain.tokens() + bytes < limit) {
            if reach == Reach::News
                && let Some(prefix) = self.news(known, cut, rest)
            {
                return prefix;
            }
            let prefix = self.prefix_from(known, cut, rest, limit);
            if prefix.exact {
                return prefix;
            }
        }
        self.prefix_from(known, known.stretch, rest, limit)
    }

    /// The prefix to the end of the first block that a known start alone doesn't tell, if what comes
    /// after that seems to be little.
    fn news(&mut self, known: &KnownStart, cut: Place, rest: [&str; 2]) -> Option<Prefix> {
        let [question, after] = rest;
        let left =
            known.stretch.before + known.text.len() - cut.before + question.len() + after.len();
        let blocks = cut.chain.tokens() / BLOCK_TOKENS;
        // As many bytes to a token as there were so far.
        let end = cut.chain.tokens() + left * cut.chain.tokens() / cut.before.max(1);
        let tokenizer = &self.model.tokenizer;
        if left > MOST_LEFT_OUT
            || !is_little(blocks, end / BLOCK_TOKENS)
            || tokenizer.lengthens(question)
        {
            return None;
        }
        let prefix = self.prefix_from(known, cut, rest, (blocks + 1) * BLOCK_TOKENS);
        match prefix.end {
            End::Complete => Some(prefix),
            End::Limit => {
                // The same everywhere, so that equal prompts have equal ones.
                let hash = SipHasher13::new().hash(question.as_bytes()).as_u128();
                let prompt_tokens = prefix.prompt_tokens.max(prefix.tokens + 1);
                Some(Prefix { left_out: Some(hash), prompt_tokens, ..prefix })
            }
            End::Media | End::Word => None,
        }
    }

    fn prefix_from(
        &mut self,
        known: &KnownStart,
        here: Place,
        rest: [&str; 2],
        limit: usize,
    ) -> Prefix {
        let Place { before, opening, chain, walk, .. } = here;
        let [question, after] = rest;
        let text = known.text.get(before - known.stretch.before..).unwrap_or_default();
        // Of what lies beyond the limit only the length matters.
        let (content, unseen) = if known.unseen == 0 {
            (Cow::Owned([text, question, after].concat()), 0)
        } else {
            (Cow::Borrowed(text), known.unseen + question.len() + after.len())
        };
        let more = (content.len() / 32).min(MOST_ROOM);
        let mut keys = Vec::with_capacity(here.keys + more);
        keys.extend_from_slice(known.keys.get(..here.keys).unwrap_or_default());
        self.hits += chain.tokens() as u64;
        let memo = self.memo.is_on() && content.len() > MOST_BRIEF;
        let text = Text { content, marked: known.marked, media: None, continued: None };
        let start = Start { chain, keys, walk, opening, before, unseen, memo };
        self.text_prefix(&text, start, limit)
    }
}
