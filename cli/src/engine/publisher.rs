//! vLLM's KV event publisher: batches over a ZeroMQ PUB socket, past ones over a ROUTER.
//!
//! Live: `[topic, sequence u64 BE, batch]`. Replay: a DEALER sends `["", first wanted u64 BE]` and
//! is sent what is still buffered, then an end mark. From vLLM 0.26 (map events here) a replayed
//! message is `["", topic, sequence, batch]` and the end `["", "", ff×8, ""]`; before (array
//! events) without the topic frame.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::StreamExt as _;
use zeromq::{
    Endpoint, PubSocket, RouterRecvHalf, RouterSendHalf, RouterSocket, Socket, SocketEvent,
    SocketRecv, SocketSend, ZmqMessage,
};

use super::event::Form;
use super::lock::lock;
use crate::output;

/// vLLM's `hwm` and `max_queue_size`: what is above is dropped, and the gap shows in the sequence.
pub(crate) const QUEUE: usize = 100_000;
const END: [u8; 8] = [0xff; 8];
/// Replays sent side by side; more wait.
const REPLAYS: usize = 4;
/// A client that takes no message for so long loses its replay.
const REPLAY_PATIENCE: Duration = Duration::from_secs(30);
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// Where and how to publish.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// What `*` stands for: the API's own address, where vLLM takes every interface.
    pub(crate) host: String,
    /// `tcp://*:PORT` binds, `tcp://HOST:PORT` connects.
    pub(crate) endpoint: String,
    /// Always bound.
    pub(crate) replay_endpoint: Option<String>,
    pub(crate) topic: String,
    pub(crate) form: Form,
    /// Batches kept for replay.
    pub(crate) buffer: usize,
    /// For tests: nothing is sent or kept.
    pub(crate) loses_all: bool,
}

type Buffer = Arc<Mutex<VecDeque<(u64, Bytes)>>>;

/// A handle to the publisher's tasks; they end when it is dropped.
#[derive(Debug)]
pub(crate) struct Publisher {
    queue: mpsc::Sender<(u64, Bytes)>,
    buffer: Buffer,
    kept: usize,
    loses_all: bool,
    endpoint: String,
    replay_endpoint: Option<String>,
}

impl Publisher {
    /// Opens the sockets.
    ///
    /// # Errors
    /// Where an endpoint isn't `tcp://host:port`, or can't be bound.
    pub(crate) async fn start(config: Config) -> anyhow::Result<Self> {
        let topic = Bytes::from(config.topic);
        let buffer = Buffer::default();
        let (queue, batches) = mpsc::channel(QUEUE);
        let mut socket = PubSocket::new();
        let endpoint = if binds(&config.endpoint) {
            let endpoint = bind(&mut socket, &config.endpoint, &config.host).await?;
            tokio::spawn(publish(socket, topic.clone(), batches));
            endpoint
        } else {
            let _: Endpoint = config
                .endpoint
                .parse()
                .with_context(|| format!("--kv-events-endpoint {:?}", config.endpoint))?;
            let endpoint = config.endpoint;
            tokio::spawn(connect_and_publish(socket, endpoint.clone(), topic.clone(), batches));
            endpoint
        };
        let replay_endpoint = match &config.replay_endpoint {
            Some(address) => {
                let mut socket = RouterSocket::new();
                let endpoint = bind(&mut socket, address, &config.host).await?;
                let (send, receive) = socket.split();
                let topic = (config.form == Form::Map).then_some(topic);
                let replay = Replay { send, topic, buffer: Arc::clone(&buffer) };
                tokio::spawn(answer(receive, replay));
                Some(endpoint)
            }
            None => None,
        };
        let (kept, loses_all) = (config.buffer, config.loses_all);
        Ok(Self { queue, buffer, kept, loses_all, endpoint, replay_endpoint })
    }

    /// Its endpoints for events and for replays, as configured; a free port that was taken is
    /// filled in.
    pub(crate) fn endpoints(&self) -> (&str, Option<&str>) {
        (&self.endpoint, self.replay_endpoint.as_deref())
    }

    /// Sends a batch. Never waits: a full queue drops it, as a PUB socket does.
    pub(crate) fn publish(&self, sequence: u64, batch: Bytes) {
        if self.loses_all {
            return;
        }
        if self.replay_endpoint.is_some() {
            let mut buffer = lock(&self.buffer);
            while buffer.len() >= self.kept.max(1) {
                buffer.pop_front();
            }
            buffer.push_back((sequence, batch.clone()));
        }
        let _ = self.queue.try_send((sequence, batch));
    }
}

/// vLLM's rule: an address with a wildcard is bound, any other connected to.
fn binds(endpoint: &str) -> bool {
    endpoint.contains('*') || endpoint.contains("::")
}

/// Binds, and gives the endpoint back with the port that it got.
async fn bind(socket: &mut impl Socket, endpoint: &str, host: &str) -> anyhow::Result<String> {
    let address = endpoint.replace("//*:", &format!("//{host}:"));
    let bound = socket
        .bind(&address)
        .await
        .with_context(|| format!("can't bind {endpoint} for KV events"))?;
    Ok(match (endpoint.strip_suffix(":0"), bound) {
        (Some(base), Endpoint::Tcp(_, port)) => format!("{base}:{port}"),
        _ => endpoint.to_owned(),
    })
}

/// `tcp://*:5557` for rank 2 is `tcp://*:5559`, as in vLLM; port 0 (any) stays.
pub(crate) fn offset_port(endpoint: &str, rank: u32) -> anyhow::Result<String> {
    let (base, port) =
        endpoint.rsplit_once(':').with_context(|| format!("{endpoint:?} names no port"))?;
    let port: u16 =
        port.parse().with_context(|| format!("{endpoint:?}: {port:?} is not a port"))?;
    let port = match port {
        0 => 0,
        port => u16::try_from(u32::from(port) + rank)
            .with_context(|| format!("{endpoint:?}: no port left for rank {rank}"))?,
    };
    Ok(format!("{base}:{port}"))
}

fn live(topic: &Bytes, sequence: u64, batch: Bytes) -> ZmqMessage {
    message([topic.clone(), Bytes::copy_from_slice(&sequence.to_be_bytes()), batch])
}

fn message(frames: impl IntoIterator<Item = Bytes>) -> ZmqMessage {
    let frames: Vec<Bytes> = frames.into_iter().collect();
    // Refused only when there is no frame, which no caller does.
    ZmqMessage::try_from(frames).unwrap_or_else(|_| ZmqMessage::from(Bytes::new()))
}

async fn publish(mut socket: PubSocket, topic: Bytes, mut batches: mpsc::Receiver<(u64, Bytes)>) {
    while let Some((sequence, batch)) = batches.recv().await {
        // The socket drops by itself for subscribers that are too slow.
        let _ = socket.send(live(&topic, sequence, batch)).await;
    }
}

/// The library's PUB socket doesn't reconnect, so this does. Batches are lost meanwhile, as with
/// any PUB socket without a peer.
async fn connect_and_publish(
    mut socket: PubSocket,
    endpoint: String,
    topic: Bytes,
    mut batches: mpsc::Receiver<(u64, Bytes)>,
) {
    let mut monitor = socket.monitor();
    loop {
        {
            let connecting = socket.connect(&endpoint);
            tokio::pin!(connecting);
            let connected = loop {
                tokio::select! {
                    result = &mut connecting => break result,
                    batch = batches.recv() => if batch.is_none() { return },
                }
            };
            if connected.is_err() {
                tokio::time::sleep(RECONNECT_PAUSE).await;
                continue;
            }
        }
        loop {
            tokio::select! {
                batch = batches.recv() => {
                    let Some((sequence, batch)) = batch else { return };
                    let _ = socket.send(live(&topic, sequence, batch)).await;
                }
                event = monitor.next() => match event {
                    Some(SocketEvent::Disconnected(_)) => break,
                    Some(_) => {}
                    None => return,
                },
            }
        }
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

#[derive(Clone)]
struct Replay {
    send: RouterSendHalf,
    /// The topic frame, where the framing has one.
    topic: Option<Bytes>,
    buffer: Buffer,
}

async fn answer(mut receive: RouterRecvHalf, replay: Replay) {
    let slots = Arc::new(Semaphore::new(REPLAYS));
    while let Ok(request) = receive.recv().await {
        let Some((client, first)) = read_request(&request) else {
            output::tell("warmpath engine: a replay request that is not [\"\", u64] was ignored");
            continue;
        };
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let replay = replay.clone();
        tokio::spawn(async move {
            replay.run(client, first).await;
            drop(slot);
        });
    }
}

fn read_request(request: &ZmqMessage) -> Option<(Bytes, u64)> {
    let (client, empty, first) = (request.get(0)?, request.get(1)?, request.get(2)?);
    let first = <[u8; 8]>::try_from(first.as_ref()).ok()?;
    (request.len() == 3 && empty.is_empty()).then(|| (client.clone(), u64::from_be_bytes(first)))
}

impl Replay {
    async fn run(mut self, client: Bytes, first: u64) {
        let wanted: Vec<(u64, Bytes)> =
            lock(&self.buffer).iter().filter(|(sequence, _)| *sequence >= first).cloned().collect();
        let end_topic = self.topic.as_ref().map(|_| Bytes::new());
        for (sequence, batch) in wanted {
            let sequence = Bytes::copy_from_slice(&sequence.to_be_bytes());
            if !self.send(&client, self.topic.clone(), sequence, batch).await {
                return;
            }
        }
        self.send(&client, end_topic, Bytes::from_static(&END), Bytes::new()).await;
    }

    async fn send(
        &mut self,
        client: &Bytes,
        topic: Option<Bytes>,
        sequence: Bytes,
        batch: Bytes,
    ) -> bool {
        let head = [client.clone(), Bytes::new()];
        let message = message(head.into_iter().chain(topic).chain([sequence, batch]));
        let sent = tokio::time::timeout(REPLAY_PATIENCE, self.send.send(message)).await;
        matches!(sent, Ok(Ok(())))
    }
}
