//! Which answers are looked into: who gave them, and what their end says.
//!
//! That takes calls out of the VM: for the headers, for the upstream, for each piece of a stream. A
//! few dozen answers a second show of a replica what all of them would.

/// Answers of one replica that are looked into in a row,
const BURST: u8 = 32;
/// and with each tick so many more.
const PER_TICK: u8 = 2;

/// Places for replicas; those that share one share what it has.
const PLACES: usize = 256;

/// What is left for each replica.
pub(super) struct Sample([u8; PLACES]);

impl Default for Sample {
    fn default() -> Self {
        Self([BURST; PLACES])
    }
}

impl Sample {
    /// Whether to look into an answer of the replica of this name, which counts as done.
    pub(super) fn take(&mut self, name: u64) -> bool {
        let Some(left) = self.0.get_mut(name as usize % PLACES) else { return false };
        let wanted = *left > 0;
        *left = left.saturating_sub(1);
        wanted
    }

    /// A tick has gone by.
    pub(super) fn tick(&mut self) {
        for left in &mut self.0 {
            *left = (*left + PER_TICK).min(BURST);
        }
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
        assert_eq!([1, 1, 2].map(|name| taken(&mut sample, name)), [32, 0, 32]);
        sample.tick();
        assert_eq!([1, 2, 2].map(|name| taken(&mut sample, name)), [2, 2, 0]);
        // Silence gives a burst back, and no more than one.
        (0..1_000).for_each(|_| sample.tick());
        assert_eq!(taken(&mut sample, 1), 32);
        // Names are hashes.
        assert_eq!(taken(&mut sample, u64::MAX), 32);
    }
}
