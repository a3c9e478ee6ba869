//! How the sources of replicas fare, for metrics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::config::Place;

/// Of all sources, by name. They outlive a reload of the configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sightings(Arc<Mutex<BTreeMap<String, Sighting>>>);

/// Of one source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sighting(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    answers: AtomicBool,
    replicas: AtomicUsize,
    failures: AtomicU64,
}

impl Sightings {
    pub(super) fn of(&self, place: &Place) -> Sighting {
        let all = self.0.lock();
        all.map(|mut all| all.entry(place.to_string()).or_default().clone()).unwrap_or_default()
    }

    /// Only sources that are still configured.
    pub(crate) fn retain<'a>(&self, places: impl Iterator<Item = &'a Place>) {
        let names: Vec<String> = places.map(Place::to_string).collect();
        if let Ok(mut all) = self.0.lock() {
            all.retain(|name, _| names.contains(name));
        }
    }

    /// Each source's name; whether it answers, replicas that it found last, failures so far.
    pub(crate) fn all(&self) -> Vec<(String, [u64; 3])> {
        let Ok(all) = self.0.lock() else { return Vec::new() };
        let numbers = |Sighting(counts): &Sighting| {
            [
                u64::from(counts.answers.load(Ordering::Relaxed)),
                counts.replicas.load(Ordering::Relaxed) as u64,
                counts.failures.load(Ordering::Relaxed),
            ]
        };
        all.iter().map(|(name, sighting)| (name.clone(), numbers(sighting))).collect()
    }
}

impl Sighting {
    pub(super) fn found(&self, replicas: usize) {
        self.0.answers.store(true, Ordering::Relaxed);
        self.0.replicas.store(replicas, Ordering::Relaxed);
    }

    pub(super) fn failed(&self) {
        self.0.answers.store(false, Ordering::Relaxed);
        self.0.failures.fetch_add(1, Ordering::Relaxed);
    }
}
