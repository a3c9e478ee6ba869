//! The relay: engines' KV events and load in, the side-stream to Envoy out.
#![forbid(unsafe_code)]

pub mod adapters;
pub mod admin;
pub mod artefact;
pub mod config;
pub mod counters;
mod discovery;
pub mod events;
mod fleet;
pub mod gauges;
pub mod index;
pub mod lessons;
pub mod listing;
pub mod load;
pub mod message;
pub mod policy_pools;
pub mod ranks;
mod replay;
mod round_trip;
pub mod rounds;
mod run;
pub mod sidestream;
pub mod state;
pub mod subscriber;
pub mod time_zone;
pub mod zmtp;

pub use config::{Config, ConfigError};
pub use run::{RelayError, check, run, run_reloading, run_with};
