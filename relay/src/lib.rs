//! The relay: engines' KV events and load in, the side-stream to Envoy out.
#![forbid(unsafe_code)]

pub mod admin;
pub mod artefact;
pub mod config;
mod discovery;
pub mod engine;
mod error;
pub mod events;
mod fleet;
pub mod index;
mod listen;
mod run;
pub mod sidestream;
pub mod state;

pub use config::{Config, ConfigError};
pub use error::RelayError;
pub use run::{check, run, run_reloading, run_with};
