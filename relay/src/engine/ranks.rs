//! Data-parallel ranks: what is configured of one, beside what its engine shows.
//!
//! vLLM 0.32.0 counts them in two ways. Events and metrics carry the rank among all engines: batches
//! and ports by `v1/core/sched/scheduler.py` (`data_parallel_index`) and `distributed/kv_events.py`
//! (`offset_endpoint_port`), the label `engine` by `v1/metrics/loggers.py`. The request header
//! `X-data-parallel-rank` counts the engines behind that API, in order, from 0
//! (`v1/engine/input_processor.py`, `v1/engine/core_client.py`): the same numbers where one API has
//! all of them, others with `--data-parallel-hybrid-lb` and `--data-parallel-external-lb`.

use super::report::Engines;

/// Batches of other ranks in a row, without one of the own, that are no coincidence: engines may
/// share a publisher, and one of them may have nothing to do.
pub(crate) const OTHERS: u32 = 16;

/// What is configured of a replica's rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rank {
    /// What requests name in their header.
    pub header: Option<u32>,
    /// What its batches carry.
    pub events: Option<u32>,
}

/// Ranks in the batches of one replica, since its publisher was last heard anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// That of the batches that were taken.
    own: Option<u32>,
    /// Batches of several ranks were taken.
    mixed: bool,
    /// That of batches that were all skipped.
    other: Option<u32>,
}

/// Why a replica's rank can't be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Its engine has several ranks, and it names none.
    Unranked,
    /// The API has no such rank: it answers 400.
    OutOfRange,
    /// What is heard is the cache of another rank than requests reach.
    OtherEvents,
}

impl Heard {
    /// A batch was taken.
    pub fn took(&mut self, rank: Option<u32>) {
        let Some(rank) = rank else { return };
        self.mixed |= self.own.is_some_and(|own| own != rank);
        self.own = Some(rank);
        self.other = None;
    }

    /// Many batches of another rank were skipped, and none was taken.
    pub fn skipped(&mut self, rank: u32) {
        if self.own.is_none() {
            self.other = Some(rank);
        }
    }
}

impl Rank {
    /// What can't be right about it.
    pub fn problem(self, engines: &Engines, heard: &Heard) -> Option<Problem> {
        let Some(header) = self.header else {
            if engines.ranks.len() > 1 || heard.mixed {
                return Some(Problem::Unranked);
            }
            return heard.other.map(|_| Problem::OtherEvents);
        };
        let behind = engines.nth(header);
        if engines.complete && behind.is_none() {
            return Some(Problem::OutOfRange);
        }
        let other = |behind| self.events.is_some_and(|events| events != behind);
        if heard.other.is_some() || behind.is_some_and(other) {
            return Some(Problem::OtherEvents);
        }
        None
    }

    /// The rank under which the engine's metrics speak of it, where several do.
    pub fn label(self, engines: &Engines) -> Option<u32> {
        let listed = |rank: &u32| engines.ranks.contains(rank);
        let header = self.header?;
        self.events
            .filter(listed)
            .or_else(|| Some(header).filter(listed))
            .or_else(|| engines.nth(header))
            .or(Some(header))
    }
}

impl Problem {
    /// For status and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unranked => "unranked",
            Self::OutOfRange => "out_of_range",
            Self::OtherEvents => "other_events",
        }
    }

    /// What to do about it.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Unranked => {
                "the engine has several data-parallel ranks, each with a cache of its own: list one \
                 replica per rank, with `rank` and the events of port + rank"
            }
            Self::OutOfRange => {
                "the engine answers 400 to this `rank`: its header counts the ranks behind this \
                 endpoint from 0; what batches say is `events.rank`"
            }
            Self::OtherEvents => {
                "batches are of another data-parallel rank than requests reach: set `events.rank` \
                 and the port to the rank among all engines"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engines(ranks: &[u32]) -> Engines {
        Engines { ranks: ranks.to_vec(), complete: true, kind: None }
    }

    fn rank(header: Option<u32>, events: Option<u32>) -> Rank {
        Rank { header, events }
    }

    #[test]
    fn a_rank_is_compared_with_what_the_engine_lists() {
        let internal = engines(&[0, 1, 2, 3]);
        let hybrid = engines(&[2, 3]);
        let external = engines(&[3]);
        for (configured, engines, expected) in [
            (rank(None, None), &engines(&[0]), None),
            (rank(None, None), &external, None),
            (rank(None, Some(3)), &external, None),
            (rank(None, None), &internal, Some(Problem::Unranked)),
            (rank(None, None), &hybrid, Some(Problem::Unranked)),
            (rank(Some(3), Some(3)), &internal, None),
            (rank(Some(4), Some(4)), &internal, Some(Problem::OutOfRange)),
            (rank(Some(2), Some(2)), &hybrid, Some(Problem::OutOfRange)),
            (rank(Some(0), Some(0)), &hybrid, Some(Problem::OtherEvents)),
            (rank(Some(0), Some(3)), &hybrid, Some(Problem::OtherEvents)),
            (rank(Some(0), Some(2)), &hybrid, None),
            (rank(Some(1), Some(3)), &hybrid, None),
            (rank(Some(3), Some(3)), &external, Some(Problem::OutOfRange)),
            (rank(Some(0), Some(3)), &external, None),
            // Nothing listed yet: nothing is known.
            (rank(Some(2), Some(2)), &Engines::default(), None),
            // SGLang lists a rank once it has done something.
            (
                rank(Some(1), Some(1)),
                &Engines { ranks: vec![0], complete: false, kind: None },
                None,
            ),
        ] {
            let problem = configured.problem(engines, &Heard::default());
            assert_eq!(problem, expected, "{configured:?} {engines:?}");
        }
    }

    #[test]
    fn batches_tell_where_metrics_do_not() {
        let none = Engines::default();
        let mut heard = Heard::default();
        for (rank, expected) in [(None, None), (Some(2), None), (Some(2), None)] {
            heard.took(rank);
            assert_eq!(Rank::default().problem(&none, &heard), expected);
        }
        heard.took(Some(3));
        assert_eq!(Rank::default().problem(&none, &heard), Some(Problem::Unranked));
        let mut heard = Heard::default();
        heard.skipped(2);
        let zero = rank(Some(0), Some(0));
        assert_eq!(zero.problem(&none, &heard), Some(Problem::OtherEvents));
        heard.took(Some(0));
        heard.skipped(2);
        assert_eq!(zero.problem(&none, &heard), None, "they share a publisher");
    }

    #[test]
    fn metrics_are_found_by_the_rank_among_all_engines() {
        let hybrid = engines(&[2, 3]);
        assert_eq!(rank(Some(0), Some(2)).label(&hybrid), Some(2));
        assert_eq!(rank(Some(1), None).label(&hybrid), Some(3));
        assert_eq!(rank(Some(1), None).label(&engines(&[0, 1])), Some(1));
        assert_eq!(rank(None, Some(3)).label(&hybrid), None);
    }
}
