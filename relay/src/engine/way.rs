//! How an engine's publisher is reached: who binds, who connects.

/// How to reach an engine's publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// It binds, the relay connects to `host:port`.
    Connect(String),
    /// The relay binds `address:port`, it connects.
    Bind(String),
}
