//! Everything that Warmpath decides, and nothing else: no I/O, no clock, no host.
//!
//! The filter inside Envoy, the relay beside it and the command line all call this crate, so the
//! three can never disagree about what a prefix is called, who holds it or where a request goes.
#![forbid(unsafe_code)]

pub mod catalogue;
pub mod cost;
pub mod decision;
pub mod digest;
pub mod drift;
pub mod fingerprint;
pub mod health;
pub mod learn;
pub mod ledger;
mod mix;
pub mod orca;
pub mod poison;
pub mod policy;
pub mod prefix_map;
pub mod recent;
pub mod requested;
pub mod ring;
pub mod state;
pub mod stored;
pub mod tally;
pub mod traffic;
pub mod unique_keys;
pub mod usage;
pub mod view;
pub mod zone_source;

pub use decision::residency;
