//! Fields of Envoy itself and its listeners.

use super::field::Field::{Extension, Message, Plain, Skipped};
use super::field::Fields;
use crate::check::known::Category::{
    AccessLogger, Bootstrap, ListenerFilter, NetworkFilter, Other, StatsSink, Tracer,
    TransportSocket,
};

pub(super) const MESSAGES: &[(&str, Fields)] = &[
    (
        "Bootstrap",
        &[
            (
                Plain,
                &[
                    "node_context_params",
                    "flags_path",
                    "deferred_stat_options",
                    "stats_config",
                    "stats_flush_interval",
                    "stats_flush_on_admin",
                    "stats_eviction_interval",
                    "watchdog",
                    "watchdogs",
                    "overload_manager",
                    "enable_dispatcher_stats",
                    "header_prefix",
                    "stats_server_version_override",
                    "use_tcp_for_dns_lookups",
                    "dns_resolution_config",
                    "inline_headers",
                    "perf_tracing_file_path",
                    "application_log_config",
                    "grpc_async_client_manager_config",
                    "memory_allocator_manager",
                ],
            ),
            // What comes by it is told as such.
            (Skipped, &["node", "dynamic_resources"]),
            (Message("StaticResources"), &["static_resources"]),
            (Message("ClusterManager"), &["cluster_manager"]),
            (Message("Admin"), &["admin"]),
            (Message("BootstrapTracing"), &["tracing"]),
            (Message("LayeredRuntime"), &["layered_runtime"]),
            (Extension(Bootstrap), &["bootstrap_extensions"]),
            (Extension(StatsSink), &["stats_sinks"]),
            (
                Extension(Other),
                &["typed_dns_resolver_config", "default_regex_engine", "listener_manager"],
            ),
        ],
    ),
    (
        "StaticResources",
        &[
            (Message("Listener"), &["listeners"]),
            (Message("Cluster"), &["clusters"]),
            (Skipped, &["secrets"]),
        ],
    ),
    (
        "ClusterManager",
        &[
            (
                Plain,
                &["local_cluster_name", "upstream_bind_config", "enable_deferred_cluster_creation"],
            ),
            (Message("OutlierEvents"), &["outlier_detection"]),
        ],
    ),
    ("OutlierEvents", &[(Plain, &["event_log_path"])]),
    (
        "Admin",
        &[
            (
                Plain,
                &[
                    "access_log_path",
                    "profile_path",
                    "address",
                    "socket_options",
                    "ignore_global_conn_limit",
                    "allow_paths",
                ],
            ),
            (Extension(AccessLogger), &["access_log"]),
        ],
    ),
    ("BootstrapTracing", &[(Extension(Tracer), &["http"])]),
    ("LayeredRuntime", &[(Message("RuntimeLayer"), &["layers"])]),
    (
        "RuntimeLayer",
        &[(Plain, &["name", "disk_layer", "admin_layer"]), (Skipped, &["static_layer"])],
    ),
    (
        "Listener",
        &[
            (
                Plain,
                &[
                    "name",
                    "address",
                    "additional_addresses",
                    "stat_prefix",
                    "filter_chain_matcher",
                    "use_original_dst",
                    "per_connection_buffer_limit_bytes",
                    "deprecated_v1",
                    "drain_type",
                    "listener_filters_timeout",
                    "continue_on_listener_filters_timeout",
                    "transparent",
                    "freebind",
                    "socket_options",
                    "tcp_fast_open_queue_length",
                    "traffic_direction",
                    "udp_listener_config",
                    "connection_balance_config",
                    "reuse_port",
                    "enable_reuse_port",
                    "tcp_backlog_size",
                    "max_connections_to_accept_per_socket_event",
                    "bind_to_port",
                    "internal_listener",
                    "enable_mptcp",
                    "ignore_global_conn_limit",
                    "bypass_overload_manager",
                    "tcp_keepalive",
                ],
            ),
            (Skipped, &["metadata"]),
            (Message("FilterChain"), &["filter_chains", "default_filter_chain"]),
            (Extension(ListenerFilter), &["listener_filters"]),
            (Extension(AccessLogger), &["access_log"]),
        ],
    ),
    (
        "FilterChain",
        &[
            (
                Plain,
                &[
                    "filter_chain_match",
                    "use_proxy_proto",
                    "name",
                    "transport_socket_connect_timeout",
                ],
            ),
            (Skipped, &["metadata"]),
            (Extension(NetworkFilter), &["filters"]),
            (Extension(TransportSocket), &["transport_socket"]),
        ],
    ),
];
