//! What one side-stream gets of the state: a snapshot, then deltas from a bounded queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use warmpath_proto::v1::{self, down::Body};
use warmpath_routing::fingerprint::Key;

/// A delta, shared by all streams.
#[derive(Debug)]
pub struct Delta {
    /// In order.
    pub bodies: Vec<Body>,
    pub(super) bytes: usize,
}

/// What a new stream begins with, and what follows.
#[derive(Debug)]
pub struct Subscription {
    /// Names the stream to the state.
    pub stream: u64,
    /// The whole table.
    pub replicas: v1::Replicas,
    /// All loads.
    pub loads: v1::Loads,
    /// Held keys by slot.
    pub blocks: Vec<(u32, Vec<Key>)>,
    /// What changed since.
    pub deltas: Deltas,
}

/// A stream's queue.
#[derive(Debug)]
pub struct Deltas {
    pub(super) receiver: mpsc::Receiver<Arc<Delta>>,
    pub(super) bytes: Arc<AtomicUsize>,
    /// Cancelled when the stream is to end: it was too slow, or the relay starts its slots anew.
    pub ended: CancellationToken,
}

impl Deltas {
    /// The next delta; none when the state is gone.
    pub async fn next(&mut self) -> Option<Arc<Delta>> {
        let delta = self.receiver.recv().await?;
        self.bytes.fetch_sub(delta.bytes, Ordering::Relaxed);
        Some(delta)
    }
}
