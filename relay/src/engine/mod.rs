//! All that touches an engine: its events, their replay, its metrics, its list of models, the way there.

pub mod adapters;
pub mod alarms;
pub mod counters;
pub(crate) mod gauges;
pub(crate) mod jitter;
pub mod listing;
pub mod poller;
pub mod polling;
pub mod ranks;
mod replay;
pub mod report;
mod round_trip;
pub mod rounds;
mod sample;
pub mod subscriber;
pub mod way;
pub mod zmtp;
