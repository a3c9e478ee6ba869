//! The closed loop: what was expected to be cached against what the engine says was.
//!
//! One [`Drift`] per model and replica. It sums up, answer by answer, the share of tokens that came
//! out otherwise than expected, less what is usual. Once a sum is above its limit the expectation has
//! drifted: after about five answers that are all wrong, after about thirty when a quarter of the
//! tokens is. What came with those answers names the [`Suspect`]. All workers of an Envoy add to one
//! [`Table`], so that it doesn't matter how many they are.

mod aftermath;
mod bytes;
mod counts;
mod evidence;
mod forecast;
mod kind;
mod observation;
mod suspect;
mod table;

pub use aftermath::{Aftermath, Answered, MapView};
pub use forecast::{Forecast, NextBlock};
pub use kind::Kind;
pub use observation::{After, Asked, Observation};
pub use suspect::{Hints, Suspect};
pub use table::{Id, MOST_DRIFTS, Table};

use bytes::{Reader, put_f32};
use counts::Counts;
use evidence::Evidence;

/// A change to tell of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It drifts, and why that may be.
    Began(Kind, Suspect),
    /// It still does, and it looks as if the cause were another one.
    Renamed(Kind, Suspect),
    /// It does no more.
    Ended(Kind),
}

/// The sums for one model and replica.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Drift {
    sums: [Sum; 4],
    counts: Counts,
    evidence: Evidence,
    /// Answers for which an alarm was held back, so that its cause can be named.
    waits: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    total: f32,
    /// The alarm is raised, and names this as the cause.
    alarm: Option<Suspect>,
    /// Wrong answers in a row that spoke for another one.
    others: u8,
}

/// The limit of a sum, in answers that are all wrong.
const LIMIT: f32 = 4.0;
/// It falls to this before all is well again.
const CALM: f32 = 1.0;
/// Above this it may well be that it drifts.
const DOUBT: f32 = 2.0;
/// It never stands above this, so that mending shows soon.
const MOST: f32 = 6.0;
/// Answers that an alarm waits for those whose tokens tell why.
const MOST_WAITS: u8 = 6;
/// Wrong answers in a row that change the name of a cause.
const OTHERS: u8 = 5;

impl Drift {
    /// Bytes in shared data.
    const BYTES: usize = 4 * 6 + Counts::BYTES + Evidence::BYTES + 1;

    /// Takes in one answer; what has changed by it, by kind.
    pub fn observe(
        &mut self,
        seen: &Observation,
        hints: Hints,
    ) -> impl Iterator<Item = Change> + use<> {
        self.observe_beside(&Counts::default(), seen, hints)
    }

    /// The same, with what prompts' tokens have shown at the other replicas of the model.
    fn observe_beside(
        &mut self,
        others: &Counts,
        seen: &Observation,
        hints: Hints,
    ) -> impl Iterator<Item = Change> + use<> {
        self.counts.take(seen);
        self.evidence.take(seen);
        let shares = shares(seen);
        let counts = self.counts.with(others);
        let waits = self.waits_for_counts(&counts, seen, &shares);
        let changes = std::array::from_fn::<_, 4, _>(|place| {
            let kind = Kind::ALL.get(place).copied()?;
            let share = shares.get(place).copied()??;
            let suspect = suspect::name(kind, &self.evidence, &counts, hints);
            self.sums.get_mut(place)?.add(kind, share, suspect, waits && kind.is_fault())
        });
        if self.sums.iter().all(|sum| sum.total == 0.0) {
            // What was seen of a fault that is over says nothing of the next one.
            *self = Self { evidence: self.evidence.calm(), ..Self::default() };
        }
        changes.into_iter().flatten()
    }

    /// What is known without any answer: an engine that says that it keeps no cache, say.
    pub fn hint(&mut self, kind: Kind, hints: Hints) -> Option<Change> {
        let suspect = suspect::name(kind, &self.evidence, &self.counts, hints);
        let sum = self.sums.get_mut(kind as usize)?;
        sum.total = MOST;
        sum.raise(kind, suspect)
    }

    /// Whether an alarm had better wait until prompts' tokens were counted: why, they tell.
    fn waits_for_counts(
        &mut self,
        counts: &Counts,
        seen: &Observation,
        shares: &[Option<f32>; 4],
    ) -> bool {
        let due = Kind::ALL.iter().zip(&self.sums).zip(shares).any(|((kind, sum), share)| {
            kind.is_fault()
                && sum.alarm.is_none()
                && share.is_some_and(|share| sum.total + share - kind.usual() >= LIMIT)
        });
        let waits = due
            && seen.their_prompt.is_some()
            && seen.asked != Asked::Ids
            && counts.are_few()
            && self.waits < MOST_WAITS;
        self.waits = self.waits.saturating_add(u8::from(waits));
        waits
    }

    /// Whether it is likely, but not certain yet, that it drifts: the next answers should tell all that
    /// they can.
    pub fn is_in_doubt(&self) -> bool {
        let faults = Kind::ALL.iter().zip(&self.sums).filter(|(kind, _)| kind.is_fault());
        faults.into_iter().any(|(_, sum)| sum.alarm.is_none() && sum.total >= DOUBT)
    }

    /// Whether there is anything to remember of its sums.
    pub fn is_calm(&self) -> bool {
        self.sums.iter().all(|sum| sum.total == 0.0 && sum.alarm.is_none())
    }

    /// Whether it drifts this way.
    pub fn drifts(&self, kind: Kind) -> bool {
        self.suspect(kind).is_some()
    }

    /// The cause that its alarm names, where it drifts this way.
    pub fn suspect(&self, kind: Kind) -> Option<Suspect> {
        self.sums.get(kind as usize)?.alarm
    }

    /// Whether a forecast held of late, and none went wrong.
    pub fn agrees(&self) -> bool {
        self.evidence.agreed >= 2
            && Kind::ALL.iter().all(|kind| !kind.is_fault() || !self.drifts(*kind))
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        for sum in &self.sums {
            put_f32(bytes, sum.total);
            bytes.push(sum.alarm.map_or(0, |suspect| suspect as u8 + 1));
            bytes.push(sum.others);
        }
        self.counts.encode(bytes);
        self.evidence.encode(bytes);
        bytes.push(self.waits);
    }

    fn decode(from: &mut Reader<'_>) -> Option<Self> {
        let mut sums = [Sum::default(); 4];
        for sum in &mut sums {
            sum.total = from.f32(MOST)?;
            sum.alarm = match from.u8()? {
                0 => None,
                place => Some(*Suspect::ALL.get(usize::from(place) - 1)?),
            };
            sum.others = from.u8()?;
        }
        Some(Self {
            sums,
            counts: Counts::decode(from)?,
            evidence: Evidence::decode(from)?,
            waits: from.u8()?,
        })
    }
}

/// The part of an answer that went wrong in each way, 0 to 1; `None` where it says nothing of it.
fn shares(seen: &Observation) -> [Option<f32>; 4] {
    let Observation { expected, actual, after, .. } = *seen;
    let share = |wrong: u32, of: u32| if of == 0 { 0.0 } else { wrong as f32 / of as f32 };
    // Where nothing was promised a promise can't be broken, so that says nothing.
    let broken = (expected > 0).then(|| share(expected.saturating_sub(actual), expected));
    let (missing, evicted) = match broken {
        Some(broken) if broken > 0.0 && after.removed => (None, Some(broken)),
        Some(broken) => (Some(broken), Some(0.0)),
        None => (None, None),
    };
    let surprise = match after.came {
        // Its event was on its way.
        Some(true) => 0.0,
        Some(false) => share(actual.saturating_sub(expected), actual),
        None => share(actual.saturating_sub(expected.max(seen.hoped)), actual),
    };
    // One event is proof that they come.
    let unannounced = match after.came {
        Some(false) if !after.announced => (actual <= expected).then_some(1.0),
        Some(_) => Some(-MOST),
        None => None,
    };
    [missing, Some(surprise), unannounced, evicted]
}

impl Sum {
    fn add(&mut self, kind: Kind, share: f32, suspect: Suspect, waits: bool) -> Option<Change> {
        self.total = (self.total + share - kind.usual()).clamp(0.0, MOST);
        match self.alarm {
            Some(_) if self.total <= CALM => {
                (self.alarm, self.others) = (None, 0);
                Some(Change::Ended(kind))
            }
            Some(named) if share > 0.0 => {
                self.others = if named == suspect { 0 } else { self.others.saturating_add(1) };
                if self.others < OTHERS {
                    return None;
                }
                (self.alarm, self.others) = (Some(suspect), 0);
                Some(Change::Renamed(kind, suspect))
            }
            None if self.total >= LIMIT && !waits => self.raise(kind, suspect),
            _ => None,
        }
    }

    fn raise(&mut self, kind: Kind, suspect: Suspect) -> Option<Change> {
        if self.alarm == Some(suspect) {
            return None;
        }
        let before = self.alarm.replace(suspect);
        self.others = 0;
        Some(match before {
            None => Change::Began(kind, suspect),
            Some(_) => Change::Renamed(kind, suspect),
        })
    }
}

#[cfg(test)]
mod tests;
