//! Benchmarks of Warmpath: the whole of it beside its peers, and its hot path alone.
//!
//! `scripts/bench` runs all of this; see there.
#![forbid(unsafe_code)]

mod args;
pub mod bodies;
pub mod cases;
pub mod decision;
pub mod ending;
pub mod growth;
pub mod guard;
pub mod latency;
pub mod load;
pub mod memory;
pub mod report;
pub mod run;
pub mod script;
pub mod systems;
pub mod upstream;
pub mod usage;
