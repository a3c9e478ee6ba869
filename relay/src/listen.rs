//! TCP listeners.

use std::time::Duration;

use tokio::net::TcpListener;
use tracing::warn;

use crate::error::RelayError;

/// Time between attempts to bind an address that something else holds.
const BIND_AGAIN: Duration = Duration::from_secs(1);

/// Binds an address; `purpose` names it in the error.
///
/// # Errors
/// [`RelayError::Listen`] where the address can't be bound.
pub(crate) async fn bind(address: &str, purpose: &'static str) -> Result<TcpListener, RelayError> {
    TcpListener::bind(address).await.map_err(|error| RelayError::Listen {
        address: address.to_owned(),
        purpose,
        error,
    })
}

/// Binds, however long that takes: one address that is taken must not stop the others.
pub(crate) async fn bind_when_free(address: &str, purpose: &'static str) -> TcpListener {
    let mut warned = false;
    loop {
        match bind(address, purpose).await {
            Ok(listener) => return listener,
            Err(error) if !warned => {
                warned = true;
                warn!(%error, "can't bind the address; retrying");
            }
            Err(_) => {}
        }
        tokio::time::sleep(BIND_AGAIN).await;
    }
}
