//! The quick start, broken in one way at a time.

use super::*;

/// The quick start with each text replaced where it stands first.
fn changed(changes: &[(&str, &str)]) -> String {
    let mut text = quickstart();
    for (from, to) in changes {
        assert!(text.contains(from), "the quick start no longer has {from:?}");
        text = text.replacen(from, to, 1);
    }
    text
}

/// Each change of the quick start, and the only rule that it breaks; none, where there is no name.
const CHANGES: &[(&str, &[(&str, &str)])] = &[
    ("stop-iteration", &[("allow_on_headers_stop_iteration: true", "fail_open: false")]),
    ("fail-open", &[("failure_policy: FAIL_RELOAD", "failure_policy: FAIL_OPEN")]),
    ("fail-open", &[("failure_policy: FAIL_RELOAD", "fail_open: true")]),
    ("no-reload", &[("failure_policy: FAIL_RELOAD", "failure_policy: FAIL_CLOSED")]),
    ("vm-id", &[("vm_id: warmpath\n", "vm_id: other\n")]),
    ("vm-configuration", &[("value: sidestream }", "value: router }")]),
    ("singleton", &[("singleton: true", "singleton: false")]),
    ("unknown-cluster", &[("\"cluster\": \"warmpath-relay\"", "\"cluster\": \"nobody\"")]),
    ("unknown-cluster", &[("\"eu.demo-eu-west\"}", "\"eu.nobody\"}")]),
    (
        "relay-http2",
        &[
            ("http2_protocol_options:\n", "http_protocol_options:\n"),
            ("connection_keepalive: { interval: 5s, timeout: 2s }", "accept_http_10: true"),
        ],
    ),
    ("underscores", &[("headers_with_underscores_action: DROP_HEADER", "idle_timeout: 3600s")]),
    ("policy", &[("\"jurisdictions\": [\"EU\"]", "\"jurisdictions\": [\"US\"]")]),
    ("policy", &[("\"explain\": true,", "\"explain\": true, \"colour\": 1,")]),
    ("policy", &[("\"explain\": true,", "\"explain\": true")]),
    // The last of two would bind, in silence.
    ("policy", &[("\"explain\": true,", "\"explain\": true, \"explain\": true,")]),
    ("policy", &[("\"explain\": true,", "\"explain\": true, \"refresh_ms\": 0,")]),
    ("policy", &[("\"explain\": true,", "\"explain\": true, \"log_decision\": \"no\",")]),
    ("policy", &[("\"explain\": true,", "\"explain\": null,")]),
    (
        "filter-after",
        &[(
            "                  - name: envoy.filters.http.router\n",
            "                  - name: envoy.filters.http.cors\n                    typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation }\n                  - name: envoy.filters.http.router\n",
        )],
    ),
    (
        "filter-code",
        &[(
            "                  - name: warmpath\n",
            "                  - name: x\n                    typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua }\n                  - name: warmpath\n",
        )],
    ),
    (
        "side-service",
        &[(
            "                  - name: warmpath\n",
            "                  - name: x\n                    typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor, grpc_service: { google_grpc: { target_uri: \"10.9.9.9:1\" } } }\n                  - name: warmpath\n",
        )],
    ),
    (
        "zone-from-client",
        &[(
            "header: { key: x-warmpath-zone, value: eu }",
            "header: { key: x-warmpath-zone, value: \"%REQ(x-my-zone)%\" }",
        )],
    ),
    ("no-router", &[("\"role\": \"router\"", "\"role\": \"rooter\"")]),
    ("strip", &[("- remove: x-warmpath-zone\n", "- remove: x-other\n")]),
    ("strip", &[("- remove: x-warmpath-cluster\n", "- remove: x-other\n")]),
    ("strip", &[("- remove: x-warmpath-hash\n", "- remove: x-other\n")]),
    ("strip", &[("- remove: x-gateway-destination-endpoint\n", "- remove: x-other\n")]),
    ("strip", &[("- remove: x-data-parallel-rank\n", "- remove: x-other\n")]),
    ("strip", &[("- remove: x-warmpath-explain\n", "- remove: x-other\n")]),
    // Envoy's own default holds less than what the filter waits for.
    ("buffer-limit", &[("per_connection_buffer_limit_bytes: 67108864\n", "bind_to_port: true\n")]),
    (
        "retry-buffer",
        &[
            ("per_connection_buffer_limit_bytes: 67108864\n", "bind_to_port: true\n"),
            ("\"explain\": true,", "\"explain\": true, \"max_body_bytes\": 1048576,"),
        ],
    ),
    ("buffer-limit", &[("limit_bytes: 67108864", "limit_bytes: 32768")]),
    ("idle-timeout", &[("stream_idle_timeout: 900s", "generate_request_id: true")]),
    ("idle-timeout", &[("stream_idle_timeout: 900s", "stream_idle_timeout: 10s")]),
    ("idle-timeout", &[("            idle_timeout: 900s", "            idle_timeout: 0s")]),
    ("stream-duration", &[("request_headers_timeout: 10s", "request_timeout: 10s")]),
    ("route-timeout", &[("timeout: 0s\n", "priority: DEFAULT\n")]),
    ("route-timeout", &[("timeout: 0s\n", "timeout: 60s\n")]),
    ("hash-policy", &[("header_name: x-warmpath-hash", "header_name: x-other")]),
    ("retry", &[("retry_on: connect-failure,", "retry_on: ")]),
    ("retry-reset", &[("num_retries: 1", "num_retries: 2")]),
    ("retry-reset", &[("num_retries: 1", "num_retries: 3"), (",reset,", ",5xx,")]),
    ("retry-reset", &[("num_retries: 1", "num_retries: 3"), (",reset,", ",gateway-error,")]),
    ("", &[("num_retries: 1", "num_retries: 3"), (",reset,", ",reset-before-request,")]),
    ("", &[("num_retries: 1", "metadata: {}")]),
    (
        "retry-reset",
        &[
            ("num_retries: 1", "num_retries: 2"),
            (",reset,", ","),
            ("[503, 429]", "[503, 429, 500]"),
        ],
    ),
    ("", &[("num_retries: 1", "num_retries: 2"), (",reset,", ",")]),
    ("", &[("[503, 429]", "[503, 429, 500]")]),
    ("retry-unread", &[("retry_policy:\n", "retry_policy_typed_config:\n")]),
    (
        "retry-headers",
        &[(
            "use_remote_address: true",
            "use_remote_address: true\n                internal_address_config: { cidr_ranges: [{ address_prefix: 10.0.0.0, prefix_len: 8 }] }",
        )],
    ),
    ("retry-priority", &[("update_frequency: 1", "update_frequency: 2")]),
    ("per-try-timeout", &[("per_try_idle_timeout: 300s", "per_try_timeout: 30s")]),
    ("", &[("per_try_idle_timeout: 300s", "per_try_timeout: 0s")]),
    (
        "hedging",
        &[(
            "timeout: 0s\n",
            "timeout: 0s\n                            hedge_policy: { hedge_on_per_try_timeout: true }\n",
        )],
    ),
    (
        "hedging",
        &[(
            "domains: [eu.demo.local]\n",
            "domains: [eu.demo.local]\n                      hedge_policy: { hedge_on_per_try_timeout: true }\n",
        )],
    ),
    (
        "",
        &[
            ("prefix: /v1/\n", "prefix: /team-a/v1/\n"),
            ("timeout: 0s\n", "timeout: 0s\n                            prefix_rewrite: /v1/\n"),
        ],
    ),
    (
        "path-hidden",
        &[
            ("prefix: /v1/\n", "prefix: /team-a/\n"),
            ("timeout: 0s\n", "timeout: 0s\n                            prefix_rewrite: /v1/\n"),
        ],
    ),
    (
        "path-hidden",
        &[
            ("prefix: /v1/\n", "prefix: /chat\n"),
            (
                "timeout: 0s\n",
                "timeout: 0s\n                            prefix_rewrite: /v1/chat/completions\n",
            ),
        ],
    ),
    (
        "path-hidden",
        &[
            ("prefix: /v1/\n", "safe_regex: { regex: \"/[^/]+/v1/.*\" }\n"),
            (
                "timeout: 0s\n",
                "timeout: 0s\n                            regex_rewrite: { pattern: { regex: \"^/[^/]+\" }, substitution: \"\" }\n",
            ),
        ],
    ),
    (
        "buffer-filter",
        &[(
            "                  - name: warmpath\n",
            "                  - name: b\n                    typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 65536 }\n                  - name: warmpath\n",
        )],
    ),
    (
        "",
        &[(
            "                  - name: warmpath\n",
            "                  - name: b\n                    typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 8388608 }\n                  - name: warmpath\n",
        )],
    ),
    (
        "buffer-filter",
        &[(
            "domains: [global.demo.local]\n                      typed_per_filter_config:\n",
            "domains: [global.demo.local]\n                      typed_per_filter_config:\n                        b: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.BufferPerRoute, buffer: { max_request_bytes: 1000 } }\n",
        )],
    ),
    (
        "decompressor",
        &[(
            "                  - name: warmpath\n",
            "                  - { name: d, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.decompressor.v3.Decompressor, decompressor_library: { name: gzip, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.compression.gzip.decompressor.v3.Gzip } } } }\n                  - name: warmpath\n",
        )],
    ),
    ("retry", &[("retriable_status_codes: [503, 429]", "retriable_status_codes: [429]")]),
    ("retry", &[("retry_policy:\n", "metadata_match:\n")]),
    ("retry-priority", &[("name: envoy.retry_priorities.previous_priorities", "name: x")]),
    (
        "retry-buffer",
        &[(
            "- match:\n                            prefix: /v1/\n",
            "- request_body_buffer_limit: 1000\n                          match:\n                            prefix: /v1/\n",
        )],
    ),
    (
        "open-paths",
        &[(
            "- match:\n                            prefix: /v1/\n",
            "- match:\n                            prefix: /\n",
        )],
    ),
    ("retry-budget", &[("budget_percent: { value: 100 }", "budget_percent: { value: 25 }")]),
    ("retry-budget", &[("retry_budget: {", "metadata: {")]),
    (
        "shadowed",
        &[(
            "        # What the filter has decided.\n",
            "        - { match: { prefix: /v1 }, direct_response: { status: 404 } }\n",
        )],
    ),
    ("default-route", &[("- match: { prefix: / }", "- match: { prefix: /other }")]),
    (
        "no-decided-route",
        &[("cluster_header: x-warmpath-cluster", "weighted_clusters: { clusters: [] }")],
    ),
    (
        "cluster-header",
        &[(
            "- match: { prefix: / }",
            "- match: { path: /x }\n                          route: { cluster_header: x-mine }\n                        - match: { prefix: / }",
        )],
    ),
    (
        "shadowed",
        &[(
            "        # What the filter has decided.\n",
            "        - { match: { prefix: / }, direct_response: { status: 404 } }\n",
        )],
    ),
    (
        "internal-redirect",
        &[(
            "timeout: 0s\n",
            "timeout: 0s\n                            internal_redirect_policy: {}\n",
        )],
    ),
    (
        "filter-disabled",
        &[("- name: warmpath\n", "- name: warmpath\n                    disabled: true\n")],
    ),
    (
        "filter-disabled",
        &[(
            "domains: [global.demo.local]\n                      typed_per_filter_config:\n",
            "domains: [global.demo.local]\n                      typed_per_filter_config:\n                        warmpath: { disabled: true }\n",
        )],
    ),
    (
        "filter-after",
        &[(
            "- name: envoy.filters.http.router\n",
            "- name: envoy.filters.http.lua\n                  - name: envoy.filters.http.router\n",
        )],
    ),
    (
        "zone-unset",
        &[(
            "                  - name: envoy.filters.http.header_mutation\n                    typed_config:\n                      \"@type\": type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation\n",
            "",
        )],
    ),
    ("unproven", &[("route_config:\n", "rds:\n")]),
    (
        "unproven",
        &[(
            "- match: { prefix: / }",
            "- match: { path: /x }\n                          route: { cluster_specifier_plugin: x }\n                        - match: { prefix: / }",
        )],
    ),
    (
        "unproven",
        &[(
            "- name: eu.demo-eu-west\n      type: STATIC",
            "- name: eu.demo-eu-west\n      type: ORIGINAL_DST",
        )],
    ),
    (
        "unproven",
        &[(
            "- name: eu.demo-eu-west\n      type: STATIC",
            "- name: eu.demo-eu-west\n      type: EDS",
        )],
    ),
    ("override-host", &[("- header: x-gateway-destination-endpoint", "- header: x-other")]),
    (
        "panic",
        &[("healthy_panic_threshold: { value: 0 }", "close_connections_on_host_set_change: true")],
    ),
    ("health-checks", &[("health_checks: &health", "metadata: &health")]),
    ("health-timeout", &[("timeout: 15s\n", "timeout: 1s\n")]),
    ("circuit-breakers", &[("thresholds:\n", "per_host_thresholds:\n")]),
    ("no-hosts", &[("            lb_endpoints: &eu_west\n", "            metadata: &eu_west\n")]),
    (
        "region-unknown",
        &[
            (
                "port_value: 18001 } } }\n",
                "port_value: 18001 } } }\n              - endpoint: { address: { socket_address: { address: 10.9.9.9, port_value: 1 } } }\n",
            ),
            ("locality: { region: eu-west }", "metadata: {}"),
            ("locality: { region: eu-west }", "metadata: {}"),
            ("locality: { region: eu-west }", "metadata: {}"),
        ],
    ),
    (
        "region-unknown",
        &[
            ("locality: { region: eu-west }", "locality: { region: moon }"),
            ("locality: { region: eu-west }", "locality: { region: moon }"),
            ("locality: { region: eu-west }", "locality: { region: moon }"),
        ],
    ),
    (
        "first-priority",
        &[
            (
                "- priority: 0\n            locality: { region: us-east }",
                "- priority: 1\n            locality: { region: us-east }",
            ),
            (
                "- priority: 1\n            locality: { region: eu-west }\n            lb_endpoints: *eu_west",
                "- priority: 0\n            locality: { region: eu-west }\n            lb_endpoints: *eu_west",
            ),
        ],
    ),
    (
        "pool-missing",
        &[(
            "          - priority: 1\n            locality: { region: eu-west }\n            lb_endpoints: *eu_west\n",
            "",
        )],
    ),
    (
        "aggregate",
        &[(
            "- name: eu.demo-eu-west\n      type: STATIC",
            "- name: eu.demo-eu-west\n      cluster_type: { name: envoy.clusters.aggregate, typed_config: { clusters: [inner] } }\n    - name: inner\n      type: STATIC",
        )],
    ),
    (
        "route-to-pool",
        &[(
            "- match: { prefix: / }",
            "- match: { path: /x }\n                          route: { cluster: eu.demo-eu-west }\n                        - match: { prefix: / }",
        )],
    ),
    (
        "route-outside",
        &[(
            "- match: { prefix: / }",
            "- match: { path: /x }\n                          route: { cluster: global.demo-us-east }\n                        - match: { prefix: / }",
        )],
    ),
    (
        "mirror-outside",
        &[(
            "timeout: 0s\n",
            "timeout: 0s\n                            request_mirror_policies: [{ cluster: global.demo-us-east }]\n",
        )],
    ),
    (
        "side-service",
        &[(
            "http_filters:\n",
            "http_filters:\n                  - name: envoy.filters.http.ext_authz\n                    typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz, grpc_service: { envoy_grpc: { cluster_name: warmpath-relay } } }\n",
        )],
    ),
    (
        "outside",
        &[(
            "- priority: 0\n            locality: { region: eu-west }\n            lb_endpoints: &eu_west",
            "- { priority: 1, lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 18003 } } } }] }\n          - priority: 0\n            locality: { region: eu-west }\n            lb_endpoints: &eu_west",
        )],
    ),
    ("stats-tags", &[("stats_tags:", "histogram_bucket_settings:")]),
    (
        "dynamic",
        &[(
            "static_resources:\n",
            "dynamic_resources:\n  cds_config: { ads: {} }\nstatic_resources:\n",
        )],
    ),
];

#[test]
fn each_change_is_found_and_nothing_else() {
    let mut wrong = Vec::new();
    for (number, (rule, changes)) in CHANGES.iter().enumerate() {
        let report = report(&[&changed(changes)]);
        let found = rules(&report);
        // Without health checks, routes and the like some rules have no ground left; what must not
        // happen is noise.
        let expected: Vec<&str> = Some(*rule).into_iter().filter(|rule| !rule.is_empty()).collect();
        if found != expected {
            wrong.push(format!("change {number}: expected {rule}, found {found:?}"));
        }
        for finding in &report.findings {
            assert!(finding.place.line > 0, "{finding:?}");
            let number = finding.place.line as usize;
            assert!(changed(changes).lines().count() >= number, "{finding:?}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_service_of_another_kind_is_neither_a_sidestream_nor_known() {
    let other = changed(&[(
        "      \"@type\": type.googleapis.com/envoy.extensions.wasm.v3.WasmService",
        "      \"@type\": type.googleapis.com/Other",
    )]);
    let report = report(&[&other]);
    assert_eq!(rules(&report), ["no-sidestream", "unknown-type"]);
    assert_eq!(verdict(&report), Verdict::NotProved);
}

#[test]
fn a_clusters_own_retries_go_before_the_routes() {
    let own = |retry: &str| {
        let options = format!(
            "- name: eu.demo-eu-west\n      typed_extension_protocol_options: {{ envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {{ \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {{ http_protocol_options: {{}} }}, {retry} }} }}"
        );
        changed(&[("- name: eu.demo-eu-west", &options)])
    };
    let policy = |retries| {
        own(&format!(
            "retry_policy: {{ retry_on: \"connect-failure,reset,retriable-status-codes\", retriable_status_codes: [503, 429], num_retries: {retries}, retry_priority: {{ name: envoy.retry_priorities.previous_priorities }} }}"
        ))
    };
    assert_eq!(rules(&report(&[&policy(2)])), ["retry-reset"]);
    assert_eq!(rules(&report(&[&policy(1)])), Vec::<&str>::new());
    let mirror = |cluster| own(&format!("request_mirror_policies: [{{ cluster: {cluster} }}]"));
    assert_eq!(rules(&report(&[&mirror("eu.demo-eu-west")])), Vec::<&str>::new());
    let leaks = report(&[&mirror("global.demo-us-east")]);
    assert_eq!(rules(&leaks), ["mirror-outside"]);
    assert_eq!(verdict(&leaks), Verdict::Leaks);
}
