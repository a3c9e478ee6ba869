//! Who chooses what Envoy's operators and properties come to: metadata, filter state, addresses,
//! certificates.

use super::{Origin, ZoneSources};
use crate::check::node::At;
use crate::check::operator::Operator;

const JWT: &str = "envoy.filters.http.jwt_authn";

impl ZoneSources<'_, '_> {
    pub(super) fn operator(&self, operator: &Operator<'_>, depth: usize) -> Origin {
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

    pub(super) fn property(&self, path: &[String], depth: usize) -> Origin {
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
                    let origin = match rule.text("header") {
                        Some(header) => self.header(&header.to_ascii_lowercase(), depth + 1),
                        None => Origin::Client("it is made of what a client sends".into()),
                    };
                    origins.push(self.at_best(&rule, origin));
                }
            }
        }
        let places = [Some(self.manager), self.named_table()];
        let fixed = places.into_iter().flatten();
        for config in fixed.flat_map(|place| place.messages("set_metadata.v3.Config")) {
            let here = config.find_all(&["metadata_namespace"]);
            if here.iter().any(|at| at.node.text() == Some(namespace)) {
                origins.push(self.at_best(&config, Origin::Gateway));
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
            let origin = text.map_or_else(unread, |text| self.format(text, depth + 1));
            self.at_best(set, origin)
        });
        origins.max().unwrap_or_else(|| {
            Origin::Unknown(format!("nothing here is known to set the filter state {name}"))
        })
    }

    /// The client's address: its connection's, unless something that is sent says another.
    pub(super) fn address(&self) -> Origin {
        if is_proxied(self.listener)
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

/// Whether a line that is sent says a connection's addresses.
pub(super) fn is_proxied(listener: &At<'_>) -> bool {
    let filters = listener.items("listener_filters");
    filters.iter().any(|filter| filter.typed("ProxyProtocol").is_some())
        || listener.find_all(&["use_proxy_proto"]).iter().any(At::is_set)
}

pub(super) fn unread() -> Origin {
    Origin::Unknown("what it is made of can't be read here".into())
}
