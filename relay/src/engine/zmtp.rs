//! The two ZeroMQ roles that the relay needs, SUB and DEALER, over TCP with the NULL mechanism.
//!
//! Source: ZMTP 3.0 (rfc.zeromq.org/spec/23). Own code and not the `zeromq` crate (which the tests
//! use as the other side), for three reasons: that crate's reader reserves memory by a frame's own
//! claim, so that nine bytes from a peer end the process; its reconnects wait up to 30 seconds; and
//! the relay must hear of a broken connection at once, because it means that a cache may be gone.

use std::io;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Bytes of one multipart message that are taken. A store of 128k tokens takes about 0.7 MB.
const MAX_MESSAGE: usize = 64 << 20;
const MAX_PARTS: usize = 16;
const READ_CHUNK: usize = 64 << 10;
/// Time for TCP connect, and again for the handshake.
const HANDSHAKE: Duration = Duration::from_secs(2);

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What the relay is to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Hears a PUB or XPUB.
    Sub,
    /// Asks a ROUTER.
    Dealer,
}

/// Why there is no connection any more.
#[derive(Debug, thiserror::Error)]
pub enum ZmtpError {
    /// TCP failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer closed.
    #[error("the peer closed the connection")]
    Closed,
    /// Nothing came for that long.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The peer doesn't speak ZMTP 3 with the NULL mechanism as the expected socket type.
    #[error("the peer does not speak ZMTP as expected: {0}")]
    Protocol(&'static str),
    /// A message beyond the bounds.
    #[error("a message of more than {MAX_MESSAGE} bytes or {MAX_PARTS} parts")]
    TooLarge,
}

/// An established connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    read: BytesMut,
    write: BytesMut,
    parts: Vec<Bytes>,
    size: usize,
}

enum Frame {
    Part { body: Bytes, more: bool },
    Command(Bytes),
}

impl Connection {
    /// Connects to `host:port` and shakes hands.
    ///
    /// # Errors
    /// [`ZmtpError::Io`] where TCP fails, [`ZmtpError::Timeout`] where connecting or the handshake
    /// takes more than two seconds, [`ZmtpError::Closed`] and [`ZmtpError::Protocol`] where the peer
    /// ends the handshake or is something else.
    pub async fn connect(address: &str, role: Role) -> Result<Self, ZmtpError> {
        let connecting = async { Ok(TcpStream::connect(address).await?) };
        let stream = in_time(HANDSHAKE, connecting).await?;
        Self::establish(stream, role).await
    }

    /// Shakes hands on a stream that either side opened. A SUB subscribes to everything.
    ///
    /// # Errors
    /// As [`Self::connect`], but for connecting.
    pub async fn establish(stream: TcpStream, role: Role) -> Result<Self, ZmtpError> {
        stream.set_nodelay(true)?;
        let mut connection = Self {
            stream,
            read: BytesMut::new(),
            write: BytesMut::new(),
            parts: Vec::new(),
            size: 0,
        };
        in_time(HANDSHAKE, connection.shake_hands(role)).await?;
        Ok(connection)
    }

    async fn shake_hands(&mut self, role: Role) -> Result<(), ZmtpError> {
        let mut greeting = [0; 64];
        greeting[0] = 0xff;
        greeting[9] = 0x7f;
        greeting[10] = 3;
        greeting[12..16].copy_from_slice(b"NULL");
        self.write.put_slice(&greeting);
        self.flush().await?;
        while self.read.len() < greeting.len() {
            self.fill().await?;
        }
        let theirs = self.read.split_to(greeting.len());
        if theirs.first() != Some(&0xff) || theirs.get(9).is_none_or(|byte| byte & 1 == 0) {
            return Err(ZmtpError::Protocol("no ZMTP greeting"));
        }
        if theirs.get(10).is_none_or(|&major| major < 3) {
            return Err(ZmtpError::Protocol("ZMTP older than 3.0"));
        }
        if theirs.get(12..32) != greeting.get(12..32) {
            return Err(ZmtpError::Protocol(
                "it wants a security mechanism, only NULL is supported",
            ));
        }
        let name: &[u8] = match role {
            Role::Sub => b"SUB",
            Role::Dealer => b"DEALER",
        };
        let mut ready = BytesMut::new();
        ready.put_slice(b"\x05READY");
        ready.put_slice(b"\x0bSocket-Type");
        ready.put_u32(name.len() as u32);
        ready.put_slice(name);
        if role == Role::Dealer {
            ready.put_slice(b"\x08Identity");
            ready.put_u32(0);
        }
        self.put_frame(COMMAND, &ready);
        self.flush().await?;
        let peer = loop {
            match self.frame()? {
                Some(Frame::Command(command)) => break socket_type(&command)?,
                Some(Frame::Part { .. }) => {
                    return Err(ZmtpError::Protocol("a message before the handshake's end"));
                }
                None => self.fill().await?,
            }
        };
        match (role, peer.as_ref()) {
            (Role::Sub, b"PUB" | b"XPUB") => self.subscribe().await,
            (Role::Dealer, b"ROUTER" | b"REP" | b"DEALER") => Ok(()),
            (Role::Sub, _) => Err(ZmtpError::Protocol("its socket is no PUB")),
            (Role::Dealer, _) => Err(ZmtpError::Protocol("its socket is no ROUTER")),
        }
    }

    /// Subscribes to everything. Once more does no harm, and shows whether the peer is still there.
    ///
    /// # Errors
    /// [`ZmtpError::Io`] where the connection broke.
    pub async fn subscribe(&mut self) -> Result<(), ZmtpError> {
        self.send(&[b"\x01"]).await
    }

    /// Sends one multipart message.
    ///
    /// # Errors
    /// [`ZmtpError::Io`] where the connection broke.
    pub async fn send(&mut self, parts: &[&[u8]]) -> Result<(), ZmtpError> {
        for (i, part) in parts.iter().enumerate() {
            let more = if i + 1 < parts.len() { MORE } else { 0 };
            self.put_frame(more, part);
        }
        self.flush().await
    }

    /// Receives one multipart message. Nothing is lost when the future is dropped half-way.
    ///
    /// # Errors
    /// [`ZmtpError::Io`] and [`ZmtpError::Closed`] where the connection ended, [`ZmtpError::TooLarge`]
    /// and [`ZmtpError::Protocol`] where what came is no message of an engine; the connection is of no
    /// use after any of them.
    pub async fn receive(&mut self) -> Result<Vec<Bytes>, ZmtpError> {
        loop {
            match self.frame()? {
                Some(Frame::Part { body, more }) => {
                    self.size += body.len();
                    if self.size > MAX_MESSAGE || self.parts.len() == MAX_PARTS {
                        return Err(ZmtpError::TooLarge);
                    }
                    self.parts.push(body);
                    if !more {
                        self.size = 0;
                        return Ok(std::mem::take(&mut self.parts));
                    }
                }
                Some(Frame::Command(command)) => {
                    if let Some(ping) = command.strip_prefix(b"\x04PING")
                        && let Some(context) = ping.get(2..)
                    {
                        let mut pong = BytesMut::from(&b"\x04PONG"[..]);
                        pong.put_slice(context);
                        self.put_frame(COMMAND, &pong);
                    } else if command.starts_with(b"\x05ERROR") {
                        return Err(ZmtpError::Protocol("it said ERROR"));
                    }
                }
                None => {
                    self.flush().await?;
                    self.fill().await?;
                }
            }
        }
    }

    /// Takes one whole frame out of what was read, if there is one.
    fn frame(&mut self) -> Result<Option<Frame>, ZmtpError> {
        let [flags, rest @ ..] = self.read.as_ref() else { return Ok(None) };
        let flags = *flags;
        if flags & !(MORE | LONG | COMMAND) != 0 {
            return Err(ZmtpError::Protocol("a frame with unknown flags"));
        }
        let (header, length) = if flags & LONG == 0 {
            let [length, ..] = rest else { return Ok(None) };
            (2, u64::from(*length))
        } else {
            let Some(length) = rest.first_chunk::<8>() else { return Ok(None) };
            (9, u64::from_be_bytes(*length))
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > MAX_MESSAGE {
            return Err(ZmtpError::TooLarge);
        }
        if self.read.len() < header + length {
            return Ok(None);
        }
        self.read.advance(header);
        let body = self.read.split_to(length).freeze();
        Ok(Some(if flags & COMMAND != 0 {
            Frame::Command(body)
        } else {
            Frame::Part { body, more: flags & MORE != 0 }
        }))
    }

    async fn fill(&mut self) -> Result<(), ZmtpError> {
        // Memory grows with what has come, not with what a frame claims.
        self.read.reserve(READ_CHUNK);
        match self.stream.read_buf(&mut self.read).await? {
            0 => Err(ZmtpError::Closed),
            _ => Ok(()),
        }
    }

    fn put_frame(&mut self, flags: u8, body: &[u8]) {
        if let Ok(length) = u8::try_from(body.len()) {
            self.write.put_slice(&[flags, length]);
        } else {
            self.write.put_u8(flags | LONG);
            self.write.put_u64(body.len() as u64);
        }
        self.write.put_slice(body);
    }

    async fn flush(&mut self) -> Result<(), ZmtpError> {
        while !self.write.is_empty() {
            self.stream.write_buf(&mut self.write).await?;
        }
        Ok(())
    }
}

/// Waits for `future` no longer than `limit`.
///
/// # Errors
/// [`ZmtpError::Timeout`] with the limit, or the future's own error.
pub(crate) async fn in_time<T>(
    limit: Duration,
    future: impl Future<Output = Result<T, ZmtpError>>,
) -> Result<T, ZmtpError> {
    tokio::time::timeout(limit, future).await.map_err(|_| ZmtpError::Timeout(limit))?
}

/// The peer's socket type from its READY command.
fn socket_type(command: &Bytes) -> Result<Bytes, ZmtpError> {
    const BROKEN: ZmtpError = ZmtpError::Protocol("a broken READY");
    let Some(properties) = command.strip_prefix(b"\x05READY") else {
        return Err(ZmtpError::Protocol("it refused the handshake"));
    };
    let mut properties = command.slice_ref(properties);
    while !properties.is_empty() {
        let name_length = usize::from(properties.get_u8());
        if properties.len() < name_length + 4 {
            return Err(BROKEN);
        }
        let name = properties.split_to(name_length);
        let length = properties.get_u32() as usize;
        if properties.len() < length {
            return Err(BROKEN);
        }
        let value = properties.split_to(length);
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Ok(value);
        }
    }
    Err(ZmtpError::Protocol("a READY without a socket type"))
}
