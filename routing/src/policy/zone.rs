//! Regions, and the zones' rules: which regions' hardware may see a zone's requests.
//!
//! Where a rule asks for something that a region does not say, or where a name could mean what is
//! forbidden, the answer is no. Which zone a request is in, and where it may go by that, is decided in
//! [`crate::decision::residency`].

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

/// Where hardware stands, and under whose law.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// The law of the place, e.g. `EU`.
    pub jurisdiction: String,
    /// Who runs the hardware. Where this is empty, no zone whose rule asks for it admits the region.
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

/// A residency rule: a region is inside if each list that is given names it, and none that forbids
/// could mean it.
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

/// Why a zone does not admit a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusion {
    /// `regions` does not list it.
    Region,
    /// `jurisdictions` does not list its jurisdiction.
    Jurisdiction,
    /// The rule asks for a jurisdiction, and the region names none.
    NoJurisdiction,
    /// `operators` does not list its operator.
    Operator,
    /// The rule asks for an operator, and the region names none.
    NoOperator,
    /// `forbidden_operators` has its operator, or a name that could mean it.
    Forbidden,
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Region => "the zone's regions do not list it",
            Self::Jurisdiction => "the zone's jurisdictions do not list its jurisdiction",
            Self::NoJurisdiction => {
                "the zone's rule asks for a jurisdiction and the region names none"
            }
            Self::Operator => "the zone's operators do not list its operator",
            Self::NoOperator => "the zone's rule asks for an operator and the region names none",
            Self::Forbidden => "the zone forbids its operator",
        })
    }
}

impl Zone {
    /// Whether hardware in this region may see the zone's requests.
    ///
    /// # Errors
    /// When the rule keeps the region out: [`Exclusion`], the first thing in it that does.
    pub fn judge(&self, name: &str, region: &Region) -> Result<(), Exclusion> {
        let lists = |list: &[String], what: &str| list.iter().any(|listed| listed == what);
        let refuse = |why, refused: bool| if refused { Err(why) } else { Ok(()) };
        if !self.regions.is_empty() {
            refuse(Exclusion::Region, !lists(&self.regions, "*") && !lists(&self.regions, name))?;
        }
        if !self.jurisdictions.is_empty() {
            refuse(Exclusion::NoJurisdiction, says_nothing(&region.jurisdiction))?;
            let listed = lists(&self.jurisdictions, &region.jurisdiction);
            refuse(Exclusion::Jurisdiction, !listed)?;
        }
        if !(self.operators.is_empty() && self.forbidden_operators.is_empty()) {
            refuse(Exclusion::NoOperator, says_nothing(&region.operator))?;
        }
        if !self.operators.is_empty() {
            refuse(Exclusion::Operator, !lists(&self.operators, &region.operator))?;
        }
        let could_mean = |forbidden: &String| could_mean(forbidden, &region.operator);
        refuse(Exclusion::Forbidden, self.forbidden_operators.iter().any(could_mean))
    }

    /// [`Self::judge`], without the reason.
    pub fn admits(&self, name: &str, region: &Region) -> bool {
        self.judge(name, region).is_ok()
    }

    /// Whether the rule names nothing that a region has to be.
    pub(crate) fn is_unbounded(&self) -> bool {
        self.regions.is_empty() && self.jurisdictions.is_empty() && self.operators.is_empty()
    }
}

/// Whether a field that a rule asks for is not really there.
pub(crate) fn says_nothing(name: &str) -> bool {
    letters(name).next().is_none()
}

/// Whether two names could mean the same: they differ at most in case, blanks and punctuation. A
/// name without a letter or digit could mean anything.
pub(crate) fn could_mean(one: &str, other: &str) -> bool {
    says_nothing(one) || says_nothing(other) || letters(one).eq(letters(other))
}

/// A name as it is compared loosely.
pub(crate) fn loose(name: &str) -> String {
    String::from_utf8_lossy(&letters(name).collect::<Vec<u8>>()).into_owned()
}

/// What of a name counts when it is compared loosely. Bytes beyond ASCII count as they are: a
/// checked policy has none of them.
fn letters(name: &str) -> impl Iterator<Item = u8> {
    name.bytes()
        .filter(|byte| byte.is_ascii_alphanumeric() || !byte.is_ascii())
        .map(|byte| byte.to_ascii_lowercase())
}

#[cfg(test)]
mod tests;
