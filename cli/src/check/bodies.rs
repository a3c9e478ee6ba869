//! Bodies on their way to the filter: nothing before it may cut them or let them grow.

use super::config::Envoy;
use super::finding::Findings;
use super::node::At;
use super::plugin::Router;
use super::routes;

pub(super) fn check(envoy: &Envoy<'_>, router: &Router<'_>, findings: &mut Findings) {
    buffers(envoy, router, findings);
    decompressors(router, findings);
}

/// Buffer filters, and what routes make of them.
fn buffers(envoy: &Envoy<'_>, router: &Router<'_>, findings: &mut Findings) {
    let manager = &router.manager.config;
    let need = router.policy.max_body_bytes as f64;
    let mut limits: Vec<At<'_>> = manager
        .items("http_filters")
        .iter()
        .filter_map(|filter| filter.typed("Buffer")?.get("max_request_bytes"))
        .collect();
    let settings = routes::table(envoy, manager);
    let settings = settings.map(|table| table.find_all(&["typed_per_filter_config"]));
    for (_, own) in settings.iter().flatten().flat_map(At::fields) {
        let Some((kind, own)) = own.message() else { continue };
        if kind.ends_with(".BufferPerRoute") {
            limits.extend(own.get("buffer.max_request_bytes"));
        }
    }
    for limit in limits {
        let Some(bytes) = limit.value().filter(|bytes| *bytes < need) else { continue };
        findings.error(
            "buffer-filter",
            &limit,
            format!(
                "Bodies between {bytes} and {need} bytes (max_body_bytes) are answered with 413: a \
                 buffer filter holds no more."
            ),
            format!("Set max_request_bytes to the longest body that is served, at least {need}."),
        );
    }
}

/// The filter undoes compressed bodies itself, within bounds. Envoy's decompressors have none that
/// would help: a few megabytes become hundreds before a buffer's limit is looked at.
fn decompressors(router: &Router<'_>, findings: &mut Findings) {
    for filter in router.manager.config.items("http_filters") {
        let Some(config) = filter.typed("Decompressor") else { continue };
        // Requests are inflated unless that is turned off.
        let switch = config.get("request_direction_config.common_config.enabled.default_value");
        let off = switch.is_some_and(|at| !at.is_set()) || filter.is_true("disabled");
        if !off {
            findings.warning(
                "decompressor",
                &filter,
                "It inflates request bodies without a bound on memory, and cuts off what grows to more \
                 than a hundred times its size.",
                "Leave compressed bodies to the Warmpath filter (max_inflated_bytes): set \
                 request_direction_config.common_config.enabled.default_value: false.",
            );
        }
    }
}
