//! Residency: which zone a request is in, and the pools that it may go to. Asked before anything else.
//!
//! This is the one place that decides it, for the filter, `explain` and `simulate`: whatever follows in
//! a decision chooses among [`pools_of`] the request's zone, and can add none. Which regions a zone
//! admits is its rule's word ([`Zone::judge`]), which `warmpath check` asks as well.

use std::collections::BTreeMap;

use super::refusal::Refusal;
pub use crate::policy::Zone;
use crate::policy::{Policy, Pool, Region};
pub use crate::zone_source::Claim;

/// Why a request is in no zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoZone {
    /// Nothing names one, and there is no default.
    Missing,
    /// What is named is none.
    Unknown,
}

/// The zone that a claim stands for, with its name.
///
/// # Errors
/// [`NoZone`], when nothing names a zone and there is no default, or when there is no zone of that
/// name: the request must be refused.
pub fn zone_of<'a>(
    zones: &'a BTreeMap<String, Zone>,
    default: Option<&str>,
    claim: Claim<'_>,
) -> Result<(&'a str, &'a Zone), NoZone> {
    let name = match claim {
        Claim::Zone(name) => name,
        Claim::Silent => default.ok_or(NoZone::Missing)?,
        Claim::Unmapped => return Err(NoZone::Unknown),
    };
    let (name, zone) = zones.get_key_value(name).ok_or(NoZone::Unknown)?;
    Ok((name, zone))
}

/// A pool that a zone's requests may go to.
#[derive(Clone, Copy, Debug)]
pub struct AdmittedPool<'a> {
    /// Its name in the policy.
    pub name: &'a str,
    /// The pool.
    pub pool: &'a Pool,
    /// Where it stands.
    pub region: &'a Region,
    /// The Envoy cluster of the zone in which its hosts come first.
    pub cluster: &'a str,
}

/// The zone's pools: those that have a cluster and whose region it admits. Asked again for each request,
/// though the policy was checked: residency is worth asking twice.
pub fn pools_of<'a>(policy: &'a Policy, zone: &'a Zone) -> impl Iterator<Item = AdmittedPool<'a>> {
    zone.clusters.iter().filter_map(|(name, cluster)| {
        let (name, pool) = policy.pools.get_key_value(name)?;
        let region = policy.regions.get(&pool.region)?;
        zone.admits(&pool.region, region).then_some(AdmittedPool { name, pool, region, cluster })
    })
}

impl From<NoZone> for Refusal {
    fn from(why: NoZone) -> Self {
        let (code, message) = match why {
            NoZone::Missing => (
                "zone_missing",
                "The request has no data-residency zone, and this gateway requires one.",
            ),
            NoZone::Unknown => {
                ("zone_unknown", "The request's data-residency zone is not known to this gateway.")
            }
        };
        Self::forbidden(code, message.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::two_regions;

    #[test]
    fn a_claim_that_maps_to_nothing_is_no_zone() {
        let policy: Policy = serde_json::from_value(two_regions()).unwrap();
        let mut zones = policy.zones;
        // Even where nobody checked that a zone has a name.
        zones.insert(String::new(), zones["global"].clone());
        let of = |default, claim| zone_of(&zones, default, claim).map(|(name, _)| name);
        assert_eq!(of(None, Claim::Zone("eu")), Ok("eu"));
        assert_eq!(of(None, Claim::Zone("EU")), Err(NoZone::Unknown));
        assert_eq!(of(None, Claim::Silent), Err(NoZone::Missing));
        assert_eq!(of(Some("global"), Claim::Silent), Ok("global"));
        assert_eq!(of(Some("global"), Claim::Unmapped), Err(NoZone::Unknown));
        assert_eq!(of(Some("global"), Claim::Zone("mars")), Err(NoZone::Unknown));
    }
}
