//! Each address of a name is a replica, as with a headless Service of Kubernetes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use super::address::replicas;
use super::{PATIENCE, Source};
use crate::config::Port;
use crate::engine::jitter::jittered;

impl Source {
    /// Looks the name up again and again.
    pub(super) async fn follow_dns(mut self, name: &str, every: Duration) {
        let number = |port: &Port| match port {
            Port::Number(port) => Some(*port),
            Port::Name(_) => None,
        };
        let discovery = self.discovery.clone();
        let optional = |port: &Option<Port>| port.as_ref().and_then(number);
        let ports = [
            number(&discovery.port),
            optional(&discovery.events_port),
            optional(&discovery.replay_port),
        ];
        loop {
            match resolve(name).await {
                Ok(addresses) => {
                    let all =
                        addresses.into_iter().filter_map(|ip| replicas(&discovery, ip, ports));
                    if self.tell(all.flatten().collect()).await.is_err() {
                        return;
                    }
                }
                Err(error) => self.failed(&error),
            }
            tokio::select! {
                () = tokio::time::sleep(jittered(every)) => {}
                () = self.found.closed() => return,
            }
        }
    }
}

async fn resolve(name: &str) -> Result<BTreeSet<IpAddr>, String> {
    let looking = tokio::net::lookup_host((name, 0));
    match tokio::time::timeout(PATIENCE, looking).await {
        Ok(Ok(addresses)) => Ok(addresses.map(|address| address.ip()).collect()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::config::{Discovery, Place};
    use crate::discovery::Sightings;
    use crate::engine::way::Way;
    use crate::index::Duplicates;

    fn looking_for(name: &str) -> Discovery {
        Discovery {
            place: Place::Dns { name: name.into(), every: Duration::from_millis(10) },
            port: Port::Number(8000),
            pool: "eu".into(),
            model: 0,
            store: None,
            weight: 100,
            adapters: None,
            events_port: Some(Port::Number(5557)),
            replay_port: Some(Port::Number(5558)),
            duplicates: Duplicates::Doubt,
            ranks: None,
        }
    }

    #[tokio::test]
    async fn each_address_of_a_name_is_a_replica_and_news_are_told_once() {
        let (sender, mut found) = mpsc::channel(1);
        let source = Source::new(3, looking_for("localhost"), sender, &Sightings::default());
        let task = tokio::spawn(source.follow());
        let (place, replicas) = found.recv().await.unwrap();
        assert_eq!(place, 3);
        let loopback = |r: &&crate::config::Replica| r.endpoint.to_string() == "127.0.0.1:8000";
        let replica = replicas.iter().find(loopback).unwrap();
        let events = replica.events.as_ref().unwrap();
        assert_eq!(events.way, Way::Connect("127.0.0.1:5557".into()));
        assert_eq!(events.replay.as_deref(), Some("127.0.0.1:5558"));
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(found.try_recv().is_err(), "nothing changed");
        drop(found);
        task.await.unwrap();
    }

    #[tokio::test]
    async fn each_rank_at_an_address_is_a_replica_with_ports_of_its_own() {
        let (sender, mut found) = mpsc::channel(1);
        let ranks = Some(crate::config::Ranks { count: 2, first: 4 });
        let looking = Discovery { ranks, ..looking_for("127.0.0.1") };
        let task = tokio::spawn(Source::new(0, looking, sender, &Sightings::default()).follow());
        let (_, replicas) = found.recv().await.unwrap();
        let told = |replica: &crate::config::Replica| {
            let events = replica.events.clone().unwrap();
            let Way::Connect(from) = events.way else { panic!() };
            (replica.endpoint.port(), replica.rank, events.rank, from, events.replay.unwrap())
        };
        let of = |rank: u32, from: &str, replay: &str| {
            (8000, Some(rank), Some(rank + 4), from.to_owned(), replay.to_owned())
        };
        let expected =
            [of(0, "127.0.0.1:5561", "127.0.0.1:5562"), of(1, "127.0.0.1:5562", "127.0.0.1:5563")];
        assert_eq!(replicas.iter().map(told).collect::<Vec<_>>(), expected);
        drop(found);
        task.await.unwrap();
    }

    #[tokio::test]
    async fn a_name_that_is_not_there_is_looked_up_again_and_counted() {
        let (sender, mut found) = mpsc::channel(1);
        let sightings = Sightings::default();
        let source = Source::new(0, looking_for("nothing.invalid"), sender, &sightings);
        let task = tokio::spawn(source.follow());
        loop {
            let [(name, [answers, replicas, failures])] = &sightings.all()[..] else { panic!() };
            assert_eq!((name.as_str(), *answers, *replicas), ("dns/nothing.invalid", 0, 0));
            if *failures >= 2 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(found.try_recv().is_err(), "nothing is told, so that nothing is taken away");
        drop(found);
        task.await.unwrap();
    }
}
