//! The longest match of every replica at once.

use super::{Ends, First, Hint, Layout, Match, Matches, Store, bucket, ends};
use crate::fingerprint::Key;

/// Most buckets that one search reads: a search is work on a proxy's worker thread.
const MOST_PROBES: u32 = 96;

/// What doesn't matter is sought to about this part of the prompt.
const ABOUT: usize = 8;

/// Whose matches are sought.
pub trait Wanted {
    /// Whether that of this replica is.
    fn wants(&self, slot: u16) -> bool;

    /// Whether it would matter that a replica held so many `blocks`, given what was `found` of those
    /// that hold more. Of one to which it doesn't it will do to know about what it holds.
    fn matters(&self, _slot: u16, _blocks: u32, _found: &[Match]) -> bool {
        true
    }

    /// Where this replica's hits end, if not every prefix that it holds is one. Then its match is the
    /// longest hit; the bound on reads may make it less.
    fn ends(&self, _slot: u16) -> Option<Ends> {
        None
    }

    /// Whether [`Self::ends`] says anything of any replica: it is asked of no other set.
    fn has_ends(&self) -> bool {
        false
    }
}

impl<F: Fn(u16) -> bool> Wanted for F {
    fn wants(&self, slot: u16) -> bool {
        self(slot)
    }
}

/// Something that can be asked who holds a prefix.
pub trait Lookup {
    /// The longest match of each replica that is wanted; of those whose match doesn't matter, it may
    /// be less than that.
    fn matches(&self, keys: &[Key], wanted: &dyn Wanted) -> Matches;
}

/// Searches the map: a binary search over the prompt's blocks that follows all replicas together
/// and parts where they part. What can't be read counts as not held.
pub fn find<S: Store>(
    store: &S,
    layout: Layout,
    generation: u32,
    keys: &[Key],
    hint: Hint,
    wanted: &dyn Wanted,
) -> Matches {
    let mut probes = 0;
    // Who holds a block, in order.
    let mut who = |block: usize, holders: &mut Vec<u16>| {
        holders.clear();
        let Some(key) = block.checked_sub(1).and_then(|at| keys.get(at)) else { return };
        probes += 1;
        let Ok(Some(bytes)) = store.get(layout.bucket(*key)) else { return };
        let tag = bucket::tag(*key);
        if let Some(entry) = bucket::entries(&bytes, generation).find(|entry| entry.tag == tag) {
            holders.extend(entry.slots());
            // As the writer leaves them; but it is not counted on.
            if !holders.is_sorted() {
                holders.sort_unstable();
            }
        }
    };

    let mut found = Vec::new();
    let mut left = MOST_PROBES;
    let mut ends_left = ends::MOST_READS;
    let has_ends = wanted.has_ends();
    let mut holders = Vec::new();
    // (blocks that all members hold, blocks that none of them exceeds, members, where to look)
    let mut open = Vec::with_capacity(4);
    let last = keys.len();
    let Hint { blocks: hint, first } = hint;
    let hint = hint as usize;
    let hinted = if 1 < hint && hint <= last {
        left -= 1;
        who(hint, &mut holders);
        holders.retain(|slot| wanted.wants(*slot));
        std::mem::take(&mut holders)
    } else {
        Vec::new()
    };
    let known = first.filter(|_| !hinted.is_empty());
    let mut first = None;
    if let Some(known) = known {
        holders.extend_from_slice(known.slots());
    } else {
        who(1, &mut holders);
        if !hinted.is_empty() {
            first = First::of(&holders);
        }
    }
    holders.retain(|slot| wanted.wants(*slot));
    let (_, others) = part(std::mem::take(&mut holders), &hinted);
    if hinted.is_empty() {
        open.push((1, last, others, Look::End));
    } else {
        // Who holds the hinted block holds all before it; the others less than that.
        open.push((1, hint - 1, others, Look::Middle));
        open.push((hint, last, hinted, Look::Next));
    }
    while let Some((low, high, members, look)) = open.pop() {
        if members.is_empty() {
            continue;
        }
        // The deepest come first. How far those hold it that hold less is worth reading only where
        // it may decide.
        let is_near =
            high - low <= last / ABOUT && found.iter().any(|m: &Match| m.blocks as usize >= high);
        // An end may be just before what they hold.
        let matters = |slot: &u16| {
            wanted.matters(*slot, high as u32, &found) || has_ends && wanted.ends(*slot).is_some()
        };
        if low >= high || left == 0 || is_near && !members.iter().any(matters) {
            let blocks = low as u32;
            if !has_ends {
                found.extend(members.into_iter().map(|slot| Match { slot, blocks }));
                continue;
            }
            let mut walking = Vec::new();
            for slot in members {
                match wanted.ends(slot) {
                    None => found.push(Match { slot, blocks }),
                    Some(ends) => walking.push((slot, ends)),
                }
            }
            if !walking.is_empty() {
                ends::walk(walking, blocks, &mut ends_left, &mut who, &mut found);
            }
            continue;
        }
        left -= 1;
        let (middle, below, above) = match look {
            Look::End => (high, Look::Middle, Look::Middle),
            Look::Next => (low + 1, Look::Middle, Look::End),
            Look::Middle => (low.midpoint(high + 1), Look::Middle, Look::Middle),
        };
        who(middle, &mut holders);
        let (with, without) = part(members, &holders);
        open.push((low, middle - 1, without, below));
        open.push((middle, high, with, above));
    }
    found.sort_unstable_by_key(|m| m.slot);
    found.dedup_by_key(|m| m.slot);
    Matches { found, probes, first }
}

/// Where a search looks next.
#[derive(Clone, Copy)]
enum Look {
    /// A conversation that goes on holds all of its past: at the end.
    End,
    /// Prompts that begin alike end their matches alike: just after where the last one's did.
    Next,
    Middle,
}

/// Those of `members` that are among `holders`, and those that aren't; all of them in order.
fn part(mut members: Vec<u16>, holders: &[u16]) -> (Vec<u16>, Vec<u16>) {
    // Mostly all or none.
    if holders.is_empty() {
        return (Vec::new(), members);
    }
    if members == holders {
        return (members, Vec::new());
    }
    let mut with = Vec::with_capacity(members.len().min(holders.len()));
    let mut rest = holders.iter().peekable();
    members.retain(|slot| {
        while rest.next_if(|holder| *holder < slot).is_some() {}
        let holds = rest.peek() == Some(&slot);
        if holds {
            with.push(*slot);
        }
        !holds
    });
    (with, members)
}
