//! Data-parallel ranks in a relay's configuration, as far as they contradict themselves.

use std::collections::BTreeMap;

use super::finding::Findings;
use super::node::{At, Node};

/// A replica that names its rank.
struct Ranked<'a> {
    at: At<'a>,
    header: f64,
    /// What its batches carry, and where they come from.
    events: Option<(f64, &'a str, f64)>,
}

pub(super) fn check(relays: &[Node], findings: &mut Findings) {
    for relay in relays {
        let mut by_endpoint: BTreeMap<&str, Vec<At<'_>>> = BTreeMap::new();
        for replica in At::root(relay).items("replicas") {
            if let Some(endpoint) = replica.text("endpoint") {
                by_endpoint.entry(endpoint).or_default().push(replica);
            }
        }
        for (endpoint, replicas) in by_endpoint {
            engine(endpoint, replicas, findings);
        }
    }
}

/// The replicas of one API.
fn engine(endpoint: &str, replicas: Vec<At<'_>>, findings: &mut Findings) {
    let all = replicas.len();
    let mut ranked: Vec<Ranked<'_>> = replicas.into_iter().filter_map(ranked).collect();
    ranked.sort_by(|a, b| a.header.total_cmp(&b.header));
    let Some(first) = ranked.first() else { return };
    if ranked.len() < all {
        findings.error(
            "engine-ranks",
            &first.at,
            format!(
                "{endpoint} is listed with a rank and without one: requests of the latter reach any \
                 rank's cache."
            ),
            "Name the rank of each replica of an engine, or of none.",
        );
        return;
    }
    if ranked.iter().zip(0u32..).any(|(replica, place)| replica.header > f64::from(place)) {
        let list: Vec<String> = ranked.iter().map(|replica| replica.header.to_string()).collect();
        findings.warning(
            "engine-ranks",
            &first.at,
            format!(
                "{endpoint} has the ranks {}: the header counts an engine's ranks from 0, and gets \
                 400 for what is beyond them.",
                list.join(", ")
            ),
            "Where the engine runs with --data-parallel-hybrid-lb or --data-parallel-external-lb, \
             begin with `rank: 0`, and say in `events.rank` what its batches carry; list all ranks.",
        );
    }
    let base = first.events.map(|(rank, host, port)| (host, port - rank));
    for replica in &ranked {
        let (Some((host, base)), Some((rank, own_host, port))) = (base, replica.events) else {
            continue;
        };
        if host == own_host && (port - rank - base).abs() > 0.1 {
            findings.warning(
                "engine-ranks",
                &replica.at,
                format!(
                    "Rank {rank} of {endpoint} is heard at port {port}, where rank {} is expected: \
                     rank r publishes at the configured port + r.",
                    port - base
                ),
                "Give each rank's events (and replay) the engine's port plus the rank that its \
                 batches carry.",
            );
        }
    }
}

fn ranked(at: At<'_>) -> Option<Ranked<'_>> {
    let header = at.number("rank")?;
    let events = at.get("events").and_then(|events| {
        let rank = events.number("rank").unwrap_or(header);
        let (host, port) = events.text("connect")?.rsplit_once(':')?;
        Some((rank, host, port.parse().ok()?))
    });
    Some(Ranked { at, header, events })
}

#[cfg(test)]
mod tests {
    use super::super::node::read;
    use super::*;

    fn told(replicas: &str) -> Vec<String> {
        let mut findings = Findings::default();
        check(&read(&format!("replicas: [{replicas}]"), 0).unwrap(), &mut findings);
        findings.sorted().into_iter().map(|finding| finding.what).collect()
    }

    fn replica(rank: &str, port: u32, more: &str) -> String {
        format!("{{endpoint: \"a:1\", {rank} events: {{connect: \"tcp://a:{port}\"{more}}}}}")
    }

    #[test]
    fn ranks_of_an_engine_fit_each_other() {
        for (replicas, words) in [
            ([replica("rank: 0,", 5557, ""), replica("rank: 1,", 5558, "")], None),
            (
                [replica("rank: 0,", 5559, ", rank: 2"), replica("rank: 1,", 5560, ", rank: 3")],
                None,
            ),
            ([replica("", 5557, ""), replica("rank: 1,", 5558, "")], Some("and without one")),
            (
                [replica("rank: 2,", 5559, ""), replica("rank: 3,", 5560, "")],
                Some("has the ranks 2, 3: the header"),
            ),
            (
                [replica("rank: 0,", 5557, ""), replica("rank: 1,", 5557, "")],
                Some("Rank 1 of a:1 is heard at port 5557, where rank 0 is"),
            ),
        ] {
            let told = told(&replicas.join(", "));
            match words {
                None => assert!(told.is_empty(), "{told:?}"),
                Some(words) => assert!(told.len() == 1 && told[0].contains(words), "{told:?}"),
            }
        }
        assert!(told("{endpoint: \"a:1\"}, {endpoint: \"b:1\", rank: 0}").is_empty());
    }
}
