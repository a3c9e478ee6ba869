//! The side-stream's server; the protocol is told in `sidestream.proto`.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status, Streaming};
use tracing::{debug, info, warn};
use warmpath_proto::v1::down::Body;
use warmpath_proto::v1::side_stream_server::SideStream;
use warmpath_proto::v1::{self, ArtefactChunk, Down, Hello, Up, up};

use crate::artefact::Catalogue;
use crate::config::Token;
use crate::index::Changes;
use crate::index::lesson::lessons;
use crate::state::Subscription;
use crate::state::message::{Message, Sender};
use crate::state::policy_pools::PolicyPools;

/// Bytes of one artefact chunk.
const CHUNK: usize = 256 * 1024;
/// Time between two beats; a reader is stale after more than a second without one.
const BEAT: Duration = Duration::from_millis(500);
/// Age at which a beat is due, a little less so that none is left out.
const BEAT_DUE: Duration = Duration::from_millis(450);
/// Time for the Hello.
const HELLO: Duration = Duration::from_secs(5);
/// Time that one message may wait for the reader.
const STALL: Duration = Duration::from_secs(10);
/// Time after a policy's pools before anything else is read: a gateway looks once a second whether
/// they changed.
const POOLS_EVERY: Duration = Duration::from_millis(500);
/// Time after lessons before anything else is read: a gateway tells them with its ticks.
const LESSONS_EVERY: Duration = Duration::from_millis(20);
/// Characters of a node's name that are kept.
const MAX_NODE: usize = 256;
/// Messages between this task and the connection.
const WINDOW: usize = 8;

/// Serves the side-stream from the state.
#[derive(Clone, Debug)]
pub struct Server {
    state: Sender,
    catalogue: watch::Receiver<Arc<Catalogue>>,
    token: Option<Token>,
}

impl Server {
    /// A server for what `state` knows; those that don't show the token are turned away.
    pub fn new(
        state: Sender,
        catalogue: watch::Receiver<Arc<Catalogue>>,
        token: Option<Token>,
    ) -> Self {
        Self { state, catalogue, token }
    }
}

#[tonic::async_trait]
impl SideStream for Server {
    type FollowStream = Pin<Box<ReceiverStream<Result<Down, Status>>>>;

    async fn follow(
        &self,
        request: Request<Streaming<Up>>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let peer = request.remote_addr().map(|peer| peer.to_string()).unwrap_or_default();
        // On Envoy's side both belong to the relay's cluster: the token to its upstream HTTP filter
        // `envoy.filters.http.header_mutation` (append `authorization: Bearer …`), certificates to
        // its `transport_socket`, an `UpstreamTlsContext` with `alpn_protocols: [h2]`.
        let shown = request.metadata().get("authorization").map(MetadataValue::as_encoded_bytes);
        if self.token.is_some_and(|token| !token.admits(shown)) {
            warn!(peer, "a side-stream without the token was refused");
            return Err(Status::unauthenticated("the relay wants its bearer token"));
        }
        let (sender, receiver) = mpsc::channel(WINDOW);
        let stream = Stream::new(sender)?;
        let server = self.clone();
        tokio::spawn(async move {
            info!(peer, epoch = stream.epoch, "side-stream opened");
            let mut stream = stream;
            let end = server.serve(&mut stream, request.into_inner()).await;
            info!(
                peer,
                epoch = stream.epoch,
                messages = stream.sequence,
                reason = end.reason,
                "side-stream ended"
            );
            if let Some(status) = end.status {
                let _ = timeout(STALL, stream.sender.send(Err(status))).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

/// Why a stream ends, and what the client is told.
struct End {
    reason: &'static str,
    status: Option<Status>,
}

impl End {
    fn gone() -> Self {
        Self { reason: "the client disconnected", status: None }
    }

    fn relay_stops() -> Self {
        Self { reason: "the relay stops", status: Some(Status::unavailable("the relay stops")) }
    }
}

struct Stream {
    sender: mpsc::Sender<Result<Down, Status>>,
    epoch: u64,
    sequence: u64,
    last_beat: Instant,
}

impl Server {
    async fn serve(&self, stream: &mut Stream, mut up: Streaming<Up>) -> End {
        match self.serve_to_end(stream, &mut up).await {
            Ok(()) => End::gone(),
            Err(end) => end,
        }
    }

    async fn serve_to_end(&self, stream: &mut Stream, up: &mut Streaming<Up>) -> Result<(), End> {
        let hello = hello(up).await?;
        let node: String = hello.node.chars().take(MAX_NODE).collect();
        debug!(node, artefacts = hello.artefacts.len(), "hello");
        let mut held: HashSet<Vec<u8>> = hello.artefacts.into_iter().collect();
        let mut catalogue = self.catalogue.clone();
        let now = Arc::clone(&catalogue.borrow_and_update());
        stream.models(&now, &mut held).await?;
        let (reply, answer) = oneshot::channel();
        self.state.send(Message::Subscribe { reply }).await.map_err(|_| End::relay_stops())?;
        let Subscription { stream: id, replicas, loads, blocks, mut deltas } =
            answer.await.map_err(|_| End {
                reason: "too many streams, or the relay is stopping",
                status: Some(Status::resource_exhausted("the relay accepts no more streams")),
            })?;
        let ended = deltas.ended.clone();
        let following = async {
            stream.send(Body::Replicas(replicas)).await?;
            stream.send(Body::Loads(loads)).await?;
            stream.snapshot(blocks).await?;
            let mut beat = tokio::time::interval(BEAT);
            let mut hear_at = Instant::now();
            loop {
                tokio::select! {
                    delta = deltas.next() => {
                        let delta = delta.ok_or_else(End::relay_stops)?;
                        for body in &delta.bodies {
                            stream.send(body.clone()).await?;
                            stream.beat_if_due().await?;
                        }
                    }
                    _ = beat.tick() => stream.beat_if_due().await?,
                    Ok(()) = catalogue.changed() => {
                        let now = Arc::clone(&catalogue.borrow_and_update());
                        stream.models(&now, &mut held).await?;
                    }
                    message = next(up, hear_at) => match message {
                        Ok(Some(Up { body: Some(up::Body::Pools(pools)) })) => {
                            hear_at = Instant::now() + POOLS_EVERY;
                            let (node, pools) = (node.clone(), PolicyPools::new(pools));
                            let policy = Message::Policy { stream: id, node, pools };
                            self.state.send(policy).await.map_err(|_| End::relay_stops())?;
                        }
                        Ok(Some(Up { body: Some(up::Body::Lessons(told)) })) => {
                            hear_at = Instant::now() + LESSONS_EVERY;
                            let told = told.lessons.into_iter();
                            let own = told.filter(|lesson| lesson.epoch == stream.epoch).collect();
                            let lessons = lessons(&v1::Lessons { lessons: own });
                            let message = Message::Lessons { lessons };
                            self.state.send(message).await.map_err(|_| End::relay_stops())?;
                        }
                        // What a newer filter may say is none of this relay's business.
                        Ok(Some(_)) => {}
                        _ => return Err(End::gone()),
                    },
                }
            }
        };
        tokio::select! {
            result = following => result,
            () = ended.cancelled() => Err(End {
                reason: "the client is too slow, or the relay is stopping",
                status: Some(Status::aborted("reconnect for a snapshot")),
            }),
        }
    }
}

async fn next(up: &mut Streaming<Up>, from: Instant) -> Result<Option<Up>, Status> {
    sleep_until(from).await;
    up.message().await
}

async fn hello(up: &mut Streaming<Up>) -> Result<Hello, End> {
    let refuse = |text| End { reason: text, status: Some(Status::invalid_argument(text)) };
    match timeout(HELLO, up.message()).await {
        Ok(Ok(Some(Up { body: Some(up::Body::Hello(hello)) }))) => Ok(hello),
        Ok(Ok(Some(_))) => Err(refuse("the first message must be a Hello")),
        Ok(_) => Err(End::gone()),
        Err(_) => Err(refuse("no Hello in time")),
    }
}

impl Stream {
    fn new(sender: mpsc::Sender<Result<Down, Status>>) -> Result<Self, Status> {
        let epoch = getrandom::u64().map_err(|_| Status::internal("no randomness"))?.max(1);
        Ok(Self { sender, epoch, sequence: 0, last_beat: Instant::now() })
    }

    async fn send(&mut self, body: Body) -> Result<(), End> {
        let down = Down { epoch: self.epoch, sequence: self.sequence, body: Some(body) };
        self.sequence += 1;
        match timeout(STALL, self.sender.send(Ok(down))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::gone()),
            Err(_) => Err(End { reason: "the client does not read", status: None }),
        }
    }

    /// The table of models, and the artefacts that the other side lacks.
    async fn models(
        &mut self,
        catalogue: &Catalogue,
        held: &mut HashSet<Vec<u8>>,
    ) -> Result<(), End> {
        self.send(Body::Models(catalogue.models())).await?;
        for artefact in catalogue.artefacts() {
            if !held.insert(artefact.id.to_vec()) {
                continue;
            }
            let total = artefact.bytes.len() as u64;
            for (i, data) in artefact.bytes.chunks(CHUNK).enumerate() {
                let chunk = ArtefactChunk {
                    id: artefact.id.to_vec(),
                    offset: (i * CHUNK) as u64,
                    total,
                    data: data.to_vec(),
                };
                self.send(Body::Artefact(chunk)).await?;
                self.beat_if_due().await?;
            }
        }
        Ok(())
    }

    async fn beat_if_due(&mut self) -> Result<(), End> {
        if self.last_beat.elapsed() < BEAT_DUE {
            return Ok(());
        }
        self.last_beat = Instant::now();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.send(Body::Beat(v1::Beat { unix_ms: now.as_millis() as u64 })).await
    }

    async fn snapshot(
        &mut self,
        blocks: Vec<(u32, Vec<warmpath_routing::fingerprint::Key>)>,
    ) -> Result<(), End> {
        let count = blocks.iter().map(|(_, keys)| keys.len() as u64).sum();
        self.send(Body::SnapshotBegin(v1::SnapshotBegin { blocks: count })).await?;
        for (slot, keys) in blocks {
            for keys in keys.chunks(4096) {
                let mut changes = Changes::default();
                for &key in keys {
                    changes.held(slot, key);
                }
                for message in changes.take() {
                    self.send(Body::Blocks(message)).await?;
                }
                self.beat_if_due().await?;
            }
        }
        self.send(Body::SnapshotEnd(v1::SnapshotEnd {})).await
    }
}
