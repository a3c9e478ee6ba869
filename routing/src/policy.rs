//! What the operator lays down: regions, pools, zones, prices and bounds.
//!
//! The same structure is read by the filter (JSON in Envoy's plugin configuration) and by the
//! command line. [`Policy::check`] refuses what could let a request out of its zone.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::cost::CostModel;
use crate::health::Ejection;
use crate::poison::{MOST_ENGINES, Poison};
pub use crate::zone_source::ZoneSource;

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
    /// Silence of the relay after which the map is stale, in milliseconds.
    #[serde(default = "defaults::stale_after_ms")]
    pub stale_after_ms: u64,
    /// How many endpoints are named to Envoy, for its retries.
    #[serde(default = "defaults::endpoints")]
    pub endpoints: usize,
}

/// Where hardware stands, and under whose law.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// The law of the place, e.g. `EU`.
    pub jurisdiction: String,
    /// Who runs the hardware.
    #[serde(default)]
    pub operator: String,
    /// Network round trip from this gateway, in milliseconds.
    #[serde(default)]
    pub rtt_ms: f64,
    /// The region's share of new prefixes, against the weights of a zone's other regions: 90 and
    /// 10 keep a standby from being quite cold. Where no region has one, they go to the cheapest.
    #[serde(default)]
    pub weight: f64,
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

/// A residency rule: a region is inside if each list that is given names it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Zone {
    /// Regions by name; `*` for every one.
    #[serde(default)]
    pub regions: Vec<String>,
    /// Jurisdictions.
    #[serde(default)]
    pub jurisdictions: Vec<String>,
    /// Operators.
    #[serde(default)]
    pub operators: Vec<String>,
    /// Operators that may not see a request of this zone, wherever their hardware stands.
    #[serde(default)]
    pub forbidden_operators: Vec<String>,
    /// Per pool, the Envoy cluster to name when that pool is the first choice: a cluster of this
    /// zone's hosts only, that pool's at priority 0.
    pub clusters: BTreeMap<String, String>,
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
        8192
    }
    pub(super) fn max_body_bytes() -> usize {
        1 << 20
    }
    pub(super) fn stale_after_ms() -> u64 {
        3000
    }
    pub(super) fn endpoints() -> usize {
        4
    }
}

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
    #[error("zone_source.from[{at}]: can't be read, as a name in it is empty or missing")]
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
    /// A cluster for a pool that the zone's own rule keeps out.
    #[error("zones.{zone}.clusters.{pool}: region {region:?} lies outside the zone")]
    Outside {
        /// The zone.
        zone: String,
        /// The pool.
        pool: String,
        /// The pool's region.
        region: String,
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

impl Zone {
    /// Whether hardware in this region may see the zone's requests.
    pub fn admits(&self, name: &str, region: &Region) -> bool {
        let listed =
            |list: &[String], what: &str| list.is_empty() || list.iter().any(|l| l == what);
        (self.regions.iter().any(|r| r == "*") || listed(&self.regions, name))
            && listed(&self.jurisdictions, &region.jurisdiction)
            && listed(&self.operators, &region.operator)
            && !self.forbidden_operators.contains(&region.operator)
    }

    fn is_unbounded(&self) -> bool {
        self.regions.is_empty() && self.jurisdictions.is_empty() && self.operators.is_empty()
    }
}

impl Policy {
    /// Checks that names resolve, numbers make sense and no zone reaches outside itself.
    ///
    /// # Errors
    /// The first thing that is wrong, with its field.
    pub fn check(&self) -> Result<(), PolicyError> {
        let known_region = |field: String, name: &String| {
            if self.regions.contains_key(name) {
                Ok(())
            } else {
                Err(PolicyError::Unknown { field, name: name.clone(), under: "regions" })
            }
        };
        for (field, empty) in [
            ("regions", self.regions.is_empty()),
            ("pools", self.pools.is_empty()),
            ("zones", self.zones.is_empty()),
            ("zone_source.header", self.zone_source.header.is_empty()),
        ] {
            if empty {
                return Err(PolicyError::Empty { field: field.into() });
            }
        }
        known_region("region".into(), &self.region)?;
        for (name, pool) in &self.pools {
            known_region(format!("pools.{name}.region"), &pool.region)?;
        }
        if let Some(name) = &self.zone_source.default
            && !self.zones.contains_key(name)
        {
            let field = "zone_source.default".into();
            return Err(PolicyError::Unknown { field, name: name.clone(), under: "zones" });
        }
        if let Some(at) = self.zone_source.void() {
            return Err(PolicyError::VoidSource { at });
        }
        for (at, name) in self.zone_source.named() {
            if !self.zones.contains_key(name) {
                let field = format!("zone_source.from[{at}]");
                return Err(PolicyError::Unknown { field, name: name.clone(), under: "zones" });
            }
        }
        for (zone, rule) in &self.zones {
            self.check_zone(zone, rule)?;
        }
        self.check_numbers()
    }

    fn check_zone(&self, zone: &str, rule: &Zone) -> Result<(), PolicyError> {
        if rule.is_unbounded() {
            return Err(PolicyError::Unbounded { zone: zone.into() });
        }
        for name in rule.regions.iter().filter(|name| *name != "*") {
            if !self.regions.contains_key(name) {
                let field = format!("zones.{zone}.regions");
                return Err(PolicyError::Unknown { field, name: name.clone(), under: "regions" });
            }
        }
        for pool in rule.clusters.keys() {
            if !self.pools.contains_key(pool) {
                let field = format!("zones.{zone}.clusters");
                return Err(PolicyError::Unknown { field, name: pool.clone(), under: "pools" });
            }
        }
        let mut any = false;
        for (name, pool) in &self.pools {
            let inside =
                self.regions.get(&pool.region).is_some_and(|r| rule.admits(&pool.region, r));
            any |= inside;
            match (inside, rule.clusters.contains_key(name)) {
                (false, true) => {
                    return Err(PolicyError::Outside {
                        zone: zone.into(),
                        pool: name.clone(),
                        region: pool.region.clone(),
                    });
                }
                (true, false) => {
                    return Err(PolicyError::NoCluster { zone: zone.into(), pool: name.clone() });
                }
                _ => {}
            }
        }
        if any { Ok(()) } else { Err(PolicyError::NoPool { zone: zone.into() }) }
    }

    fn check_numbers(&self) -> Result<(), PolicyError> {
        let range = |field, value: f64, low: f64, high: f64, expected| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(PolicyError::Range { field, value, expected })
            }
        };
        let cost = &self.cost;
        for (field, value) in [
            ("cost.prefill_base_ms", cost.prefill_base_ms),
            ("cost.prefill_ms_per_1k_tokens", cost.prefill_ms_per_1k_tokens),
            ("cost.prefill_ms_per_1m_pairs", cost.prefill_ms_per_1m_pairs),
            ("cost.cpu_ms_per_1k_tokens", cost.cpu_ms_per_1k_tokens),
            ("cost.disk_ms_per_1k_tokens", cost.disk_ms_per_1k_tokens),
            ("cost.shared_ms_per_1k_tokens", cost.shared_ms_per_1k_tokens),
            ("cost.queued_ms", cost.queued_ms),
            ("cost.running_ms", cost.running_ms),
            ("cost.tie_ms", cost.tie_ms),
            ("cost.abroad_ms_per_mb", cost.abroad_ms_per_mb),
            ("ejection.base_ms", self.ejection.base_ms as f64),
            ("ejection.most_ms", self.ejection.most_ms as f64),
        ] {
            range(field, value, 0.0, 3.6e6, "0 to 3600000 ms")?;
        }
        let poison = &self.poison;
        range("poison.engines", poison.engines as f64, 0.0, MOST_ENGINES as f64, "0 to 4")?;
        range("poison.refuse_ms", poison.refuse_ms as f64, 1e3, 3.6e6, "1000 to 3600000 ms")?;
        range("admission.batch_share", self.admission.batch_share, 0.0, 1.0, "0 to 1")?;
        let (wait_ms, waiting) = (self.admission.wait_ms as f64, self.admission.waiting as f64);
        range("admission.wait_ms", wait_ms, 0.0, 60_000.0, "0 to 60000 ms")?;
        range("admission.waiting", waiting, 0.0, 10_000.0, "0 to 10000")?;
        for region in self.regions.values() {
            range("regions.*.weight", region.weight, 0.0, 1e6, "0 to 1000000")?;
            range("regions.*.rtt_ms", region.rtt_ms, 0.0, 60_000.0, "0 to 60000 ms")?;
        }
        range("ring.load_factor", self.ring.load_factor, 1.0, 100.0, "1 to 100")?;
        range("ring.blocks", self.ring.blocks as f64, 1.0, 65_536.0, "1 to 65536")?;
        range("ring.load_floor", f64::from(self.ring.load_floor), 1.0, 1e6, "1 to 1000000")?;
        range("prefix_tokens", self.prefix_tokens as f64, 16.0, 1e6, "16 to 1000000")?;
        range("max_body_bytes", self.max_body_bytes as f64, 0.0, 6.4e7, "0 to 64000000")?;
        range("stale_after_ms", self.stale_after_ms as f64, 100.0, 6e5, "100 to 600000 ms")?;
        range("endpoints", self.endpoints as f64, 1.0, 16.0, "1 to 16")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    pub(crate) fn two_regions() -> serde_json::Value {
        json!({
            "region": "eu-west",
            "regions": {
                "eu-west": {"jurisdiction": "EU", "operator": "acme", "rtt_ms": 1},
                "us-east": {"jurisdiction": "US", "operator": "acme", "rtt_ms": 80}
            },
            "pools": {
                "demo-eu-west": {"region": "eu-west", "model": "demo"},
                "demo-us-east": {"region": "us-east", "model": "demo"}
            },
            "zones": {
                "eu": {
                    "jurisdictions": ["EU"],
                    "clusters": {"demo-eu-west": "eu.demo-eu-west"}
                },
                "global": {
                    "regions": ["*"],
                    "clusters": {
                        "demo-eu-west": "global.demo-eu-west",
                        "demo-us-east": "global.demo-us-east"
                    }
                }
            }
        })
    }

    fn refused(pointer: &str, value: serde_json::Value) -> String {
        let mut json = two_regions();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        json.pointer_mut(parent).unwrap()[name] = value;
        match serde_json::from_value::<Policy>(json) {
            Ok(policy) => policy.check().unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let policy: Policy = serde_json::from_value(two_regions()).unwrap();
        assert_eq!(policy.check(), Ok(()));
        for (pointer, value, message) in [
            ("/region", json!("mars"), "region: \"mars\" is not defined under regions"),
            ("/colour", json!(1), "unknown field `colour`"),
            ("/pools/demo-eu-west/region", json!("x"), "pools.demo-eu-west.region: \"x\""),
            ("/zones/eu/jurisdictions", json!([]), "zones.eu: names neither"),
            ("/zones/eu/jurisdictions", json!(["US"]), "zones.eu.clusters.demo-eu-west: region"),
            ("/zones/eu/jurisdictions", json!(["CH"]), "lies outside the zone"),
            ("/zones/eu/clusters", json!({}), "\"demo-eu-west\" lies in the zone and has no"),
            ("/zones/eu/clusters/nope", json!("c"), "\"nope\" is not defined under pools"),
            (
                "/zones/eu/clusters/demo-us-east",
                json!("c"),
                "zones.eu.clusters.demo-us-east: region \"us-east\" lies outside the zone",
            ),
            ("/zone_source", json!({"default": "x"}), "zone_source.default: \"x\""),
            ("/zone_source", json!({"from": [{"header": ""}]}), "zone_source.from[0]: can't be"),
            (
                "/zone_source",
                json!({"from": [{"header": "x"}, {"host": {"a.example": "mars"}}]}),
                "zone_source.from[1]: \"mars\" is not defined under zones",
            ),
            (
                "/poison",
                json!({"engines": 5}),
                "poison.engines: 5 is out of range, expected 0 to 4",
            ),
            ("/poison", json!({"refuse_ms": 999}), "poison.refuse_ms: 999 is out of range"),
            ("/poison", json!({"seconds": 1}), "unknown field `seconds`"),
            ("/admission", json!({"batch_share": 2}), "admission.batch_share: 2 is out of range"),
            ("/admission", json!({"wait_ms": 70_000}), "admission.wait_ms: 70000 is out of range"),
            ("/cost", json!({"abroad_ms_per_mb": -1}), "cost.abroad_ms_per_mb: -1 is out of"),
            ("/cost", json!({"disk_ms_per_1k_tokens": -1}), "cost.disk_ms_per_1k_tokens: -1 is"),
            ("/regions/us-east", json!({"jurisdiction": "US", "weight": -1}), "regions.*.weight"),
            ("/ring", json!({"load_factor": 0.5}), "ring.load_factor: 0.5 is out of range"),
            ("/prefix_tokens", json!(0), "prefix_tokens: 0 is out of range"),
            ("/zones", json!({}), "zones: must not be empty"),
        ] {
            let got = refused(pointer, value);
            assert!(got.contains(message), "{pointer}: {got}");
        }
    }

    #[test]
    fn an_operator_under_another_law_is_kept_out() {
        let zone = Zone {
            jurisdictions: vec!["EU".into()],
            forbidden_operators: vec!["hyperscaler".into()],
            ..Zone::default()
        };
        let region = |jurisdiction: &str, operator: &str| Region {
            jurisdiction: jurisdiction.into(),
            operator: operator.into(),
            rtt_ms: 0.0,
            weight: 0.0,
        };
        assert!(zone.admits("fra", &region("EU", "acme")));
        assert!(!zone.admits("fra", &region("EU", "hyperscaler")));
        assert!(!zone.admits("iad", &region("US", "acme")));
    }
}
