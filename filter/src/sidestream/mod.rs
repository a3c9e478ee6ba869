//! The role `sidestream`: one service per Envoy, on its main thread.
//!
//! It follows a relay and puts what the relay says into shared data. Envoy never reloads a service
//! that trapped, so nothing here may panic; and its gRPC streams know no reconnecting, so the
//! service does that, from ticks only.

mod backoff;
mod chunks;
mod follower;
mod guard;
mod metrics;
mod pools;

use prost::Message;
use warmpath_routing::prefix_map::Layout;

use crate::config;
use crate::host;
use crate::shared::Envoy;
use backoff::Backoff;
pub use chunks::ChunkError;
pub use follower::{Broken, Follower, Told};
pub use guard::Gap;
use metrics::Metrics;
use pools::Pools;

const SERVICE: &str = "warmpath.sidestream.v1.SideStream";
const METHOD: &str = "Follow";

/// The stream to the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    /// There is none.
    Closed,
    /// Both sides have it open.
    Open { token: u32 },
    /// It is worth nothing and the next tick resets it: inside a callback of its own that would
    /// pull it away under Envoy.
    Doomed { token: u32 },
}

/// The service.
pub struct Service {
    config: config::SideStream,
    stream: Stream,
    backoff: Backoff,
    follower: Follower<Envoy>,
    pools: Pools,
    metrics: Metrics,
    // When the stream was opened or last brought something.
    heard_ms: u64,
    // The relay's absence has been logged.
    mourned: bool,
}

impl Service {
    /// Sets up ticks; the first one connects.
    ///
    /// # Errors
    /// Where Envoy doesn't give the configuration or refuses a tick.
    pub fn start(config: config::SideStream) -> host::Result<Self> {
        host::set_tick_period(config.tick_ms)?;
        Ok(Self {
            config,
            stream: Stream::Closed,
            backoff: Backoff::default(),
            follower: Follower::new(Envoy, Layout::default()),
            pools: Pools::default(),
            metrics: Metrics::define(),
            heard_ms: 0,
            mourned: false,
        })
    }

    /// Connects, gives up what is silent or doomed, and keeps house.
    pub fn on_tick(&mut self) {
        let now_ms = host::now_ms();
        match self.stream {
            Stream::Doomed { token } => self.reset(token, now_ms),
            Stream::Open { token }
                if now_ms.saturating_sub(self.heard_ms) > self.config.silence_ms =>
            {
                self.metrics.silences.add(1);
                self.lost(&format!("silent for {} ms", now_ms.saturating_sub(self.heard_ms)));
                self.reset(token, now_ms);
            }
            Stream::Closed if self.backoff.due(now_ms) => self.open(now_ms),
            Stream::Open { token } => {
                self.tell_pools(token, now_ms);
                self.tell_lessons();
            }
            Stream::Closed => {}
        }
        if let Err(error) = self.follower.tick() {
            self.trouble(&error);
        }
        self.metrics.show(self.follower.state(), self.follower.replicas());
    }

    /// A message has come.
    pub fn on_message(&mut self, token: u32, size: usize) {
        if self.stream != (Stream::Open { token }) {
            return;
        }
        let now_ms = host::now_ms();
        self.heard_ms = now_ms;
        self.metrics.messages.add(1);
        let bytes = match host::grpc_message(size) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.doom(token, &error.to_string());
                return;
            }
        };
        match self.follower.receive(&bytes, now_ms) {
            Ok(told) => {
                self.metrics.count(&told);
                if told.synced {
                    self.backoff.succeeded();
                    self.mourned = false;
                    log::info!(
                        "side-stream: in step with {} (epoch {:#x}, {} replicas)",
                        self.config.cluster,
                        self.follower.state().epoch,
                        self.follower.replicas(),
                    );
                }
            }
            Err(error) => {
                self.metrics.gaps.add(1);
                self.doom(token, &error.to_string());
            }
        }
    }

    /// The relay, or the way to it, has closed the stream; its token must not be used again.
    pub fn on_close(&mut self, token: u32, status: u32) {
        let (Stream::Open { token: ours } | Stream::Doomed { token: ours }) = self.stream else {
            return;
        };
        if ours != token {
            return;
        }
        self.stream = Stream::Closed;
        self.lost(&format!("closed with gRPC status {status}"));
        self.follower.stale();
        self.wait(host::now_ms());
    }

    fn open(&mut self, now_ms: u64) {
        let opened = host::grpc_open(&self.config.cluster, SERVICE, METHOD);
        self.metrics.connects.add(1);
        match opened {
            Ok(token) => {
                self.stream = Stream::Open { token };
                self.heard_ms = now_ms;
                self.pools.begin();
                let hello = self.follower.hello(node_id()).encode_to_vec();
                if let Err(error) = host::grpc_send(token, &hello) {
                    self.doom(token, &error.to_string());
                }
            }
            Err(error) => {
                self.lost(&error.to_string());
                self.wait(now_ms);
            }
        }
    }

    fn tell_pools(&mut self, token: u32, now_ms: u64) {
        match self.pools.news(self.follower.data(), now_ms) {
            Ok(None) => {}
            Ok(Some(up)) => {
                if let Err(error) = host::grpc_send(token, &up.encode_to_vec()) {
                    self.doom(token, &error.to_string());
                }
            }
            Err(error) => self.trouble(&error),
        }
    }

    fn tell_lessons(&mut self) {
        // Telling the pools may have shown that it is worth nothing.
        let Stream::Open { token } = self.stream else { return };
        match self.follower.lessons() {
            Ok(None) => {}
            Ok(Some(up)) => {
                if let Err(error) = host::grpc_send(token, &up.encode_to_vec()) {
                    self.doom(token, &error.to_string());
                }
            }
            Err(error) => self.trouble(&error),
        }
    }

    fn doom(&mut self, token: u32, why: &str) {
        self.lost(why);
        self.stream = Stream::Doomed { token };
        self.follower.stale();
    }

    fn reset(&mut self, token: u32, now_ms: u64) {
        if let Err(error) = host::grpc_cancel(token) {
            self.trouble(&error);
        }
        self.stream = Stream::Closed;
        self.follower.stale();
        self.wait(now_ms);
    }

    fn wait(&mut self, now_ms: u64) {
        self.backoff.failed(now_ms, host::now_nanos().unwrap_or(now_ms));
    }

    // Once per absence: a relay that stays away is not worth a line twice a second.
    fn lost(&mut self, why: &str) {
        self.metrics.losses.add(1);
        if !self.mourned {
            self.mourned = true;
            log::warn!(
                "side-stream: {} lost ({why}); routing by the ring until it is back",
                self.config.cluster
            );
        }
    }

    fn trouble(&mut self, error: &host::HostError) {
        self.metrics.errors.add(1);
        log::error!("side-stream: {error}");
    }
}

fn node_id() -> String {
    let id = host::property("node\0id").ok().flatten().unwrap_or_default();
    String::from_utf8(id).unwrap_or_default()
}
