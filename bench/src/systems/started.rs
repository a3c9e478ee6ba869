//! Proxies that run.

use std::net::SocketAddr;

use warmpath_tests::Process;

use crate::bodies::Kind;

/// A proxy, or none, that runs.
#[derive(Debug)]
pub struct System {
    /// Its name in the table.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// The `host` header that it wants.
    pub host: String,
    /// Which prompts it gets.
    pub kind: Kind,
    /// The processes that it consists of.
    pub processes: Vec<u32>,
    /// The reason that Warmpath should give for each decision, and Envoy's admin port.
    pub reason: Option<(&'static str, u16)>,
}

/// What was started so far.
#[derive(Debug)]
pub(super) struct Started {
    /// What is measured, in the table's order.
    pub(super) systems: Vec<System>,
    /// What can't be, and why.
    pub(super) missing: Vec<(String, String)>,
    pub(super) processes: Vec<Process>,
}
