//! The whole of Warmpath on one machine: simulated engines, a real relay, a real Envoy.
//!
//! The end-to-end tests and `scripts/run` start it from the very files that users start from
//! (`envoy/quickstart.yaml`, `envoy/quickstart.relay.yaml`), the tests with the ports changed so
//! that several stacks can run beside each other.
#![forbid(unsafe_code)]

mod client;
mod ports;
mod process;
mod stack;
mod text;
mod tools;

pub use client::{Answer, Client, host};
pub use ports::Ports;
pub use process::Process;
pub use stack::{ENGINES, EngineSpec, Options, Serves, Stack, eventually};
pub use text::system_prompt;
pub use tools::{Tools, repository, shared};
