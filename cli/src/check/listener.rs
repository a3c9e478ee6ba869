//! What stands around the filter: headers taken from clients, buffers, time-outs, other filters.

use super::config::Envoy;
use super::finding::Findings;
use super::hosts::{Regions, Verdict};
use super::node::At;
use super::plugin::Router;
use super::residency;

/// Envoy's own default.
const DEFAULT_BUFFER: f64 = 1_048_576.0;

/// Filters that don't change where a request goes, by what their types are called.
const HARMLESS: [&str; 24] = [
    "adaptive_concurrency",
    "admission_control",
    "alpn",
    "bandwidth_limit",
    "buffer",
    "compressor",
    "cors",
    "csrf",
    "decompressor",
    "fault",
    "file_system_buffer",
    "grpc_http1_bridge",
    "grpc_stats",
    "grpc_web",
    "health_check",
    "istio_stats",
    "jwt_authn",
    "local_ratelimit",
    "peer_metadata",
    "ratelimit",
    "rbac",
    "router",
    "stats",
    "metadata_exchange",
];

/// Filters that do whatever a program says, which may be to send requests elsewhere.
const CODE: [&str; 5] = ["lua", "wasm", "golang", "dynamic_modules", "custom_response"];

/// Whether a filter is of one of these, by its type: a name is free to choose, a type isn't. Where
/// the type is told by another place (ECDS), it is of none.
fn is_any(filter: &At<'_>, known: &[&str]) -> bool {
    let Some(config) = filter.get("typed_config") else { return false };
    let inner = config.text("type_url").or_else(|| config.text("value.@type"));
    let kind = inner.or_else(|| config.text("@type")).unwrap_or_default();
    let parts = kind.rsplit('/').next().unwrap_or(kind);
    parts.split('.').any(|part| known.contains(&part))
}

fn code(filter: &At<'_>, findings: &mut Findings) {
    if !is_any(filter, &CODE) {
        return;
    }
    let name = filter.text("name").unwrap_or("");
    findings.warning(
        "filter-code",
        filter,
        format!(
            "{name} runs a program, which can send what it sees of requests anywhere; that can't \
             be seen from here."
        ),
        "Read the program with residency in mind, or do without.",
    );
}

pub(super) fn check(
    envoy: &Envoy<'_>,
    router: &Router<'_>,
    regions: &Regions,
    findings: &mut Findings,
) {
    strip(router, findings);
    buffers(router, findings);
    idle(router, findings);
    filters(envoy, router, regions, findings);
}

/// Whether a value is copied from request headers that clients' own are not removed of.
fn copies(value: &str, removed: &[String]) -> bool {
    value.split("%REQ(").skip(1).any(|rest| {
        let name = rest.split([')', '?', ':']).find(|part| !part.is_empty()).unwrap_or_default();
        !removed.contains(&name.to_ascii_lowercase())
    })
}

fn strip(router: &Router<'_>, findings: &mut Findings) {
    let manager = &router.manager.config;
    let mut removed: Vec<String> = Vec::new();
    let mut prefixes: Vec<String> = Vec::new();
    for extension in manager.items("early_header_mutation_extensions") {
        let Some(mutation) = extension.typed("HeaderMutation") else { continue };
        for change in mutation.items("mutations") {
            // What is set again from what a client sent is as if it had never been removed.
            if let Some(set) = change.text("append.header.key").map(str::to_ascii_lowercase) {
                let value = change.text("append.header.value").unwrap_or_default();
                if copies(value, &removed) {
                    removed.retain(|name| *name != set);
                }
            }
            removed.extend(change.text("remove").map(str::to_ascii_lowercase));
            removed.extend(
                change.text("remove_on_match.key_matcher.exact").map(str::to_ascii_lowercase),
            );
            prefixes.extend(
                change.text("remove_on_match.key_matcher.prefix").map(str::to_ascii_lowercase),
            );
        }
    }
    for header in manager.find_all(&["header"]) {
        let Some(key) = header.text("key").map(str::to_ascii_lowercase) else { continue };
        let value = header.text("value").unwrap_or_default();
        if router.zone_headers.contains(&key) && copies(value, &removed) {
            findings.error(
                "zone-from-client",
                &header,
                format!("{key} is copied from what a client sends ({value}): it chooses its zone."),
                "Copy it from what your authentication has set, and remove the client's own header \
                 of that name by early_header_mutation_extensions.",
            );
        }
    }
    let zones = router.zone_headers.iter().map(|header| {
        (header.as_str(), true, "choose their own zone wherever nothing of yours sets it")
    });
    let fixed = [
        (
            "x-warmpath-cluster",
            true,
            "choose the cluster of the first route, and of any request \
          that the filter doesn't see",
        ),
        (
            "x-gateway-destination-endpoint",
            true,
            "name the replica of any request that the filter \
          names none for",
        ),
        ("x-warmpath-hash", false, "choose among the replicas when the filter names none"),
        ("x-data-parallel-rank", false, "choose an engine's rank when the filter names none"),
        ("x-warmpath-explain", false, "send what reads like the filter's own explanation"),
    ];
    for (header, bad, what) in zones.chain(fixed) {
        if removed.iter().any(|name| name == header)
            || prefixes.iter().any(|prefix| header.starts_with(prefix))
        {
            continue;
        }
        let what = format!("Clients can send {header} and so {what}.");
        let mend = format!(
            "Remove {header} by early_header_mutation_extensions of the connection manager: the \
             first route is chosen before any filter runs."
        );
        if bad {
            findings.error("strip", manager, what, mend);
        } else {
            findings.warning("strip", manager, what, mend);
        }
    }
}

fn buffers(router: &Router<'_>, findings: &mut Findings) {
    let listener = &router.manager.listener;
    let limit = listener.number("per_connection_buffer_limit_bytes");
    let need = router.policy.max_body_bytes as f64;
    let bytes = limit.unwrap_or(DEFAULT_BUFFER);
    if bytes < need {
        let told = limit.map_or("Envoy's default".to_owned(), |_| "the listener's limit".into());
        findings.error(
            "buffer-limit",
            listener,
            format!(
                "Bodies between {bytes} ({told}) and {need} bytes (max_body_bytes) are answered \
                 with 413, as the filter waits for them."
            ),
            format!(
                "Set per_connection_buffer_limit_bytes to at least {need}, better to the longest \
                 body that shall keep its retries (67108864)."
            ),
        );
    } else if bytes <= DEFAULT_BUFFER {
        findings.warning(
            "retry-buffer",
            listener,
            format!("Bodies over {bytes} bytes lose their retries."),
            "Set per_connection_buffer_limit_bytes to the longest body that shall keep its \
             retries, e.g. 67108864.",
        );
    }
}

fn idle(router: &Router<'_>, findings: &mut Findings) {
    let manager = &router.manager.config;
    match manager.seconds("stream_idle_timeout") {
        None => findings.warning(
            "idle-timeout",
            manager,
            "Envoy's default cuts a request whose model thinks for 5 minutes before its first byte.",
            "Set stream_idle_timeout, e.g. 900s: it counts and not the route's, as the timer is \
             armed before the filter has chosen the route.",
        ),
        Some(seconds) if seconds > 0.0 && seconds < 60.0 => findings.warning(
            "idle-timeout",
            manager,
            format!("A request whose model thinks for {seconds} s before its first byte is cut."),
            "Set stream_idle_timeout to more than the longest prefill with its queue, e.g. 900s.",
        ),
        Some(_) => {}
    }
    for name in ["request_timeout", "common_http_protocol_options.max_stream_duration"] {
        if manager.seconds(name).is_some_and(|seconds| seconds > 0.0) {
            findings.warning(
                "stream-duration",
                manager,
                format!("{name} ends long answers or uploads, however lively they are."),
                format!("Leave {name} out, and bound silence by stream_idle_timeout."),
            );
        }
    }
}

fn filters(envoy: &Envoy<'_>, router: &Router<'_>, regions: &Regions, findings: &mut Findings) {
    let manager = &router.manager.config;
    let filters = manager.items("http_filters");
    if router.number == 0 && router.policy.zone_source.default.is_none() {
        findings.warning(
            "zone-unset",
            &router.filter,
            "No filter stands before this one that could set the request's zone, and there is no \
             default: every request is refused with 403.",
            "Put what authenticates the client (jwt_authn, ext_authz, header_mutation by virtual \
             host) before it; headers that routes add come too late.",
        );
    }
    if router.filter.is_true("disabled") {
        findings.error(
            "filter-disabled",
            &router.filter,
            "The filter is disabled: no request is looked at.",
            "Remove disabled: true.",
        );
    }
    let mut telling: Vec<At<'_>> = Vec::new();
    for (number, filter) in filters.iter().enumerate() {
        let name = filter.text("name").unwrap_or("");
        if number != router.number {
            code(filter, findings);
        }
        if number > router.number && !is_any(filter, &HARMLESS) {
            findings.warning(
                "filter-after",
                filter,
                format!(
                    "{name} runs after the decision; if it changes headers, routes or clusters, it \
                     can lead a request out of its zone, which can't be seen from here."
                ),
                "Put it before the Warmpath filter, or make sure that it changes nothing of the \
                 kind.",
            );
        }
        if number != router.number && !is_any(filter, &["jwt_authn"]) {
            telling.push(filter.clone());
        }
    }
    telling.extend(manager.get("access_log"));
    telling.extend(manager.get("tracing"));
    for name in router.policy.zones.values().flat_map(|zone| zone.clusters.values()) {
        let cluster = envoy.clusters.get(name.as_str());
        let options = cluster.and_then(|c| c.get("typed_extension_protocol_options"));
        for upstream in options.iter().flat_map(|options| options.find_all(&["http_filters"])) {
            for node in upstream.node.items() {
                code(&At { node, path: upstream.path.clone() }, findings);
            }
        }
        telling.extend(options);
    }
    telling.extend(manager.find_all(&["typed_per_filter_config"]));
    for place in &telling {
        for target in place.find_all(&["target_uri"]) {
            let uri = target.node.text().unwrap_or_default();
            findings.warning(
                "side-service",
                &target,
                format!(
                    "What {uri} is told of requests (headers, maybe bodies) goes past Envoy's \
                     clusters: where it stands can't be seen from here."
                ),
                "Name a cluster by envoy_grpc in place of google_grpc.",
            );
        }
    }
    for upgrade in manager.items("upgrade_configs") {
        if !upgrade.items("filters").is_empty() {
            findings.error(
                "bypass",
                &upgrade,
                "Requests for this upgrade take a filter chain of their own, without the Warmpath \
                 filter: nobody looks at their zone.",
                "Leave out the upgrade's filters.",
            );
        }
    }
    for place in telling {
        for cluster in place.find_all(&["cluster", "cluster_name"]) {
            let Some(name) = cluster.node.text() else { continue };
            let Some(reach) = envoy.reach(name) else { continue };
            for (zone, rule) in &router.policy.zones {
                for host in &reach.hosts {
                    let verdict = regions.judge(&router.policy, rule, &host.key);
                    let (bad, why) = match verdict {
                        Verdict::Inside | Verdict::Stranger => continue,
                        Verdict::Outside { region, .. } => (true, format!("stands in {region}")),
                        Verdict::Unknown | Verdict::Undefined { .. } => {
                            (false, "stands nobody knows where".to_owned())
                        }
                    };
                    let what = format!(
                        "What {name} is told of requests of zone {zone} (headers, maybe bodies) \
                         reaches {}, which {why}.",
                        host.key
                    );
                    let mend = residency::LABEL;
                    if bad {
                        findings.error("side-service", &cluster, what, mend);
                    } else {
                        findings.warning("side-service", &cluster, what, mend);
                    }
                }
            }
        }
    }
}
