//! Replicas that are found: by DNS, or in a Kubernetes Service's EndpointSlices.
//!
//! A source that can't be asked changes nothing: what it found last stays, and engines that are gone
//! show by their health. That it can't be asked is counted and logged.

mod address;
mod dns;
mod kubernetes;
mod sightings;
mod slices;

use std::time::Duration;

use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::config::{Config, Discovery, Place, Replica};
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
            Place::Dns { name, every } => self.follow_dns(&name, every).await,
            Place::Kubernetes { service, namespace, kubeconfig } => {
                self.follow_kubernetes(&service, namespace, kubeconfig).await;
            }
        }
    }

    /// All that is there now.
    async fn tell(&mut self, mut replicas: Vec<Replica>) -> Result<(), Ended> {
        if std::mem::take(&mut self.failing) {
            info!(source = %self.discovery.place, "the source of replicas answers again");
        }
        self.sighting.found(replicas.len());
        replicas.sort_by_key(|replica| (replica.endpoint, replica.rank));
        if self.known.as_ref() != Some(&replicas) {
            info!(source = %self.discovery.place, replicas = replicas.len(), "replicas looked up");
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
            warn!(%source, error, "can't look up replicas; keeping the last known ones");
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
