//! Routes: the one that carries out the decision, and all others that a request could take.

use warmpath_routing::policy::Policy;

use super::config::Envoy;
use super::finding::Findings;
use super::hosts::Regions;
use super::node::{At, Node, Value};
use super::plugin::Router;
use super::residency::for_all_zones;
use super::retries;

const CLUSTER: &str = "x-warmpath-cluster";

/// The routes of a connection manager, in its own configuration or in a dump.
pub(super) fn table<'a>(envoy: &Envoy<'a>, manager: &At<'a>) -> Option<At<'a>> {
    let named = || {
        let name = manager.text("rds.route_config_name")?;
        let mut tables = envoy.input.routes.iter();
        let node = tables.find(|table| table.get("name").and_then(Node::text) == Some(name))?;
        Some(At { node, path: format!("routes[{name}]") })
    };
    manager.get("route_config").or_else(named)
}

pub(super) fn check(
    envoy: &Envoy<'_>,
    router: &Router<'_>,
    regions: &Regions,
    findings: &mut Findings,
) {
    let manager = &router.manager.config;
    let Some(table) = table(envoy, manager) else {
        findings.unproved(
            "unproven",
            manager,
            "The routes come from elsewhere (rds, scoped_routes): they can't be checked.",
            "Put the routes into route_config, or check the configuration that Envoy has (admin \
             page, /config_dump?include_eds).",
        );
        return;
    };
    let checked = RouteCheck { envoy, router, regions };
    if let Some(vhds) = table.get("vhds") {
        findings.unproved(
            "unproven",
            &vhds,
            "More virtual hosts come by VHDS: they can't be checked.",
            "Put them into route_config.",
        );
    }
    checked.mirrors(&table, findings);
    checked.switched_off(&table, findings);
    let hosts = table.items("virtual_hosts");
    let without: Vec<&At<'_>> = hosts.iter().filter(|host| !checked.host(host, findings)).collect();
    if without.len() == hosts.len() {
        findings.error(
            "no-decided-route",
            hosts.first().unwrap_or(&table),
            "No route has cluster_header: x-warmpath-cluster: what the filter decides is not \
             heard.",
            "Add that route first in each virtual host, as in envoy/quickstart.yaml.",
        );
    } else {
        for host in without {
            findings.warning(
                "no-decided-route",
                host,
                "This virtual host has no route with cluster_header: x-warmpath-cluster: what the \
                 filter decides is not heard here.",
                "Add that route first, as in envoy/quickstart.yaml.",
            );
        }
    }
}

struct RouteCheck<'e, 'a> {
    envoy: &'e Envoy<'a>,
    router: &'e Router<'a>,
    regions: &'e Regions,
}

impl<'a> RouteCheck<'_, 'a> {
    /// Checks a virtual host; says whether it carries out decisions.
    fn host(&self, host: &At<'a>, findings: &mut Findings) -> bool {
        if let Some(matcher) = host.get("matcher") {
            findings.unproved(
                "unproven",
                &matcher,
                "The routes are chosen by a matcher tree, which is not followed.",
                "Write them as routes.",
            );
        }
        self.mirrors(host, findings);
        self.switched_off(host, findings);
        let (mut decided, mut caught) = (false, false);
        // Prefixes that routes before take, whatever else a request has.
        let mut taken: Vec<&str> = Vec::new();
        for route in host.items("routes") {
            self.mirrors(&route, findings);
            self.switched_off(&route, findings);
            if let Some(action) = route.get("route") {
                self.mirrors(&action, findings);
                if action.get("cluster_header").and_then(|at| at.node.text()).is_some_and(is_ours) {
                    let prefix = route.text("match.prefix").unwrap_or("/");
                    if caught || taken.iter().any(|taken| prefix.starts_with(taken)) {
                        findings.error(
                            "shadowed",
                            &route,
                            "A route before this one takes every request: what the filter decides \
                             is not heard.",
                            "Put the route with cluster_header: x-warmpath-cluster first.",
                        );
                    }
                    decided = true;
                    self.decided(host, &route, &action, findings);
                } else {
                    self.fixed(&action, findings);
                }
                for inner in ["internal_redirect_policy", "internal_redirect_action"] {
                    if let Some(at) = action.get(inner) {
                        findings.leak(
                            "internal-redirect",
                            &at,
                            "A replica's redirect is followed by Envoy itself, by the routes of the \
                             host that it names: in that host's zone, with this request's body.",
                            "Leave internal redirects off: engines send none.",
                        );
                    }
                }
            }
            if let Some(redirect) = route.get("redirect") {
                redirected(&redirect, findings);
            }
            if let Some(at) = route.get("match") {
                caught |= catches_all(&at);
                taken.extend(at.text("prefix").filter(|_| is_bare(&at)));
            }
        }
        if !caught {
            findings.error(
                "default-route",
                host,
                "Before the filter has decided there is no route: settings of the virtual host \
                 (such as what sets the zone) do not apply, and the answer is a bare 404.",
                "Add a last route for prefix / with a direct_response of status 503.",
            );
        }
        decided
    }

    /// A route that needs no decision.
    fn fixed(&self, action: &At<'a>, findings: &mut Findings) {
        let mut clusters = Vec::new();
        clusters.extend(action.get("cluster"));
        let mut headers: Vec<At<'_>> = action.get("cluster_header").into_iter().collect();
        for weighted in action.items("weighted_clusters.clusters") {
            clusters.extend(weighted.get("name").filter(|at| at.node.text() != Some("")));
            headers.extend(weighted.get("cluster_header"));
            self.switched_off(&weighted, findings);
        }
        for header in headers {
            findings.leak(
                "cluster-header",
                &header,
                format!(
                    "The header {:?} names the cluster: whoever sets it chooses the zone.",
                    header.node.text().unwrap_or("")
                ),
                "Use cluster_header: x-warmpath-cluster, which only the filter sets.",
            );
        }
        for plugin in ["cluster_specifier_plugin", "inline_cluster_specifier_plugin"] {
            if let Some(at) = action.get(plugin) {
                findings.unproved(
                    "unproven",
                    &at,
                    "A plugin chooses the cluster: its choice can't be checked.",
                    "Use cluster_header: x-warmpath-cluster.",
                );
            }
        }
        for cluster in clusters {
            let Some(name) = cluster.node.text() else { continue };
            let policy = &self.router.policy;
            let way = (&cluster, name, "This route");
            if for_all_zones(self.envoy, policy, self.regions, "route-outside", way, findings) {
                findings.warning(
                    "route-to-pool",
                    &cluster,
                    "This route leads to replicas without a decision: it serves requests that the \
                     filter did not see, or has refused to place, whatever their zone.",
                    "Let only the route with cluster_header: x-warmpath-cluster lead to replicas; \
                     let the default answer 503.",
                );
            }
        }
    }

    /// The route that carries out decisions.
    fn decided(&self, host: &At<'a>, route: &At<'a>, action: &At<'a>, findings: &mut Findings) {
        match action.seconds("timeout") {
            None => findings.error(
                "route-timeout",
                action,
                "Envoy's default cuts every answer after 15 s, streams in the middle.",
                "Set timeout: 0s and bound silence by idle_timeout.",
            ),
            Some(seconds) if seconds > 0.0 => findings.warning(
                "route-timeout",
                action,
                format!("Every answer is cut after {seconds} s, streams in the middle."),
                "Set timeout: 0s and bound silence by idle_timeout.",
            ),
            Some(_) => {}
        }
        if matches!(route.text("match.prefix"), Some("" | "/")) {
            findings.warning(
                "open-paths",
                route,
                "Clients reach all that engines serve beside their API: /metrics, \
                 /reset_prefix_cache and more.",
                "Match prefix /v1/ here, and let the default answer the rest.",
            );
        }
        let idle = action.seconds("idle_timeout");
        let unbounded = |seconds: Option<f64>| seconds.is_some_and(|seconds| seconds <= 0.0);
        let outer = self.router.manager.config.seconds("stream_idle_timeout");
        if unbounded(idle) || (idle.is_none() && unbounded(outer)) {
            findings.warning(
                "idle-timeout",
                action,
                "Nothing ends a stream whose engine has stopped answering.",
                "Set idle_timeout, e.g. 900s.",
            );
        }
        if action.get("max_stream_duration.max_stream_duration").is_some() {
            findings.warning(
                "stream-duration",
                action,
                "max_stream_duration cuts long answers even while tokens arrive.",
                "Leave it out.",
            );
        }
        self.route_buffer(host, route, findings);
        let hashes = action.items("hash_policy");
        if !hashes.iter().any(|hash| hash.text("header.header_name") == Some("x-warmpath-hash")) {
            findings.warning(
                "hash-policy",
                action,
                "Where the filter names no replica, equal prefixes are spread at random.",
                "Add hash_policy: - header: { header_name: x-warmpath-hash }.",
            );
        }
        hidden(route, action, findings);
        retries::check(self.envoy, self.router, (host, action), findings);
    }

    fn route_buffer(&self, host: &At<'a>, route: &At<'a>, findings: &mut Findings) {
        let need = self.router.policy.max_body_bytes as f64;
        for at in [host, route] {
            for name in ["per_request_buffer_limit_bytes", "request_body_buffer_limit"] {
                if at.number(name).is_some_and(|bytes| bytes < need) {
                    findings.warning(
                        "retry-buffer",
                        at,
                        format!(
                            "Bodies over {name} lose their retries; the filter looks into bodies \
                             of up to {need} bytes."
                        ),
                        format!("Leave {name} out, or set it to at least {need}."),
                    );
                }
            }
        }
    }

    fn mirrors(&self, at: &At<'a>, findings: &mut Findings) {
        mirrors(self.envoy, &self.router.policy, self.regions, at, findings);
    }

    /// The filter can be switched off by place.
    fn switched_off(&self, at: &At<'a>, findings: &mut Findings) {
        let Some(name) = self.router.filter.text("name") else { return };
        let Some(own) = at.get("typed_per_filter_config").and_then(|all| all.field(name)) else {
            return;
        };
        if own.is_true("disabled") {
            findings.leak(
                "filter-disabled",
                &own,
                "The filter is switched off here: nobody looks at these requests' zone, and no \
                 route is decided.",
                "Remove disabled: true.",
            );
        }
    }
}

/// By 307 and 308 a client sends its body again to wherever it is told; by others it does not.
fn redirected(redirect: &At<'_>, findings: &mut Findings) {
    let codes =
        ["MOVED_PERMANENTLY", "FOUND", "SEE_OTHER", "TEMPORARY_REDIRECT", "PERMANENT_REDIRECT"];
    // Istio has the status itself.
    let status = redirect.number("response_code");
    let again = status.is_some_and(|status| matches!(status as u16, 307 | 308))
        || redirect
            .enumeration("response_code", &codes)
            .is_some_and(|code| matches!(code, "TEMPORARY_REDIRECT" | "PERMANENT_REDIRECT"));
    if let Some(host) = redirect.get("host_redirect").filter(|_| again) {
        findings.unproved(
            "redirect-elsewhere",
            &host,
            format!(
                "Clients are redirected, with the body of their request, to {}: where that \
                 stands can't be seen from here.",
                host.node.text().unwrap_or("?")
            ),
            "Answer by direct_response, or redirect with 303; or acknowledge it with what keeps it \
             inside every zone (see --acknowledge).",
        );
    }
}

/// The filter knows an API by how the path ends that is asked for, before any rewrite: `/v1/…`,
/// whatever comes before it. So what puts `/v1` there itself hides it.
fn hidden(route: &At<'_>, action: &At<'_>, findings: &mut Findings) {
    let literal = ["prefix", "path", "path_separated_prefix"];
    let literal = literal.iter().find_map(|kind| route.text(&format!("match.{kind}")));
    let seen = match (literal, action.text("prefix_rewrite")) {
        // What comes in place of the prefix has as much of the API's path as the prefix had.
        (Some(asked), Some(sent)) => from_v1(asked) == from_v1(sent),
        (Some(asked), None) => {
            let rewritten = ["regex_rewrite", "path_rewrite", "path_rewrite_policy"];
            !rewritten.iter().any(|name| action.get(name).is_some()) || from_v1(asked).is_some()
        }
        (None, _) => {
            let rewrites =
                ["prefix_rewrite", "regex_rewrite", "path_rewrite", "path_rewrite_policy"];
            !rewrites.iter().any(|name| action.get(name).is_some())
        }
    };
    if !seen {
        findings.warning(
            "path-hidden",
            route,
            "The filter knows the APIs by how the path ends that is asked for (…/v1/chat/completions), \
             before the route rewrites it: requests here may be counted as \
             unknown_api and routed by consistent hashing.",
            "Let clients use …/v1/… with any prefix, and rewrite only the prefix.",
        );
    }
}

/// What a path has from its `/v1` on, if it has one.
fn from_v1(path: &str) -> Option<&str> {
    let mut places =
        path.match_indices("/v1").map(|(at, _)| path.get(at + 1..).unwrap_or_default());
    places
        .find(|rest| *rest == "v1" || rest.starts_with("v1/"))
        .map(|rest| rest.trim_end_matches('/'))
}

/// Where copies of requests of the policy's zones go.
pub(super) fn mirrors(
    envoy: &Envoy<'_>,
    policy: &Policy,
    regions: &Regions,
    at: &At<'_>,
    findings: &mut Findings,
) {
    for mirror in at.items("request_mirror_policies") {
        if let Some(header) = mirror.get("cluster_header") {
            findings.leak(
                "mirror-outside",
                &header,
                "A header chooses where copies of requests go.",
                "Mirror to a fixed cluster inside every zone, or not at all.",
            );
        }
        let Some(cluster) = mirror.get("cluster") else { continue };
        let Some(name) = cluster.node.text().filter(|name| !name.is_empty()) else { continue };
        let way = (&cluster, name, "This mirror policy");
        for_all_zones(envoy, policy, regions, "mirror-outside", way, findings);
    }
}

fn is_ours(header: &str) -> bool {
    header.eq_ignore_ascii_case(CLUSTER)
}

/// Whether a match takes every request.
fn catches_all(at: &At<'_>) -> bool {
    is_bare(at)
        && (matches!(at.text("prefix"), Some("" | "/"))
            || at.text("safe_regex.regex") == Some(".*"))
}

/// Whether a match asks for nothing but a path.
fn is_bare(at: &At<'_>) -> bool {
    let Value::Map(fields) = &at.node.value else { return false };
    fields.iter().all(|(name, _)| matches!(name.as_str(), "prefix" | "safe_regex"))
}
