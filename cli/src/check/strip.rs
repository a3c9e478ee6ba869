//! Headers that only the gateway may set, which have to be taken from clients first.

use super::finding::Findings;
use super::node::At;
use super::operator::operators;
use super::plugin::Router;

/// Request headers that clients' own are removed of, before the first route is chosen.
#[derive(Clone, Debug, Default)]
pub(super) struct Stripped {
    names: Vec<String>,
    prefixes: Vec<String>,
}

impl Stripped {
    pub(super) fn of(manager: &At<'_>) -> Self {
        let mut stripped = Self::default();
        for extension in manager.items("early_header_mutation_extensions") {
            let Some(mutation) = extension.typed("HeaderMutation") else { continue };
            for change in mutation.items("mutations") {
                // What is set again from what a client sent is as if it had never been removed.
                if let Some(set) = change.text("append.header.key").map(str::to_ascii_lowercase) {
                    let value = change.text("append.header.value").unwrap_or_default();
                    if copies(value, &stripped) {
                        stripped.names.retain(|name| *name != set);
                        stripped.prefixes.retain(|prefix| !set.starts_with(prefix.as_str()));
                    }
                }
                let matched = |kind: &str| {
                    let name = format!("remove_on_match.key_matcher.{kind}");
                    change.text(&name).map(str::to_ascii_lowercase)
                };
                stripped.names.extend(change.text("remove").map(str::to_ascii_lowercase));
                stripped.names.extend(matched("exact"));
                stripped.prefixes.extend(matched("prefix"));
            }
        }
        stripped
    }

    /// Whether a client can't send it, by its name in lower case.
    pub(super) fn has(&self, header: &str) -> bool {
        self.names.iter().any(|name| name == header)
            || self.prefixes.iter().any(|prefix| header.starts_with(prefix))
    }
}

/// Whether a value is made of anything but text and headers that clients can't send.
fn copies(value: &str, stripped: &Stripped) -> bool {
    operators(value).into_iter().any(|operator| {
        let headers = operator.headers();
        headers.is_empty() || !headers.iter().all(|header| stripped.has(header))
    })
}

/// Envoy takes `x_warmpath_zone` for another header than `x-warmpath-zone`, and removes it with none of
/// these; servers that hand headers on as CGI does take them for one.
fn underscores(manager: &At<'_>, findings: &mut Findings) {
    const ACTIONS: [&str; 3] = ["ALLOW", "REJECT_REQUEST", "DROP_HEADER"];
    let field = "common_http_protocol_options.headers_with_underscores_action";
    let action = manager.enumeration(field, &ACTIONS);
    if !matches!(action, Some("DROP_HEADER" | "REJECT_REQUEST")) {
        findings.warning(
            "underscores",
            manager,
            "Clients can send headers whose names differ from the gateway's own in an underscore only, \
             which some servers take for those.",
            "Set common_http_protocol_options: { headers_with_underscores_action: DROP_HEADER }.",
        );
    }
}

pub(super) fn check(router: &Router<'_>, findings: &mut Findings) {
    let manager = &router.manager.config;
    underscores(manager, findings);
    let stripped = Stripped::of(manager);
    let zones = router.zone_headers.iter().map(|header| {
        (header.as_str(), true, "choose their own zone wherever nothing of yours sets it")
    });
    let fixed = [
        (
            "x-warmpath-cluster",
            true,
            "choose the cluster of the first route, and of any request that the filter doesn't see",
        ),
        (
            "x-gateway-destination-endpoint",
            true,
            "name the replica of any request that the filter names none for",
        ),
        ("x-warmpath-hash", false, "choose among the replicas when the filter names none"),
        ("x-data-parallel-rank", false, "choose an engine's rank when the filter names none"),
        ("x-warmpath-explain", false, "send what reads like the filter's own explanation"),
    ];
    for (header, bad, what) in zones.chain(fixed) {
        if stripped.has(header) {
            continue;
        }
        let what = format!("Clients can send {header} and so {what}.");
        let mend = format!(
            "Remove {header} by early_header_mutation_extensions of the connection manager: the \
             first route is chosen before any filter runs."
        );
        if bad {
            findings.leak("strip", manager, what, mend);
        } else {
            findings.warning("strip", manager, what, mend);
        }
    }
}
