//! What a relay says, put into shared data.
//!
//! Knows no stream and no host: what comes in are messages and the time, what goes out are writes.

use std::collections::BTreeSet;

use prost::Message;
use thiserror::Error;
use warmpath_proto::v1::{self, down::Body};
use warmpath_routing::prefix_map::{Applied, Layout, Writer};
use warmpath_routing::state::State;
use warmpath_routing::tally::Tallies;

use super::chunks::{ChunkError, Chunks};
use super::guard::{Gap, Guard};
use crate::host::HostError;
use crate::shared::{self, Artefacts, Data, Map};

/// Buckets looked through per tick for what dead slots left.
const SWEEP_BUCKETS: u32 = 64;

/// The tallies are written at most so often, in milliseconds, and with ticks.
const TALLY_MS: u64 = 50;

/// Why a stream is worth nothing any more.
#[derive(Debug, Error)]
pub enum Broken {
    /// Something is missing.
    #[error(transparent)]
    Gap(#[from] Gap),
    /// The message is none of ours.
    #[error("a message that can't be decoded: {0}")]
    Decode(#[from] prost::DecodeError),
    /// A piece of an artefact that doesn't fit.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    /// Shared data took something no longer.
    #[error(transparent)]
    Host(#[from] HostError),
    /// More artefacts than there are places, all of them in use.
    #[error("no place for another artefact: {0} models with one each are the most")]
    Artefacts(u32),
}

/// What a message did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Changes to the map.
    pub applied: Applied,
    /// Changes left out because their slot is none.
    pub refused: u64,
    /// The snapshot has just been completed.
    pub synced: bool,
    /// How far a beat's time by the relay's clock is from now by this host's, in milliseconds: the
    /// message's way, and what the clocks differ by.
    pub lag_ms: Option<u64>,
}

/// One Envoy's view of its relay.
#[derive(Debug)]
pub struct Follower<D> {
    data: D,
    layout: Layout,
    state: State,
    guard: Guard,
    writer: Writer,
    chunks: Chunks,
    artefacts: Artefacts,
    models: v1::Models,
    loads: Vec<v1::Load>,
    tallies: Tallies,
    // When they were last written, and whether they have changed since.
    tallied_ms: u64,
    untold_tallies: bool,
    // Slots that mean something: of replicas and of their tiers.
    live: BTreeSet<u16>,
    replicas: usize,
    // The next bucket to sweep; none while nothing is dead.
    sweep: Option<u32>,
    // The state record lags behind what is known here.
    unsaved: bool,
}

impl<D: Data> Follower<D> {
    /// Takes up what an earlier life of the service left in shared data: Envoy keeps it.
    pub fn new(data: D, layout: Layout) -> Self {
        let read = |key| data.get(key).ok().flatten().unwrap_or_default();
        let state = State::decode(&read(shared::STATE)).unwrap_or_default();
        let artefacts = Artefacts::decode(read(shared::ARTEFACTS).as_slice()).unwrap_or_default();
        let models = v1::Models::decode(read(shared::MODELS).as_slice()).unwrap_or_default();
        Self {
            data,
            layout,
            state: State { synced: false, ..state },
            guard: Guard::default(),
            writer: Writer::new(layout, state.map_generation),
            chunks: Chunks::default(),
            artefacts,
            models,
            loads: Vec::new(),
            tallies: Tallies::default(),
            tallied_ms: 0,
            untold_tallies: true,
            live: BTreeSet::new(),
            replicas: 0,
            sweep: None,
            unsaved: true,
        }
    }

    /// Where the follower writes to.
    pub fn data(&self) -> &D {
        &self.data
    }

    /// What workers learned for the relay from answers, since it was last taken; of the open stream
    /// alone, as slots mean something there only.
    ///
    /// # Errors
    /// Where shared data can't be read or written: the status that Envoy gave.
    pub fn lessons(&mut self) -> Result<Option<v1::Up>, HostError> {
        let Some(bytes) = shared::take_lessons(&mut self.data)? else { return Ok(None) };
        let mut lessons = v1::Lessons::decode(bytes.as_slice()).unwrap_or_default();
        lessons.lessons.retain(|lesson| self.state.synced && lesson.epoch == self.state.epoch);
        let some = !lessons.lessons.is_empty();
        Ok(some.then_some(v1::Up { body: Some(v1::up::Body::Lessons(lessons)) }))
    }

    /// The state as the workers will read it.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Replicas that the relay knows.
    pub fn replicas(&self) -> usize {
        self.replicas
    }

    /// The first message of a new stream.
    pub fn hello(&mut self, node: String) -> v1::Up {
        self.guard = Guard::default();
        self.chunks.clear();
        let artefacts = self.artefacts.at.iter().map(|at| at.id.clone()).collect();
        v1::Up { body: Some(v1::up::Body::Hello(v1::Hello { artefacts, node })) }
    }

    /// Takes a message.
    ///
    /// # Errors
    /// [`Broken`]: the map is marked stale, and the stream has to be given up.
    pub fn receive(&mut self, bytes: &[u8], now_ms: u64) -> Result<Told, Broken> {
        self.try_receive(bytes, now_ms).inspect_err(|_| self.stale())
    }

    /// The stream is gone: what it filled is stale.
    pub fn stale(&mut self) {
        self.chunks.clear();
        // Whatever of a batch was not written yet belongs to a view that is gone.
        self.writer = Writer::new(self.layout, self.state.map_generation);
        self.state.synced = false;
        self.unsaved = true;
        let _ = self.save();
    }

    /// Housekeeping between messages.
    ///
    /// # Errors
    /// Where shared data can't be read or written: the status that Envoy gave.
    pub fn tick(&mut self) -> Result<(), HostError> {
        if self.unsaved {
            self.save()?;
        }
        if self.untold_tallies {
            self.tell_tallies()?;
        }
        if let Some(from) = self.sweep.filter(|_| self.state.synced) {
            let to = (from + SWEEP_BUCKETS).min(self.layout.buckets);
            let live = &self.live;
            let mut map = Map(&mut self.data);
            self.writer.sweep(&mut map, from..to, |slot| live.contains(&slot))?;
            self.sweep = (to < self.layout.buckets).then_some(to);
        }
        Ok(())
    }

    fn try_receive(&mut self, bytes: &[u8], now_ms: u64) -> Result<Told, Broken> {
        let message = v1::Down::decode(bytes)?;
        self.guard.admit(message.epoch, message.sequence)?;
        self.state.epoch = message.epoch;
        self.state.heard_ms = now_ms;
        self.unsaved = true;
        let mut told = Told::default();
        match message.body {
            Some(Body::SnapshotBegin(_)) => self.begin()?,
            Some(Body::SnapshotEnd(_)) => {
                self.state.synced = true;
                self.save()?;
                told.synced = true;
            }
            Some(Body::Blocks(blocks)) => self.blocks(&blocks, &mut told, now_ms)?,
            Some(Body::Replicas(replicas)) => self.replace_replicas(&replicas)?,
            Some(Body::Loads(loads)) => self.merge_loads(loads)?,
            Some(Body::Models(models)) => {
                self.data.set(shared::MODELS, &models.encode_to_vec())?;
                self.models = models;
                self.state.models = self.state.models.wrapping_add(1);
                self.save()?;
            }
            Some(Body::Artefact(piece)) => {
                if let Some((id, bytes)) = self.chunks.take(&piece)? {
                    self.keep_artefact(id, &bytes)?;
                }
            }
            Some(Body::Beat(beat)) => {
                told.lag_ms = (beat.unix_ms > 0).then(|| beat.unix_ms.abs_diff(now_ms));
            }
            // What a newer relay may say tells that it is there, at least.
            None => {}
        }
        Ok(told)
    }

    fn begin(&mut self) -> Result<(), HostError> {
        self.state.synced = false;
        self.state.map_generation = self.state.map_generation.wrapping_add(1);
        self.writer = Writer::new(self.layout, self.state.map_generation);
        self.sweep = None;
        self.tallies.clear();
        self.save()
    }

    fn blocks(
        &mut self,
        blocks: &v1::Blocks,
        told: &mut Told,
        now_ms: u64,
    ) -> Result<(), HostError> {
        let mut map = Map(&mut self.data);
        for change in &blocks.changes {
            match u16::try_from(change.slot) {
                Ok(slot) => {
                    let (lost, held) = (!change.lost.is_empty(), !change.held.is_empty());
                    self.tallies.changed(slot, lost, held, now_ms);
                    self.writer.change(&map, slot, &change.lost, &change.held)?;
                }
                Err(_) => told.refused += 1,
            }
        }
        told.applied = self.writer.flush(&mut map)?;
        self.untold_tallies = true;
        if now_ms.abs_diff(self.tallied_ms) >= TALLY_MS {
            self.tallied_ms = now_ms;
            self.tell_tallies()?;
        }
        Ok(())
    }

    fn tell_tallies(&mut self) -> Result<(), HostError> {
        self.data.set(shared::TALLIES, &self.tallies.encode())?;
        self.untold_tallies = false;
        Ok(())
    }

    fn replace_replicas(&mut self, replicas: &v1::Replicas) -> Result<(), HostError> {
        let slots = replicas.replicas.iter().flat_map(|replica| {
            let further = replica.tiers.iter().map(|tier| tier.slot);
            let further = further.chain(replica.ends.as_ref().map(|ends| ends.slot));
            std::iter::once(replica.slot).chain(further)
        });
        let live: BTreeSet<u16> = slots.filter_map(|slot| u16::try_from(slot).ok()).collect();
        self.replicas = replicas.replicas.len();
        if !self.live.is_subset(&live) {
            self.sweep = Some(0);
        }
        self.loads.retain(|load| u16::try_from(load.slot).is_ok_and(|slot| live.contains(&slot)));
        self.tallies.retain(|slot| live.contains(&slot));
        self.live = live;
        self.data.set(shared::REPLICAS, &replicas.encode_to_vec())?;
        self.state.replicas = self.state.replicas.wrapping_add(1);
        self.save()
    }

    // A message has the loads that changed; shared data has them all.
    fn merge_loads(&mut self, loads: v1::Loads) -> Result<(), HostError> {
        for load in loads.loads {
            match self.loads.binary_search_by_key(&load.slot, |known| known.slot) {
                Ok(at) => {
                    if let Some(known) = self.loads.get_mut(at) {
                        *known = load;
                    }
                }
                Err(at) if u16::try_from(load.slot).is_ok() => self.loads.insert(at, load),
                Err(_) => {}
            }
        }
        let all = v1::Loads { loads: self.loads.clone() };
        self.data.set(shared::LOADS, &all.encode_to_vec())?;
        self.state.loads = self.state.loads.wrapping_add(1);
        self.save()
    }

    fn keep_artefact(&mut self, id: [u8; 32], bytes: &[u8]) -> Result<(), Broken> {
        let used = |id: &[u8]| self.models.models.iter().any(|model| model.artefact == id);
        self.artefacts.at.retain(|at| at.id != id);
        let free = |artefacts: &Artefacts| {
            (0..shared::ARTEFACT_PLACES)
                .find(|place| artefacts.at.iter().all(|at| at.place != *place))
        };
        let place = if let Some(place) = free(&self.artefacts) {
            place
        } else {
            // No model asks for some of them any more.
            self.artefacts.at.retain(|at| used(&at.id));
            free(&self.artefacts).ok_or(Broken::Artefacts(shared::ARTEFACT_PLACES))?
        };
        self.data.set(&shared::artefact_key(place), bytes)?;
        self.artefacts.at.push(shared::ArtefactAt { id: id.to_vec(), place });
        self.data.set(shared::ARTEFACTS, &self.artefacts.encode_to_vec())?;
        self.state.models = self.state.models.wrapping_add(1);
        Ok(self.save()?)
    }

    fn save(&mut self) -> Result<(), HostError> {
        self.data.set(shared::STATE, &self.state.encode())?;
        self.unsaved = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
