//! Asking an engine for batches that are past.
//!
//! vLLM: `ZmqEventPublisher._service_replay`. A DEALER sends `["", start u64 BE]`. From 0.26 on the
//! answers are `["", topic, sequence, payload]`, before that `["", sequence, payload]`; the last one
//! has the sequence -1 (eight bytes of ff) and an empty payload.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::subscriber::in_time;
use crate::zmtp::{Connection, Role, ZmtpError};

/// Time for the next answer. vLLM answers between two batches of its own.
const NEXT: Duration = Duration::from_secs(1);
/// Answers that are taken; vLLM keeps 10,000 batches unless told otherwise.
const MAX_BATCHES: usize = 1_000_000;

/// A batch from the past.
#[derive(Debug)]
pub(crate) struct Replayed {
    /// Its number.
    pub(crate) sequence: u64,
    /// As in a live message.
    pub(crate) payload: Bytes,
}

/// Sends what the engine still has from `start` on, in order, to `taker`; returns how many batches
/// that were.
///
/// # Errors
/// [`ZmtpError`], also where the engine stays silent before the end.
pub(crate) async fn replay(
    address: &str,
    start: u64,
    taker: mpsc::Sender<Replayed>,
) -> Result<usize, ZmtpError> {
    let mut connection = Connection::connect(address, Role::Dealer).await?;
    connection.send(&[b"", &start.to_be_bytes()]).await?;
    for count in 0..MAX_BATCHES {
        let parts = in_time(NEXT, connection.receive()).await?;
        let ([_, sequence, payload] | [_, _, sequence, payload]) = parts.as_slice() else {
            return Err(ZmtpError::Protocol("a replay of neither three nor four parts"));
        };
        let Ok(sequence) = sequence.as_ref().try_into().map(u64::from_be_bytes) else {
            return Err(ZmtpError::Protocol("a replay's sequence is not eight bytes"));
        };
        if sequence == u64::MAX {
            return Ok(count);
        }
        let replayed = Replayed { sequence, payload: payload.clone() };
        if taker.send(replayed).await.is_err() {
            return Ok(count);
        }
    }
    Err(ZmtpError::TooLarge)
}
