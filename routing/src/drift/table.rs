//! The drifts that all workers of an Envoy add to, as one value of shared data.

use std::collections::BTreeMap;

use super::bytes::Reader;
use super::counts::Counts;
use super::{Change, Drift, Hints, Kind, Observation, Suspect};

/// Models and replicas whose drift is followed.
pub const MOST_DRIFTS: usize = 1_024;

const FORMAT: u8 = 1;
const HEAD: usize = 4;

/// A replica (by its name) and a model there (by the hash of its name).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// The model. First, so that those of one model stand together.
    pub model: u64,
    /// The replica ([`crate::view::Replica::name`]).
    pub replica: u64,
}

impl Id {
    /// A model's hash.
    pub fn model(name: &str) -> u64 {
        let hash = blake3::hash(name.as_bytes());
        hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

/// All of them that have something to tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    pub(super) all: BTreeMap<Id, Drift>,
}

impl Table {
    /// Whether a right answer says something: of one that went wrong before, or, where another
    /// replica of its model goes wrong, that this one doesn't.
    pub fn minds(&self, id: Id) -> bool {
        !self.all.is_empty()
            && (self.all.contains_key(&id) || self.of_model(id.model).next().is_some())
    }

    /// Whether it is followed.
    pub fn knows(&self, id: Id) -> bool {
        self.all.contains_key(&id)
    }

    /// Whether answers of it should tell all that they can.
    pub fn is_in_doubt(&self) -> bool {
        self.all.values().any(Drift::is_in_doubt)
    }

    /// Takes in one answer; what has changed by it.
    pub fn observe(&mut self, id: Id, seen: &Observation, hints: Hints) -> Vec<Change> {
        if self.all.len() >= MOST_DRIFTS && !self.all.contains_key(&id) {
            return Vec::new();
        }
        let others_agree =
            self.of_model(id.model).any(|(other, drift)| *other != id && drift.agrees());
        let hints = Hints { others_agree, ..hints };
        let others = self.of_model(id.model).filter(|(other, _)| **other != id);
        let counts = others.fold(Counts::default(), |sum, (_, drift)| sum.with(&drift.counts));
        let drift = self.all.entry(id).or_default();
        let changes = drift.observe_beside(&counts, seen, hints).collect();
        self.tidy(id.model);
        changes
    }

    /// What is known of a replica without any answer: whether its engine keeps no cache.
    pub fn hint(&mut self, replica: u64, caches_nothing: bool) -> Option<Change> {
        let id = Id { model: 0, replica };
        if !caches_nothing {
            let ended = self.all.remove(&id);
            return ended.map(|_| Change::Ended(Kind::Unannounced));
        }
        if self.all.len() >= MOST_DRIFTS && !self.all.contains_key(&id) {
            return None;
        }
        let hints = Hints { caches_nothing, ..Hints::default() };
        self.all.entry(id).or_default().hint(Kind::Unannounced, hints)
    }

    /// Whether that hint stands.
    pub fn is_hinted(&self, replica: u64) -> bool {
        self.all.contains_key(&Id { model: 0, replica })
    }

    /// Forgets replicas that are no more.
    pub fn retain(&mut self, is_known: impl Fn(u64) -> bool) {
        self.all.retain(|id, _| is_known(id.replica));
    }

    /// Replicas that drift this way, by any of their models.
    pub fn drifting(&self, kind: Kind) -> usize {
        self.replicas(|drift| drift.drifts(kind))
    }

    /// Replicas of which this is the suspect.
    pub fn suspected(&self, suspect: Suspect) -> usize {
        self.replicas(|drift| Kind::ALL.iter().any(|kind| drift.suspect(*kind) == Some(suspect)))
    }

    fn replicas(&self, which: impl Fn(&Drift) -> bool) -> usize {
        let found = self.all.iter().filter(|(_, drift)| which(drift));
        let names: std::collections::BTreeSet<u64> = found.map(|(id, _)| id.replica).collect();
        names.len()
    }

    fn of_model(&self, model: u64) -> impl Iterator<Item = (&Id, &Drift)> {
        self.all.range(Id { model, replica: 0 }..=Id { model, replica: u64::MAX })
    }

    // Those that agree matter only beside others that don't.
    fn tidy(&mut self, model: u64) {
        if self.of_model(model).all(|(_, drift)| drift.is_calm()) {
            self.all.retain(|id, _| id.model != model);
        }
    }

    /// The bytes for shared data.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + self.all.len() * (16 + Drift::BYTES));
        bytes.extend([FORMAT, 0, 0, 0]);
        for (id, drift) in &self.all {
            bytes.extend(id.model.to_le_bytes());
            bytes.extend(id.replica.to_le_bytes());
            drift.encode(&mut bytes);
        }
        bytes
    }

    /// Reads a table; `None` if it is none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let most = MOST_DRIFTS * (16 + Drift::BYTES);
        if head.first() != Some(&FORMAT) || rest.len() > most {
            return None;
        }
        let mut from = Reader(rest);
        let mut all = BTreeMap::new();
        while !from.0.is_empty() {
            let id = Id { model: from.u64()?, replica: from.u64()? };
            all.insert(id, Drift::decode(&mut from)?);
        }
        Some(Self { all })
    }
}
