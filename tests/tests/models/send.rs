//! A client that sends what others don't: bodies in many pieces, with and without a length, and
//! that hears an answer which comes before the body is sent.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use warmpath_tests::{Answer, host};

/// A body in pieces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces {
    pieces: VecDeque<Bytes>,
    /// Its length isn't told: it is sent in chunks.
    chunked: bool,
}

impl Pieces {
    /// A body that is told its length.
    pub(crate) fn new(pieces: impl IntoIterator<Item = Bytes>) -> Self {
        let pieces = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        Self { pieces, chunked: false }
    }

    /// The same bytes in chunks of these lengths, again and again.
    pub(crate) fn in_chunks(&self, lengths: &[usize]) -> Self {
        let mut lengths = lengths.iter().copied().cycle();
        let mut pieces = VecDeque::new();
        for piece in &self.pieces {
            let mut rest = piece.clone();
            while !rest.is_empty() {
                pieces.push_back(rest.split_to(lengths.next().unwrap().min(rest.len())));
            }
        }
        Self { pieces, chunked: true }
    }

    /// All of it in one.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.pieces.iter().flatten().copied().collect()
    }

    /// Its first bytes.
    pub(crate) fn cut(mut self, mut length: usize) -> Self {
        for piece in &mut self.pieces {
            piece.truncate(length);
            length -= piece.len();
        }
        Self::new(self.pieces)
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.pieces.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        if self.chunked {
            return SizeHint::default();
        }
        SizeHint::with_exact(self.pieces.iter().map(|piece| piece.len() as u64).sum())
    }
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Its method.
    pub(crate) method: &'static str,
    /// Its path.
    pub(crate) path: String,
    /// Its headers, but for the host.
    pub(crate) headers: Vec<(&'static str, String)>,
    /// Its body.
    pub(crate) body: Pieces,
}

impl Request {
    /// A request without a body.
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self { method: "GET", path: path.into(), headers: Vec::new(), body: Pieces::default() }
    }

    /// One with a body of this type.
    pub(crate) fn post(path: &str, content_type: &str, body: Pieces) -> Self {
        let headers = vec![("content-type", content_type.to_owned())];
        Self { method: "POST", path: path.to_owned(), headers, body }
    }

    /// The same with another header.
    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }
}

/// Sends requests to one Envoy.
#[derive(Clone)]
pub(crate) struct Sender {
    client: Client<HttpConnector, Pieces>,
    port: u16,
}

impl Sender {
    /// For the gateway on this loopback port.
    pub(crate) fn new(port: u16) -> Self {
        Self { client: Client::builder(TokioExecutor::new()).build_http(), port }
    }

    /// Sends a request of a zone and reads the answer to its end.
    pub(crate) async fn send(&self, zone: &str, request: &Request) -> Result<Answer, String> {
        let url = format!("http://127.0.0.1:{}{}", self.port, request.path);
        let mut built =
            hyper::Request::builder().method(request.method).uri(url).header("host", host(zone));
        for (name, value) in &request.headers {
            built = built.header(*name, value);
        }
        let sent = async {
            let response = self.client.request(built.body(request.body.clone()).unwrap()).await;
            let (parts, body) = response.map_err(|error| format!("{error:?}"))?.into_parts();
            let body = body.collect().await.map_err(|error| format!("body: {error:?}"))?.to_bytes();
            let mut headers = BTreeMap::new();
            for (name, value) in &parts.headers {
                let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                headers.insert(name.as_str().to_owned(), value);
            }
            Ok(Answer { status: parts.status.as_u16(), headers, body: body.to_vec() })
        };
        match tokio::time::timeout(Duration::from_secs(30), sent).await {
            Ok(answer) => answer,
            Err(_) => Err("no answer within 30 s".to_owned()),
        }
    }
}
