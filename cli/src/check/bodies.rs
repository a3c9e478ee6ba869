//! Bodies on their way to the filter: nothing before it may cut them, or leave them unreadable.

use super::config::Envoy;
use super::finding::Findings;
use super::node::At;
use super::plugin::Router;
use super::routes;

/// Codings of bodies that clients send, by the packages of Envoy's libraries for them.
const CODINGS: [(&str, &str); 3] = [("gzip", "gzip"), ("br", "brotli"), ("zstd", "zstd")];

pub(super) fn check(envoy: &Envoy<'_>, router: &Router<'_>, findings: &mut Findings) {
    buffers(envoy, router, findings);
    codings(router, findings);
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

/// The filter reads no compressed bodies: one of Envoy's undoes them before.
fn codings(router: &Router<'_>, findings: &mut Findings) {
    let filters = router.manager.config.items("http_filters");
    let undone = |package: &str| {
        filters.iter().take(router.number).any(|filter| {
            let Some(config) = filter.typed("Decompressor") else { return false };
            let library = config.get("decompressor_library.typed_config");
            let kind = library.as_ref().and_then(At::message).map(|(kind, _)| kind);
            let wanted = format!("envoy.extensions.compression.{package}.decompressor.");
            // Requests are inflated unless that is turned off.
            let switch = config.get("request_direction_config.common_config.enabled.default_value");
            let off = switch.is_some_and(|at| !at.is_set());
            kind.is_some_and(|kind| kind.starts_with(&wanted))
                && !off
                && !filter.is_true("disabled")
        })
    };
    let missing: Vec<&str> = CODINGS
        .into_iter()
        .filter_map(|(coding, package)| (!undone(package)).then_some(coding))
        .collect();
    if !missing.is_empty() {
        findings.warning(
            "compressed-bodies",
            &router.filter,
            format!(
                "A body in a coding that nothing before the filter undoes is answered with 415: {}.",
                missing.join(", ")
            ),
            "Put envoy.filters.http.decompressor filters for gzip, brotli and zstd before it, as in \
             envoy/quickstart.yaml.",
        );
    }
}
