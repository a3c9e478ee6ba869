//! What is measured: each proxy in front of the same engines.

mod engines;
mod envoy;
mod fleet;
mod ground;
mod peers;
mod started;
mod stats;
mod watched;

pub use fleet::{Fleet, Options};
pub use started::System;
pub use watched::Watched;

pub(crate) use fleet::NAMES;
pub(crate) use ground::{ENGINES, WORKERS};
pub(crate) use stats::{Buckets, decided, decisions, histogram, prompt_tokens};
