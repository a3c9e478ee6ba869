//! Faults on demand: what takes a real engine down, for tests of what is in front of it.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use super::args::Options;
use crate::output;

/// Which requests the engine doesn't bear.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    crash_on: Option<String>,
    reset_over: Option<u64>,
}

impl Faults {
    pub(super) fn new(args: &Options) -> Self {
        Self { crash_on: args.fault_crash_on.clone(), reset_over: args.fault_reset_over }
    }

    /// Whether a request with this body ends the process.
    pub(super) fn is_deadly(&self, body: &[u8]) -> bool {
        let text = self.crash_on.as_deref().unwrap_or_default().as_bytes();
        !text.is_empty() && body.windows(text.len()).any(|window| window == text)
    }

    /// The bytes above which the connection of a request is reset, if any are.
    pub(super) fn reset_over(&self) -> Option<u64> {
        self.reset_over
    }
}

/// Ends the process as a crash would: its connections drop.
pub(super) fn crash() -> ! {
    output::tell("warmpath engine: --fault-crash-on: this prompt ends the process");
    std::process::exit(1)
}

/// Resets a connection, for those who serve its requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Cut(Arc<AtomicBool>);

impl Cut {
    pub(super) fn cut(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn check(&self, stream: &TcpStream) -> io::Result<()> {
        if !self.0.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Closed like this the peer gets a reset, and not an end.
        stream.set_zero_linger()?;
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

impl Connected<IncomingStream<'_, Cuttable>> for Cut {
    fn connect_info(stream: IncomingStream<'_, Cuttable>) -> Self {
        stream.io().cut.clone()
    }
}

/// A listener whose connections can be cut.
pub(super) struct Cuttable(pub(super) TcpListener);

impl Listener for Cuttable {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.0).await;
        let _ = stream.set_nodelay(true);
        (Connection { stream, cut: Cut::default() }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// One of them.
pub(super) struct Connection {
    stream: TcpStream,
    cut: Cut,
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.cut.check(&self.stream)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.cut.check(&self.stream)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use axum::extract::ConnectInfo;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn only_what_is_asked_for_goes_wrong() {
        let none = Faults::default();
        assert!(!none.is_deadly(b"") && !none.is_deadly(b"any") && none.reset_over().is_none());
        let faults = Faults { crash_on: Some("deadly".into()), reset_over: None };
        assert!(faults.is_deadly(b"a deadly one") && !faults.is_deadly(b"a dead one"));
        let empty = Faults { crash_on: Some(String::new()), ..none };
        assert!(!empty.is_deadly(b"any"));
    }

    #[tokio::test]
    async fn a_connection_that_is_cut_is_reset_for_its_peer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = axum::Router::new()
            .route("/cut", get(|ConnectInfo(cut): ConnectInfo<Cut>| async move { cut.cut() }))
            .route("/", get(|| async { "whole" }));
        let service = router.into_make_service_with_connect_info::<Cut>();
        tokio::spawn(axum::serve(Cuttable(listener), service).into_future());
        let ask = async |path: &str| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.map(|_| answer)
        };
        assert!(ask("/").await.unwrap().ends_with("whole"));
        assert_eq!(ask("/cut").await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert!(ask("/").await.unwrap().ends_with("whole"));
    }
}
