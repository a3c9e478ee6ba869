//! What stands around the filter: buffers, time-outs, other filters.

use super::finding::Findings;
use super::known;
use super::node::At;
use super::plugin::Router;

/// Envoy's own default.
const DEFAULT_BUFFER: f64 = 1_048_576.0;

pub(super) fn check(router: &Router<'_>, findings: &mut Findings) {
    buffers(router, findings);
    idle(router, findings);
    filters(router, findings);
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

fn filters(router: &Router<'_>, findings: &mut Findings) {
    let manager = &router.manager.config;
    // One that changes no headers sets no zone either.
    let sets = |filter: &At<'_>| {
        let kind = filter.get("typed_config").and_then(|config| config.message());
        kind.is_none_or(|(kind, _)| !known::may_follow(kind) || kind.contains(".jwt_authn."))
    };
    let before = manager.items("http_filters");
    let unset = !before.iter().take(router.number).any(sets);
    if unset && router.policy.zone_source.default.is_none() {
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
        findings.leak(
            "filter-disabled",
            &router.filter,
            "The filter is disabled: no request is looked at.",
            "Remove disabled: true.",
        );
    }
    for filter in manager.items("http_filters").iter().skip(router.number + 1) {
        let kind = filter.get("typed_config").and_then(|config| config.message());
        if !kind.is_some_and(|(kind, _)| known::may_follow(kind)) {
            let name = filter.text("name").unwrap_or("");
            findings.unproved(
                "filter-after",
                filter,
                format!(
                    "{name} runs after the decision; if it changes headers, routes or clusters, it \
                     can lead a request out of its zone, which can't be seen from here."
                ),
                "Put it before the Warmpath filter. Where that can't be, and it changes nothing of \
                 the kind, acknowledge it with that reason (see --acknowledge).",
            );
        }
    }
    for upgrade in manager.items("upgrade_configs") {
        if !upgrade.items("filters").is_empty() {
            findings.leak(
                "bypass",
                &upgrade,
                "Requests for this upgrade take a filter chain of their own, without the Warmpath \
                 filter: nobody looks at their zone.",
                "Leave out the upgrade's filters.",
            );
        }
    }
}
