//! Bodies that begin alike: what a chat comes to up to its last message.
//!
//! Where many requests differ in their last text alone (the *question*), parsing, rendering and
//! naming all that comes before it again and again is most of the work. A *beginning* is a body up
//! to the question's opening quote and from its closing quote on, by a hash of both, which nobody
//! outside can aim at. A body with these is the JSON that was read before, but for one string. So
//! its prompt is the one that was rendered before, but for the question, wherever its [`Shape`]
//! holds.
//!
//! A beginning is learned when it comes again, so that conversations, of which each is longer than
//! the one before, cost next to nothing here. Memory is bounded; what was used least lately goes.

use std::borrow::Cow;
use std::cell::Cell;
use std::hash::{BuildHasherDefault, Hasher};

use lru::LruCache;
use serde::Deserialize;
use serde_json::value::RawValue;
use siphasher::sip128::SipHasher13;

use crate::json::Text as JsonText;
use crate::reader::known_start::KnownStart;
use crate::reader::memo::AsItIs;
use crate::reader::prefix::{Prefix, Reach};
use crate::reader::prompter::Prompter;
use crate::request::Request;
use crate::template::script::Shape;
use warmpath_routing::digest::{Digest, secret};
use warmpath_routing::fingerprint::Fingerprint;

/// Bytes by which beginnings are filed.
const HEAD: usize = 256;

/// Where there is less beside the question, there is little to be saved.
const LEAST_BYTES: usize = 1 << 10;

/// Beginnings with one head.
const MOST_ALIKE: usize = 4;

/// One of them takes no more than this part of the memory of all.
const MOST_SHARE: usize = 8;

/// Every so many times the whole way is gone, so that the memo goes on knowing the beginning for
/// those who can't go this one.
const WHOLE_WAY: u32 = 64;

/// Every so many times the question is read to its end even where that seems to change nothing, so
/// that engines' own counts of tokens have something to be held against; and so many times after it
/// was seen that it does change something.
const WHOLE_QUESTION: u32 = 8;
const WHOLE_AGAIN: u32 = 16;

/// Requests of which it is remembered that they came.
const SEEN: usize = 256;

/// After the first few times it is tried only once in 16 to learn a beginning: what can't be learned
/// is not to cost much.
const FIRST_TRIES: u32 = 4;
const LATER_TRIES: u32 = u32::MAX / 16;

/// A body but for its question, and what is known of it.
struct Beginning {
    /// Bytes before the question and after it, and the hashes of both.
    before: usize,
    after: usize,
    hashes: [u128; 2],
    model: Box<str>,
    cache_salt: Box<str>,
    root: Fingerprint,
    limit: usize,
    shape: Shape,
    known: KnownStart,
    uses: Cell<u32>,
    /// So many of the next questions are read to their ends.
    whole: Cell<u32>,
}

impl Beginning {
    fn is_for(&self, root: &Fingerprint, limit: usize) -> bool {
        self.root == *root && self.limit == limit
    }

    /// How far this time's question is read, if no further than that will do.
    fn reach(&self, reach: Reach) -> Reach {
        let whole = self.whole.get();
        if reach == Reach::Whole {
            self.whole.set(WHOLE_AGAIN);
        } else if whole > 0 {
            self.whole.set(whole - 1);
        } else if !self.uses.get().is_multiple_of(WHOLE_QUESTION) {
            return Reach::News;
        }
        Reach::Whole
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.model.len()
            + self.cache_salt.len()
            + self.shape.bytes()
            + self.known.bytes()
    }
}

/// A body of which the beginning is known, and which has the shape of that.
pub struct Found<'k, 'b> {
    beginning: &'k Beginning,
    question: Cow<'b, str>,
}

impl Found<'_, '_> {
    /// The model that the body names.
    pub fn model(&self) -> &str {
        &self.beginning.model
    }

    /// `cache_salt`; empty for none.
    pub fn cache_salt(&self) -> &str {
        &self.beginning.cache_salt
    }
}

/// A body of which it matters where the last message's content is. One in which a name comes twice,
/// of which the last would count, can't be read as this.
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

/// What came, told apart roughly.
#[derive(Clone, Copy, Default)]
struct Seen {
    mark: u64,
    times: u32,
    /// The hashes of the last beginning that it was tried to learn.
    hashes: [u128; 2],
}

/// The beginnings that one worker knows.
pub struct Beginnings {
    by_head: LruCache<u64, Vec<Beginning>, BuildHasherDefault<AsItIs>>,
    seen: Vec<Seen>,
    secret: [u8; 16],
    digest: Digest,
    bytes: usize,
    limit: usize,
}

impl Beginnings {
    /// None yet, and never more than of about `limit` bytes; 0 for none at all.
    pub fn new(limit: usize) -> Self {
        Self {
            by_head: LruCache::unbounded_with_hasher(BuildHasherDefault::default()),
            seen: vec![Seen::default(); SEEN],
            secret: secret(),
            digest: Digest::random(),
            bytes: 0,
            limit,
        }
    }

    /// Bytes that they take, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What is known of a chat's body.
    pub fn find<'b>(&mut self, body: &'b [u8], now_unix: i64) -> Option<Found<'_, 'b>> {
        if self.by_head.is_empty() {
            return None;
        }
        let head = self.head(body)?;
        let alike = self.by_head.peek(&head)?;
        // They are in the order of their lengths.
        let mut before = (0, 0);
        let mut fits = |beginning: &Beginning| {
            let (from, to) = (beginning.before, body.len().checked_sub(beginning.after));
            let Some(after) = to.filter(|to| *to >= from).and_then(|to| body.get(to..)) else {
                return false;
            };
            let [before_hash, after_hash] = beginning.hashes;
            // First what is shorter, mostly.
            if self.digest.of(after) != after_hash {
                return false;
            }
            if before.0 != from {
                before = (from, self.digest.of(body.get(..from).unwrap_or_default()));
            }
            before.1 == before_hash
        };
        let mut question = None;
        let place = alike.iter().position(|beginning| {
            if !fits(beginning) {
                return false;
            }
            if question.is_none() {
                // With both quotes.
                let quoted = body.get(beginning.before - 1..=body.len() - beginning.after);
                question = quoted.and_then(|quoted| serde_json::from_slice(quoted).ok());
            }
            question.as_ref().is_some_and(|JsonText(text)| beginning.shape.takes(text, now_unix))
        })?;
        let uses = &alike.get(place)?.uses;
        let uses = uses.replace(uses.get().wrapping_add(1));
        if uses % WHOLE_WAY == WHOLE_WAY - 1 {
            // Seldom, as it touches the memory of others.
            self.by_head.promote(&head);
            return None;
        }
        let JsonText(question) = question?;
        let beginning = self.by_head.peek(&head)?.get(place)?;
        Some(Found { beginning, question })
    }

    /// Takes note of a chat whose prefix was told just now, under this root and limit. `None` if
    /// nothing was learned of it.
    pub fn learn(
        &mut self,
        body: &[u8],
        request: &Request<'_>,
        prompter: &mut Prompter,
        root: Fingerprint,
        limit: usize,
        now_unix: i64,
    ) -> Option<()> {
        let (question, others) = request.question()?;
        if self.limit == 0 || body.len() < LEAST_BYTES + question.len() {
            return None;
        }
        let head = self.head(body)?;
        let mark = head ^ others as u64;
        let seen = self.seen.get_mut(mark as usize % SEEN)?;
        if seen.mark != mark {
            *seen = Seen { mark, ..Seen::default() };
        }
        seen.times = seen.times.saturating_add(1);
        // Not in step with anything.
        let later = seen.times.wrapping_mul(0x9e37_79b9) < LATER_TRIES;
        if seen.times < 2 || seen.times > FIRST_TRIES && !later {
            return None;
        }
        // Where the question is, with both quotes.
        let Located { messages } = serde_json::from_slice(body).ok()?;
        let quoted = messages.last()?.content?.get();
        let JsonText(text) = serde_json::from_str(quoted).ok()?;
        let before = quoted.as_ptr().addr().checked_sub(body.as_ptr().addr())? + 1;
        let after = body.get(before + quoted.len().checked_sub(2)?..)?;
        if text != question || before < HEAD || before + after.len() < LEAST_BYTES {
            return None;
        }
        let hashes = [body.get(..before)?, after].map(|part| self.digest.of(part));
        let is_known = |known: &Beginning| {
            known.hashes == hashes
                && known.is_for(&root, limit)
                && known.shape.takes(question, now_unix)
        };
        if self.by_head.peek(&head).is_some_and(|alike| alike.iter().any(is_known)) {
            seen.times = FIRST_TRIES / 2;
            return None;
        }
        // What comes after the question may be another time after time.
        if std::mem::replace(&mut seen.hashes, hashes) != hashes && seen.times > 2 {
            return None;
        }
        let (shape, known) = prompter.beginning(request, question, root, limit, now_unix)?;
        let beginning = Beginning {
            before,
            after: after.len(),
            hashes,
            model: request.model().into(),
            cache_salt: request.cache_salt().into(),
            root,
            limit,
            shape,
            known,
            uses: Cell::new(1),
            whole: Cell::new(0),
        };
        if !self.put(head, beginning, now_unix) {
            return None;
        }
        // Another of its like is learned soon, too.
        self.seen.get_mut(mark as usize % SEEN)?.times = FIRST_TRIES / 2;
        Some(())
    }

    /// Files a beginning; says whether it found a place.
    fn put(&mut self, head: u64, beginning: Beginning, now_unix: i64) -> bool {
        let bytes = beginning.bytes();
        if bytes > self.limit / MOST_SHARE {
            return false;
        }
        let alike = self.by_head.get_or_insert_mut(head, Vec::new);
        // Of another root or limit, or of another day: of no use any more.
        alike.retain(|old| {
            let keep = old.hashes != beginning.hashes
                || old.is_for(&beginning.root, beginning.limit)
                    && old.shape.is_of_this_time(now_unix);
            if !keep {
                self.bytes -= old.bytes();
            }
            keep
        });
        if alike.len() >= MOST_ALIKE {
            // Who wants the place of another has to come more often.
            let least = alike.iter().enumerate().min_by_key(|(_, old)| old.uses.get());
            let unused = least.filter(|(_, old)| old.uses.get() == 0).map(|(at, _)| at);
            for old in alike.iter() {
                old.uses.set(old.uses.get() / 4);
            }
            let Some(at) = unused else { return false };
            self.bytes -= alike.remove(at).bytes();
        }
        self.bytes += bytes;
        let at = alike.partition_point(|old| old.before < beginning.before);
        alike.insert(at, beginning);
        while self.bytes > self.limit {
            let Some((_, old)) = self.by_head.pop_lru() else { break };
            self.bytes -= old.iter().map(Beginning::bytes).sum::<usize>();
        }
        true
    }

    /// What a body is filed by.
    fn head(&self, body: &[u8]) -> Option<u64> {
        let mut hasher = SipHasher13::new_with_key(&self.secret);
        hasher.write(body.get(..HEAD)?);
        Some(hasher.finish())
    }
}

impl Prompter {
    /// The prefix of a chat of which the beginning was found, under `root`; none where that was
    /// learned under another root or limit. `reach`: how far it has to be read; whoever finds that
    /// [`Reach::News`] was not enough asks again for the whole.
    pub fn prefix_after(
        &mut self,
        found: &Found<'_, '_>,
        root: &Fingerprint,
        limit: usize,
        reach: Reach,
    ) -> Option<Prefix> {
        let beginning = found.beginning;
        let Beginning { shape, known, .. } = beginning;
        beginning.is_for(root, limit).then(|| {
            let rest = [shape.part(&found.question), &shape.after];
            self.prefix_of_known(known, rest, limit, beginning.reach(reach))
        })
    }
}
