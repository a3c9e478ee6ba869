//! Which answers are looked into: who gave them, and what their end says.
//!
//! That takes calls out of the VM: for the headers, for the upstream, for each piece of a stream. A
//! few dozen answers a second show of a replica what all of them would.

use std::collections::BTreeMap;

/// Answers of one replica that are looked into in a row,
const BURST: u32 = 32;
/// and then one for each so many milliseconds.
const EVERY_MS: u64 = 25;

/// What is left for each replica.
#[derive(Debug, Default)]
pub(super) struct Sample {
    /// Answers used up, by the replica's name; none where none is. Ticks empty it, so that what is in
    /// it are replicas of late.
    used: BTreeMap<u64, u32>,
    /// Up to when answers were given back, in milliseconds.
    until_ms: u64,
}

impl Sample {
    /// Whether to look into an answer of the replica of this name, which counts as done.
    pub(super) fn take(&mut self, name: u64) -> bool {
        let used = self.used.entry(name).or_default();
        let wanted = *used < BURST;
        *used += u32::from(wanted);
        wanted
    }

    /// Time has gone by.
    pub(super) fn tick(&mut self, now_ms: u64) {
        // Where the clock was set back it begins anew.
        let back = now_ms.saturating_sub(self.until_ms) / EVERY_MS;
        self.until_ms =
            if now_ms < self.until_ms { now_ms } else { self.until_ms + back * EVERY_MS };
        let back = u32::try_from(back).unwrap_or(u32::MAX);
        self.used.retain(|_, used| {
            *used = used.saturating_sub(back);
            *used > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(sample: &mut Sample, name: u64) -> usize {
        (0..100).filter(|_| sample.take(name)).count()
    }

    #[test]
    fn a_burst_is_seen_whole_and_what_lasts_in_part() {
        let mut sample = Sample::default();
        sample.tick(1_000);
        assert_eq!([1, 1, 2].map(|name| taken(&mut sample, name)), [32, 0, 32]);
        sample.tick(1_050);
        assert_eq!([1, 2, 2].map(|name| taken(&mut sample, name)), [2, 2, 0]);
        // Silence gives a burst back, and no more than one; nothing is kept for those who are silent.
        sample.tick(60_000);
        assert!(sample.used.is_empty());
        assert_eq!(taken(&mut sample, 1), 32);
        // A clock that is set back gives nothing, and goes on.
        sample.tick(1_000);
        assert_eq!(taken(&mut sample, 1), 0);
        sample.tick(1_050);
        assert_eq!(taken(&mut sample, 1), 2);
    }

    #[test]
    fn it_is_as_many_a_second_however_long_a_tick_is() {
        for tick_ms in [10, 25, 49, 50, 51, 200, 500] {
            let mut sample = Sample::default();
            sample.tick(7_000);
            taken(&mut sample, 1);
            let ticks = (1..).map(|tick| 7_000 + tick * tick_ms).take_while(|at| *at <= 12_000);
            let all: usize = ticks
                .map(|at| {
                    sample.tick(at);
                    taken(&mut sample, 1)
                })
                .sum();
            assert!((198..=200).contains(&all), "{all} in 5 s of ticks of {tick_ms} ms");
        }
    }
}
