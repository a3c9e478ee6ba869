//! What Envoy repeats: nothing that could take a fleet down, and nothing that was computed.

use super::config::Envoy;
use super::finding::Findings;
use super::node::{At, Value};
use super::plugin::Router;
use super::strip::Stripped;

/// Values of `retry_on` by which a request is sent again that its engine died of. Both `5xx` and
/// `gateway-error` count a reset as such an answer. `reset-before-request` doesn't: nothing of the
/// request was sent. Nor do `connect-failure` and `refused-stream`. A status in
/// `retriable-status-codes` does if it is one that an engine gives of a prompt that broke it, such as
/// vLLM's 500 before it shuts down, and none by which one that is alive and full turns it away.
/// Source: RetryStateImpl::wouldRetryFromReset in source/common/router/retry_state_impl.cc.
const REPEATS: [&str; 3] = ["reset", "5xx", "gateway-error"];

/// The types that a retry policy can have as an extension.
const POLICY: &str = "envoy.config.route.v3.RetryPolicy";

/// Checks what repeats requests of a route that carries out decisions.
pub(super) fn check(
    envoy: &Envoy<'_>,
    router: &Router<'_>,
    (host, action): (&At<'_>, &At<'_>),
    findings: &mut Findings,
) {
    let field = |name: &str| action.get(name).or_else(|| host.get(name));
    // A route's own policy goes before the virtual host's, whole.
    let typed = field("retry_policy_typed_config");
    let policy = match (action.get("retry_policy"), typed) {
        (Some(own), _) => Some(own),
        (None, Some(typed)) => {
            let known = typed.message().filter(|(kind, _)| *kind == POLICY);
            if known.is_none() {
                findings.error(
                    "retry-unread",
                    &typed,
                    "This retry policy is of a kind that is not known: a request that kills its \
                     engine may be repeated until none is left.",
                    "Write it as retry_policy.",
                );
                return;
            }
            known.map(|(_, policy)| policy)
        }
        (None, None) => host.get("retry_policy"),
    };
    match policy {
        Some(policy) => one(envoy, router, &policy, findings),
        None => findings.warning(
            "retry",
            action,
            "A replica that is gone or full costs the request: nothing tries the next.",
            "Add a retry_policy, as in envoy/quickstart.yaml.",
        ),
    }
    if let Some(hedge) = field("hedge_policy").filter(|at| at.is_true("hedge_on_per_try_timeout")) {
        findings.error(
            "hedging",
            &hedge,
            "A prompt that takes long is computed by several engines at once.",
            "Leave hedge_on_per_try_timeout out.",
        );
    }
}

/// A cluster's own policies go before those of routes, for all that is sent to it.
pub(super) fn clusters(envoy: &Envoy<'_>, router: &Router<'_>, findings: &mut Findings) {
    for name in router.policy.zones.values().flat_map(|zone| zone.clusters.values()) {
        let Some(cluster) = envoy.clusters.get(name.as_str()) else { continue };
        let Some(options) = cluster.get("typed_extension_protocol_options") else { continue };
        for (_, options) in options.fields() {
            let options = options.message().map_or(options, |(_, options)| options);
            if let Some(policy) = options.get("retry_policy") {
                one(envoy, router, &policy, findings);
            }
        }
    }
}

/// Clients ask for retries by headers, where Envoy takes them for internal ones. It does so for no
/// address unless told (since 1.33), and takes the headers from all others.
/// Source: ConnectionManagerUtility::mutateRequestHeaders; release notes of 1.33.0.
pub(super) fn headers(router: &Router<'_>, findings: &mut Findings) {
    let manager = &router.manager.config;
    let Some(internal) = manager.get("internal_address_config") else { return };
    let trusted = !internal.items("cidr_ranges").is_empty() || internal.is_true("unix_sockets");
    if !trusted {
        return;
    }
    let stripped = Stripped::of(manager);
    let asked = [
        "x-envoy-retry-on",
        "x-envoy-max-retries",
        "x-envoy-upstream-rq-per-try-timeout-ms",
        "x-envoy-hedge-on-per-try-timeout",
    ];
    let open: Vec<&str> = asked.into_iter().filter(|header| !stripped.has(header)).collect();
    if !open.is_empty() {
        findings.error(
            "retry-headers",
            &internal,
            format!(
                "Clients at these addresses choose how often a request is repeated, by {}.",
                open.join(", ")
            ),
            "Remove these headers by early_header_mutation_extensions, or trust no address.",
        );
    }
}

fn one(envoy: &Envoy<'_>, router: &Router<'_>, retry: &At<'_>, findings: &mut Findings) {
    let on = retry.text("retry_on").unwrap_or("");
    let on = |name: &str| on.split(',').any(|given| given.trim() == name);
    let codes = retry.get("retriable_status_codes");
    let codes: Vec<f64> =
        codes.map(|codes| codes.each().iter().filter_map(At::value).collect()).unwrap_or_default();
    let mut repeats: Vec<String> =
        REPEATS.into_iter().filter(|name| on(name)).map(str::to_owned).collect();
    if on("retriable-status-codes") {
        let broke = codes.iter().filter(|code| **code >= 500.0 && **code as u16 != 503);
        repeats.extend(broke.map(|code| format!("status {code}")));
    }
    let retries = retry.number("num_retries").unwrap_or(1.0);
    if !repeats.is_empty() && retries > 1.0 {
        findings.error(
            "retry-reset",
            retry,
            format!(
                "A request that its engine dies of is sent to {retries} more engines ({}).",
                repeats.join(", ")
            ),
            "Set num_retries: 1, or have reset-before-request in its place, and of statuses 503 \
             and 429 only.",
        );
    }
    if let Some(timeout) = retry.get("per_try_timeout").filter(|at| !is_zero(at)) {
        findings.error(
            "per-try-timeout",
            &timeout,
            "An answer that isn't streamed and takes longer is computed again with each try, and \
             then comes 504.",
            "Leave per_try_timeout out; per_try_idle_timeout bounds silence.",
        );
    }
    let retried = |code: f64| on("retriable-status-codes") && codes.contains(&code);
    let missing: Vec<&str> = [
        (on("connect-failure") || on("5xx"), "connect-failure"),
        (retried(503.0) || on("gateway-error") || on("5xx"), "status 503"),
        (retried(429.0) || on("retriable-4xx"), "status 429"),
    ]
    .into_iter()
    .filter_map(|(there, name)| (!there).then_some(name))
    .collect();
    if !missing.is_empty() {
        findings.warning(
            "retry",
            retry,
            format!(
                "A replica that is gone or full costs the request: no retry on {}.",
                missing.join(", ")
            ),
            "Set retry_on: connect-failure,refused-stream,reset,retriable-status-codes with \
             retriable_status_codes: [503, 429] and num_retries: 1.",
        );
    }
    priority(envoy, router, retry, retries, findings);
}

/// Where the filter names nobody, a retry has to reach the next region.
fn priority(
    envoy: &Envoy<'_>,
    router: &Router<'_>,
    retry: &At<'_>,
    retries: f64,
    findings: &mut Findings,
) {
    let clusters = router.policy.zones.values().flat_map(|zone| zone.clusters.values());
    let several = clusters
        .filter_map(|cluster| envoy.reach(cluster))
        .any(|reach| reach.hosts.iter().any(|host| host.priority > 0));
    if !several {
        return;
    }
    let named = retry.text("retry_priority.name").unwrap_or("");
    if !named.contains("previous_priorities") {
        findings.warning(
            "retry-priority",
            retry,
            "Where the filter names no replica, retries stay in the first region though all of it \
             is dead.",
            "Add retry_priority: envoy.retry_priorities.previous_priorities.",
        );
        return;
    }
    // The priorities tried before are left out from this many tries on.
    let every = retry.number("retry_priority.typed_config.update_frequency");
    if every.is_some_and(|every| every > retries) {
        findings.warning(
            "retry-priority",
            retry,
            "Where the filter names no replica, all tries are spent in the first region before the \
             next one's turn (update_frequency).",
            "Set update_frequency: 1.",
        );
    }
}

/// Whether a duration is none: `0s`, or a message without either of its parts.
fn is_zero(at: &At<'_>) -> bool {
    if let Value::Map(_) = &at.node.value {
        return ["seconds", "nanos"].iter().all(|part| at.number(part).unwrap_or(0.0) == 0.0);
    }
    let text = at.node.text().and_then(|text| text.strip_suffix('s'));
    at.node.is_null() || text.and_then(|text| text.parse().ok()) == Some(0.0)
}
