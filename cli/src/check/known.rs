//! Extensions of Envoy's of which it is known that they lead no request out and copy none.
//!
//! What isn't here is not known: a list of what is bad would pass whatever it forgets. Types are full
//! names of messages, since a name in a configuration is free to choose and a type isn't.
//! Sources: the messages' own comments in envoy/api (as of 1.40), and Istio's for its filters.

/// What an extension is for, which is what may stand at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Category {
    HttpFilter,
    /// Of a cluster's own filters, after the host is chosen.
    UpstreamHttpFilter,
    NetworkFilter,
    ListenerFilter,
    AccessLogger,
    Tracer,
    StatsSink,
    TransportSocket,
    Bootstrap,
    /// Load balancing, retries, health checks and the like: they choose among what is there.
    Other,
}

/// What has to be looked at in the configuration of a known type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Below {
    /// Nothing but other types.
    Types,
    /// The fields of this message.
    Message(&'static str),
    /// It tells a cluster of requests, headers or bodies: that has to stand in every zone.
    Tells,
    /// Settings by host or route of what tells: they may name another cluster.
    MayTell,
    /// It tells a cluster counts, which are nobody's request.
    Counts,
    /// A program: known if it is this project's.
    Program,
}

use Below::{Counts, MayTell, Message, Program, Tells, Types};
use Category::{
    AccessLogger, Bootstrap, HttpFilter, ListenerFilter, NetworkFilter, Other, StatsSink, Tracer,
    TransportSocket, UpstreamHttpFilter,
};

/// Of `envoy.extensions`, unless there is another package.
const KNOWN: &[(Category, Below, &[&str])] = &[
    (
        HttpFilter,
        Types,
        &[
            "filters.http.adaptive_concurrency.v3.AdaptiveConcurrency",
            "filters.http.admission_control.v3.AdmissionControl",
            "filters.http.alternate_protocols_cache.v3.FilterConfig",
            "filters.http.api_key_auth.v3.ApiKeyAuth",
            "filters.http.api_key_auth.v3.ApiKeyAuthPerRoute",
            "filters.http.bandwidth_limit.v3.BandwidthLimit",
            "filters.http.basic_auth.v3.BasicAuth",
            "filters.http.basic_auth.v3.BasicAuthPerRoute",
            "filters.http.buffer.v3.Buffer",
            "filters.http.buffer.v3.BufferPerRoute",
            "filters.http.cdn_loop.v3.CdnLoopConfig",
            "filters.http.compressor.v3.Compressor",
            "filters.http.compressor.v3.CompressorPerRoute",
            "filters.http.cors.v3.Cors",
            "filters.http.cors.v3.CorsPolicy",
            "filters.http.csrf.v3.CsrfPolicy",
            "filters.http.decompressor.v3.Decompressor",
            "filters.http.fault.v3.HTTPFault",
            "filters.http.grpc_http1_bridge.v3.Config",
            "filters.http.grpc_stats.v3.FilterConfig",
            "filters.http.grpc_web.v3.GrpcWeb",
            // The headers and values that these set are looked at where a zone is read from them.
            "filters.http.header_mutation.v3.HeaderMutation",
            "filters.http.header_mutation.v3.HeaderMutationPerRoute",
            "filters.http.header_to_metadata.v3.Config",
            "filters.http.set_filter_state.v3.Config",
            "filters.http.set_metadata.v3.Config",
            "filters.http.health_check.v3.HealthCheck",
            "filters.http.ip_tagging.v3.IPTagging",
            // Fetches keys: no request is in what it asks.
            "filters.http.jwt_authn.v3.JwtAuthentication",
            "filters.http.jwt_authn.v3.PerRouteConfig",
            "filters.http.local_ratelimit.v3.LocalRateLimit",
            "filters.http.rbac.v3.RBAC",
            "filters.http.rbac.v3.RBACPerRoute",
            "io.istio.http.peer_metadata.Config",
            "istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig",
            "stats.PluginConfig",
        ],
    ),
    (HttpFilter, Message("Router"), &["filters.http.router.v3.Router"]),
    (HttpFilter, Message("FilterConfig"), &["envoy.config.route.v3.FilterConfig"]),
    (HttpFilter, Program, &["filters.http.wasm.v3.Wasm"]),
    (
        HttpFilter,
        Tells,
        &[
            "filters.http.ext_authz.v3.ExtAuthz",
            "filters.http.ext_proc.v3.ExternalProcessor",
            "filters.http.ratelimit.v3.RateLimit",
        ],
    ),
    (
        HttpFilter,
        MayTell,
        &[
            "filters.http.ext_authz.v3.ExtAuthzPerRoute",
            "filters.http.ext_proc.v3.ExtProcPerRoute",
            "filters.http.ratelimit.v3.RateLimitPerRoute",
        ],
    ),
    (
        UpstreamHttpFilter,
        Types,
        &[
            "filters.http.admission_control.v3.AdmissionControl",
            "filters.http.buffer.v3.Buffer",
            "filters.http.header_mutation.v3.HeaderMutation",
            "filters.http.upstream_codec.v3.UpstreamCodec",
        ],
    ),
    (UpstreamHttpFilter, Tells, &["filters.http.ext_proc.v3.ExternalProcessor"]),
    (
        NetworkFilter,
        Message("HttpConnectionManager"),
        &["filters.network.http_connection_manager.v3.HttpConnectionManager"],
    ),
    (
        NetworkFilter,
        Types,
        &[
            "filters.network.connection_limit.v3.ConnectionLimit",
            "filters.network.direct_response.v3.Config",
            "filters.network.local_ratelimit.v3.LocalRateLimit",
            "filters.network.rbac.v3.RBAC",
            "filters.network.set_filter_state.v3.Config",
            // Where it leads is looked at with the listeners that have no filter of ours.
            "filters.network.tcp_proxy.v3.TcpProxy",
            "envoy.tcp.metadataexchange.config.MetadataExchange",
            "io.istio.network.peer_metadata.Config",
            "stats.PluginConfig",
        ],
    ),
    (
        NetworkFilter,
        Tells,
        &["filters.network.ext_authz.v3.ExtAuthz", "filters.network.ratelimit.v3.RateLimit"],
    ),
    (
        ListenerFilter,
        Types,
        &[
            "filters.listener.http_inspector.v3.HttpInspector",
            "filters.listener.local_ratelimit.v3.LocalRateLimit",
            "filters.listener.original_dst.v3.OriginalDst",
            "filters.listener.proxy_protocol.v3.ProxyProtocol",
            "filters.listener.tls_inspector.v3.TlsInspector",
        ],
    ),
    (
        AccessLogger,
        Types,
        &[
            "access_loggers.file.v3.FileAccessLog",
            "access_loggers.stream.v3.StderrAccessLog",
            "access_loggers.stream.v3.StdoutAccessLog",
        ],
    ),
    (
        AccessLogger,
        Tells,
        &[
            "access_loggers.fluentd.v3.FluentdAccessLogConfig",
            "access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
            "access_loggers.grpc.v3.TcpGrpcAccessLogConfig",
            "access_loggers.open_telemetry.v3.OpenTelemetryAccessLogConfig",
        ],
    ),
    (
        Tracer,
        Tells,
        &[
            "envoy.config.trace.v3.DatadogConfig",
            "envoy.config.trace.v3.OpenTelemetryConfig",
            "envoy.config.trace.v3.SkyWalkingConfig",
            "envoy.config.trace.v3.ZipkinConfig",
            "tracers.fluentd.v3.FluentdConfig",
        ],
    ),
    (StatsSink, Types, &["envoy.config.metrics.v3.HystrixSink"]),
    (
        StatsSink,
        Counts,
        &[
            "envoy.config.metrics.v3.DogStatsdSink",
            "envoy.config.metrics.v3.MetricsServiceConfig",
            "envoy.config.metrics.v3.StatsdSink",
            "stat_sinks.graphite_statsd.v3.GraphiteStatsdSink",
            "stat_sinks.open_telemetry.v3.SinkConfig",
        ],
    ),
    (
        TransportSocket,
        Types,
        &[
            "transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport",
            "transport_sockets.quic.v3.QuicDownstreamTransport",
            "transport_sockets.quic.v3.QuicUpstreamTransport",
            "transport_sockets.raw_buffer.v3.RawBuffer",
            "transport_sockets.tcp_stats.v3.Config",
            "transport_sockets.tls.v3.DownstreamTlsContext",
            "transport_sockets.tls.v3.UpstreamTlsContext",
        ],
    ),
    (Bootstrap, Types, &["bootstrap.internal_listener.v3.InternalListener"]),
    (Bootstrap, Program, &["wasm.v3.WasmService"]),
    (Other, Message("HttpProtocolOptions"), &["upstreams.http.v3.HttpProtocolOptions"]),
    (
        Other,
        Types,
        &[
            "envoy.config.listener.v3.ListenerManager",
            "envoy.config.route.v3.RetryPolicy",
            "access_loggers.filters.cel.v3.ExpressionFilter",
            "access_loggers.filters.process_ratelimit.v3.ProcessRateLimitFilter",
            "compression.brotli.compressor.v3.Brotli",
            "compression.brotli.decompressor.v3.Brotli",
            "compression.gzip.compressor.v3.Gzip",
            "compression.gzip.decompressor.v3.Gzip",
            "compression.zstd.compressor.v3.Zstd",
            "compression.zstd.decompressor.v3.Zstd",
            "early_data.v3.DefaultEarlyDataPolicy",
            "formatter.cel.v3.Cel",
            "formatter.metadata.v3.Metadata",
            "formatter.req_without_query.v3.ReqWithoutQuery",
            "health_check.event_sinks.file.v3.HealthCheckEventFileSink",
            "http.early_header_mutation.header_mutation.v3.HeaderMutation",
            "http.header_formatters.preserve_case.v3.PreserveCaseFormatterConfig",
            "http.header_validators.envoy_default.v3.HeaderValidatorConfig",
            "http.original_ip_detection.custom_header.v3.CustomHeaderConfig",
            "http.original_ip_detection.xff.v3.XffConfig",
            "internal_redirect.allow_listed_routes.v3.AllowListedRoutesConfig",
            "internal_redirect.previous_routes.v3.PreviousRoutesConfig",
            "internal_redirect.safe_cross_scheme.v3.SafeCrossSchemeConfig",
            "load_balancing_policies.client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin",
            "load_balancing_policies.cluster_provided.v3.ClusterProvided",
            "load_balancing_policies.least_request.v3.LeastRequest",
            "load_balancing_policies.maglev.v3.Maglev",
            "load_balancing_policies.override_host.v3.OverrideHost",
            "load_balancing_policies.pick_first.v3.PickFirst",
            "load_balancing_policies.random.v3.Random",
            "load_balancing_policies.random_subsetting.v3.RandomSubsetting",
            "load_balancing_policies.ring_hash.v3.RingHash",
            "load_balancing_policies.round_robin.v3.RoundRobin",
            "load_balancing_policies.subset.v3.Subset",
            "load_balancing_policies.wrr_locality.v3.WrrLocality",
            "matching.common_inputs.network.v3.ApplicationProtocolInput",
            "matching.common_inputs.network.v3.DestinationIPInput",
            "matching.common_inputs.network.v3.DestinationPortInput",
            "matching.common_inputs.network.v3.DirectSourceIPInput",
            "matching.common_inputs.network.v3.ServerNameInput",
            "matching.common_inputs.network.v3.SourceIPInput",
            "matching.common_inputs.network.v3.SourcePortInput",
            "matching.common_inputs.network.v3.SourceTypeInput",
            "matching.common_inputs.network.v3.TransportProtocolInput",
            "network.dns_resolver.apple.v3.AppleDnsResolverConfig",
            "network.dns_resolver.cares.v3.CaresDnsResolverConfig",
            "network.dns_resolver.getaddrinfo.v3.GetAddrInfoDnsResolverConfig",
            "outlier_detection_monitors.consecutive_errors.v3.ConsecutiveErrors",
            "path.match.uri_template.v3.UriTemplateMatchConfig",
            "path.rewrite.uri_template.v3.UriTemplateRewriteConfig",
            "rate_limit_descriptors.expr.v3.Descriptor",
            "rbac.audit_loggers.stream.v3.StdoutAuditLog",
            "rbac.matchers.upstream_ip_port.v3.UpstreamIpPortMatcher",
            "rbac.principals.mtls_authenticated.v3.Config",
            "regex_engines.v3.GoogleRE2",
            "request_id.uuid.v3.UuidRequestIdConfig",
            "resource_monitors.cgroup_memory.v3.CgroupMemoryConfig",
            "resource_monitors.cpu_utilization.v3.CpuUtilizationConfig",
            "resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
            "resource_monitors.fixed_heap.v3.FixedHeapConfig",
            "resource_monitors.injected_resource.v3.InjectedResourceConfig",
            "retry.host.omit_canary_hosts.v3.OmitCanaryHostsPredicate",
            "retry.host.omit_host_metadata.v3.OmitHostMetadataConfig",
            "retry.host.previous_hosts.v3.PreviousHostsPredicate",
            "retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
            "transport_sockets.tls.v3.SPIFFECertValidatorConfig",
            "tracers.opentelemetry.resource_detectors.v3.EnvironmentResourceDetectorConfig",
            "tracers.opentelemetry.resource_detectors.v3.StaticConfigResourceDetectorConfig",
            "tracers.opentelemetry.samplers.v3.AlwaysOnSamplerConfig",
            "tracers.opentelemetry.samplers.v3.ParentBasedSamplerConfig",
            "tracers.opentelemetry.samplers.v3.TraceIdRatioBasedSamplerConfig",
            "upstreams.http.generic.v3.GenericConnectionPoolProto",
            "upstreams.http.http.v3.HttpConnectionPoolProto",
            "upstreams.tcp.generic.v3.GenericConnectionPoolProto",
            "upstreams.tcp.v3.TcpProtocolOptions",
        ],
    ),
];

/// Filters that may stand after ours: they change neither headers, route nor cluster.
const AFTER: &[&str] = &[
    "filters.http.adaptive_concurrency.v3.AdaptiveConcurrency",
    "filters.http.admission_control.v3.AdmissionControl",
    "filters.http.alternate_protocols_cache.v3.FilterConfig",
    "filters.http.bandwidth_limit.v3.BandwidthLimit",
    "filters.http.buffer.v3.Buffer",
    "filters.http.compressor.v3.Compressor",
    "filters.http.cors.v3.Cors",
    "filters.http.csrf.v3.CsrfPolicy",
    "filters.http.decompressor.v3.Decompressor",
    "filters.http.fault.v3.HTTPFault",
    "filters.http.grpc_http1_bridge.v3.Config",
    "filters.http.grpc_stats.v3.FilterConfig",
    "filters.http.grpc_web.v3.GrpcWeb",
    "filters.http.health_check.v3.HealthCheck",
    "filters.http.jwt_authn.v3.JwtAuthentication",
    "filters.http.local_ratelimit.v3.LocalRateLimit",
    "filters.http.ratelimit.v3.RateLimit",
    "filters.http.rbac.v3.RBAC",
    "filters.http.router.v3.Router",
    "io.istio.http.peer_metadata.Config",
    "istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig",
    "stats.PluginConfig",
];

/// Packages whose extensions do what a program says.
const PROGRAMS: [&str; 5] = ["lua", "wasm", "golang", "dynamic_modules", "custom_response"];

fn same(known: &str, kind: &str) -> bool {
    kind == known || kind.strip_prefix("envoy.extensions.") == Some(known)
}

/// What is known of a type at a place for this category, or at any where there is none.
pub(super) fn below(kind: &str, category: Option<Category>) -> Option<Below> {
    let mut known = KNOWN.iter();
    let found = known.find(|(of, _, kinds)| {
        category.is_none_or(|category| category == *of)
            && kinds.iter().any(|known| same(known, kind))
    });
    found.map(|(_, below, _)| *below)
}

/// Whether a filter of this type may stand after ours.
pub(super) fn may_follow(kind: &str) -> bool {
    AFTER.iter().any(|known| same(known, kind))
}

/// Whether it does whatever a program says.
pub(super) fn is_program(kind: &str) -> bool {
    kind.split('.').any(|part| PROGRAMS.contains(&part))
}
