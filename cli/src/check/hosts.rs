//! Which hosts a cluster leads to, and where they stand.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use warmpath_routing::policy::{Policy, Zone};

use super::config::Envoy;
use super::node::{At, Node};

/// A host that a cluster leads to.
#[derive(Clone, Debug)]
pub(super) struct Host<'a> {
    /// `address:port`.
    pub(super) key: String,
    pub(super) priority: u64,
    /// What `locality.region` says here.
    pub(super) label: Option<&'a str>,
    pub(super) at: At<'a>,
    /// Clusters on the way, the first of them where one began.
    pub(super) way: Vec<&'a str>,
}

/// A way that can't be followed.
#[derive(Clone, Debug)]
pub(super) struct Open<'a> {
    pub(super) at: At<'a>,
    pub(super) why: String,
    /// Whether a client chooses where it leads.
    pub(super) steered: bool,
    /// Whether it leads to a listener of this Envoy's, which is looked at itself.
    pub(super) here: bool,
}

/// All that a cluster leads to.
#[derive(Clone, Debug, Default)]
pub(super) struct Reach<'a> {
    pub(super) hosts: Vec<Host<'a>>,
    /// What can't be followed.
    pub(super) open: Vec<Open<'a>>,
    pub(super) through_aggregate: bool,
    seen: BTreeSet<&'a str>,
}

impl<'a> Reach<'a> {
    fn open(&mut self, at: At<'a>, why: impl Into<String>) {
        self.open.push(Open { at, why: why.into(), steered: false, here: false });
    }
}

impl<'a> Envoy<'a> {
    /// Follows a cluster to its hosts; `None` if there is no such cluster.
    pub(super) fn reach(&self, cluster: &str) -> Option<Reach<'a>> {
        let mut reach = Reach::default();
        let (name, _) = self.clusters.get_key_value(cluster)?;
        self.follow(name, &mut Vec::new(), 0, &mut reach);
        for host in &reach.hosts {
            if let Some(listener) = self.own_listener(&host.key) {
                let key = &host.key;
                let why = format!("{key} is this Envoy's own listener {listener}");
                reach.open.push(Open { at: host.at.clone(), why, steered: false, here: true });
            }
        }
        Some(reach)
    }

    fn follow(&self, name: &'a str, way: &mut Vec<&'a str>, base: u64, reach: &mut Reach<'a>) {
        let Some(cluster) = self.clusters.get(name) else { return };
        // A member by several ways is followed once, and a circle ends.
        if !reach.seen.insert(name) {
            return;
        }
        way.push(name);
        for kind in cluster.find_all(&["@type"]) {
            if kind.node.text().is_some_and(|kind| kind.ends_with("Http11ProxyUpstreamTransport")) {
                reach.open(kind, "its connections go through an HTTP proxy");
            }
        }
        match discovery(cluster) {
            "STATIC"
            | "STRICT_DNS"
            | "LOGICAL_DNS"
            | "envoy.cluster.static"
            | "envoy.cluster.strict_dns"
            | "envoy.cluster.logical_dns"
            | "envoy.clusters.static"
            | "envoy.clusters.strict_dns"
            | "envoy.clusters.logical_dns"
            | "envoy.extensions.clusters.dns.v3.DnsCluster"
            | "envoy.clusters.dns" => {
                if let Some(assignment) = cluster.get("load_assignment") {
                    assigned(&assignment, way, base, reach);
                }
            }
            "EDS" | "envoy.cluster.eds" | "envoy.clusters.eds" => {
                let service = cluster.text("eds_cluster_config.service_name").unwrap_or(name);
                let of =
                    |node: &&Node| node.get("cluster_name").and_then(Node::text) == Some(service);
                let mut found = self.input.assignments.iter().filter(of).peekable();
                if found.peek().is_none() {
                    let why = "its endpoints come by EDS; give their ClusterLoadAssignment as a \
                               file of its own, too";
                    reach.open(cluster.clone(), why);
                }
                for assignment in found {
                    assigned(&At::root(assignment), way, base, reach);
                }
            }
            "envoy.clusters.aggregate"
            | "envoy.clusters.composite"
            | "envoy.extensions.clusters.aggregate.v3.ClusterConfig"
            | "envoy.extensions.clusters.composite.v3.ClusterConfig" => {
                reach.through_aggregate = true;
                let config = cluster.get("cluster_type.typed_config");
                let config = config.map(|any| any.message().map_or(any, |(_, config)| config));
                let Some(list) = config.and_then(|config| config.get("clusters")) else {
                    reach.open(cluster.clone(), "its members are not seen");
                    way.pop();
                    return;
                };
                for (number, member) in list.node.items().iter().enumerate() {
                    let named = member.text().or_else(|| member.get("name").and_then(Node::text));
                    let at = At { node: member, path: format!("{}[{number}]", list.path) };
                    match named {
                        Some(named) if self.clusters.contains_key(named) => {
                            self.follow(named, way, base + ((number as u64) << 8), reach);
                        }
                        _ => {
                            reach.open(at, "its member is not a cluster in these files");
                        }
                    }
                }
            }
            "ORIGINAL_DST" | "envoy.cluster.original_dst" | "envoy.clusters.original_dst" => {
                let why = "it leads wherever the client's connection or a header says".into();
                reach.open.push(Open { at: cluster.clone(), why, steered: true, here: false });
            }
            "envoy.clusters.dynamic_forward_proxy"
            | "envoy.extensions.clusters.dynamic_forward_proxy.v3.ClusterConfig" => {
                let why = "it leads to whatever host the client asks for".into();
                reach.open.push(Open { at: cluster.clone(), why, steered: true, here: false });
            }
            other => {
                let why = format!("its hosts come from {other}, which can't be followed");
                reach.open(cluster.clone(), why);
            }
        }
        way.pop();
    }

    /// The listener of this Envoy itself that takes connections to a host.
    pub(super) fn own_listener(&self, host: &str) -> Option<&'a str> {
        self.root.items("static_resources.listeners").into_iter().find_map(|listener| {
            let more = listener.items("additional_addresses").into_iter();
            let more = more.filter_map(|more| more.get("address"));
            let mut all = listener.get("address").into_iter().chain(more);
            let here = all.any(|address| listens_at(&address, host));
            here.then(|| listener.text("name").unwrap_or("?"))
        })
    }
}

/// The endpoints of a `ClusterLoadAssignment`.
fn assigned<'a>(assignment: &At<'a>, way: &[&'a str], base: u64, reach: &mut Reach<'a>) {
    for group in assignment.items("endpoints") {
        let priority = base + group.number("priority").unwrap_or(0.0) as u64;
        let label = group.text("locality.region").filter(|label| !label.is_empty());
        if let Some(leds) = group.get("leds_cluster_locality_config") {
            reach.open(leds, "its endpoints come by LEDS");
        }
        let direct = group.items("lb_endpoints").into_iter();
        for entry in direct.chain(group.items("load_balancer_endpoints.lb_endpoints")) {
            let named = entry.text("endpoint_name");
            let endpoint = match named {
                Some(name) => assignment.get("named_endpoints").and_then(|all| all.field(name)),
                None => entry.get("endpoint"),
            };
            let Some(endpoint) = endpoint else {
                reach.open(entry, "it has no address");
                continue;
            };
            let more = endpoint.items("additional_addresses").into_iter();
            let addresses = endpoint.get("address").into_iter();
            for address in addresses.chain(more.filter_map(|more| more.get("address"))) {
                match key(&address) {
                    // It means whatever machine asks.
                    Some(key) if is_unspecified(&key) => {
                        reach.open(address, "0.0.0.0 is not the address of a host");
                    }
                    Some(key) => reach.hosts.push(Host {
                        key,
                        priority,
                        label,
                        at: address,
                        way: way.to_vec(),
                    }),
                    None => reach.open(
                        address,
                        "it is neither an address and port nor a pipe, so where it leads isn't known",
                    ),
                }
            }
        }
    }
}

/// What a cluster's hosts come from, as Envoy looks it up: by the type of a custom cluster's
/// configuration, else by its name, else by the field `type`. Source: ClusterFactoryImplBase::create.
fn discovery<'a>(cluster: &At<'a>) -> &'a str {
    let custom = cluster.get("cluster_type");
    let typed = custom.as_ref().and_then(|custom| custom.get("typed_config")?.message());
    let typed = typed.map(|(kind, _)| kind).filter(|kind| *kind != "google.protobuf.Struct");
    let named = || custom.as_ref().map(|custom| custom.text("name").unwrap_or("no name"));
    let names = ["STATIC", "STRICT_DNS", "LOGICAL_DNS", "EDS", "ORIGINAL_DST"];
    typed.or_else(named).or(cluster.enumeration("type", &names)).unwrap_or("STATIC")
}

/// Whether a host is an address or a pipe, and no name that something has to resolve.
pub(super) fn is_address(key: &str) -> bool {
    key.starts_with("pipe ")
        || key
            .rsplit_once(':')
            .is_some_and(|(host, _)| host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok())
}

fn is_unspecified(key: &str) -> bool {
    let host = key.rsplit_once(':').map_or(key, |(host, _)| host);
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    ip.is_ok_and(|ip| ip.to_canonical().is_unspecified())
}

/// Whether what listens at this address takes connections to a host: at any of the machine's
/// addresses, where it is bound to all, or to one of loopback's.
pub(super) fn listens_at(address: &At<'_>, host: &str) -> bool {
    let Some(own) = key(address) else { return false };
    let ip = |key: &str| {
        let (ip, port) = key.rsplit_once(':')?;
        Some((ip.trim_matches(['[', ']']).parse::<IpAddr>().ok()?.to_canonical(), port.to_owned()))
    };
    match (ip(&own), ip(host)) {
        // A connection to the unspecified address comes to this machine.
        (Some((bound, port)), Some((asked, of))) => {
            let here = asked.is_loopback() || asked.is_unspecified();
            port == of
                && (bound == asked || (here && (bound.is_unspecified() || asked.is_unspecified())))
        }
        _ => own == host,
    }
}

fn key(address: &At<'_>) -> Option<String> {
    if let Some(path) = address.text("pipe.path") {
        return Some(format!("pipe {path}"));
    }
    let socket = address.get("socket_address")?;
    // A resolver of its own, or another network, can make anything of an address.
    let other = ["resolver_name", "network_namespace_filepath"];
    if other.iter().any(|name| socket.text(name).is_some_and(|text| !text.is_empty())) {
        return None;
    }
    let host = socket.text("address")?;
    let port = match socket.number("port_value") {
        Some(port) => port.to_string(),
        None => socket.text("named_port")?.to_owned(),
    };
    Some(endpoint(host, &port))
}

/// One spelling of each address.
fn endpoint(host: &str, port: &str) -> String {
    match host.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        Ok(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        _ => format!("{}:{port}", host.trim_end_matches('.').to_ascii_lowercase()),
    }
}

/// What is known of where hosts stand.
#[derive(Debug, Default)]
pub(super) struct Regions {
    /// Regions of a host, each with what says so.
    known: BTreeMap<String, BTreeMap<String, String>>,
    /// Hosts of each pool, where a cluster of the pool's name or a relay's configuration lists them.
    pools: BTreeMap<String, BTreeSet<String>>,
    /// Endpoints that a relay's configuration lists, by pool.
    pub(super) told: BTreeMap<String, BTreeSet<String>>,
    listed_by_name: bool,
}

/// Where a host stands, as seen from a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Inside,
    Outside {
        region: String,
        says: String,
    },
    Unknown,
    Undefined {
        region: String,
    },
    /// None of the zone's pools lists it.
    Stranger,
}

impl Regions {
    pub(super) fn new(envoy: &Envoy<'_>, policy: &Policy) -> Self {
        let mut regions = Self::default();
        for name in envoy.clusters.keys() {
            let reach = envoy.reach(name).unwrap_or_default();
            for host in &reach.hosts {
                if let Some(label) = host.label {
                    let cluster = host.way.last().unwrap_or(name);
                    regions.learn(&host.key, label, &format!("the locality in cluster {cluster}"));
                }
                if let Some(pool) = policy.pools.get(*name) {
                    regions.listed_by_name = true;
                    regions.learn(&host.key, &pool.region, &format!("pool {name}"));
                    let hosts = regions.pools.entry((*name).to_owned()).or_default();
                    hosts.insert(host.key.clone());
                }
            }
        }
        for relay in &envoy.input.relays {
            for replica in At::root(relay).items("replicas") {
                let (Some(address), Some(name)) = (replica.text("endpoint"), replica.text("pool"))
                else {
                    continue;
                };
                let Some(pool) = policy.pools.get(name) else { continue };
                let Some((host, port)) = address.rsplit_once(':') else { continue };
                let key = endpoint(host.trim_matches(['[', ']']), port);
                regions.learn(&key, &pool.region, "the relay's configuration");
                regions.pools.entry(name.to_owned()).or_default().insert(key.clone());
                regions.told.entry(name.to_owned()).or_default().insert(key);
            }
        }
        regions
    }

    fn learn(&mut self, host: &str, region: &str, says: &str) {
        let known = self.known.entry(host.to_owned()).or_default();
        known.entry(region.to_owned()).or_insert_with(|| says.to_owned());
    }

    /// All regions that something says this host is in.
    pub(super) fn of(&self, host: &str) -> impl Iterator<Item = (&str, &str)> {
        let known = self.known.get(host).into_iter().flatten();
        known.map(|(region, says)| (region.as_str(), says.as_str()))
    }

    /// Pools that something lists the host in.
    pub(super) fn pools_of(&self, host: &str) -> impl Iterator<Item = &str> {
        let pools = self.pools.iter();
        pools.filter(move |(_, hosts)| hosts.contains(host)).map(|(pool, _)| pool.as_str())
    }

    /// Whether a host is a replica of some pool, as far as is known.
    pub(super) fn is_replica(&self, policy: &Policy, host: &str) -> bool {
        self.pools.values().any(|hosts| hosts.contains(host))
            || self.of(host).any(|(region, _)| policy.pools.values().any(|p| p.region == region))
    }

    /// Whether the host may see requests of the zone.
    pub(super) fn judge(&self, policy: &Policy, zone: &Zone, host: &str) -> Standing {
        let mut any = false;
        for (name, says) in self.of(host) {
            any = true;
            match policy.regions.get(name) {
                None => return Standing::Undefined { region: name.into() },
                Some(region) if !zone.admits(name, region) => {
                    return Standing::Outside { region: name.into(), says: says.into() };
                }
                Some(_) => {}
            }
        }
        if any { Standing::Inside } else { Standing::Unknown }
    }

    /// Like [`Self::judge`], for a host of one of the zone's own clusters: it also has to be listed
    /// where something lists the zone's replicas.
    pub(super) fn judge_replica(&self, policy: &Policy, zone: &Zone, host: &str) -> Standing {
        let verdict = self.judge(policy, zone, host);
        if verdict != Standing::Inside {
            return verdict;
        }
        let here = |pool: &&String| {
            let region = policy.pools.get(*pool).map(|pool| pool.region.as_str());
            self.of(host).any(|(name, _)| Some(name) == region)
        };
        let lists: Vec<_> =
            zone.clusters.keys().filter(here).map(|pool| self.pools.get(pool)).collect();
        // A relay lists addresses: of a name it can say nothing.
        let comparable = self.listed_by_name || is_address(host);
        let complete = !lists.is_empty() && lists.iter().all(Option::is_some);
        let listed = lists.iter().flatten().any(|hosts| hosts.contains(host));
        if comparable && complete && !listed { Standing::Stranger } else { verdict }
    }
}
