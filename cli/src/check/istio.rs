//! Istio objects, put together into the Envoy configuration that they make.
//!
//! Istio itself adds much more (its own filters, a cluster for each service). Only what the objects
//! say is here, in the order in which they are given. Source: the EnvoyFilter and VirtualService
//! references of Istio 1.2x.

use std::collections::BTreeSet;

use serde_json::json;

use super::finding::Findings;
use super::node::{At, Node, Place, Value};

const MANAGER: &str = "envoy.filters.network.http_connection_manager";

/// The objects that matter.
#[derive(Debug, Default)]
pub(super) struct Documents {
    filters: Vec<Node>,
    services: Vec<Node>,
    authentications: Vec<Node>,
    /// What is none of these, and may add anything to the gateway.
    others: Vec<Node>,
}

impl Documents {
    /// The files that the objects are in.
    pub(super) fn files(&self) -> BTreeSet<usize> {
        let all = [&self.filters, &self.services, &self.authentications, &self.others];
        all.into_iter().flatten().map(|object| object.place.file).collect()
    }

    pub(super) fn add(&mut self, document: Node) {
        match document.get("kind").and_then(Node::text) {
            // Both can have every proxy tell a tracer or a logger.
            Some("ConfigMap") if is_mesh(&document) => self.others.push(document),
            _ if !At::root(&document).find_all(&["proxy.istio.io/config"]).is_empty() => {
                self.others.push(document);
            }
            Some("EnvoyFilter") => self.filters.push(document),
            Some("VirtualService") => self.services.push(document),
            Some("RequestAuthentication") => self.authentications.push(document),
            Some("List") => {
                for item in document.get("items").map(Node::items).unwrap_or_default() {
                    self.add(item.clone());
                }
            }
            // What these say doesn't come into it.
            Some(
                "Gateway" | "Namespace" | "Service" | "ServiceAccount" | "Deployment" | "ConfigMap"
                | "Secret" | "Role" | "RoleBinding" | "ClusterRole" | "ClusterRoleBinding"
                | "PeerAuthentication",
            ) => {}
            _ => self.others.push(document),
        }
    }

    /// The bootstrap of a gateway with one listener; none without an `EnvoyFilter`.
    pub(super) fn assemble(&self, findings: &mut Findings) -> Option<Node> {
        let place = self.filters.first()?.place;
        let mut root = self.base(place);
        for filter in &self.filters {
            let at = At::root(filter);
            for patch in at.items("spec.config_patches") {
                if apply(&mut root, &patch).is_none() {
                    findings.unproved(
                        "istio-patch",
                        &patch,
                        "This patch is of a kind that is not read: what it does is not checked.",
                        "Check it by hand, or take the gateway's whole configuration: \
                         istioctl proxy-config all POD -o json.",
                    );
                }
            }
        }
        for other in &self.others {
            let kind = other.get("kind").and_then(Node::text).unwrap_or("?");
            findings.unproved(
                "istio-object",
                &At { node: other, path: format!("{kind}[{}]", name(other)) },
                format!("What a {kind} adds to the gateway can't be seen here."),
                "Check the gateway's whole configuration, too: /config_dump?include_eds.",
            );
        }
        findings.unproved(
            "istio-whole",
            &At { node: self.filters.first()?, path: "EnvoyFilter".into() },
            "Istio adds filters, loggers, tracers and clusters of its own to what these objects say, \
             which can't be seen here.",
            "Check the gateway's whole configuration, too: /config_dump?include_eds.",
        );
        Some(root)
    }

    fn base(&self, place: Place) -> Node {
        let mut filters = Vec::new();
        if let Some(authentication) = self.authentications.first() {
            filters.push(Node::from_json(
                authentication.place,
                &json!({
                    "name": "envoy.filters.http.jwt_authn",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication"
                    }
                }),
            ));
        }
        filters.push(Node::from_json(
            place,
            &json!({
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
                }
            }),
        ));
        let text = |text: &str| Node::scalar(place, text);
        let list = |items| Node::list(place, items);
        let hosts = list(self.services.iter().filter_map(virtual_host).collect());
        let manager = Node::map(
            place,
            [
                (
                    "@type",
                    text(
                        "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                    ),
                ),
                ("stat_prefix", text("gateway")),
                (
                    "route_config",
                    Node::map(place, [("name", text("http")), ("virtual_hosts", hosts)]),
                ),
                ("http_filters", list(filters)),
            ],
        );
        let filter = Node::map(place, [("name", text(MANAGER)), ("typed_config", manager)]);
        let listener = Node::map(
            place,
            [
                ("name", text("gateway")),
                (
                    "address",
                    Node::from_json(
                        place,
                        &json!({"socket_address": {"address": "0.0.0.0", "port_value": 8080}}),
                    ),
                ),
                ("filter_chains", list(vec![Node::map(place, [("filters", list(vec![filter]))])])),
            ],
        );
        let resources =
            Node::map(place, [("listeners", list(vec![listener])), ("clusters", list(vec![]))]);
        Node::map(place, [("static_resources", resources)])
    }
}

/// Whether this is the configuration of the whole mesh.
fn is_mesh(map: &Node) -> bool {
    let has = |name| map.get("data").is_some_and(|data| data.get(name).is_some());
    has("mesh") || has("meshNetworks") || name(map) == "istio" || name(map).starts_with("istio-")
}

fn name(object: &Node) -> &str {
    object.get("metadata").and_then(|m| m.get("name")).and_then(Node::text).unwrap_or("?")
}

/// The virtual host that a VirtualService makes.
fn virtual_host(service: &Node) -> Option<Node> {
    let at = At::root(service);
    let hosts = at.get("spec.hosts")?;
    let name = hosts.node.items().first()?.text()?;
    let routes = at.items("spec.http").iter().flat_map(routes).collect();
    let place = service.place;
    Some(Node::map(
        place,
        [
            ("name", Node::scalar(hosts.node.place, name)),
            ("domains", hosts.node.clone()),
            ("routes", Node::list(place, routes)),
        ],
    ))
}

fn routes(http: &At<'_>) -> Vec<Node> {
    let place = http.node.place;
    let action = if let Some(direct) = http.get("direct_response") {
        let status =
            direct.get("status").map_or_else(|| Node::scalar(place, 503), |s| s.node.clone());
        let mut response = Node::map(place, [("status", status)]);
        if let Some(body) = direct.text("body.string") {
            let body = Node::from_json(place, &json!({ "inline_string": body }));
            response.get_or_insert("body", || body);
        }
        ("direct_response", response)
    } else if http.get("redirect").is_some() {
        let mut redirect = Node::map(place, []);
        if let Some(host) = http.get("redirect.authority") {
            redirect.get_or_insert("host_redirect", || host.node.clone());
        }
        if let Some(code) = http.get("redirect.redirect_code") {
            redirect.get_or_insert("response_code", || code.node.clone());
        }
        ("redirect", redirect)
    } else {
        let cluster = |at: &At<'_>| {
            let host = at.text("host").unwrap_or("?");
            let port = at.number("port.number").unwrap_or(80.0);
            format!("outbound|{port}|{}|{host}", at.text("subset").unwrap_or(""))
        };
        let targets = http.items("route");
        let weighted = targets.iter().filter_map(|target| {
            let destination = target.get("destination")?;
            let name = Node::scalar(destination.node.place, cluster(&destination));
            Some(Node::map(
                destination.node.place,
                [("name", name), ("weight", Node::scalar(place, 1))],
            ))
        });
        let clusters = Node::map(place, [("clusters", Node::list(place, weighted.collect()))]);
        let mut route = Node::map(place, [("weighted_clusters", clusters)]);
        let one = http.get("mirror").into_iter();
        let many = http.items("mirrors").into_iter().filter_map(|mirror| mirror.get("destination"));
        let mirrors: Vec<Node> = one
            .chain(many)
            .map(|mirror| {
                let place = mirror.node.place;
                Node::map(place, [("cluster", Node::scalar(place, cluster(&mirror)))])
            })
            .collect();
        if !mirrors.is_empty() {
            route.get_or_insert("request_mirror_policies", || Node::list(place, mirrors));
        }
        ("route", route)
    };
    let matches = http.items("match");
    let paths: Vec<Node> = if matches.is_empty() {
        vec![Node::from_json(place, &json!({ "prefix": "/" }))]
    } else {
        matches
            .iter()
            .map(|matched| {
                // More than a path makes it no catch-all, whatever it is.
                let bare = matched.items("headers").is_empty()
                    && matches!(&matched.node.value, Value::Map(fields) if fields.len() == 1);
                match matched.text("uri.prefix").filter(|_| bare) {
                    Some(prefix) => Node::from_json(place, &json!({ "prefix": prefix })),
                    None => Node::from_json(
                        place,
                        &json!({"prefix": "/", "headers": [{"name": ":path", "present_match": true}]}),
                    ),
                }
            })
            .collect()
    };
    paths
        .into_iter()
        .map(|path| Node::map(place, [("match", path), (action.0, action.1.clone())]))
        .collect()
}

/// Applies one patch; `None` where it is not understood.
fn apply(root: &mut Node, patch: &At<'_>) -> Option<()> {
    let value = patch.get("patch.value").map(|at| at.node.clone());
    let operation = patch.text("patch.operation").unwrap_or("MERGE");
    let target = patch.text("apply_to")?;
    if target == "BOOTSTRAP" {
        merge(root, &value?);
        return Some(());
    }
    let resources = root.get_mut("static_resources")?;
    match (target, operation) {
        ("CLUSTER", "ADD") => resources.get_mut("clusters")?.items_mut()?.push(value?),
        ("CLUSTER", "MERGE") => {
            let name = patch.text("match.cluster.name");
            let value = value?;
            for cluster in resources.get_mut("clusters")?.items_mut()? {
                if name.is_none() || cluster.get("name").and_then(Node::text) == name {
                    merge(cluster, &value);
                }
            }
        }
        ("LISTENER", "ADD") => resources.get_mut("listeners")?.items_mut()?.push(value?),
        ("LISTENER", "MERGE") => merge(first(resources, "listeners")?, &value?),
        ("NETWORK_FILTER", "MERGE") => {
            merge(
                first(first(first(resources, "listeners")?, "filter_chains")?, "filters")?,
                &value?,
            );
        }
        _ => {
            let filter = first(first(first(resources, "listeners")?, "filter_chains")?, "filters")?;
            let manager = filter.get_mut("typed_config")?;
            match target {
                "HTTP_FILTER" => {
                    let names = "match.listener.filter_chain.filter.sub_filter.name";
                    let other = patch.text(names);
                    change(manager.get_mut("http_filters")?.items_mut()?, operation, other, value)?;
                }
                "ROUTE_CONFIGURATION" if operation == "MERGE" => {
                    merge(manager.get_mut("route_config")?, &value?);
                }
                "VIRTUAL_HOST" | "HTTP_ROUTE" => {
                    let hosts = manager.get_mut("route_config")?.get_mut("virtual_hosts")?;
                    patch_hosts(hosts.items_mut()?, patch, target, operation, value)?;
                }
                _ => return None,
            }
        }
    }
    Some(())
}

fn patch_hosts(
    hosts: &mut Vec<Node>,
    patch: &At<'_>,
    target: &str,
    operation: &str,
    value: Option<Node>,
) -> Option<()> {
    if target == "VIRTUAL_HOST" && operation == "ADD" {
        hosts.push(value?);
        return Some(());
    }
    // Istio names them `host:port`.
    let name = patch.text("match.route_configuration.vhost.name");
    let name = name.map(|name| name.rsplit_once(':').map_or(name, |(host, _)| host));
    for host in hosts {
        if name.is_some() && host.get("name").and_then(Node::text) != name {
            continue;
        }
        match (target, operation) {
            ("VIRTUAL_HOST", "MERGE") => merge(host, value.as_ref()?),
            ("HTTP_ROUTE", _) => {
                let routes = host.get_mut("routes")?.items_mut()?;
                let other = patch.text("match.route_configuration.vhost.route.name");
                change(routes, operation, other, value.clone())?;
            }
            _ => return None,
        }
    }
    Some(())
}

/// Changes a list of named things.
fn change(
    items: &mut Vec<Node>,
    operation: &str,
    other: Option<&str>,
    value: Option<Node>,
) -> Option<()> {
    let named = |node: &Node| node.get("name").and_then(Node::text) == other;
    let at = other.and_then(|_| items.iter().position(named));
    match (operation, other, at) {
        ("ADD", ..) | ("INSERT_AFTER", None, _) => items.push(value?),
        ("INSERT_FIRST", ..) | ("INSERT_BEFORE", None, _) => items.insert(0, value?),
        ("INSERT_BEFORE", _, Some(at)) => items.insert(at, value?),
        ("INSERT_AFTER", _, Some(at)) => items.insert(at + 1, value?),
        ("MERGE", Some(_), Some(at)) => merge(items.get_mut(at)?, &value?),
        ("MERGE", None, _) => {
            let value = value?;
            for item in items {
                merge(item, &value);
            }
        }
        ("REMOVE", Some(_), Some(at)) => {
            items.remove(at);
        }
        // Also where what it shall stand beside isn't there: Istio then does nothing.
        _ => return None,
    }
    Some(())
}

fn first<'a>(node: &'a mut Node, list: &str) -> Option<&'a mut Node> {
    node.get_mut(list)?.items_mut()?.first_mut()
}

/// As protobuf merges messages: fields one by one, lists one behind the other.
fn merge(into: &mut Node, from: &Node) {
    match (&mut into.value, &from.value) {
        (Value::List(items), Value::List(more)) => items.extend_from_slice(more),
        (Value::Map(_), Value::Map(fields)) => {
            for (name, field) in fields {
                match into.get_mut(name) {
                    Some(known) => merge(known, field),
                    None => {
                        into.get_or_insert(name, || field.clone());
                    }
                }
            }
        }
        _ => *into = from.clone(),
    }
}
