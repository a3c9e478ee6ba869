//! Where a request's zone comes from, and whether a client can choose it.
//!
//! Known are the values that Envoy has checked (claims of a token, a certificate's names, what an
//! authorization service has answered) and those that stand in the configuration. What a client
//! sends is its own choice. Of all else it isn't known. Sources: Envoy's "Attributes" and
//! "Substitution formatter" (docs/root/intro/arch_overview/advanced/attributes.rst,
//! docs/root/configuration/advanced/substitution_formatter.rst).

use std::collections::BTreeSet;

use warmpath_routing::zone_source::Source;

use super::config::Envoy;
use super::finding::Findings;
use super::hosts::Regions;
use super::node::At;
use super::operator::{Operator, operators};
use super::plugin::Router;
use super::strip::Stripped;

const JWT: &str = "envoy.filters.http.jwt_authn";

/// Who chooses a value. The worst comes last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    /// It stands in the configuration, or Envoy has checked it.
    Gateway,
    /// The configuration, by the host or the path that the client asks for.
    Route,
    /// Nobody knows.
    Unknown(String),
    /// The client.
    Client(String),
}

pub(super) fn check(envoy: &Envoy<'_>, router: &Router<'_>, findings: &mut Findings) {
    let manager = &router.manager.config;
    let see = See {
        manager,
        listener: &router.manager.listener,
        table: super::routes::table(envoy, manager),
        stripped: Stripped::of(manager),
        number: router.number,
    };
    let sources = &router.policy.zone_source.from;
    for source in sources {
        let (what, origin) = see.source(source, 0);
        // Of a header's value it is said where that is set.
        if let Source::Header(_) = innermost(source) {
            continue;
        }
        tell(&router.said, &what, origin, findings);
    }
    for header in &router.zone_headers {
        see.setters(header, findings);
    }
}

/// Filter chains of one listener that lead to several zones: where TLS's server name or protocol
/// tells them apart, a client does.
pub(super) fn chains(
    envoy: &Envoy<'_>,
    routers: &[(Router<'_>, Regions)],
    findings: &mut Findings,
) {
    for listener in envoy.root.items("static_resources.listeners") {
        let mut zones = BTreeSet::new();
        let here = |(router, _): &&(Router<'_>, Regions)| {
            std::ptr::eq(router.manager.listener.node, listener.node)
        };
        for (router, _) in routers.iter().filter(here) {
            zones.extend(router.policy.zone_source.default.clone());
            let set = router.manager.config.find_all(&["header"]).into_iter().filter(|set| {
                let key = set.text("key").map(str::to_ascii_lowercase);
                key.is_some_and(|key| router.zone_headers.contains(&key))
            });
            let fixed = set.filter_map(|set| set.text("value"));
            zones.extend(fixed.filter(|value| operators(value).is_empty()).map(str::to_owned));
        }
        let chosen = ["server_names", "application_protocols", "transport_protocol"];
        let matches = listener.find_all(&["filter_chain_match", "filter_chain_matcher"]);
        let told = matches.iter().any(|at| {
            at.path.ends_with("matcher") || chosen.iter().any(|name| at.get(name).is_some())
        });
        let several = routers.iter().filter(here).count() > 1;
        if several && told && zones.len() > 1 {
            by_host(&listener, "The filter chain, which sets the zone here,", findings);
        }
    }
}

fn innermost(source: &Source) -> &Source {
    match source {
        Source::Mapped { of, .. } => innermost(of),
        other => other,
    }
}

fn tell(at: &At<'_>, what: &str, origin: Origin, findings: &mut Findings) {
    match origin {
        Origin::Gateway => {}
        Origin::Route => by_host(at, what, findings),
        Origin::Unknown(why) => findings.unproved(
            "zone-source",
            at,
            format!("{what} is a source of the zone, and {why}."),
            "Take the zone from what your authentication has checked; or acknowledge it with the \
             reason why no client can choose it (see --acknowledge).",
        ),
        Origin::Client(why) => findings.leak(
            "zone-from-client",
            at,
            format!("{what} is a source of the zone, and {why}: a client chooses its zone."),
            "Take the zone from what your authentication has checked.",
        ),
    }
}

fn by_host(at: &At<'_>, what: &str, findings: &mut Findings) {
    findings.leak(
        "zone-by-host",
        at,
        format!(
            "{what} goes by the host or path that is asked for, which a client chooses, and its \
             zone with it."
        ),
        "Take the zone from what your authentication has checked. Where hosts are told apart \
         before (by networks, by certificates), acknowledge it with that reason (see \
         --acknowledge).",
    );
}

struct See<'s, 'a> {
    manager: &'s At<'a>,
    listener: &'s At<'a>,
    /// The route table, where it is known.
    table: Option<At<'a>>,
    stripped: Stripped,
    /// Number of our filter among the manager's.
    number: usize,
}

impl<'a> See<'_, 'a> {
    fn source(&self, source: &Source, depth: usize) -> (String, Origin) {
        match source {
            Source::Header(name) => {
                (format!("The header {name}"), self.header(&name.to_ascii_lowercase(), depth))
            }
            Source::Property(path) => {
                (format!("The property {}", path.join(".")), self.property(path, depth))
            }
            Source::Host(_) => ("The zone".into(), Origin::Route),
            Source::Mapped { of, .. } => self.source(of, depth),
        }
    }

    /// What sets a header that names zones, each told where it stands.
    fn setters(&self, header: &str, findings: &mut Findings) {
        let mut fixed = BTreeSet::new();
        for set in self.set(header) {
            let value = set.text("value").unwrap_or_default();
            let raw = set.get("raw_value").is_some();
            let origin = if raw { unread() } else { self.format(value, 0) };
            if let Origin::Client(why) = origin {
                findings.leak(
                    "zone-from-client",
                    &set,
                    format!("{header} is set to {value}, and {why}: a client chooses its zone."),
                    "Copy it from what your authentication has set, and remove the client's own \
                     header of that name by early_header_mutation_extensions.",
                );
            } else {
                tell(&set, &format!("{value:?} in {header}"), origin, findings);
            }
            let routed = self.table.as_ref().is_some_and(|table| set.path.starts_with(&table.path));
            if routed && operators(value).is_empty() {
                fixed.insert(value.to_owned());
            }
        }
        // Of one zone only, a client chooses at most that it has none.
        if let Some(table) = self.table.as_ref().filter(|_| fixed.len() > 1) {
            by_host(table, &format!("{header} is set by virtual host or route: it"), findings);
        }
    }

    /// All fields of these names, in the listener and in routes that it names.
    fn all(&self, names: &[&str]) -> Vec<At<'a>> {
        let mut found = self.listener.find_all(names);
        found.extend(self.named_table().into_iter().flat_map(|table| table.find_all(names)));
        found
    }

    /// The route table, where it isn't in the listener itself.
    fn named_table(&self) -> Option<&At<'a>> {
        self.table.as_ref().filter(|_| self.manager.get("route_config").is_none())
    }

    /// Each `header: { key, value }` that sets this header.
    fn set(&self, header: &str) -> Vec<At<'a>> {
        let mut found = self.all(&["header"]);
        found.retain(|at| at.text("key").is_some_and(|key| key.eq_ignore_ascii_case(header)));
        found
    }

    /// A request header's value, as our filter finds it.
    fn header(&self, header: &str, depth: usize) -> Origin {
        if !self.stripped.has(header) {
            return Origin::Client(format!("clients can send the header {header}"));
        }
        let set = self.set(header);
        let values = set.iter().map(|set| match set.get("raw_value") {
            Some(_) => unread(),
            None => self.format(set.text("value").unwrap_or_default(), depth + 1),
        });
        values.max().unwrap_or(Origin::Gateway)
    }

    /// What a format string comes to.
    fn format(&self, text: &str, depth: usize) -> Origin {
        // Headers can be set from each other in a circle.
        if depth > 8 {
            return Origin::Unknown("where it comes from can't be followed".into());
        }
        let made = operators(text).into_iter().map(|operator| self.operator(&operator, depth));
        made.max().unwrap_or(Origin::Gateway)
    }

    fn operator(&self, operator: &Operator<'_>, depth: usize) -> Origin {
        let (name, arguments) = (operator.name, operator.arguments);
        let parts: Vec<&str> = arguments.split(':').collect();
        match name {
            "REQ" => {
                let headers = operator.headers();
                let origins = headers.iter().map(|header| self.header(header, depth));
                origins.max().unwrap_or_else(unread)
            }
            "REQ_WITHOUT_QUERY"
            | "QUERY_PARAM"
            | "QUERY_PARAMS"
            | "PATH"
            | "PROTOCOL"
            | "REQUESTED_SERVER_NAME"
            | "TRAILER"
            | "BYTES_RECEIVED"
            | "REQUEST_HEADERS_BYTES"
            | "TLS_JA3_FINGERPRINT"
            | "TLS_JA4_FINGERPRINT"
            | "DOWNSTREAM_TLS_VERSION"
            | "DOWNSTREAM_TLS_CIPHER"
            | "DOWNSTREAM_TLS_SESSION_ID"
            | "DOWNSTREAM_REMOTE_PORT"
            | "DOWNSTREAM_DIRECT_REMOTE_PORT"
            | "TRACE_ID"
            | "STREAM_ID" => Origin::Client(format!("%{name}% is what a client sends")),
            "ENVIRONMENT" | "HOSTNAME" => Origin::Gateway,
            "ROUTE_NAME" | "VIRTUAL_CLUSTER_NAME" | "METADATA"
                if name != "METADATA" || matches!(parts.first(), Some(&("ROUTE" | "CLUSTER"))) =>
            {
                Origin::Route
            }
            "DYNAMIC_METADATA" => self.metadata(parts.first().copied().unwrap_or(""), depth),
            "FILTER_STATE" => self.state(parts.first().copied().unwrap_or(""), depth),
            "DOWNSTREAM_REMOTE_ADDRESS"
            | "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT"
            | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS"
            | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT" => self.address(),
            peer if peer.starts_with("DOWNSTREAM_PEER_") => self.certificate(),
            other => Origin::Unknown(format!("of %{other}% it isn't known who chooses it")),
        }
    }

    fn property(&self, path: &[String], depth: usize) -> Origin {
        let names: Vec<&str> = path.iter().map(String::as_str).collect();
        match names.as_slice() {
            ["request", ..]
            | ["connection", "requested_server_name" | "tls_version"]
            | ["source", "port"] => Origin::Client("it is what a client sends".into()),
            [
                "connection",
                "subject_peer_certificate"
                | "dns_san_peer_certificate"
                | "uri_san_peer_certificate"
                | "sha256_peer_certificate_digest"
                | "peer_certificate",
            ] => self.certificate(),
            ["source", "address"] => self.address(),
            ["metadata", "filter_metadata", namespace, ..] => self.metadata(namespace, depth),
            ["filter_state", name, ..] => self.state(name, depth),
            [
                "xds",
                "route_name"
                | "route_metadata"
                | "virtual_host_name"
                | "virtual_host_metadata"
                | "cluster_name"
                | "cluster_metadata",
                ..,
            ]
            | ["route_name" | "route_metadata" | "cluster_name" | "cluster_metadata", ..] => {
                Origin::Route
            }
            ["xds", "node" | "listener_metadata" | "listener_direction", ..]
            | ["node" | "listener_metadata" | "listener_direction", ..]
            | ["plugin_name" | "plugin_root_id" | "plugin_vm_id"] => Origin::Gateway,
            _ => Origin::Unknown("it isn't known who chooses it".into()),
        }
    }

    /// Dynamic metadata of a namespace: by all that is known to write there.
    fn metadata(&self, namespace: &str, depth: usize) -> Origin {
        if depth > 8 {
            return unread();
        }
        let mut origins = Vec::new();
        let filters = self.manager.items("http_filters");
        let before = || filters.iter().take(self.number);
        for (kind, name) in [
            ("JwtAuthentication", JWT),
            ("ExtAuthz", "envoy.filters.http.ext_authz"),
            ("ExternalProcessor", "envoy.filters.http.ext_proc"),
        ] {
            if namespace != name {
                continue;
            }
            origins.extend(before().filter_map(|filter| filter.typed(kind)).map(|config| {
                if config.find_all(&["extract_only_without_validation"]).is_empty() {
                    Origin::Gateway
                } else {
                    Origin::Client("tokens are taken there without being checked".into())
                }
            }));
        }
        for rules in self.all(&["request_rules"]) {
            for rule in rules.each() {
                let written = rule.find_all(&[
                    "on_header_present",
                    "on_header_missing",
                    "on_present",
                    "on_missing",
                ]);
                let here = written.iter().any(|on| {
                    let own = "envoy.filters.http.header_to_metadata";
                    on.text("metadata_namespace").filter(|n| !n.is_empty()).unwrap_or(own)
                        == namespace
                });
                if here {
                    origins.push(match rule.text("header") {
                        Some(header) => self.header(&header.to_ascii_lowercase(), depth + 1),
                        None => Origin::Client("it is made of what a client sends".into()),
                    });
                }
            }
        }
        let fixed = filters.iter().filter_map(|filter| {
            let kind = filter.get("typed_config")?.message()?;
            kind.0.ends_with("set_metadata.v3.Config").then_some(kind.1)
        });
        for config in fixed {
            let here = config.find_all(&["metadata_namespace"]);
            if here.iter().any(|at| at.node.text() == Some(namespace)) {
                origins.push(Origin::Gateway);
            }
        }
        for filter in self.listener.items("listener_filters") {
            if filter.typed("ProxyProtocol").is_some() {
                let why = "a PROXY protocol header can write there".to_owned();
                let own = "envoy.filters.listener.proxy_protocol";
                let named = filter.find_all(&["metadata_namespace"]);
                if namespace == own || named.iter().any(|at| at.node.text() == Some(namespace)) {
                    origins.push(Origin::Unknown(why));
                }
            }
        }
        origins.into_iter().max().unwrap_or_else(|| {
            Origin::Unknown(format!("nothing before the filter is known to write {namespace}"))
        })
    }

    /// Filter state of a name: by all that sets it here.
    fn state(&self, name: &str, depth: usize) -> Origin {
        if depth > 8 {
            return unread();
        }
        let mut setters = self.listener.holders("object_key");
        setters
            .extend(self.named_table().into_iter().flat_map(|table| table.holders("object_key")));
        let setters = setters.iter().filter(|set| set.text("object_key") == Some(name));
        let origins = setters.map(|set| {
            let format = set.get("format_string");
            let text = format.as_ref().and_then(|format| {
                format.text("text_format_source.inline_string").or(format.text("text_format"))
            });
            text.map_or_else(unread, |text| self.format(text, depth + 1))
        });
        origins.max().unwrap_or_else(|| {
            Origin::Unknown(format!("nothing here is known to set the filter state {name}"))
        })
    }

    /// The client's address: its connection's, unless something that is sent says another.
    fn address(&self) -> Origin {
        let proxied = self.listener.items("listener_filters");
        if proxied.iter().any(|filter| filter.typed("ProxyProtocol").is_some())
            || !self.manager.items("original_ip_detection_extensions").is_empty()
            || self.manager.number("xff_num_trusted_hops").is_some_and(|hops| hops > 0.0)
        {
            return Origin::Unknown("a proxy before this one says it".into());
        }
        if self.manager.is_true("use_remote_address") {
            Origin::Gateway
        } else {
            Origin::Client(
                "it is taken from the header x-forwarded-for (use_remote_address)".into(),
            )
        }
    }

    /// A client certificate's names: as good as what has checked it.
    fn certificate(&self) -> Origin {
        let chains = self.listener.items("filter_chains").into_iter();
        let chains = chains.chain(self.listener.get("default_filter_chain"));
        let contexts = chains.filter_map(|chain| {
            let socket = chain.get("transport_socket")?;
            let context = socket.typed("DownstreamTlsContext");
            Some(context.map_or_else(unread, |context| trust(&context)))
        });
        contexts.max().unwrap_or(Origin::Gateway)
    }
}

/// Whether a TLS context asks for certificates that an authority has signed.
fn trust(context: &At<'_>) -> Origin {
    let common = context.get("common_tls_context");
    let checks = common.as_ref().map(|common| {
        common.find_all(&[
            "trusted_ca",
            "verify_certificate_hash",
            "verify_certificate_spki",
            "validation_context_sds_secret_config",
            "custom_validator_config",
        ])
    });
    let lax = common.as_ref().map(|common| common.find_all(&["trust_chain_verification"]));
    let lax = lax.unwrap_or_default();
    let accepts = |at: &At<'_>| !matches!(at.node.text(), Some("VERIFY_TRUST_CHAIN"));
    if lax.iter().any(accepts) {
        return Origin::Client("certificates that nobody has signed are accepted".into());
    }
    match checks {
        Some(checks) if !checks.is_empty() => Origin::Gateway,
        _ if context.is_true("require_client_certificate") => {
            Origin::Client("nothing checks who has signed a client's certificate".into())
        }
        // It asks for none, so that there is no name.
        _ => Origin::Gateway,
    }
}

fn unread() -> Origin {
    Origin::Unknown("what it is made of can't be read here".into())
}
