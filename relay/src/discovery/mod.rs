//! Replicas that are found: by DNS, or in a Kubernetes Service's EndpointSlices.
//!
//! A source that can't be asked changes nothing: what it found last stays, and engines that are gone
//! show by their health. That it can't be asked is counted and logged.

mod dns;
mod kubernetes;
mod sightings;
mod slices;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::config::{Config, Discovery, Events, Place, Ranks, Replica};
use crate::engine::way::Way;
pub(crate) use sightings::{Sighting, Sightings};

/// Time for the first answer of a source, before the relay serves without it.
const PATIENCE: Duration = Duration::from_secs(5);

/// What one source found: its place in [`Config::discovery`] and the replicas.
pub(crate) type SourceReplicas = (usize, Vec<Replica>);

/// A source at work.
pub(crate) struct Source {
    place: usize,
    discovery: Discovery,
    found: mpsc::Sender<SourceReplicas>,
    sighting: Sighting,
    known: Option<Vec<Replica>>,
    failing: bool,
}

/// Nobody wants to hear of replicas any more.
struct Ended;

impl Source {
    pub(crate) fn new(
        place: usize,
        discovery: Discovery,
        found: mpsc::Sender<SourceReplicas>,
        sightings: &Sightings,
    ) -> Self {
        let sighting = sightings.of(&discovery.place);
        Self { place, discovery, found, sighting, known: None, failing: false }
    }

    /// Looks, and tells when what is there changes, until nobody wants to hear it.
    pub(crate) async fn follow(self) {
        match self.discovery.place.clone() {
            Place::Dns { name, every } => dns::follow(self, &name, every).await,
            Place::Kubernetes { service, namespace, kubeconfig } => {
                kubernetes::follow(self, &service, namespace, kubeconfig).await;
            }
        }
    }

    /// All that is there now.
    async fn tell(&mut self, mut replicas: Vec<Replica>) -> Result<(), Ended> {
        if std::mem::take(&mut self.failing) {
            info!(source = %self.discovery.place, "it answers again");
        }
        self.sighting.found(replicas.len());
        replicas.sort_by_key(|replica| (replica.endpoint, replica.rank));
        if self.known.as_ref() != Some(&replicas) {
            info!(source = %self.discovery.place, replicas = replicas.len(), "looked up");
            self.known = Some(replicas.clone());
            self.found.send((self.place, replicas)).await.map_err(|_| Ended)?;
        }
        Ok(())
    }

    /// It could not be asked.
    fn failed(&mut self, error: &str) {
        self.sighting.failed();
        if !std::mem::replace(&mut self.failing, true) {
            let source = &self.discovery.place;
            warn!(%source, error, "can't look replicas up; keeping what was known");
        }
    }
}

/// What is found now, for a first table before anything is served; a source that doesn't answer in
/// time has found nothing yet.
pub(crate) async fn once(config: &Config) -> Vec<Vec<Replica>> {
    let mut asking = Vec::new();
    for (place, discovery) in config.discovery.iter().enumerate() {
        let (sender, mut found) = mpsc::channel(1);
        // Whether it fails is counted when it is followed.
        let source = Source::new(place, discovery.clone(), sender, &Sightings::default());
        asking.push(tokio::spawn(async move {
            tokio::select! {
                found = found.recv() => found.map(|(_, replicas)| replicas),
                () = source.follow() => None,
                () = tokio::time::sleep(PATIENCE) => None,
            }
        }));
    }
    let mut all = Vec::new();
    for answer in asking {
        all.push(answer.await.ok().flatten().unwrap_or_default());
    }
    all
}

/// The replicas of a source at an address, one for each data-parallel rank; ports as numbers: of the
/// API, and those of rank 0's publisher and replay. None without a port of the API.
fn replicas(
    of: &Discovery,
    ip: IpAddr,
    [port, events, replay]: [Option<u16>; 3],
) -> Option<Vec<Replica>> {
    let endpoint = SocketAddr::new(ip, port?);
    let replica = |rank: Option<u32>, among_all: Option<u32>| {
        let at = |port: u16| {
            let port = u32::from(port).checked_add(among_all.unwrap_or(0))?;
            Some(SocketAddr::new(ip, u16::try_from(port).ok()?).to_string())
        };
        Replica {
            endpoint,
            rank,
            pool: of.pool.clone(),
            model: of.model,
            draining: false,
            store: of.store.clone(),
            weight: of.weight,
            adapters: of.adapters.clone(),
            events: events.and_then(at).map(|address| Events {
                way: Way::Connect(address),
                replay: replay.and_then(at),
                rank: among_all,
                duplicates: of.duplicates,
            }),
        }
    };
    Some(match of.ranks {
        None => vec![replica(None, None)],
        Some(Ranks { count, first }) => {
            (0..count).map(|rank| replica(Some(rank), Some(first.saturating_add(rank)))).collect()
        }
    })
}
