//! When engines are polled. What a poll costs is mostly the waking up for it, so some engines are
//! polled at the same moment; not all, as their answers would hold up the events of them all.
//! Ranks of one engine are not: it would answer nothing else as long.

use std::time::Duration;

use tokio::time::Instant;

use crate::message::ReplicaId;

/// Replicas that are polled together.
const TOGETHER: usize = 8;

/// The moments at which one replica is polled.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// When the relay began to poll: that of others at the same engine did at another moment.
    start: Instant,
    /// How far into a round, from 0 to 1.
    offset: f64,
}

impl Rounds {
    /// Of the replica of this number, and of its rank where its engine has several.
    pub fn of(start: Instant, replica: ReplicaId, rank: Option<u32>) -> Self {
        let group = if rank.is_some() { replica } else { replica / TOGETHER } as u32;
        // Multiples of the golden ratio: however many groups there are, they lie well apart.
        let offset = f64::from(group.wrapping_mul(0x9e37_79b9)) / 2f64.powi(32);
        Self { start, offset }
    }

    /// The first moment after `now`, where there is one in each `every`.
    pub fn next(&self, now: Instant, every: Duration) -> Instant {
        let first = self.start + every.mul_f64(self.offset);
        let since = now.saturating_duration_since(first);
        if now < first || every.is_zero() {
            return first.max(now);
        }
        let nanos = every.as_nanos() - since.as_nanos() % every.as_nanos();
        now + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(200);

    #[test]
    fn each_replica_has_its_moment_in_every_round() {
        let start = Instant::now();
        for replica in [0, 7, 8, 100, 5_000_000] {
            let rounds = Rounds::of(start, replica, None);
            let mut at = start;
            for round in 0..50 {
                let next = rounds.next(at, EVERY);
                assert!(next > at || round == 0);
                assert!(next <= at + EVERY);
                if round > 0 {
                    assert_eq!(next - at, EVERY, "{replica}");
                }
                // A poll that takes its time but ends within the round misses none.
                assert_eq!(rounds.next(next + EVERY.mul_f64(0.9), EVERY), next + EVERY);
                at = next;
            }
        }
    }

    #[test]
    fn some_are_polled_together_and_the_groups_apart() {
        let start = Instant::now();
        let later = start + Duration::from_secs(10);
        let mut moments: Vec<Instant> =
            (0..512).map(|replica| Rounds::of(start, replica, None).next(later, EVERY)).collect();
        assert!(moments.iter().take(TOGETHER).all(|moment| Some(moment) == moments.first()));
        moments.sort_unstable();
        moments.dedup();
        assert_eq!(moments.len(), 512 / TOGETHER);
        let gaps = moments.windows(2).map(|pair| pair[1] - pair[0]);
        // Evenly would be a 64th.
        assert!(gaps.clone().min().unwrap() > EVERY / 64 / 4);
        assert!(gaps.max().unwrap() < EVERY / 64 * 4);
    }

    #[test]
    fn ranks_of_one_engine_are_polled_apart() {
        let start = Instant::now();
        let of = |rank| Rounds::of(start, rank as usize, Some(rank));
        let mut moments: Vec<Instant> = (0..16).map(|rank| of(rank).next(start, EVERY)).collect();
        moments.sort_unstable();
        let apart = |pair: &[Instant]| pair[1] - pair[0] > EVERY / 16 / 4;
        assert!(moments.windows(2).all(apart));
    }
}
