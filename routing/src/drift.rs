//! The closed loop: what was expected to be cached against what the engine says was.
//!
//! One [`Drift`] per model and replica. It sums up, request by request, the share of tokens that
//! came out otherwise than expected, less what is usual (a block evicted on the way, a prefix that
//! was cached a moment before its event arrived). Once the sum is above its limit the expectation
//! has drifted: after about five requests that are all wrong, after about thirty when a quarter of
//! the tokens is.

/// What one answer showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Tokens that the prefix map promised.
    pub expected: u32,
    /// Tokens that may be cached because of requests sent a moment before; counts where it is more.
    pub hoped: u32,
    /// Tokens that the engine says were cached.
    pub actual: u32,
    /// Tokens of the prompt by our count, where they were counted to the end.
    pub our_prompt: Option<u32>,
    /// Tokens of the prompt by the engine's count.
    pub their_prompt: Option<u32>,
}

/// In which direction it went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Expected cached, was not.
    Missing,
    /// Not expected, was.
    Surprise,
}

impl Kind {
    /// Both, for those who count them.
    pub const ALL: [Self; 2] = [Self::Missing, Self::Surprise];

    /// The name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Surprise => "surprise",
        }
    }
}

/// The precondition to look at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspect {
    /// Our token count of prompts is not the engine's.
    Tokenizer,
    /// Less than a block is in dispute.
    BlockSize,
    /// What the map promised is gone without a word.
    Evictions,
    /// The engine caches what no event told of.
    Events,
}

impl Suspect {
    /// The name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokenizer => "tokenizer",
            Self::BlockSize => "block_size",
            Self::Evictions => "evictions",
            Self::Events => "events",
        }
    }

    /// What to do about it.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Tokenizer => {
                "the engine counts other prompt tokens than the gateway: compare tokenizer, chat \
                 template and the engine's template options with the files that the relay reads"
            }
            Self::BlockSize => {
                "only the last block is in dispute: compare the engine's block size and hybrid \
                 cache groups with what its events say"
            }
            Self::Evictions => {
                "blocks went without an event: look for prefix caching switched off, lost \
                 removal events, a cleared cache, or answers of another replica or rank than the \
                 one named"
            }
            Self::Events => {
                "the engine caches what no event told of: look at its event endpoint, the \
                 relay's log for gaps, adapters and salts, and the model version"
            }
        }
    }
}

/// A change to tell of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It drifts, and why that may be.
    Began(Kind, Suspect),
    /// It does no more.
    Ended(Kind),
}

/// The sums for one model and replica.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Drift {
    missing: Sum,
    surprise: Sum,
    /// Share of late answers of which prompt token counts differ, where there are both.
    miscounted: f32,
    /// Answers that had both, up to a few.
    counted: u8,
    /// Share of wrong ones that differ by less than a block.
    within_block: f32,
    in_doubt: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    sum: f32,
    drifting: bool,
}

/// The limit of a sum, in answers that are all wrong.
const LIMIT: f32 = 4.0;
/// It falls to this before all is well again.
const CALM: f32 = 1.0;
/// Above this it may well be that it drifts.
const DOUBT: f32 = 2.0;
/// It never stands above this, so that mending shows soon.
const MOST: f32 = 6.0;
/// What is usual: a prefix can be evicted while a request is on its way…
const USUAL_MISSING: f32 = 0.1;
/// …and in a burst many are cached before their event has come.
const USUAL_SURPRISE: f32 = 0.2;
/// Weight of the newest answer where shares are kept.
const NEWEST: f32 = 0.15;
/// Engines' blocks are seldom longer, in tokens.
const BLOCK: u32 = 256;

impl Sum {
    fn add(&mut self, share: f32, usual: f32) -> Option<bool> {
        self.sum = (self.sum + share - usual).clamp(0.0, MOST);
        let now = if self.drifting { self.sum > CALM } else { self.sum >= LIMIT };
        (now != self.drifting).then(|| {
            self.drifting = now;
            now
        })
    }
}

impl Drift {
    /// Takes in one answer; what has changed by it.
    pub fn observe(&mut self, seen: &Observation) -> impl Iterator<Item = Change> + use<> {
        let Observation { expected, actual, .. } = *seen;
        let before = [self.missing.sum, self.surprise.sum];
        if let (Some(ours), Some(theirs)) = (seen.our_prompt, seen.their_prompt) {
            // The first few count alike: they may be all there is.
            self.counted = self.counted.saturating_add(1);
            let weight = NEWEST.max(1.0 / f32::from(self.counted));
            keep(&mut self.miscounted, weight, ours != theirs);
        }
        let wrong = expected.abs_diff(actual);
        if wrong > 0 {
            keep(&mut self.within_block, NEWEST, wrong < BLOCK && expected.min(actual) > 0);
        }
        let share = |wrong: u32, of: u32| if of == 0 { 0.0 } else { wrong as f32 / of as f32 };
        // Where nothing was promised a promise can't be broken, so that says nothing.
        let missing = (expected > 0)
            .then(|| share(expected.saturating_sub(actual), expected))
            .and_then(|share| self.missing.add(share, USUAL_MISSING))
            .map(|began| self.change(Kind::Missing, began));
        let beyond = actual.saturating_sub(expected.max(seen.hoped));
        let surprise = self
            .surprise
            .add(share(beyond, actual), USUAL_SURPRISE)
            .map(|began| self.change(Kind::Surprise, began));
        let mut sums = [self.missing, self.surprise].into_iter().zip(before);
        self.in_doubt =
            sums.any(|(Sum { sum, drifting }, before)| !drifting && sum >= DOUBT && sum > before);
        missing.into_iter().chain(surprise)
    }

    /// Whether the last answer made it likely that it drifts: the next ones should tell all that they
    /// can.
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Whether it drifts this way.
    pub fn drifts(&self, kind: Kind) -> bool {
        match kind {
            Kind::Missing => self.missing.drifting,
            Kind::Surprise => self.surprise.drifting,
        }
    }

    fn change(&self, kind: Kind, began: bool) -> Change {
        if !began {
            return Change::Ended(kind);
        }
        let suspect = if self.miscounted > 0.25 {
            Suspect::Tokenizer
        } else if self.within_block > 0.5 {
            Suspect::BlockSize
        } else {
            match kind {
                Kind::Missing => Suspect::Evictions,
                Kind::Surprise => Suspect::Events,
            }
        };
        Change::Began(kind, suspect)
    }
}

fn keep(share: &mut f32, weight: f32, is: bool) {
    *share += weight * (f32::from(u8::from(is)) - *share);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seen(expected: u32, actual: u32) -> Observation {
        let prompt = Some(1_000);
        Observation { expected, hoped: 0, actual, our_prompt: prompt, their_prompt: prompt }
    }

    /// Answers until something changes.
    fn until(drift: &mut Drift, seen: Observation) -> (u32, Change) {
        (1..1_000).find_map(|n| Some((n, drift.observe(&seen).next()?))).unwrap()
    }

    #[test]
    fn a_wrong_tokenizer_is_named_however_few_prompts_were_counted() {
        for every in [1, 2, 4, 5] {
            for (expected, actual) in [(0, 800), (800, 0), (48, 800), (800, 400)] {
                let mut drift = Drift::default();
                let changes: Vec<Change> = (1..100)
                    .flat_map(|n: u32| {
                        let our_prompt = n.is_multiple_of(every).then_some(990);
                        let doubt = drift.is_in_doubt();
                        let seen = Observation { our_prompt, ..seen(expected, actual) };
                        let changes: Vec<Change> = drift.observe(&seen).collect();
                        assert!(doubt || changes.is_empty(), "no doubt before {changes:?}");
                        changes
                    })
                    .collect();
                let suspects = changes.iter().map(|change| match change {
                    Change::Began(_, suspect) => *suspect,
                    Change::Ended(_) => panic!(),
                });
                assert_eq!(suspects.collect::<Vec<_>>(), [Suspect::Tokenizer], "one in {every}");
            }
        }
        // A few that were equal outweigh one that wasn't.
        let mut drift = Drift::default();
        for theirs in [990, 1_000, 1_000, 1_000, 1_000] {
            let _ = drift.observe(&Observation { their_prompt: Some(theirs), ..seen(800, 0) });
        }
        assert!(drift.miscounted < 0.25 && drift.drifts(Kind::Missing));
    }

    #[test]
    fn drift_is_told_within_tens_of_requests_and_so_is_its_end() {
        use Change::{Began, Ended};
        for (wrong, suspect, most) in [
            (seen(800, 0), Began(Kind::Missing, Suspect::Evictions), 5),
            (seen(800, 400), Began(Kind::Missing, Suspect::Evictions), 11),
            (seen(800, 592), Began(Kind::Missing, Suspect::BlockSize), 30),
            (seen(0, 800), Began(Kind::Surprise, Suspect::Events), 6),
            (
                Observation { their_prompt: Some(990), ..seen(0, 800) },
                Began(Kind::Surprise, Suspect::Tokenizer),
                6,
            ),
            (
                Observation { their_prompt: Some(1_010), ..seen(800, 0) },
                Began(Kind::Missing, Suspect::Tokenizer),
                5,
            ),
        ] {
            let mut drift = Drift::default();
            let (n, change) = until(&mut drift, wrong);
            assert_eq!(change, suspect, "{wrong:?}");
            assert!(n <= most, "{wrong:?}: {n}");
            for _ in 0..10_000 {
                assert_eq!(drift.observe(&wrong).next(), None, "it is told once");
            }
            let (n, change) = until(&mut drift, seen(800, 800));
            assert!(matches!(change, Ended(_)));
            assert!(n <= 60, "{n}");
            assert!(!drift.drifts(Kind::Missing) && !drift.drifts(Kind::Surprise));
        }
    }

    #[test]
    fn what_is_usual_is_no_drift() {
        let mut drift = Drift::default();
        for n in 0..10_000 {
            let seen = match n % 12 {
                0 => seen(800, 0),
                4 | 7 => seen(0, 800),
                _ => seen(800, 800),
            };
            assert_eq!(drift.observe(&seen).next(), None, "request {n}");
        }
        for n in 0..1_000 {
            assert_eq!(drift.observe(&seen(0, 0)).next(), None, "cold request {n}");
            let burst = Observation { hoped: 800, ..seen(0, 800) };
            assert_eq!(drift.observe(&burst).next(), None, "burst {n}");
        }
    }

    proptest! {
        /// Any answers: sums stay bounded, changes alternate, and right answers end every drift.
        #[test]
        fn changes_alternate(answers in proptest::collection::vec(any::<(u32, u32)>(), 0..200)) {
            let mut drift = Drift::default();
            for (expected, actual) in answers {
                let before = drift;
                for change in drift.observe(&seen(expected, actual)) {
                    match change {
                        Change::Began(kind, _) => {
                            prop_assert!(!before.drifts(kind) && drift.drifts(kind));
                        }
                        Change::Ended(kind) => {
                            prop_assert!(before.drifts(kind) && !drift.drifts(kind));
                        }
                    }
                }
                prop_assert!(drift.missing.sum <= MOST && drift.surprise.sum <= MOST);
            }
            for _ in 0..60 {
                let _ = drift.observe(&seen(100, 100));
            }
            prop_assert!(!drift.drifts(Kind::Missing) && !drift.drifts(Kind::Surprise));
        }
    }
}
