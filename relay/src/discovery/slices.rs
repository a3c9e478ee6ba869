//! EndpointSlices → replicas.
//!
//! | the slice says | the replica |
//! | --- | --- |
//! | ready | takes requests |
//! | not ready, not terminating | is followed, so that its cache is known when it is ready; takes nothing new |
//! | terminating, still serving | finishes what it has |
//! | terminating, no longer serving | is gone |

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};

use super::address::replicas as at;
use crate::config::{Discovery, Port, Replica};

/// The replicas in all slices of a Service; also how many endpoints had no port of a wanted name.
pub(super) fn replicas<'a>(
    of: &Discovery,
    slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
) -> (Vec<Replica>, usize) {
    // A dual-stack Service has a slice of each family for the same pods.
    let v4 =
        slices.clone().any(|slice| slice.address_type == "IPv4" && !slice.endpoints.is_empty());
    let mut found: BTreeMap<_, Replica> = BTreeMap::new();
    let mut portless = 0;
    for slice in slices.filter(|slice| slice.address_type == if v4 { "IPv4" } else { "IPv6" }) {
        let listed = slice.ports.as_deref().unwrap_or_default();
        let optional = |port: &Option<Port>| port.as_ref().and_then(|port| number(port, listed));
        let ports =
            [number(&of.port, listed), optional(&of.events_port), optional(&of.replay_port)];
        for endpoint in &slice.endpoints {
            let Some(draining) = draining(endpoint) else { continue };
            // All addresses of one endpoint are the same pod.
            let ip = endpoint.addresses.first().and_then(|text| text.parse::<IpAddr>().ok());
            let Some(ip) = ip else { continue };
            let Some(replicas) = at(of, ip, ports) else {
                portless += 1;
                continue;
            };
            for replica in replicas {
                // While an endpoint moves, it is in two slices.
                let known = found.entry((replica.endpoint, replica.rank));
                let known = known.or_insert_with(|| Replica { draining, ..replica });
                known.draining &= draining;
            }
        }
    }
    (found.into_values().collect(), portless)
}

/// Whether the endpoint takes nothing new; none where it is gone.
fn draining(endpoint: &Endpoint) -> Option<bool> {
    let told = endpoint.conditions.clone().unwrap_or_default();
    let ready = told.ready.unwrap_or(true);
    let serving = told.serving.unwrap_or(ready);
    match told.terminating.unwrap_or(false) {
        true if !serving => None,
        true => Some(true),
        false => Some(!ready),
    }
}

fn number(port: &Port, listed: &[EndpointPort]) -> Option<u16> {
    match port {
        Port::Number(port) => Some(*port),
        Port::Name(name) => {
            let named = |port: &&EndpointPort| {
                port.name.as_ref() == Some(name)
                    && matches!(port.protocol.as_deref(), None | Some("TCP"))
            };
            let port = listed.iter().find(named)?.port?;
            u16::try_from(port).ok().filter(|port| *port > 0)
        }
    }
}
