//! Bodies that begin alike: what a chat comes to up to its last message.
//!
//! Where many requests differ in their last text alone (the *question*), parsing, rendering and
//! naming all that comes before it again and again is most of the work. A *beginning* is a body up
//! to the question's opening quote, by its length and hash, together with all of the body from the
//! closing quote on. A body with both is the JSON that was read before, but for one string. So its
//! prompt is the one that was rendered before, but for the question, wherever its [`Shape`] holds.
//!
//! A beginning is learned when its like comes a second time, so that conversations, of which each
//! is longer than the one before, cost nothing here. Memory is bounded; what was used least lately
//! goes.

use std::borrow::Cow;
use std::cell::Cell;
use std::hash::BuildHasherDefault;

use lru::LruCache;
use serde::Deserialize;
use serde_json::value::RawValue;
use siphasher::sip::SipHasher13;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::json::Text as JsonText;
use super::memo::{AsItIs, secret};
use super::prompter::{Known, Prefix, Prompter};
use super::request::Request;
use super::script::Shape;
use crate::fingerprint::Fingerprint;

/// Bytes by which beginnings are filed.
const HEAD: usize = 256;

/// A question that comes earlier is no great loss.
const LEAST_BYTES: usize = 1 << 10;

/// What comes after the question is compared with each request.
const MOST_ENDING: usize = 1 << 10;

/// Beginnings with one head.
const MOST_ALIKE: usize = 4;

/// Every so many times the whole way is gone, so that the memo goes on knowing the beginning for
/// those who can't go this one.
const WHOLE_WAY: u32 = 64;

/// Requests of which it is remembered that they came.
const SEEN: usize = 256;

/// A body up to its question, and what is known of it.
pub struct Beginning {
    /// Bytes up to the question and their hash, and all after it.
    length: usize,
    hash: u128,
    ending: Box<[u8]>,
    model: Box<str>,
    cache_salt: Box<str>,
    root: Fingerprint,
    limit: usize,
    shape: Shape,
    known: Known,
    uses: Cell<u32>,
}

impl Beginning {
    /// The model that the body names.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// `cache_salt`; empty for none.
    pub fn cache_salt(&self) -> &str {
        &self.cache_salt
    }

    /// Whether it was learned for this root and limit.
    pub fn is_for(&self, root: &Fingerprint, limit: usize) -> bool {
        self.root == *root && self.limit == limit
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.ending.len()
            + self.model.len()
            + self.cache_salt.len()
            + self.shape.bytes()
            + self.known.bytes()
    }
}

/// A body of which it matters where the last message's content is. Where names come twice, of which
/// the last counts, there is none.
#[derive(Deserialize)]
struct Located<'a> {
    #[serde(borrow)]
    messages: Vec<LocatedMessage<'a>>,
}

#[derive(Deserialize)]
struct LocatedMessage<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

/// The beginnings that one worker knows.
pub struct Beginnings {
    by_head: LruCache<u64, Vec<Beginning>, BuildHasherDefault<AsItIs>>,
    seen: Box<[u64; SEEN]>,
    secret: [u8; 16],
    bytes: usize,
    limit: usize,
}

impl Beginnings {
    /// None yet, and never more than of about `limit` bytes; 0 for none at all.
    pub fn new(limit: usize) -> Self {
        Self {
            by_head: LruCache::unbounded_with_hasher(BuildHasherDefault::default()),
            seen: Box::new([0; SEEN]),
            secret: secret(),
            bytes: 0,
            limit,
        }
    }

    /// Bytes that they take, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets all: models or prompters are others now.
    pub fn clear(&mut self) {
        self.by_head.clear();
        self.bytes = 0;
    }

    /// The beginning of a chat's body, and its question.
    pub fn find<'b>(&mut self, body: &'b [u8]) -> Option<(&Beginning, Cow<'b, str>)> {
        if self.by_head.is_empty() {
            return None;
        }
        let head = self.head(body)?;
        let alike = self.by_head.peek(&head)?;
        let mut hashed = (0, 0);
        let place = alike.iter().position(|beginning| {
            let fits = body.len() >= beginning.length + beginning.ending.len()
                && body.ends_with(&beginning.ending);
            // They are in the order of their lengths.
            if fits && hashed.0 < beginning.length {
                hashed = (beginning.length, self.hash(body, beginning.length));
            }
            fits && hashed == (beginning.length, beginning.hash)
        })?;
        let beginning = alike.get(place)?;
        let uses = beginning.uses.replace(beginning.uses.get().wrapping_add(1));
        if uses % WHOLE_WAY == WHOLE_WAY - 1 {
            // Seldom, as it touches the memory of others.
            self.by_head.promote(&head);
            return None;
        }
        // With both quotes.
        let question = body.get(beginning.length - 1..=body.len() - beginning.ending.len())?;
        let JsonText(question) = serde_json::from_slice(question).ok()?;
        self.by_head.peek(&head)?.get(place).map(|beginning| (beginning, question))
    }

    /// Takes note of a chat whose prefix was told just now, under this root and limit.
    pub fn learn(
        &mut self,
        body: &[u8],
        request: &Request<'_>,
        prompter: &mut Prompter,
        root: Fingerprint,
        limit: usize,
        now_unix: i64,
    ) {
        // Nothing depends on it.
        let _ = self.try_learn(body, request, prompter, root, limit, now_unix);
    }

    fn try_learn(
        &mut self,
        body: &[u8],
        request: &Request<'_>,
        prompter: &mut Prompter,
        root: Fingerprint,
        limit: usize,
        now_unix: i64,
    ) -> Option<()> {
        let (question, others) = request.question()?;
        if self.limit == 0 || others < LEAST_BYTES {
            return None;
        }
        let head = self.head(body)?;
        let mark = head ^ others as u64;
        let seen = self.seen.get_mut(mark as usize % SEEN)?;
        if *seen != mark {
            *seen = mark;
            return None;
        }
        // Where the question is, with both quotes.
        let Located { messages } = serde_json::from_slice(body).ok()?;
        let quoted = messages.last()?.content?.get();
        let JsonText(text) = serde_json::from_str(quoted).ok()?;
        let length = quoted.as_ptr().addr().checked_sub(body.as_ptr().addr())? + 1;
        let ending = body.get(length + quoted.len().checked_sub(2)?..)?;
        if text != question || length < LEAST_BYTES || ending.len() > MOST_ENDING {
            return None;
        }
        let hash = self.hash(body, length);
        let is_known = |known: &Beginning| {
            (known.hash, &*known.ending, known.limit) == (hash, ending, limit) && known.root == root
        };
        if self.by_head.peek(&head).is_some_and(|alike| alike.iter().any(is_known)) {
            return None;
        }
        let (shape, known) = prompter.beginning(request, question, root, limit, now_unix)?;
        let beginning = Beginning {
            length,
            hash,
            ending: ending.into(),
            model: request.model().into(),
            cache_salt: request.cache_salt().into(),
            root,
            limit,
            shape,
            known,
            uses: Cell::new(0),
        };
        self.put(head, beginning);
        Some(())
    }

    fn put(&mut self, head: u64, beginning: Beginning) {
        self.bytes += beginning.bytes();
        let alike = self.by_head.get_or_insert_mut(head, Vec::new);
        // What is filed twice is of another root or limit, and of no use any more.
        let same = |old: &Beginning| (old.hash, &old.ending) == (beginning.hash, &beginning.ending);
        let least_used = || {
            let used = alike.iter().enumerate().min_by_key(|(_, old)| old.uses.get());
            used.map(|(at, _)| at).filter(|_| alike.len() >= MOST_ALIKE)
        };
        if let Some(at) = alike.iter().position(same).or_else(least_used) {
            self.bytes -= alike.remove(at).bytes();
        }
        for old in alike.iter() {
            old.uses.set(0);
        }
        let at = alike.partition_point(|old| old.length < beginning.length);
        alike.insert(at, beginning);
        while self.bytes > self.limit {
            let Some((_, old)) = self.by_head.pop_lru() else { break };
            self.bytes -= old.iter().map(Beginning::bytes).sum::<usize>();
        }
    }

    /// The hash of a body's head, which nobody outside can aim at: others are filed beside it.
    fn head(&self, body: &[u8]) -> Option<u64> {
        Some(SipHasher13::new_with_key(&self.secret).hash(body.get(..HEAD)?))
    }

    /// The hash of a body up to its question. It is quick rather than strong: who found two bodies
    /// of the same would only have one of them sent where the other belongs.
    fn hash(&self, body: &[u8], length: usize) -> u128 {
        let seed = self.secret.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        xxh3_128_with_seed(body.get(..length).unwrap_or_default(), seed)
    }
}

impl Prompter {
    /// The prefix of the chat that goes on from a beginning with this question; none where only the
    /// whole way can tell.
    pub fn prefix_after(
        &mut self,
        beginning: &Beginning,
        question: &str,
        now_unix: i64,
    ) -> Option<Prefix> {
        let shape = &beginning.shape;
        let rest = [shape.put(question, now_unix)?, &shape.after];
        Some(self.prefix_of_known(&beginning.known, rest, beginning.limit))
    }
}
