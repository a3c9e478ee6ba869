//! Server-sent events.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Events that wait for a slow client before its generation waits too.
const QUEUE: usize = 64;

/// Where events go.
#[derive(Clone)]
pub(super) struct Events(mpsc::Sender<Result<Bytes, Infallible>>);

/// Starts an answer. When the client goes away, what `tell` awaits here gives `None`.
pub(super) fn respond<T: Future + Send + 'static>(tell: impl FnOnce(Events) -> T) -> Response
where
    T::Output: Send,
{
    let (events, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(tell(Events(events)));
    let headers = [(CONTENT_TYPE, "text/event-stream; charset=utf-8"), (CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(ReceiverStream::new(receiver))).into_response()
}

impl Events {
    /// An event that is data only.
    pub(super) async fn data(&self, event: &impl Serialize) -> Option<()> {
        let json = serde_json::to_string(event).ok()?;
        self.text(format!("data: {json}\n\n")).await
    }

    /// An event with a name.
    pub(super) async fn named(&self, name: &str, event: &impl Serialize) -> Option<()> {
        let json = serde_json::to_string(event).ok()?;
        self.text(format!("event: {name}\ndata: {json}\n\n")).await
    }

    pub(super) async fn text(&self, text: impl Into<Bytes>) -> Option<()> {
        self.0.send(Ok(text.into())).await.ok()
    }

    /// What comes of it, unless the client goes away before.
    pub(super) async fn unless_gone<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.0.closed() => None,
        }
    }
}
