//! An Envoy's side: a stream to the relay, and the filter's own follower over a stand-in for shared
//! data.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message as _;
use warmpath_filter::host::HostError;
use warmpath_filter::shared::{Data, Map, bucket_key};
use warmpath_filter::sidestream::Follower;
use warmpath_proto::v1::down::Body;
use warmpath_proto::v1::side_stream_client::SideStreamClient;
use warmpath_proto::v1::{Down, Replica, Replicas, Up};
use warmpath_routing::fingerprint::Key;
use warmpath_routing::prefix_map::{Hint, Layout, find};

use super::cache::Random;
use super::engine::{Shared, lock};

#[derive(Default)]
pub struct Memory(BTreeMap<Vec<u8>, Vec<u8>>);

impl Data for Memory {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, HostError> {
        Ok(self.0.get(key).filter(|value| !value.is_empty()).cloned())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), HostError> {
        self.0.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn get_versioned(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u32)>, HostError> {
        Ok(self.get(key)?.map(|value| (value, 1)))
    }

    fn set_if(&mut self, key: &[u8], value: &[u8], _: u32) -> Result<bool, HostError> {
        self.set(key, value).map(|()| true)
    }
}

/// Bucket, tag and slot: one replica's hold of one block, as shared data knows it.
pub type Place = (u32, u64, u16);

pub fn place(key: Key, slot: u16) -> Place {
    (Layout::default().bucket(key), key.number() as u64, slot)
}

#[derive(Clone)]
pub struct Gateway {
    relay: SocketAddr,
    /// Whether its connection breaks and its reading stalls now and then, and for how long at
    /// most, milliseconds.
    troubled: Option<u64>,
    pub follower: Arc<Mutex<Follower<Memory>>>,
    pub streams: Arc<AtomicU64>,
    pub latencies: Arc<Mutex<Vec<Duration>>>,
    shared: Arc<Shared>,
}

impl Gateway {
    pub fn new(relay: SocketAddr, troubled: Option<u64>, shared: Arc<Shared>) -> Self {
        let follower = Follower::new(Memory::default(), Layout::default());
        Self {
            relay,
            troubled,
            follower: Arc::new(Mutex::new(follower)),
            streams: Arc::default(),
            latencies: Arc::default(),
            shared,
        }
    }

    pub async fn run(self, seed: u64) {
        let mut random = Random(seed);
        loop {
            let hello = lock(&self.follower).hello("soak".into());
            if let Some((stream, _up)) = open(self.relay, hello).await {
                self.streams.fetch_add(1, Ordering::Relaxed);
                self.read(stream, &mut random).await;
            }
            lock(&self.follower).stale();
            tokio::time::sleep(Duration::from_millis(100 + random.below(400))).await;
        }
    }

    async fn read(&self, mut stream: tonic::Streaming<Down>, random: &mut Random) {
        let mut tick = tokio::time::interval(Duration::from_millis(100));
        loop {
            tokio::select! {
                received = stream.message() => {
                    let Ok(Some(down)) = received else { return };
                    let result = lock(&self.follower).receive(&down.encode_to_vec(), 1);
                    assert!(result.is_ok(), "the follower refused: {:?}", result.err());
                    assert_eq!(result.unwrap().applied.evicted, 0, "the map is large enough");
                    if self.troubled.is_none() && let Some(Body::Blocks(blocks)) = &down.body {
                        self.find_probes(blocks);
                    }
                }
                _ = tick.tick() => {
                    lock(&self.follower).tick().unwrap();
                    let Some(most) = self.troubled else { continue };
                    match random.below(60) {
                        0 => return,
                        1 => tokio::time::sleep(Duration::from_millis(random.below(most))).await,
                        _ => {}
                    }
                }
            }
        }
    }

    /// For what was published with a time: how long until a decision finds it.
    fn find_probes(&self, blocks: &warmpath_proto::v1::Blocks) {
        let mut probes = lock(&self.shared.probes);
        if probes.is_empty() {
            return;
        }
        for change in &blocks.changes {
            for key in change.held.as_chunks::<16>().0 {
                let key = Key(*key);
                let Some(start) = probes.remove(&key) else { continue };
                let follower = lock(&self.follower);
                let generation = follower.state().map_generation;
                let map = Map(Borrowed(follower.data()));
                let slot = change.slot as u16;
                let found =
                    find(&map, Layout::default(), generation, &[key], Hint::default(), &|s| {
                        s == slot
                    });
                if found.blocks(slot) == 1 {
                    lock(&self.latencies).push(start.elapsed());
                }
            }
        }
    }

    pub fn synced(&self) -> bool {
        lock(&self.follower).state().synced
    }

    pub fn shared_data(&self) -> (Vec<Replica>, Vec<Place>) {
        shared_data(&mut lock(&self.follower))
    }
}

/// What shared data says: the replicas, and every hold of a block in the present generation, sorted.
pub fn shared_data(follower: &mut Follower<Memory>) -> (Vec<Replica>, Vec<Place>) {
    // What dead slots left is swept bit by bit.
    for _ in 0..400 {
        follower.tick().unwrap();
    }
    let data = follower.data();
    let replicas = data.get(b"wp/r").unwrap().unwrap_or_default();
    let replicas = Replicas::decode(replicas.as_slice()).unwrap().replicas;
    let generation = follower.state().map_generation;
    let mut places = Vec::new();
    for bucket in 0..Layout::default().buckets {
        let Some(bytes) = data.get(&bucket_key(bucket)).unwrap() else { continue };
        let (head, mut rest) = bytes.split_at(5);
        if head[1..] != generation.to_le_bytes() {
            continue;
        }
        while let Some((tag, after)) = rest.split_first_chunk::<8>() {
            let (count, after) = after.split_first_chunk::<2>().unwrap();
            let (slots, after) = after.split_at(2 * usize::from(u16::from_le_bytes(*count)));
            for slot in slots.as_chunks::<2>().0 {
                places.push((bucket, u64::from_le_bytes(*tag), u16::from_le_bytes(*slot)));
            }
            rest = after;
        }
    }
    places.sort_unstable();
    (replicas, places)
}

struct Borrowed<'a>(&'a Memory);

impl Data for Borrowed<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, HostError> {
        self.0.get(key)
    }

    fn set(&mut self, _: &[u8], _: &[u8]) -> Result<(), HostError> {
        unreachable!("a search writes nothing")
    }

    fn get_versioned(&self, _: &[u8]) -> Result<Option<(Vec<u8>, u32)>, HostError> {
        unreachable!("a search reads buckets only")
    }

    fn set_if(&mut self, _: &[u8], _: &[u8], _: u32) -> Result<bool, HostError> {
        unreachable!("a search writes nothing")
    }
}

type Stream = (tonic::Streaming<Down>, tokio::sync::mpsc::Sender<Up>);

async fn open(relay: SocketAddr, hello: Up) -> Option<Stream> {
    let channel = tonic::transport::Endpoint::new(format!("http://{relay}")).unwrap();
    let channel = channel.connect().await.ok()?;
    let (up, ups) = tokio::sync::mpsc::channel(1);
    up.send(hello).await.ok()?;
    let ups = tokio_stream::wrappers::ReceiverStream::new(ups);
    let stream = SideStreamClient::new(channel).follow(ups).await.ok()?.into_inner();
    Some((stream, up))
}

/// The relay's own view, by a snapshot.
pub async fn snapshot(relay: SocketAddr) -> (Vec<Replica>, BTreeMap<u32, BTreeSet<Key>>) {
    let hello = Up { body: Some(warmpath_proto::v1::up::Body::Hello(Default::default())) };
    let (mut stream, _up) = open(relay, hello).await.expect("the relay answers");
    let mut replicas = Vec::new();
    let mut held: BTreeMap<u32, BTreeSet<Key>> = BTreeMap::new();
    while let Some(down) = stream.message().await.expect("a snapshot") {
        match down.body {
            Some(Body::Replicas(table)) => replicas = table.replicas,
            Some(Body::Blocks(blocks)) => {
                for change in blocks.changes {
                    assert!(change.lost.is_empty(), "a snapshot loses nothing");
                    let keys = change.held.as_chunks::<16>().0.iter().map(|key| Key(*key));
                    held.entry(change.slot).or_default().extend(keys);
                }
            }
            Some(Body::SnapshotEnd(_)) => break,
            _ => {}
        }
    }
    (replicas, held)
}
