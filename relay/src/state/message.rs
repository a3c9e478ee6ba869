//! The messages that the state's task takes from all others.

use tokio::sync::{mpsc, oneshot};
use warmpath_routing::fingerprint::Key;

use super::policy_pools::PolicyPools;
use super::registration::Registration;
use super::subscription::Subscription;
use super::summary::{Holder, Summary};
use crate::engine::adapters::Adapters;
use crate::engine::report::{Engines, Report, Sleep};
use crate::events::Batch;
use crate::index::lesson::Lesson;

/// A replica's number, which no other gets in the relay's life.
pub type ReplicaId = usize;

/// To the state.
#[derive(Debug)]
#[allow(missing_docs, reason = "each field is what its variant says")]
pub enum Message {
    /// Events, in order.
    Batch { replica: ReplicaId, sequence: u64, batch: Batch },
    /// What was known of the replica's cache isn't sure any more.
    Clear { replica: ReplicaId, why: Doubt },
    /// Its events are heard, or not.
    Heard { replica: ReplicaId, heard: bool },
    /// What there was to learn of the past is learned.
    Settled { replica: ReplicaId },
    /// What polling its API gave.
    Report { replica: ReplicaId, report: Report },
    /// The data-parallel ranks that its engine's API has.
    Engines { replica: ReplicaId, engines: Engines },
    /// Its engine sleeps, or is awake.
    Sleep { replica: ReplicaId, sleep: Option<Sleep> },
    /// Its engine says whether it keeps a prefix cache.
    Caches { replica: ReplicaId, caches: bool },
    /// Its engine speculates, or not.
    Speculates { replica: ReplicaId, speculates: bool },
    /// Many batches were of another rank, and none of its own.
    OtherRank { replica: ReplicaId, rank: u32 },
    /// Its engine serves the model that it is said to, and which adapters it has loaded, where its
    /// answer tells them all; or another model, and which. And where it has it from, if it says so.
    Serves {
        replica: ReplicaId,
        wrong: Option<String>,
        adapters: Option<Adapters>,
        root: Option<String>,
    },
    /// A new side-stream; the answer is held back until all replicas settled.
    Subscribe { reply: oneshot::Sender<Subscription> },
    /// A stream's gateway tells the pools of its policy.
    Policy { stream: u64, node: String, pools: PolicyPools },
    /// A gateway tells what answers said of caches.
    Lessons { lessons: Vec<Lesson> },
    /// A replica joins.
    Join { replica: ReplicaId, known: Box<Registration> },
    /// A replica leaves for good.
    Leave { replica: ReplicaId },
    /// The configuration says whether a replica takes nothing new, what it can take beside others,
    /// and which adapters it has.
    Reconfigure { replica: ReplicaId, draining: bool, weight: u16, adapters: Option<Adapters> },
    /// A person says that the replicas of an endpoint take nothing new, or do again; the answer is
    /// how many there are.
    Drain { endpoint: String, rank: Option<u32>, drain: bool, reply: oneshot::Sender<usize> },
    /// Who holds a prefix.
    Holders { key: Key, reply: oneshot::Sender<Vec<Holder>> },
    /// For the admin endpoint.
    Summarize { reply: oneshot::Sender<Summary> },
}

/// Why a view was cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The connection to the publisher broke: the engine may have died.
    Disconnected,
    /// The sequence began anew.
    Restarted,
    /// Batches are missing and can't be replayed.
    Gap,
    /// A batch can't be read, and may have held removals.
    Unreadable,
}

impl Doubt {
    /// For logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disconnected => "disconnected",
            Self::Restarted => "restarted",
            Self::Gap => "gap",
            Self::Unreadable => "unreadable",
        }
    }
}

/// Where messages go.
pub type Sender = mpsc::Sender<Message>;
