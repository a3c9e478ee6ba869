//! Replicas found by DNS: each address of a name is one, as with a headless service of Kubernetes.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::config::{Config, Dns, Events, Replica};
use crate::subscriber::{Way, jittered};

/// Time for one look-up.
const PATIENCE: Duration = Duration::from_secs(5);

/// What one source found: its place in [`Config::discovery`] and the replicas.
pub(crate) type Found = (usize, Vec<Replica>);

/// Looks a name up again and again, and tells when its addresses change. A look-up that fails
/// changes nothing: engines that are gone show by their health.
pub(crate) async fn follow(place: usize, dns: Dns, found: mpsc::Sender<Found>) {
    let mut known = None;
    let mut failing = false;
    loop {
        match resolve(&dns).await {
            Ok(addresses) => {
                if std::mem::take(&mut failing) {
                    info!(name = dns.name, "the name is found again");
                }
                if known.as_ref() != Some(&addresses) {
                    info!(name = dns.name, replicas = addresses.len(), "looked up");
                    let replicas = addresses.iter().map(|address| replica(&dns, *address));
                    if found.send((place, replicas.collect())).await.is_err() {
                        return;
                    }
                    known = Some(addresses);
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    warn!(name = dns.name, error, "can't look the name up; keeping what was known");
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(jittered(dns.every)) => {}
            () = found.closed() => return,
        }
    }
}

/// The addresses of the name now, for a first table before anything is served.
pub(crate) async fn once(config: &Config) -> Vec<Vec<Replica>> {
    let mut all = Vec::new();
    for dns in &config.discovery {
        let addresses = resolve(dns).await.unwrap_or_default();
        all.push(addresses.iter().map(|address| replica(dns, *address)).collect());
    }
    all
}

async fn resolve(dns: &Dns) -> Result<BTreeSet<SocketAddr>, String> {
    let looking = tokio::net::lookup_host((dns.name.as_str(), dns.port));
    match tokio::time::timeout(PATIENCE, looking).await {
        Ok(Ok(addresses)) => Ok(addresses.collect()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

fn replica(dns: &Dns, endpoint: SocketAddr) -> Replica {
    let at = |port: u16| SocketAddr::new(endpoint.ip(), port).to_string();
    let events = dns.events_port.map(|port| Events {
        way: Way::Connect(at(port)),
        replay: dns.replay_port.map(at),
        duplicates: dns.duplicates,
    });
    Replica {
        endpoint,
        rank: None,
        pool: dns.pool.clone(),
        model: dns.model,
        draining: false,
        store: dns.store.clone(),
        events,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Duplicates;

    #[tokio::test]
    async fn each_address_of_a_name_is_a_replica_and_news_are_told_once() {
        let dns = Dns {
            name: "localhost".into(),
            port: 8000,
            pool: "eu".into(),
            store: None,
            model: 0,
            events_port: Some(5557),
            replay_port: Some(5558),
            duplicates: Duplicates::Doubt,
            every: Duration::from_millis(10),
        };
        let (sender, mut found) = mpsc::channel(1);
        let task = tokio::spawn(follow(3, dns, sender));
        let (place, replicas) = found.recv().await.unwrap();
        assert_eq!(place, 3);
        let loopback = |r: &&Replica| r.endpoint == "127.0.0.1:8000".parse().unwrap();
        let replica = replicas.iter().find(loopback).unwrap();
        let events = replica.events.as_ref().unwrap();
        assert_eq!(events.way, Way::Connect("127.0.0.1:5557".into()));
        assert_eq!(events.replay.as_deref(), Some("127.0.0.1:5558"));
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(found.try_recv().is_err(), "nothing changed");
        drop(found);
        task.await.unwrap();
    }
}
