//! Prompts during which engines died, in a record of bounded size.
//!
//! It is for as many prompts as fit; of one client only a part of that, so that nobody who can make
//! engines drop connections pushes out what others did. What is refused outlives what is only
//! suspected.

use std::collections::BTreeMap;

use super::{Poison, Secret};

/// Prompts in it.
const MOST: usize = 256;

/// Those of one client.
const MOST_OF_CLIENT: usize = 32;

/// Engines that are remembered of a prompt.
pub const MOST_ENGINES: usize = 4;

/// Deaths that were too few count for this long, in milliseconds.
const SUSPECT_MS: u64 = 600_000;

/// For so long after it was refused one death is enough, in milliseconds.
const TRIAL_MS: u64 = 3_600_000;

/// The longest that a prompt is refused at a time, in milliseconds.
const LONGEST_MS: u64 = 3_600_000;

const FORMAT: u8 = 1;
const HEAD: usize = 40;
const ENTRY: usize = 48 + 8 * MOST_ENGINES;

/// Engines that died while they had a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// The prompt ([`super::Prompt::id`]).
    pub prompt: u128,
    /// Who sent it.
    pub client: u64,
    /// The engines, by names of their own.
    pub engines: Vec<u64>,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
}

/// What follows from a death.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may have been chance.
    Suspect,
    /// From now on it is refused for these milliseconds, for the sake of these engines.
    Refused {
        /// How long.
        ms: u64,
        /// All that are remembered.
        engines: Vec<u64>,
    },
    /// Nothing new: it is refused already, or there is no room for it.
    Nothing,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    engines: Vec<u64>,
    client: u64,
    last_ms: u64,
    /// Refused until then; 0 if it never was.
    until_ms: u64,
    refusals: u32,
}

impl Entry {
    fn is_refused(&self, now_ms: u64) -> bool {
        // A clock that was set back must not lock anybody out for longer.
        self.until_ms.checked_sub(now_ms).is_some_and(|left| (1..=LONGEST_MS).contains(&left))
    }

    fn is_over(&self, now_ms: u64) -> bool {
        if self.is_refused(now_ms) {
            return false;
        }
        let (since, long) =
            if self.refusals > 0 { (self.until_ms, TRIAL_MS) } else { (self.last_ms, SUSPECT_MS) };
        since.abs_diff(now_ms) > long
    }

    /// The least of these goes first.
    fn danger(&self, now_ms: u64) -> (bool, bool, u64) {
        (self.is_refused(now_ms), self.refusals > 0, self.last_ms)
    }

    fn died(&mut self, rule: &Poison, death: &Death) -> Verdict {
        if self.is_refused(death.at_ms) {
            // One that was sent before that.
            return Verdict::Nothing;
        }
        self.last_ms = death.at_ms;
        for engine in &death.engines {
            if !self.engines.contains(engine) {
                // The first ones are what made it refused; of later ones the last is kept.
                self.engines.truncate(MOST_ENGINES - 1);
                self.engines.push(*engine);
            }
        }
        if self.refusals == 0 && self.engines.len() < rule.engines {
            return Verdict::Suspect;
        }
        let ms = rule.refuse_ms.saturating_mul(1 << self.refusals.min(20)).clamp(1, LONGEST_MS);
        self.until_ms = death.at_ms.saturating_add(ms);
        self.refusals = self.refusals.saturating_add(1);
        Verdict::Refused { ms, engines: self.engines.clone() }
    }
}

/// The prompts, and the secret under which they are named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    secret: Secret,
    entries: BTreeMap<u128, Entry>,
}

impl Table {
    /// An empty one.
    pub fn new(secret: Secret) -> Self {
        Self { secret, entries: BTreeMap::new() }
    }

    /// The secret.
    pub fn secret(&self) -> Secret {
        self.secret
    }

    /// Whether engines died during this prompt.
    pub fn knows(&self, prompt: u128) -> bool {
        self.entries.contains_key(&prompt)
    }

    /// Whether it is to be refused.
    pub fn refuses(&self, prompt: u128, now_ms: u64) -> bool {
        self.entries.get(&prompt).is_some_and(|entry| entry.is_refused(now_ms))
    }

    /// How many are refused.
    pub fn refused(&self, now_ms: u64) -> usize {
        self.entries.values().filter(|entry| entry.is_refused(now_ms)).count()
    }

    /// Engines died during a prompt.
    pub fn died(&mut self, rule: &Poison, death: &Death) -> Verdict {
        let now_ms = death.at_ms;
        if rule.engines == 0 || death.engines.is_empty() {
            return Verdict::Nothing;
        }
        self.entries.retain(|_, entry| !entry.is_over(now_ms));
        if let Some(entry) = self.entries.get_mut(&death.prompt) {
            return entry.died(rule, death);
        }
        let mut entry = Entry { client: death.client, ..Entry::default() };
        let verdict = entry.died(rule, death);
        if !self.make_room(&entry, now_ms) {
            return Verdict::Nothing;
        }
        self.entries.insert(death.prompt, entry);
        verdict
    }

    /// An engine answered this prompt to its end: it did not kill that one. Says whether anything was
    /// known of it.
    pub fn answered(&mut self, prompt: u128) -> bool {
        self.entries.remove(&prompt).is_some()
    }

    /// Makes room for a new entry, if that matters more than one which is there.
    fn make_room(&mut self, new: &Entry, now_ms: u64) -> bool {
        let of_client = |client| self.entries.values().filter(|e| e.client == client).count();
        let only_own = of_client(new.client) >= MOST_OF_CLIENT;
        if !only_own && self.entries.len() < MOST {
            return true;
        }
        let weakest = self
            .entries
            .iter()
            .filter(|(_, entry)| !only_own || entry.client == new.client)
            .min_by_key(|(_, entry)| entry.danger(now_ms))
            .map(|(prompt, entry)| (*prompt, entry.is_refused(now_ms)));
        match weakest {
            Some((prompt, refused)) if !refused || new.is_refused(now_ms) => {
                self.entries.remove(&prompt);
                true
            }
            _ => false,
        }
    }

    /// The bytes for shared data.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + self.entries.len() * ENTRY);
        bytes.extend([FORMAT, 0, 0, 0]);
        bytes.extend((self.entries.len() as u32).to_le_bytes());
        bytes.extend(self.secret.0);
        for (prompt, entry) in &self.entries {
            bytes.extend(prompt.to_le_bytes());
            for word in [entry.client, entry.last_ms, entry.until_ms] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(entry.refusals.to_le_bytes());
            bytes.extend((entry.engines.len() as u32).to_le_bytes());
            let engines = entry.engines.iter().chain(std::iter::repeat(&0));
            engines.take(MOST_ENGINES).for_each(|engine| bytes.extend(engine.to_le_bytes()));
        }
        bytes
    }

    /// Reads a table; `None` if it is none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let (entries, []) = rest.as_chunks::<ENTRY>() else { return None };
        let secret = Secret(head.last_chunk().copied()?);
        let count = u32_at(head, 4)? as usize;
        if head.first() != Some(&FORMAT) || count != entries.len() || count > MOST {
            return None;
        }
        let mut table = Self::new(secret);
        for bytes in entries {
            let (prompt, entry) = entry(bytes)?;
            table.entries.insert(prompt, entry);
        }
        (table.entries.len() == count).then_some(table)
    }
}

fn entry(bytes: &[u8; ENTRY]) -> Option<(u128, Entry)> {
    let count = u32_at(bytes, 44)? as usize;
    let engines = bytes.get(48..)?.as_chunks().0.get(..count)?;
    let entry = Entry {
        client: u64_at(bytes, 16)?,
        last_ms: u64_at(bytes, 24)?,
        until_ms: u64_at(bytes, 32)?,
        refusals: u32_at(bytes, 40)?,
        engines: engines.iter().map(|engine| u64::from_le_bytes(*engine)).collect(),
    };
    Some((u128::from_le_bytes(*bytes.first_chunk()?), entry))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
