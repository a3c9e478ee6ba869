//! The other half of the proof: nothing stands anywhere in the configuration of which it isn't known
//! that it leads no request out and copies none. Every field and every type is looked at, and what
//! is on no list of known ones is told.

use std::collections::BTreeSet;

use super::config::Envoy;
use super::fields::{self, Field};
use super::finding::Findings;
use super::hosts::{Regions, Standing, is_address, listens_at};
use super::known::{self, Below, Category};
use super::node::{At, Value, same};
use super::plugin::{self, Router};
use super::residency;

/// Fields that name the cluster that is told something.
const TOLD: [&str; 4] = ["cluster", "cluster_name", "collector_cluster", "tcp_cluster_name"];

const READ: &str = "Do without it. Where you have read what it does, and it keeps every request in \
     its zone, acknowledge it with that reason (see --acknowledge).";

pub(super) fn check(envoy: &Envoy<'_>, routers: &[(Router<'_>, Regions)], findings: &mut Findings) {
    Walk { envoy, routers, watched: true, findings }.message(&envoy.root, "Bootstrap");
    admin(envoy, findings);
    admin_by_listener(envoy, findings);
    twins(envoy, findings);
    headers(&envoy.root, findings);
    keys(&envoy.root, findings);
}

/// Headers that only the filter sets, where something else names them.
const OURS: [&str; 2] = ["x-warmpath-cluster", "x-gateway-destination-endpoint"];

/// Where they may be named: to take them from clients, and to carry out the decision.
const NAMED_BY: [&str; 6] =
    ["remove", "exact", "cluster_header", "headers", "hash_policy", "override_host_sources"];

/// Whatever else names one of these headers could set it, after the decision.
fn headers(root: &At<'_>, findings: &mut Findings) {
    root.texts("", &mut |at, text, by| {
        let ours = OURS.iter().any(|header| text.eq_ignore_ascii_case(header));
        if ours && !NAMED_BY.iter().any(|name| same(by, name)) {
            findings.unproved(
                "internal-header",
                at,
                format!("Only the filter sets {text}: what this does with it isn't known."),
                "Name it only to remove it from clients' requests and to carry out the decision.",
            );
        }
    });
}

/// Filter state that Envoy itself goes by, such as `envoy.tcp_proxy.cluster`.
/// Source: docs/root/configuration/advanced/well_known_filter_state.rst.
fn keys(root: &At<'_>, findings: &mut Findings) {
    for key in root.find_all(&["object_key"]) {
        if let Some(name) = key.node.text().filter(|name| name.starts_with("envoy.")) {
            findings.unproved(
                "filter-state",
                &key,
                format!("Envoy itself goes by the filter state {name}, which can lead elsewhere."),
                READ,
            );
        }
    }
}

/// Of clusters of one name only one is followed.
fn twins(envoy: &Envoy<'_>, findings: &mut Findings) {
    let mut names = BTreeSet::new();
    for cluster in envoy.root.items("static_resources.clusters") {
        // `1.5` is a number here, and text for Envoy.
        if cluster.text("name").is_none() {
            findings.unproved(
                "twin-cluster",
                &cluster,
                "The name of this cluster is not a string: it is not checked.",
                "Give it a name, in quotes if it looks like a number.",
            );
        }
        if !names.insert(cluster.text("name")) {
            findings.unproved(
                "twin-cluster",
                &cluster,
                "Another cluster has the same name: only one of them is checked.",
                "Give each cluster a name of its own; of a dump, wait until nothing warms.",
            );
        }
    }
}

/// Who reaches Envoy's admin page can tap requests and change settings.
fn admin(envoy: &Envoy<'_>, findings: &mut Findings) {
    let Some(address) = envoy.root.get("admin.address") else { return };
    if is_own(&address) {
        return;
    }
    findings.unproved(
        "admin-open",
        &address,
        "Whoever reaches Envoy's admin page can change its settings, and see requests where a tap \
         is configured.",
        "Bind it to 127.0.0.1.",
    );
}

/// A listener that others reach, and that leads to the admin page.
fn admin_by_listener(envoy: &Envoy<'_>, findings: &mut Findings) {
    let Some(page) = envoy.root.get("admin.address") else { return };
    for listener in envoy.root.items("static_resources.listeners") {
        if listener.get("address").is_some_and(|address| is_own(&address)) {
            continue;
        }
        let mut places = vec![listener.clone()];
        let managers = envoy.managers.iter();
        let here = managers.filter(|m| std::ptr::eq(m.listener.node, listener.node));
        places.extend(here.filter_map(|m| super::routes::table(envoy, &m.config)));
        for place in places {
            place.texts("", &mut |at, text, _| {
                let Some(reach) = envoy.reach(text) else { return };
                if reach.hosts.iter().any(|host| listens_at(&page, &host.key)) {
                    findings.unproved(
                        "admin-open",
                        at,
                        format!(
                            "The cluster {text} leads to Envoy's admin page: whoever reaches this \
                             listener can change its settings, and see requests where a tap is \
                             configured."
                        ),
                        "Bind the listener to 127.0.0.1, or route it elsewhere.",
                    );
                }
            });
        }
    }
}

/// Whether an address is reached from this machine only.
fn is_own(address: &At<'_>) -> bool {
    let socket = address.text("socket_address.address");
    let loopback = socket.and_then(|host| host.parse::<std::net::IpAddr>().ok());
    address.get("pipe").is_some() || loopback.is_some_and(|ip| ip.to_canonical().is_loopback())
}

/// What an extension says in the fields that name clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    /// It has to name whom it tells: it is told of if it doesn't.
    Somebody,
    /// Whatever it names is a cluster.
    Clusters,
    /// Its fields aren't known.
    Anything,
}

struct Walk<'w, 'a> {
    envoy: &'w Envoy<'a>,
    routers: &'w [(Router<'a>, Regions)],
    /// Not within a connection manager without our filter: its requests are of no zone.
    watched: bool,
    findings: &'w mut Findings,
}

impl<'a> Walk<'_, 'a> {
    fn message(&mut self, at: &At<'a>, name: &str) {
        if name == "Any" {
            return self.any(at, Some(Category::HttpFilter));
        }
        for (key, below) in at.fields() {
            if key == "@type" || below.node.is_null() {
                continue;
            }
            match fields::field(name, key) {
                Some(Field::Plain) => self.plain(&below),
                Some(Field::Skipped) => {}
                Some(Field::Message(inner)) => {
                    for item in below.each() {
                        self.message(&item, inner);
                    }
                }
                Some(Field::Extension(category)) => {
                    for item in below.each() {
                        self.extension(&item, category);
                    }
                }
                Some(Field::Settings(category)) => {
                    for (_, settings) in below.fields() {
                        self.any(&settings, Some(category));
                    }
                }
                None => self.unknown(
                    "unknown-field",
                    &below,
                    &format!("The field {key} of {name} is not known here"),
                ),
            }
        }
    }

    fn extension(&mut self, at: &At<'a>, category: Category) {
        if let Some(elsewhere) = at.get("config_discovery") {
            self.findings.unproved(
                "dynamic",
                &elsewhere,
                "This comes from a control plane: it can't be checked here.",
                "Configure it here, or check the configuration that Envoy has.",
            );
            return;
        }
        match at.get("typed_config") {
            Some(config) => self.any_at(&config, Some(category), at),
            None => self.unknown("unknown-type", at, "It has no type"),
        }
    }

    fn any(&mut self, at: &At<'a>, category: Option<Category>) {
        self.any_at(at, category, at);
    }

    /// What an `Any` holds; what is to be said of it is said at `told`.
    fn any_at(&mut self, at: &At<'a>, category: Option<Category>, told: &At<'a>) {
        let Some((kind, config)) = at.message() else {
            self.unknown("unknown-type", told, "It has no type");
            self.tells(at, Names::Anything, true);
            return;
        };
        match known::below(kind, category) {
            Some(Below::Types) => {
                for log in config.find_all(&["key_log"]) {
                    self.unknown("key-log", &log, "Whoever has the keys can read TLS traffic");
                }
                self.types(&config);
            }
            Some(Below::Message("HttpConnectionManager")) => {
                let routers = &self.routers;
                let watched = self.watched;
                self.watched = routers
                    .iter()
                    .any(|(router, _)| std::ptr::eq(router.manager.config.node, config.node));
                self.message(&config, "HttpConnectionManager");
                if config.get("route_config").is_none()
                    && let Some(table) = super::routes::table(self.envoy, &config)
                {
                    self.message(&table, "RouteConfiguration");
                }
                self.watched = watched;
            }
            Some(Below::Message(name)) => self.message(&config, name),
            Some(Below::Tells) => {
                self.types(&config);
                self.tells(&config, Names::Somebody, true);
            }
            Some(Below::MayTell) => {
                self.types(&config);
                self.tells(&config, Names::Clusters, true);
            }
            Some(Below::Counts) => {
                self.types(&config);
                self.tells(&config, Names::Somebody, false);
            }
            Some(Below::Program) if plugin::is_ours(&config) => {}
            Some(Below::Program) | None => {
                let rule = if known::is_program(kind) { "filter-code" } else { "unknown-type" };
                let what = if known::is_program(kind) {
                    format!("{kind} runs a program, which can send what it sees anywhere")
                } else {
                    format!("{kind} is unknown here")
                };
                self.unknown(rule, told, &what);
                self.tells(&config, Names::Anything, true);
            }
        }
    }

    fn unknown(&mut self, rule: &'static str, at: &At<'a>, what: &str) {
        // A filter can be told of already for where it stands.
        if !self.findings.tells_of(at) {
            let what = format!(
                "{what}: it can't be proved that it sends no request, and no copy of one, out of \
                 its zone."
            );
            self.findings.unproved(rule, at, what, READ);
        }
    }

    /// A field's value that leads nowhere itself.
    fn plain(&mut self, at: &At<'a>) {
        match &at.node.value {
            Value::Scalar(_) => {}
            Value::List(_) => at.each().iter().for_each(|item| self.plain(item)),
            Value::Map(_) if at.message().is_some() => self.any(at, None),
            Value::Map(_) => self.types(at),
        }
    }

    /// The types below.
    fn types(&mut self, at: &At<'a>) {
        for (key, below) in at.fields() {
            match key {
                "@type" | "metadata" | "filter_metadata" | "typed_filter_metadata" => {}
                "config_discovery" => self.extension(at, Category::Other),
                _ => self.plain(&below),
            }
        }
    }

    /// Looks at whom an extension tells what it sees; `requests`, if these are what it tells.
    fn tells(&mut self, at: &At<'a>, names: Names, requests: bool) {
        let must = names != Names::Anything;
        let mut any = false;
        for target in at.find_all(&["target_uri"]) {
            any = true;
            let uri = target.node.text().unwrap_or_default();
            self.findings.unproved(
                "side-service",
                &target,
                format!(
                    "What {uri} is sent of requests (headers, maybe bodies) goes past Envoy's \
                     clusters: where it stands can't be seen from here."
                ),
                "Name a cluster by envoy_grpc in place of google_grpc.",
            );
        }
        for named in at.find_all(&TOLD) {
            let Some(name) = named.node.text().filter(|name| !name.is_empty()) else { continue };
            any |= self.told(&named, name, must, requests);
        }
        if names == Names::Somebody && !any {
            self.unknown("side-service", at, "It is unknown to whom it sends request data");
        }
    }

    /// Judges a cluster that is told of requests; says whether that is one.
    fn told(&mut self, at: &At<'a>, name: &str, must: bool, requests: bool) -> bool {
        let Some(reach) = self.envoy.reach(name) else {
            if must {
                let what = format!(
                    "The cluster {name:?} to which it sends request data is not in the files"
                );
                self.unknown("side-service", at, &what);
            }
            return must;
        };
        for open in &reach.open {
            let what = format!("{name} can't be followed: {}", open.why);
            self.unknown("side-service", at, &what);
        }
        for (router, regions) in self.routers {
            for (zone, rule) in &router.policy.zones {
                for host in &reach.hosts {
                    let key = &host.key;
                    let (bad, why) = match regions.judge(&router.policy, rule, key) {
                        Standing::Inside | Standing::Stranger if is_address(key) => continue,
                        Standing::Inside | Standing::Stranger => {
                            (false, "is a name, which can resolve to any host".to_owned())
                        }
                        Standing::Outside { region, .. } => (true, format!("stands in {region}")),
                        Standing::Unknown | Standing::Undefined { .. } => {
                            (false, "is at an unknown location".to_owned())
                        }
                    };
                    let what = if requests {
                        format!(
                            "What {name} is sent of requests of zone {zone} (headers, maybe \
                             bodies) reaches {key}, which {why}."
                        )
                    } else {
                        format!("What {name} is sent of traffic reaches {key}, which {why}.")
                    };
                    if bad && requests && self.watched {
                        self.findings.leak("side-service", at, what, residency::LABEL);
                    } else {
                        self.findings.unproved("side-service", at, what, residency::LABEL);
                    }
                }
            }
        }
        true
    }
}
