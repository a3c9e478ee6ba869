//! When engines are polled. What a poll costs is mostly the waking up for it, so some engines are
//! polled at the same moment; not all, as their answers would hold up the events of them all.
//! Ranks of one engine are not: it would answer nothing else as long.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::state::message::ReplicaId;

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
    /// Of the replica of this number.
    pub fn of(start: Instant, replica: ReplicaId) -> Self {
        Self { start, offset: apart(replica / TOGETHER) }
    }

    /// Of a rank of the engine at this endpoint.
    pub fn of_rank(start: Instant, endpoint: &SocketAddr, rank: u32) -> Self {
        let mut engine = DefaultHasher::new();
        endpoint.hash(&mut engine);
        let offset = (apart(engine.finish() as usize) + apart(rank as usize)).fract();
        Self { start, offset }
    }

    /// When to poll again after a poll that began at `polled`, where there is a moment in each `every`.
    /// One that took longer is followed at once.
    pub fn after(&self, polled: Instant, every: Duration) -> Instant {
        // Half a round later, as it may itself have come late.
        let from = polled + every / 2;
        let first = self.start + every.mul_f64(self.offset);
        let since = from.saturating_duration_since(first);
        if from < first || every.is_zero() {
            return first.max(from);
        }
        let nanos = every.as_nanos() - since.as_nanos() % every.as_nanos();
        from + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Multiples of the golden ratio, from 0 to 1: however many of the first there are, they lie well apart.
fn apart(number: usize) -> f64 {
    f64::from((number as u32).wrapping_mul(0x9e37_79b9)) / 2f64.powi(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(200);

    #[test]
    fn each_replica_has_its_moment_in_every_round() {
        let start = Instant::now();
        for replica in [0, 7, 8, 100, 5_000_000] {
            let rounds = Rounds::of(start, replica);
            let mut at = rounds.after(start, EVERY);
            assert!(at <= start + EVERY * 3 / 2);
            for _ in 0..50 {
                let next = rounds.after(at, EVERY);
                assert_eq!(next - at, EVERY, "{replica}");
                at = next;
            }
        }
    }

    #[test]
    fn a_poll_that_comes_late_or_takes_long_makes_the_next_one_no_later() {
        let rounds = Rounds::of(Instant::now(), 12);
        let moment = rounds.after(Instant::now(), EVERY);
        for late in [1, 50, 99] {
            let polled = moment + Duration::from_millis(late);
            assert_eq!(rounds.after(polled, EVERY), moment + EVERY, "{late}");
        }
        for late in [101, 150, 199] {
            let polled = moment + Duration::from_millis(late);
            assert_eq!(rounds.after(polled, EVERY), moment + 2 * EVERY, "{late}");
        }
        // Of those that take longer than a round each follows the last one at once.
        let mut polled = moment;
        for _ in 0..50 {
            let ended = polled + Duration::from_millis(301);
            assert!(rounds.after(polled, EVERY) <= ended);
            polled = ended;
        }
    }

    fn sorted(moments: impl Iterator<Item = Instant>) -> Vec<Instant> {
        let mut moments: Vec<Instant> = moments.collect();
        moments.sort_unstable();
        moments
    }

    fn gaps(moments: &[Instant]) -> impl Iterator<Item = Duration> + Clone {
        moments.windows(2).map(|pair| pair[1] - pair[0])
    }

    #[test]
    fn some_are_polled_together_and_the_groups_apart() {
        let start = Instant::now();
        let later = start + Duration::from_secs(10);
        let of = |replica| Rounds::of(start, replica).after(later, EVERY);
        assert!((0..TOGETHER).all(|replica| of(replica) == of(0)));
        let mut moments = sorted((0..512).map(of));
        moments.dedup();
        assert_eq!(moments.len(), 512 / TOGETHER);
        // Evenly would be a 64th.
        assert!(gaps(&moments).min().unwrap() > EVERY / 64 / 4);
        assert!(gaps(&moments).max().unwrap() < EVERY / 64 * 4);
    }

    #[test]
    fn ranks_of_one_engine_are_polled_apart() {
        let start = Instant::now();
        let later = start + Duration::from_secs(10);
        for port in 8_000..8_100 {
            let endpoint = ([10, 0, 0, 1], port).into();
            let of = |rank| Rounds::of_rank(start, &endpoint, rank).after(later, EVERY);
            let moments = sorted((0..16).map(of));
            assert!(gaps(&moments).min().unwrap() > EVERY / 16 / 4);
        }
    }
}
