//! What the state is given about a replica when that joins.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::adapters::Adapters;
use crate::engine::counters::Counters;
use crate::index::View;

/// A replica as it joins: its settings, its empty view, its counters.
#[derive(Debug)]
pub struct Registration {
    /// `ip:port` of its API.
    pub endpoint: String,
    /// Its data-parallel rank, as requests name it.
    pub rank: Option<u32>,
    /// That which its batches carry.
    pub events_rank: Option<u32>,
    /// Its pool.
    pub pool: String,
    /// Its model's name.
    pub model: String,
    /// The kind of engine that its model's prompts are made for.
    pub engine: &'static str,
    /// Whether it takes nothing new.
    pub draining: bool,
    /// Whether its engine's events are subscribed to.
    pub has_events: bool,
    /// Time with running requests but without events after which its events are doubted; none for
    /// never.
    pub silence: Option<Duration>,
    /// The store that it shares with others, by name.
    pub store: Option<String>,
    /// What it can take beside others, in hundredths of a plain replica.
    pub weight: u16,
    /// The adapters that it has by configuration; none where that doesn't say.
    pub adapters: Option<Adapters>,
    /// Whether its model says how its engine speculates, and so what it drops of its hits.
    pub says_speculation: bool,
    /// Its empty view.
    pub view: View,
    /// Counted by the tasks about it.
    pub counters: Arc<Counters>,
}
