//! Which answers are looked into: who gave them, and what their end says.
//!
//! That takes calls out of the VM: for the headers, for the upstream, for each piece of a stream. A
//! few dozen answers a second show of a replica what all of them would.

use std::collections::BTreeMap;

/// Answers of one replica that are looked into in a row,
const BURST: u32 = 32;
/// and then one for each so many milliseconds.
const EVERY_MS: u32 = 25;

/// What is left for each replica.
pub(super) struct Sample {
    /// Answers used up, by the replica's name; none where none is. Ticks empty it, so that what is in
    /// it are replicas of late.
    used: BTreeMap<u64, u32>,
    per_tick: u32,
}

impl Sample {
    /// For ticks that are so many milliseconds apart.
    pub(super) fn new(tick_ms: u32) -> Self {
        Self { used: BTreeMap::new(), per_tick: (tick_ms / EVERY_MS).max(1) }
    }

    /// Whether to look into an answer of the replica of this name, which counts as done.
    pub(super) fn take(&mut self, name: u64) -> bool {
        let used = self.used.entry(name).or_default();
        let wanted = *used < BURST;
        *used += u32::from(wanted);
        wanted
    }

    /// A tick has gone by.
    pub(super) fn tick(&mut self) {
        self.used.retain(|_, used| {
            *used = used.saturating_sub(self.per_tick);
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
        let mut sample = Sample::new(50);
        assert_eq!([1, 1, 2].map(|name| taken(&mut sample, name)), [32, 0, 32]);
        sample.tick();
        assert_eq!([1, 2, 2].map(|name| taken(&mut sample, name)), [2, 2, 0]);
        // Silence gives a burst back, and no more than one; nothing is kept for those who are silent.
        (0..1_000).for_each(|_| sample.tick());
        assert!(sample.used.is_empty());
        assert_eq!(taken(&mut sample, 1), 32);
    }

    #[test]
    fn it_is_as_many_a_second_however_long_a_tick_is() {
        for (tick_ms, per_tick) in [(10, 1), (25, 1), (50, 2), (200, 8), (1_000, 32)] {
            let mut sample = Sample::new(tick_ms);
            taken(&mut sample, 1);
            sample.tick();
            assert_eq!(taken(&mut sample, 1), per_tick, "{tick_ms} ms");
        }
    }
}
