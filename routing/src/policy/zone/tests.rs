//! Which regions a zone's rule admits, and which no rule that could mean them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::policy::tests::two_regions;
use crate::policy::{Policy, Pool};

fn region(jurisdiction: &str, operator: &str) -> Region {
    Region {
        jurisdiction: jurisdiction.into(),
        operator: operator.into(),
        rtt_ms: 0.0,
        weight: 0.0,
    }
}

fn list(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn an_operator_under_another_law_is_kept_out() {
    let zone = Zone {
        jurisdictions: list(&["EU"]),
        forbidden_operators: list(&["hyperscaler"]),
        ..Zone::default()
    };
    assert_eq!(zone.judge("fra", &region("EU", "acme")), Ok(()));
    for (jurisdiction, operator, why) in [
        ("EU", "hyperscaler", Exclusion::Forbidden),
        ("EU", "HyperScaler", Exclusion::Forbidden),
        ("EU", " hyper-scaler ", Exclusion::Forbidden),
        ("EU", "", Exclusion::NoOperator),
        ("EU", "  ", Exclusion::NoOperator),
        ("US", "acme", Exclusion::Jurisdiction),
        ("eu", "acme", Exclusion::Jurisdiction),
        ("", "acme", Exclusion::NoJurisdiction),
    ] {
        let judged = zone.judge("fra", &region(jurisdiction, operator));
        assert_eq!(judged, Err(why), "{jurisdiction:?} {operator:?}");
    }
}

#[test]
fn a_region_that_does_not_say_who_runs_it_is_admitted_only_where_nobody_asks() {
    let silent = region("EU", "");
    let asking = |zone: Zone| zone.judge("fra", &silent);
    let all = || Zone { regions: list(&["*"]), ..Zone::default() };
    assert_eq!(asking(all()), Ok(()));
    assert_eq!(asking(Zone { operators: list(&["a"]), ..all() }), Err(Exclusion::NoOperator));
    let deny = Zone { forbidden_operators: list(&["a"]), ..all() };
    assert_eq!(asking(deny), Err(Exclusion::NoOperator));
    // A list of empty names is no way round it; a checked policy has none.
    assert_eq!(asking(Zone { operators: list(&[""]), ..all() }), Err(Exclusion::NoOperator));
}

/// Spellings of three operators, one of which says nothing.
fn operator() -> impl Strategy<Value = String> {
    const SPELLINGS: [&str; 13] = [
        "bolt",
        "Bolt",
        "BOLT",
        "bo-lt",
        "bolt ",
        "acme",
        "Acme",
        "acme inc",
        "Acme, Inc.",
        "",
        " ",
        "-",
        "zeta",
    ];
    select(&SPELLINGS[..]).prop_map(String::from)
}

/// What a person would take both spellings for.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
}

prop_compose! {
    fn a_policy()(
        operators in proptest::collection::vec((operator(), select(&["EU", "US", "eu", ""][..])), 1..5),
        zones in proptest::collection::vec(
            (
                proptest::collection::vec(operator(), 0..3),
                proptest::collection::vec(operator(), 0..3),
                proptest::collection::vec(select(&["EU", "US", "eu", ""][..]), 0..3),
                any::<bool>(),
            ),
            1..4,
        ),
    ) -> Policy {
        let mut policy: Policy = serde_json::from_value(two_regions()).unwrap();
        policy.regions.clear();
        policy.pools.clear();
        policy.zones.clear();
        for (number, (operator, jurisdiction)) in operators.iter().enumerate() {
            let name = format!("r{number}");
            policy.regions.insert(name.clone(), region(jurisdiction, operator));
            policy.pools.insert(format!("p{number}"), Pool { region: name, model: "demo".into() });
        }
        policy.region = "r0".into();
        for (number, (operators, forbidden_operators, jurisdictions, all)) in zones.into_iter().enumerate() {
            let mut zone = Zone {
                regions: if all { vec!["*".into()] } else { Vec::new() },
                jurisdictions: jurisdictions.into_iter().map(String::from).collect(),
                operators,
                forbidden_operators,
                clusters: BTreeMap::new(),
            };
            // As an operator would who goes by what the checks say.
            for (name, pool) in &policy.pools {
                if zone.admits(&pool.region, &policy.regions[&pool.region]) {
                    zone.clusters.insert(name.clone(), format!("z{number}.{name}"));
                }
            }
            policy.zones.insert(format!("z{number}"), zone);
        }
        policy
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// No region that a deny-list could mean is admitted, in any policy, checked or not; nor one
    /// that does not say what the rule asks for.
    #[test]
    fn no_region_that_a_deny_list_could_mean_is_admitted(policy in a_policy()) {
        for zone in policy.zones.values() {
            for (name, region) in &policy.regions {
                let operator = plain(&region.operator);
                let asked = !zone.operators.is_empty() || !zone.forbidden_operators.is_empty();
                let denied = (asked && operator.is_empty())
                    || zone.forbidden_operators.iter().any(|name| plain(name) == operator)
                    || (!zone.jurisdictions.is_empty() && plain(&region.jurisdiction).is_empty());
                if denied {
                    prop_assert!(!zone.admits(name, region), "{zone:?} {region:?}");
                }
            }
        }
    }

    /// A policy that passes the check leaves no doubt about what its names mean.
    #[test]
    fn a_checked_policy_has_no_two_spellings(policy in a_policy()) {
        if policy.check().is_ok() {
            let regions = || policy.regions.values();
            for zone in policy.zones.values() {
                for name in zone.operators.iter().chain(&zone.forbidden_operators) {
                    prop_assert!(regions().any(|region| region.operator == *name), "{name:?}");
                    for region in regions() {
                        let same = plain(&region.operator) == plain(name);
                        prop_assert!(!same || region.operator == *name);
                    }
                }
            }
        }
    }
}
