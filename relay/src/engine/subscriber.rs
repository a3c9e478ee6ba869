//! Hears one engine's publisher: connection, sequence, replay, and honesty about all three.
//!
//! A broken connection, a sequence that begins anew, a gap that can't be replayed and a batch that
//! can't be read all clear the replica's view: what may have been removed unheard must not be
//! claimed. Where the engine offers replay, the view comes back by it at once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use super::alarms::Alarms;
use super::counters::Counters;
use super::jitter::jittered;
use super::ranks::OTHERS;
use super::replay::{Replayed, replay};
use super::way::Way;
use super::zmtp::{Connection, Role};
use crate::events::{self, Batch, Event};
use crate::state::message::{Doubt, Message, ReplicaId, Sender};

/// Waits between attempts to connect; an engine that starts is to be heard soon.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(1);
/// Time after connecting when the replay is asked once more, if nothing came: the subscription may
/// have reached the publisher later than the first question was answered.
const FIRST_LOOK: Duration = Duration::from_millis(300);
/// Quiet time after which the replay is asked whether the last events were lost: a gap shows only
/// when something follows it.
const LATER_LOOK: Duration = Duration::from_secs(10);

/// The publisher that a subscriber follows.
#[derive(Clone, Debug)]
pub struct Publisher {
    /// The replica that it is about.
    pub replica: ReplicaId,
    /// Its name in logs.
    pub name: String,
    /// How it is reached.
    pub way: Way,
    /// The engine's replay socket, `host:port`.
    pub replay: Option<String>,
    /// The data-parallel rank that batches must come from.
    pub rank: Option<u32>,
}

/// A running subscription to one engine.
pub struct Subscriber {
    source: Publisher,
    state: Sender,
    counters: Arc<Counters>,
    alarms: Arc<Alarms>,
    /// The sequence number that comes next, once one is known.
    next: Option<u64>,
    settled: bool,
    /// Why events were passed over, as far as it was logged.
    named: BTreeSet<&'static str>,
    /// Batches of other ranks since the last of the own.
    others: u32,
}

/// The state's task is gone: the relay ends.
struct Ended;

impl Subscriber {
    /// A subscriber that isn't running yet.
    pub fn new(
        source: Publisher,
        state: Sender,
        counters: Arc<Counters>,
        alarms: Arc<Alarms>,
    ) -> Self {
        Self {
            source,
            state,
            counters,
            alarms,
            next: None,
            settled: false,
            named: BTreeSet::new(),
            others: 0,
        }
    }

    /// Runs until the state's task is gone. `listener` is the bound socket where the way is
    /// [`Way::Bind`].
    pub async fn run(mut self, listener: Option<TcpListener>) {
        let result = match listener {
            Some(listener) => self.run_bound(listener).await,
            None => self.run_connecting().await,
        };
        if result.is_err() {
            debug!(engine = self.source.name, "subscriber ends");
        }
    }

    async fn run_connecting(&mut self) -> Result<(), Ended> {
        let Way::Connect(address) = self.source.way.clone() else { return Ok(()) };
        let mut wait = FIRST_RETRY;
        let mut logged = None;
        loop {
            match Connection::connect(&address, Role::Sub).await {
                Ok(connection) => {
                    (wait, logged) = (FIRST_RETRY, None);
                    self.follow(connection, &mut None).await?;
                }
                Err(error) => {
                    let error = error.to_string();
                    if logged.as_ref() != Some(&error) {
                        warn!(engine = self.source.name, address, %error, "can't subscribe to the engine's events; retrying");
                        logged = Some(error);
                    }
                    self.settle().await?;
                }
            }
            if self.state.is_closed() {
                return Err(Ended);
            }
            sleep(jittered(wait)).await;
            wait = (wait * 2).min(LAST_RETRY);
        }
    }

    async fn run_bound(&mut self, listener: TcpListener) -> Result<(), Ended> {
        let (sender, receiver) = mpsc::channel(1);
        let name = self.source.name.clone();
        let accepting = tokio::spawn(accept(listener, name, sender));
        let mut arrivals = Some(receiver);
        // Nobody may come: don't hold the first snapshot back for that.
        self.settle().await?;
        let mut connection = None;
        let result = loop {
            let current = match connection.take() {
                Some(current) => current,
                None => match arrivals.as_mut() {
                    Some(arrivals) => match arrivals.recv().await {
                        Some(current) => current,
                        None => break Ok(()),
                    },
                    None => break Ok(()),
                },
            };
            match self.follow(current, &mut arrivals).await {
                Ok(next) => connection = next,
                Err(ended) => break Err(ended),
            }
        };
        accepting.abort();
        result
    }

    /// Follows one connection to its end; returns the one that took its place, if one did.
    async fn follow(
        &mut self,
        mut connection: Connection,
        arrivals: &mut Option<mpsc::Receiver<Connection>>,
    ) -> Result<Option<Connection>, Ended> {
        self.counters.connects.one();
        self.next = None;
        // What was said of an earlier connection doesn't concern this one.
        let _ = timeout(Duration::ZERO, self.alarms.gone.notified()).await;
        info!(engine = self.source.name, "subscribed to the engine's events");
        self.tell(Message::Heard { replica: self.source.replica, heard: true }).await?;
        self.replay_from(0).await?;
        self.settle().await?;
        // What is below this was replayed already and may come once more.
        let mut overlap = self.next.unwrap_or(0);
        let look = sleep(FIRST_LOOK);
        tokio::pin!(look);
        let looks = self.source.replay.is_some();
        let alarms = Arc::clone(&self.alarms);
        let mut next_connection = None;
        let mut quiet = true;
        let reason = loop {
            tokio::select! {
                received = connection.receive() => match received {
                    Ok(parts) => {
                        self.hear(&parts, &mut overlap).await?;
                        quiet = false;
                    }
                    Err(error) => break error.to_string(),
                },
                () = &mut look, if looks => {
                    if quiet {
                        self.replay_from(self.next.unwrap_or(0)).await?;
                        overlap = overlap.max(self.next.unwrap_or(0));
                    }
                    quiet = true;
                    look.as_mut().reset(Instant::now() + jittered(LATER_LOOK));
                }
                () = alarms.gone.notified() => break "its API refuses connections".to_owned(),
                () = alarms.back.notified() => {
                    if let Err(error) = connection.subscribe().await {
                        break error.to_string();
                    }
                }
                arrival = arrival(arrivals) => {
                    next_connection = arrival;
                    break "another publisher connected".to_owned();
                }
                () = self.state.closed() => return Err(Ended),
            }
        };
        self.counters.disconnects.one();
        warn!(
            engine = self.source.name,
            reason, "the subscription ended; the replica's view is cleared"
        );
        self.clear(Doubt::Disconnected).await?;
        self.tell(Message::Heard { replica: self.source.replica, heard: false }).await?;
        Ok(next_connection)
    }

    /// Takes one live message.
    async fn hear(&mut self, parts: &[Bytes], overlap: &mut u64) -> Result<(), Ended> {
        let [_topic, sequence, payload] = parts else {
            if self.counters.skipped("parts") {
                warn!(
                    engine = self.source.name,
                    parts = parts.len(),
                    "skipping messages that are not topic, sequence and payload (logged once)"
                );
            }
            return Ok(());
        };
        let Ok(sequence) = sequence.as_ref().try_into().map(u64::from_be_bytes) else {
            if self.counters.skipped("sequence") {
                warn!(
                    engine = self.source.name,
                    bytes = sequence.len(),
                    "skipping messages whose sequence number is not 8 bytes (logged once)"
                );
            }
            return Ok(());
        };
        let replays = self.source.replay.is_some();
        match self.next {
            Some(next) if sequence < next => {
                if sequence < *overlap {
                    return Ok(());
                }
                self.counters.restarts.one();
                warn!(
                    engine = self.source.name,
                    sequence,
                    expected = next,
                    "the engine's sequence restarted; its view is cleared"
                );
                self.clear(Doubt::Restarted).await?;
                self.replay_from(0).await?;
            }
            Some(next) if sequence > next => {
                self.counters.gaps.one();
                warn!(
                    engine = self.source.name,
                    sequence,
                    expected = next,
                    "events were lost on the way"
                );
                self.replay_from(next).await?;
            }
            Some(_) => *overlap = 0,
            None if sequence > 0 && replays => self.replay_from(0).await?,
            None => {}
        }
        match self.next {
            Some(next) if sequence < next => {
                *overlap = next;
                return Ok(());
            }
            Some(next) if sequence > next => {
                warn!(
                    engine = self.source.name,
                    sequence,
                    expected = next,
                    "the gap can't be replayed; the view is cleared"
                );
                self.clear(Doubt::Gap).await?;
            }
            None if sequence > 0 => {
                info!(
                    engine = self.source.name,
                    sequence, "joined late: blocks stored before are not known"
                );
            }
            _ => {}
        }
        self.take(sequence, payload).await
    }

    /// Asks for the past from `start` on, and takes it. Nothing follows from a failure here: the
    /// next live message shows whether something is missing.
    async fn replay_from(&mut self, start: u64) -> Result<(), Ended> {
        let Some(address) = self.source.replay.clone() else { return Ok(()) };
        self.counters.replays.one();
        let (sender, mut receiver) = mpsc::channel(64);
        let asking = tokio::spawn(async move { replay(&address, start, sender).await });
        while let Some(Replayed { sequence, payload }) = receiver.recv().await {
            match self.next {
                Some(next) if sequence < next => continue,
                Some(next) if sequence > next => {
                    warn!(
                        engine = self.source.name,
                        sequence,
                        expected = next,
                        "the replay begins too late; the view is cleared"
                    );
                    self.clear(Doubt::Gap).await?;
                }
                None if sequence > 0 => {
                    info!(
                        engine = self.source.name,
                        sequence, "joined late: the replay doesn't reach back to the start"
                    );
                }
                _ => {}
            }
            self.take(sequence, &payload).await?;
        }
        match asking.await {
            Ok(Ok(batches)) => {
                debug!(engine = self.source.name, start, batches, "replayed");
            }
            Ok(Err(error)) => {
                self.counters.replays_failed.one();
                warn!(engine = self.source.name, start, %error, "the replay failed");
            }
            Err(_) => self.counters.replays_failed.one(),
        }
        Ok(())
    }

    /// Takes a batch that is next.
    async fn take(&mut self, sequence: u64, payload: &[u8]) -> Result<(), Ended> {
        self.next = Some(sequence.wrapping_add(1));
        let batch = match events::decode(payload) {
            Ok(batch) => batch,
            Err(error) => {
                self.counters.skipped(error.name());
                warn!(engine = self.source.name, sequence, %error, "can't read a batch; the view is cleared");
                return self.tell_doubt(Doubt::Unreadable).await;
            }
        };
        self.counters.batches.one();
        if let (Some(mine), Some(theirs)) = (self.source.rank, batch.rank)
            && mine != theirs
        {
            if self.counters.skipped("other_rank") {
                warn!(
                    engine = self.source.name,
                    rank = mine,
                    theirs,
                    "skipping batches of another data-parallel rank (logged once)"
                );
            }
            self.others = self.others.saturating_add(1);
            if self.others == OTHERS {
                let replica = self.source.replica;
                self.tell(Message::OtherRank { replica, rank: theirs }).await?;
            }
            return Ok(());
        }
        self.others = 0;
        self.name_unusable(sequence, &batch);
        self.tell_batch(sequence, batch).await
    }

    /// The first event of each kind that is of no use gets a line; the rest are counted.
    fn name_unusable(&mut self, sequence: u64, batch: &Batch) {
        for event in &batch.events {
            let why = match event {
                Event::Unusable(why) => *why,
                Event::Unknown => "unknown type",
                _ => continue,
            };
            if self.named.insert(why) {
                let engine = &self.source.name;
                warn!(
                    engine,
                    sequence, why, "ignoring unusable events (logged once for each reason)"
                );
            }
        }
    }

    async fn tell_batch(&self, sequence: u64, batch: Batch) -> Result<(), Ended> {
        self.tell(Message::Batch { replica: self.source.replica, sequence, batch }).await
    }

    async fn clear(&mut self, why: Doubt) -> Result<(), Ended> {
        self.next = None;
        self.tell_doubt(why).await
    }

    async fn tell_doubt(&self, why: Doubt) -> Result<(), Ended> {
        self.tell(Message::Clear { replica: self.source.replica, why }).await
    }

    async fn settle(&mut self) -> Result<(), Ended> {
        if !std::mem::replace(&mut self.settled, true) {
            self.tell(Message::Settled { replica: self.source.replica }).await?;
        }
        Ok(())
    }

    async fn tell(&self, message: Message) -> Result<(), Ended> {
        self.state.send(message).await.map_err(|_| Ended)
    }
}

/// The next publisher that connects, or never.
async fn arrival(arrivals: &mut Option<mpsc::Receiver<Connection>>) -> Option<Connection> {
    match arrivals {
        Some(arrivals) => match arrivals.recv().await {
            Some(connection) => Some(connection),
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

/// Accepts publishers and shakes hands with them, a few at a time.
async fn accept(listener: TcpListener, name: String, arrivals: mpsc::Sender<Connection>) {
    let places = Arc::new(tokio::sync::Semaphore::new(8));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let arrivals = arrivals.clone();
                let name = name.clone();
                tokio::spawn(async move {
                    let _place = place;
                    match Connection::establish(stream, Role::Sub).await {
                        Ok(connection) => {
                            // A publisher that isn't wanted within a second may come again.
                            let wait = Duration::from_secs(1);
                            let _ = arrivals.send_timeout(connection, wait).await;
                        }
                        Err(error) => {
                            warn!(engine = name, %peer, %error, "refused a connection to the events' port");
                        }
                    }
                });
            }
            Err(error) => {
                warn!(engine = name, %error, "can't accept a connection to the events' port");
                sleep(LAST_RETRY).await;
            }
        }
    }
}
