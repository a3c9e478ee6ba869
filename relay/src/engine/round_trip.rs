//! How far an engine is: the time of a TCP handshake, which its process has no part in.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::jitter::jittered;

/// The least of so many counts: what is more was the machine's business, not the network's.
const KEPT: usize = 8;

/// Round trips to one engine.
#[derive(Debug)]
pub(crate) struct RoundTrip {
    last: [Option<Duration>; KEPT],
    next: usize,
    every: Duration,
    due: Instant,
}

impl RoundTrip {
    pub(crate) fn new(every: Duration) -> Self {
        Self { last: [None; KEPT], next: 0, every, due: Instant::now() }
    }

    /// Opens a connection to `endpoint` and drops it, if it is time for that. Gives the least of
    /// the last times; none before one was had.
    pub(crate) async fn measure(&mut self, endpoint: &str, patience: Duration) -> Option<Duration> {
        let start = Instant::now();
        if start >= self.due {
            self.due = start + jittered(self.every);
            if let Ok(Ok(stream)) = timeout(patience, TcpStream::connect(endpoint)).await {
                let took = start.elapsed();
                drop(stream);
                self.took(took);
            }
        }
        self.least()
    }

    fn took(&mut self, time: Duration) {
        if let Some(place) = self.last.get_mut(self.next) {
            *place = Some(time);
        }
        self.next = (self.next + 1) % KEPT;
    }

    fn least(&self) -> Option<Duration> {
        self.last.iter().flatten().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_handshake_is_timed_now_and_then() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let patience = Duration::from_secs(5);
        let mut trip = RoundTrip::new(Duration::from_mins(1));
        let first = trip.measure(&endpoint, patience).await;
        assert!(first.is_some());
        // Not yet due again, and what is known stays.
        drop(listener);
        assert_eq!(trip.measure(&endpoint, patience).await, first);
        assert_eq!(RoundTrip::new(Duration::from_mins(1)).measure(&endpoint, patience).await, None);
    }

    #[test]
    fn the_least_of_the_last_counts() {
        let mut trip = RoundTrip::new(Duration::from_mins(1));
        trip.took(Duration::from_millis(1));
        for _ in 0..KEPT - 1 {
            trip.took(Duration::from_millis(30));
        }
        assert_eq!(trip.least(), Some(Duration::from_millis(1)));
        trip.took(Duration::from_millis(20));
        assert_eq!(trip.least(), Some(Duration::from_millis(20)));
    }
}
