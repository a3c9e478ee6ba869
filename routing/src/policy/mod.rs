//! What the operator lays down: regions, pools, zones, prices and bounds.
//!
//! The same structure is read by the filter (JSON in Envoy's plugin configuration) and by the
//! command line. [`Policy::check`] refuses what could let a request out of its zone.

mod check;
mod error;
#[cfg(test)]
pub(crate) mod tests;
mod zone;

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::cost::CostModel;
use crate::health::Ejection;
use crate::poison::Poison;
pub use crate::zone_source::ZoneSource;
pub use error::PolicyError;
pub use zone::{Exclusion, Region, Zone};

/// How many tokens of a prompt are fingerprinted, unless the configuration says otherwise.
pub const PREFIX_TOKENS: usize = 131_072;

/// The configuration of the router.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// The region in which this gateway stands.
    pub region: String,
    /// All regions, by name.
    pub regions: BTreeMap<String, Region>,
    /// All pools, by the name under which the relay files replicas.
    pub pools: BTreeMap<String, Pool>,
    /// Residency rules, by name.
    pub zones: BTreeMap<String, Zone>,
    /// The names by which requests ask for models, by the model's name in `pools`. They hold beside
    /// what the relay announces, and where it has announced nothing (yet).
    #[serde(default)]
    pub models: BTreeMap<String, ModelNames>,
    /// What a request asks for that names no model, where there are several: one of their names.
    #[serde(default)]
    pub default_model: Option<String>,
    /// Where a request's zone is read.
    #[serde(default)]
    pub zone_source: ZoneSource,
    /// Prices in milliseconds.
    #[serde(default)]
    pub cost: CostModel,
    /// Where cold prefixes go.
    #[serde(default)]
    pub ring: Ring,
    /// When a replica that fails is left alone.
    #[serde(default)]
    pub ejection: Ejection,
    /// When a prompt is refused that kills engines.
    #[serde(default)]
    pub poison: Poison,
    /// How many tokens may be in prefill at one replica.
    #[serde(default)]
    pub admission: Admission,
    /// How many tokens of a prompt are fingerprinted.
    #[serde(default = "defaults::prefix_tokens")]
    pub prefix_tokens: usize,
    /// A longer body is routed without looking into it, in bytes.
    #[serde(default = "defaults::max_body_bytes")]
    pub max_body_bytes: usize,
    /// Bytes of bodies that a worker awaits at a time, all together; beyond that the first come are
    /// refused.
    #[serde(default = "defaults::max_awaited_bytes")]
    pub max_awaited_bytes: usize,
    /// A compressed body that grows larger is refused, in bytes; 0 for all that are compressed.
    #[serde(default = "defaults::max_inflated_bytes")]
    pub max_inflated_bytes: usize,
    /// Silence of the relay after which the map is stale, in milliseconds.
    #[serde(default = "defaults::stale_after_ms")]
    pub stale_after_ms: u64,
    /// How many endpoints are named to Envoy, for its retries.
    #[serde(default = "defaults::endpoints")]
    pub endpoints: usize,
}

/// The replicas of one model in one region.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// A key of `regions`.
    pub region: String,
    /// The model, as the relay names it.
    pub model: String,
}

/// Names by which requests ask for a model.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelNames {
    /// Names that mean the model; by default its name in `pools`.
    #[serde(default)]
    pub served_names: Option<Vec<String>>,
    /// Names that mean a LoRA adapter on it.
    #[serde(default)]
    pub adapters: Vec<String>,
}

/// How many tokens may be in prefill at one replica.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admission {
    /// Tokens to be computed that this gateway has under way at a replica, above which it is full;
    /// 0 for any number. A single prompt is taken however long it is.
    pub cold_tokens: u32,
    /// The share of it that batch requests may fill, 0 to 1.
    pub batch_share: f64,
    /// How long a request waits in the gateway where all replicas are full, in milliseconds; then
    /// it goes to the best of them all the same. 0 for not at all.
    pub wait_ms: u64,
    /// How many may wait so, in each worker.
    pub waiting: usize,
    /// The request header that tells batch from interactive requests: by the value `batch`. The
    /// gateway sets it, or clients are trusted to be modest.
    pub header: String,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            cold_tokens: 131_072,
            batch_share: 0.5,
            wait_ms: 500,
            waiting: 128,
            header: "x-warmpath-priority".into(),
        }
    }
}

/// Consistent hashing with bounded loads.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ring {
    /// How many blocks (of 16 tokens) name a cold prefix: those who share them meet.
    pub blocks: usize,
    /// No replica gets above this many times the mean in flight.
    pub load_factor: f64,
    /// In flight below this a replica is never full.
    pub load_floor: u32,
}

impl Default for Ring {
    fn default() -> Self {
        Self { blocks: 16, load_factor: 1.25, load_floor: 8 }
    }
}

mod defaults {
    pub(super) fn prefix_tokens() -> usize {
        super::PREFIX_TOKENS
    }
    pub(super) fn max_body_bytes() -> usize {
        8 << 20
    }
    pub(super) fn max_awaited_bytes() -> usize {
        256 << 20
    }
    pub(super) fn max_inflated_bytes() -> usize {
        8 << 20
    }
    pub(super) fn stale_after_ms() -> u64 {
        3000
    }
    pub(super) fn endpoints() -> usize {
        4
    }
}

impl Policy {
    /// The model of all pools, if they have but one.
    pub fn only_model(&self) -> Option<&str> {
        let mut models = self.pools.values().map(|pool| pool.model.as_str());
        let first = models.next()?;
        models.all(|model| model == first).then_some(first)
    }

    /// Whether the relay may file a replica of this model under this pool: the pool is the policy's,
    /// and of that model.
    pub fn files(&self, pool: &str, model: &str) -> bool {
        self.pools.get(pool).is_some_and(|pool| pool.model == model)
    }
}

impl ModelNames {
    /// The names that mean the model of this name in `pools`.
    pub fn served_names<'a>(&'a self, model: &'a String) -> &'a [String] {
        self.served_names.as_deref().unwrap_or(std::slice::from_ref(model))
    }
}
