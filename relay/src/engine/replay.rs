//! Asking an engine for batches that are past.
//!
//! vLLM: `ZmqEventPublisher._service_replay`. A DEALER sends `["", start u64 BE]`. From 0.26 on the
//! answers are `["", topic, sequence, payload]`, before that `["", sequence, payload]`; the last one
//! has the sequence -1 (eight bytes of ff) and an empty payload.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::zmtp::{Connection, Role, ZmtpError, in_time};

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

/// Why a replay has no end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplayError {
    /// The connection to the replay socket failed, or an answer took too long.
    #[error("{0}")]
    Connection(#[from] ZmtpError),
    /// An answer that is no batch.
    #[error("not an answer to a replay: {0}")]
    Answer(&'static str),
    /// The end doesn't come.
    #[error("more than {MAX_BATCHES} batches")]
    TooMany,
}

/// Sends what the engine still has from `start` on, in order, to `taker`; returns how many batches
/// that were.
///
/// # Errors
/// [`ReplayError::Connection`] where the replay socket can't be reached, the connection breaks or the
/// engine is silent for a second before the end; [`ReplayError::Answer`] and [`ReplayError::TooMany`]
/// where what answers is no replay.
pub(crate) async fn replay(
    address: &str,
    start: u64,
    taker: mpsc::Sender<Replayed>,
) -> Result<usize, ReplayError> {
    let mut connection = Connection::connect(address, Role::Dealer).await?;
    connection.send(&[b"", &start.to_be_bytes()]).await?;
    for count in 0..MAX_BATCHES {
        let parts = in_time(NEXT, connection.receive()).await?;
        let ([_, sequence, payload] | [_, _, sequence, payload]) = parts.as_slice() else {
            return Err(ReplayError::Answer("neither three nor four parts"));
        };
        let Ok(sequence) = sequence.as_ref().try_into().map(u64::from_be_bytes) else {
            return Err(ReplayError::Answer("a sequence number that is not 8 bytes"));
        };
        if sequence == u64::MAX {
            return Ok(count);
        }
        let replayed = Replayed { sequence, payload: payload.clone() };
        if taker.send(replayed).await.is_err() {
            return Ok(count);
        }
    }
    Err(ReplayError::TooMany)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// What a replay says of a socket of this type that answers with these frames, then is silent.
    async fn refused(socket_type: &'static [u8], answer: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let peer = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut greeting = [0; 64];
            (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
            greeting[12..16].copy_from_slice(b"NULL");
            stream.write_all(&greeting).await.unwrap();
            let ready =
                [b"\x05READY\x0bSocket-Type\0\0\0", &[socket_type.len() as u8][..], socket_type];
            let ready = ready.concat();
            stream
                .write_all(&[&[4, ready.len() as u8], &ready[..], answer].concat())
                .await
                .unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
        });
        let (taker, _batches) = mpsc::channel(8);
        let error = replay(&address, 0, taker).await.unwrap_err().to_string();
        tokio::time::timeout(Duration::from_secs(5), peer).await.unwrap().unwrap();
        error
    }

    #[tokio::test]
    async fn errors_say_what_went_wrong_at_the_replay_socket() {
        assert_eq!(refused(b"ROUTER", b"").await, "no answer within 1s");
        assert_eq!(
            refused(b"PUB", b"").await,
            "the peer does not speak ZMTP as expected: its socket is no ROUTER"
        );
        assert_eq!(
            refused(b"ROUTER", b"\x00\x01x").await,
            "not an answer to a replay: neither three nor four parts"
        );
        assert_eq!(
            refused(b"ROUTER", b"\x01\x00\x01\x01x\x00\x01y").await,
            "not an answer to a replay: a sequence number that is not 8 bytes"
        );
    }
}
