//! Who sent a request.

use warmpath_routing::poison::client_of;

use crate::host;

/// Who sent a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Client {
    /// Envoy's number of the connection.
    pub(super) connection: u64,
    /// The address, less what one client can choose of it.
    pub(super) address: String,
}

impl Client {
    /// Of the stream of this callback. Two calls out of the VM: for what went wrong only.
    pub(super) fn read() -> host::Result<Self> {
        let address = host::property("source\0address")?.unwrap_or_default();
        Ok(Self {
            connection: host::number("connection\0id")?.unwrap_or(0),
            address: client_of(&String::from_utf8_lossy(&address)),
        })
    }
}
