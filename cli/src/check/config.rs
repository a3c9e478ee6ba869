//! What the files say, sorted by what it is.

use std::collections::BTreeMap;

use super::finding::Findings;
use super::istio;
use super::node::{At, Node};

/// All documents of all files.
#[derive(Debug, Default)]
pub(super) struct Input {
    bootstraps: Vec<Node>,
    istio: istio::Documents,
    /// `ClusterLoadAssignment`s: the hosts of EDS clusters.
    pub(super) assignments: Vec<Node>,
    /// Route tables that listeners name (RDS).
    pub(super) routes: Vec<Node>,
    /// Configurations of the relay, which say in which pool an endpoint is.
    pub(super) relays: Vec<Node>,
}

/// What is none of the documents that are read.
#[derive(Debug, thiserror::Error)]
#[error(
    "line {0}: neither an Envoy bootstrap, its /config_dump, an Istio or Kubernetes object, a ClusterLoadAssignment \
     nor a relay's configuration"
)]
pub(super) struct Stranger(u64);

impl Input {
    /// Takes a document.
    ///
    /// # Errors
    /// [`Stranger`] where the document is no kind of configuration that is known here: to skip it would
    /// look as if it had been checked.
    pub(super) fn add(&mut self, document: Node) -> Result<(), Stranger> {
        let has = |name| document.get(name).is_some();
        if has("configs") {
            self.dump(&document);
        } else if has("kind") {
            self.istio.add(document);
        } else if has("static_resources") || has("bootstrap_extensions") {
            self.bootstraps.push(document);
        } else if has("cluster_name") {
            self.assignments.push(document);
        } else if has("resources") && all_assignments(&document) {
            let resources = document.get("resources").map(Node::items).unwrap_or_default();
            self.assignments.extend_from_slice(resources);
        } else if has("listen") && ["replicas", "discovery", "models"].into_iter().any(has) {
            self.relays.push(document);
        } else if document.to_json().is_null() {
            // Nothing stands between two `---`.
        } else {
            return Err(Stranger(document.place.line));
        }
        Ok(())
    }

    /// Takes what Envoy's admin page shows at `/config_dump?include_eds`: all that it has, from
    /// wherever it came. Source: envoy/admin/v3/config_dump_shared.proto.
    fn dump(&mut self, dump: &Node) {
        let dump = At::root(dump);
        let (mut clusters, mut listeners) = (Vec::new(), Vec::new());
        let mut bootstrap = Node::map(dump.node.place, []);
        let all = |config: &At<'_>, lists: &[&str], field: &str| -> Vec<Node> {
            let items = lists.iter().flat_map(|list| config.items(list));
            items.filter_map(|item| Some(item.get(field)?.node.clone())).collect()
        };
        for config in dump.items("configs") {
            if let Some(found) = config.get("bootstrap") {
                bootstrap = found.node.clone();
            }
            let lists = ["static_clusters", "dynamic_active_clusters", "dynamic_warming_clusters"];
            clusters.extend(all(&config, &lists, "cluster"));
            listeners.extend(all(&config, &["static_listeners"], "listener"));
            for state in ["active_state", "warming_state"] {
                listeners.extend(all(
                    &config,
                    &["dynamic_listeners"],
                    &format!("{state}.listener"),
                ));
            }
            let lists = ["static_route_configs", "dynamic_route_configs"];
            self.routes.extend(all(&config, &lists, "route_config"));
            let lists = ["static_endpoint_configs", "dynamic_endpoint_configs"];
            self.assignments.extend(all(&config, &lists, "endpoint_config"));
        }
        let place = bootstrap.place;
        let resources = Node::map(
            place,
            [
                ("listeners", Node::list(place, listeners)),
                ("clusters", Node::list(place, clusters)),
            ],
        );
        // What the control plane has sent is in the dump.
        bootstrap.remove("dynamic_resources");
        bootstrap.remove("static_resources");
        bootstrap.get_or_insert("static_resources", || resources);
        self.bootstraps.push(bootstrap);
    }

    /// Files whose findings an exceptions file beside this one can be about: this one, or where this
    /// has Istio objects, all that have, for they make one gateway together.
    pub(super) fn beside(&self, file: usize) -> Vec<usize> {
        let istio = self.istio.files();
        if istio.contains(&file) { istio.into_iter().collect() } else { vec![file] }
    }

    /// Whole configurations of Envoy: each bootstrap, and one that the Istio objects make together.
    pub(super) fn envoys(&self, findings: &mut Findings) -> Vec<Node> {
        let mut envoys = self.bootstraps.clone();
        envoys.extend(self.istio.assemble(findings));
        envoys
    }
}

fn all_assignments(document: &Node) -> bool {
    let resources = document.get("resources").map(Node::items).unwrap_or_default();
    resources.iter().all(|resource| resource.get("cluster_name").is_some())
}

/// One Envoy's configuration.
#[derive(Clone, Debug)]
pub(super) struct Envoy<'a> {
    pub(super) root: At<'a>,
    pub(super) clusters: BTreeMap<&'a str, At<'a>>,
    pub(super) managers: Vec<Manager<'a>>,
    /// Network filters that are no HTTP connection manager, and listener filters (UDP's proxy is
    /// one).
    pub(super) others: Vec<At<'a>>,
    pub(super) input: &'a Input,
}

/// An HTTP connection manager.
#[derive(Clone, Debug)]
pub(super) struct Manager<'a> {
    pub(super) listener: At<'a>,
    pub(super) config: At<'a>,
}

impl<'a> Envoy<'a> {
    pub(super) fn new(node: &'a Node, input: &'a Input) -> Self {
        let root = At::root(node);
        let clusters = root.items("static_resources.clusters");
        let clusters = clusters.into_iter().filter_map(|c| Some((c.text("name")?, c))).collect();
        let (mut managers, mut others) = (Vec::new(), Vec::new());
        for listener in root.items("static_resources.listeners") {
            others.extend(listener.items("listener_filters"));
            let chains = listener.items("filter_chains").into_iter();
            for chain in chains.chain(listener.get("default_filter_chain")) {
                for filter in chain.items("filters") {
                    match filter.typed("HttpConnectionManager") {
                        Some(config) => {
                            managers.push(Manager { listener: listener.clone(), config });
                        }
                        None => others.push(filter),
                    }
                }
            }
        }
        Self { root, clusters, managers, others, input }
    }
}
