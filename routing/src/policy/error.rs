//! Why a policy is refused.

use super::Exclusion;

/// Why a policy is refused. Each names the field.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum PolicyError {
    /// Nothing to route with.
    #[error("{field}: must not be empty")]
    Empty {
        /// Path of the field.
        field: String,
    },
    /// A name that stands nowhere else.
    #[error("{field}: {name:?} is not defined under {under}")]
    Unknown {
        /// Path of the field.
        field: String,
        /// What it says.
        name: String,
        /// Where it would have to be defined.
        under: &'static str,
    },
    /// A source that can never say anything.
    #[error(
        "zone_source.from[{at}]: can never say anything, as a name in it is empty, missing or, of a \
         host, not as it is asked for (no port, no dot at the end)"
    )]
    VoidSource {
        /// Its place.
        at: usize,
    },
    /// A rule that says nothing would let everything through.
    #[error(
        "zones.{zone}: names neither regions, jurisdictions nor operators; write regions: [\"*\"] \
         if every region may see its requests"
    )]
    Unbounded {
        /// The zone.
        zone: String,
    },
    /// A name that can't be told apart from others, or that breaks out of where it is written.
    #[error("{field}: {name:?} is no name; {expected}")]
    Name {
        /// Path of the field.
        field: String,
        /// What it says.
        name: String,
        /// What a name is made of.
        expected: &'static str,
    },
    /// Two spellings that a person would take for the same.
    #[error("{field}: {name:?} and {other:?} differ only in case or punctuation; write both alike")]
    Alike {
        /// Path of the field that has the one.
        field: String,
        /// The one.
        name: String,
        /// The other.
        other: String,
    },
    /// Two models that requests would ask for by the same name.
    #[error("models.{model}: the name {name:?} already means {other}")]
    NameTaken {
        /// The model.
        model: String,
        /// The name.
        name: String,
        /// What it means already.
        other: String,
    },
    /// A list that admits everything beside what it names.
    #[error("zones.{zone}.regions: has \"*\" beside names; write [\"*\"] alone, or only names")]
    StarAmongNames {
        /// The zone.
        zone: String,
    },
    /// Two models in one cluster, where Envoy may choose either's hosts.
    #[error(
        "zones.{zone}.clusters.{pool}: cluster {cluster:?} is also that of a pool of {other}; give each \
         model clusters of its own"
    )]
    SharedCluster {
        /// The zone.
        zone: String,
        /// The pool.
        pool: String,
        /// The cluster.
        cluster: String,
        /// The other model.
        other: String,
    },
    /// A cluster for a pool that the zone's own rule keeps out.
    #[error("zones.{zone}.clusters.{pool}: region {region:?} lies outside the zone: {why}")]
    Outside {
        /// The zone.
        zone: String,
        /// The pool.
        pool: String,
        /// The pool's region.
        region: String,
        /// What keeps it out.
        why: Exclusion,
    },
    /// A pool of the zone that requests could be sent to, but no cluster to send them by.
    #[error("zones.{zone}.clusters: pool {pool:?} lies in the zone and has no cluster")]
    NoCluster {
        /// The zone.
        zone: String,
        /// The pool.
        pool: String,
    },
    /// A zone in which no request could be served.
    #[error("zones.{zone}: no pool lies in this zone")]
    NoPool {
        /// The zone.
        zone: String,
    },
    /// A number out of its range.
    #[error("{field}: {value} is out of range, expected {expected}")]
    Range {
        /// Path of the field.
        field: &'static str,
        /// What it says.
        value: f64,
        /// What may stand there.
        expected: &'static str,
    },
}
