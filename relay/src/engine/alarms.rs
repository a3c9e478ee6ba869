//! What the poller of an engine must tell the subscriber of the same engine at once.

use tokio::sync::Notify;

/// What polling tells the subscriber of the same engine.
#[derive(Debug, Default)]
pub struct Alarms {
    /// The API's port refuses: the process is gone, and its cache with it.
    pub gone: Notify,
    /// It answers again after a silence: it may be another process on a host that came back, which
    /// only shows on the old connection when something is sent there.
    pub back: Notify,
}
