//! The replicas at one address.

use std::net::{IpAddr, SocketAddr};

use crate::config::{Discovery, Events, Ranks, Replica};
use crate::engine::way::Way;

/// The replicas of a source at an address, one for each data-parallel rank; ports as numbers: of the
/// API, and those of rank 0's publisher and replay. None without a port of the API.
pub(super) fn replicas(
    of: &Discovery,
    ip: IpAddr,
    [port, events, replay]: [Option<u16>; 3],
) -> Option<Vec<Replica>> {
    let endpoint = SocketAddr::new(ip, port?);
    let replica = |rank: Option<u32>, among_all: Option<u32>| {
        let at = |port: u16| {
            let port = u32::from(port).checked_add(among_all.unwrap_or(0))?;
            Some(SocketAddr::new(ip, u16::try_from(port).ok()?).to_string())
        };
        Replica {
            endpoint,
            rank,
            pool: of.pool.clone(),
            model: of.model,
            draining: false,
            store: of.store.clone(),
            weight: of.weight,
            adapters: of.adapters.clone(),
            events: events.and_then(at).map(|address| Events {
                way: Way::Connect(address),
                replay: replay.and_then(at),
                rank: among_all,
                duplicates: of.duplicates,
            }),
        }
    };
    Some(match of.ranks {
        None => vec![replica(None, None)],
        Some(Ranks { count, first }) => {
            (0..count).map(|rank| replica(Some(rank), Some(first.saturating_add(rank)))).collect()
        }
    })
}
