//! The model: a request for one that its zone doesn't serve is refused, never sent to another's pool.

use super::refusal::Refusal;
use super::residency::pools_of;
use crate::catalogue::{Wants, of_zone};
use crate::policy::{Policy, Zone};

/// Why a request for this can't be served in the zone, whatever its replicas do; `None` if it may be.
pub fn refuse_model(policy: &Policy, zone: &str, rule: &Zone, wants: Wants<'_>) -> Option<Refusal> {
    let Wants::Model { name: model, .. } = wants else {
        return Some(no_model(policy, rule, wants));
    };
    if pools_of(policy, rule).any(|it| it.pool.model == model) {
        return None;
    }
    Some(if policy.pools.values().any(|pool| pool.model == model) {
        Refusal::model_not_in_zone(zone, &names_of(policy, rule))
    } else {
        no_model(policy, rule, Wants::Unknown { name: model, certain: true })
    })
}

/// Names that can be asked for in the zone, by the policy alone: which further ones the relay tells,
/// `GET /v1/models` says.
fn names_of<'a>(policy: &'a Policy, rule: &'a Zone) -> Vec<&'a str> {
    let none = std::iter::empty();
    of_zone(policy, &none, rule).iter().map(|entry| entry.id).collect()
}

/// The answer to a request whose model is none.
pub(super) fn no_model(policy: &Policy, rule: &Zone, wants: Wants<'_>) -> Refusal {
    let names = names_of(policy, rule);
    match wants {
        Wants::Unknown { certain: false, .. } => Refusal::model_unknown(),
        Wants::Unknown { name, .. } => Refusal::model_not_found(Some(name), &names),
        Wants::Unreadable => Refusal::model_unreadable(&names),
        Wants::Unnamed | Wants::Model { .. } => Refusal::model_not_found(None, &names),
    }
}
