//! The admin endpoint, on loopback: `/healthz`, `/status` (JSON), `/metrics` (Prometheus text),
//! `/holders?key=` (JSON: who holds a prefix, by the first 32 hexadecimal digits of its
//! fingerprint), and `POST` or `DELETE /drain?endpoint=ip:port[&rank=N]`, by which a replica takes
//! nothing new, or does again.

mod metrics;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use warmpath_routing::fingerprint::Key;

use crate::discovery::Sightings;
use crate::state::message::{Message, Sender};
use crate::state::{Holder, Summary};

/// Serves until `stop`.
pub(crate) async fn serve(
    listener: TcpListener,
    state: Sender,
    sightings: Sightings,
    stop: CancellationToken,
) {
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/status", get(status))
        .route("/metrics", get(move |state| metrics(state, sightings)))
        .route("/holders", get(holders))
        .route("/drain", post(drain).delete(undrain))
        .with_state(state);
    if let Err(error) =
        axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned()).await
    {
        warn!(%error, "the admin endpoint failed");
    }
}

async fn summary(state: &Sender) -> Result<Summary, StatusCode> {
    let (reply, answer) = oneshot::channel();
    let gone = StatusCode::SERVICE_UNAVAILABLE;
    state.send(Message::Summarize { reply }).await.map_err(|_| gone)?;
    answer.await.map_err(|_| gone)
}

async fn status(State(state): State<Sender>) -> Result<Json<Summary>, StatusCode> {
    summary(&state).await.map(Json)
}

/// An answer that says what was wrong.
type Refused = (StatusCode, &'static str);

const GONE: Refused = (StatusCode::SERVICE_UNAVAILABLE, "the relay stops\n");

#[derive(serde::Deserialize)]
struct OfKey {
    key: String,
}

async fn holders(
    State(state): State<Sender>,
    Query(OfKey { key }): Query<OfKey>,
) -> Result<Json<Vec<Holder>>, Refused> {
    const WRONG: Refused = (
        StatusCode::BAD_REQUEST,
        "key must be a fingerprint, or its first 32 hexadecimal digits\n",
    );
    // What follows of a whole fingerprint isn't in the map.
    let digits = key.get(..32).filter(|_| key.len() == 32 || key.len() == 64).ok_or(WRONG)?;
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(WRONG);
    }
    let key = Key(u128::from_str_radix(digits, 16).map_err(|_| WRONG)?.to_be_bytes());
    let (reply, answer) = oneshot::channel();
    state.send(Message::Holders { key, reply }).await.map_err(|_| GONE)?;
    answer.await.map(Json).map_err(|_| GONE)
}

#[derive(serde::Deserialize)]
struct OfReplica {
    endpoint: String,
    rank: Option<u32>,
}

async fn drain(
    state: State<Sender>,
    replica: Query<OfReplica>,
    headers: HeaderMap,
) -> Result<String, Refused> {
    by_no_page(&headers)?;
    set_draining(state, replica, true).await
}

async fn undrain(
    state: State<Sender>,
    replica: Query<OfReplica>,
    headers: HeaderMap,
) -> Result<String, Refused> {
    by_no_page(&headers)?;
    set_draining(state, replica, false).await
}

/// Loopback is open to every page that a browser on this machine shows; those name their origin.
fn by_no_page(headers: &HeaderMap) -> Result<(), Refused> {
    if headers.contains_key(header::ORIGIN) {
        return Err((StatusCode::FORBIDDEN, "this is not for pages in a browser\n"));
    }
    Ok(())
}

async fn set_draining(
    State(state): State<Sender>,
    Query(OfReplica { endpoint, rank }): Query<OfReplica>,
    drain: bool,
) -> Result<String, Refused> {
    let (reply, answer) = oneshot::channel();
    let message = Message::Drain { endpoint, rank, drain, reply };
    state.send(message).await.map_err(|_| GONE)?;
    match answer.await.map_err(|_| GONE)? {
        0 => Err((StatusCode::NOT_FOUND, "no replica has this endpoint and rank\n")),
        count => {
            Ok(format!("{count} replicas {}\n", if drain { "drain" } else { "take requests" }))
        }
    }
}

async fn metrics(
    State(state): State<Sender>,
    sightings: Sightings,
) -> Result<Response, StatusCode> {
    let text = metrics::render(summary(&state).await?, sightings.all());
    let text = text.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}
