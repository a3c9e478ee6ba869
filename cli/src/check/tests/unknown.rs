//! Only what is known is proved: configurations through which requests did leave, or could, and
//! kinds of which nobody has heard.

use serde_json::{Value as Json, json};

use super::change::*;
use super::*;

#[test]
fn a_listener_without_the_filter_leads_to_nothing_that_could_be_a_replica() {
    let forward = json!({"name": "forward", "lb_policy": "CLUSTER_PROVIDED", "cluster_type": {
        "name": "envoy.clusters.dynamic_forward_proxy", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.clusters.dynamic_forward_proxy.v3.ClusterConfig"}}});
    let disguised = json!({"name": "forward", "cluster_type": {
        "name": "envoy.cluster.static", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.clusters.dynamic_forward_proxy.v3.ClusterConfig"}}});
    let header = json!({"name": "original", "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": {"use_http_header": true}});
    let number = json!({"name": "original", "type": 4});
    let named = json!({"name": "named", "type": "STRICT_DNS", "load_assignment": {"endpoints": [
        {"lb_endpoints": [{"endpoint": {"address": {"socket_address":
            {"address": "localhost", "port_value": 18003}}}}]}]}});
    let eds = json!({"name": "eds", "type": "EDS"});
    for cluster in [forward, disguised, header, number, named, eds] {
        let report = changed(|config| other_listener(config, cluster));
        expect(&report, Verdict::Leaks, "bypass");
    }
    let apart = json!({"name": "apart", "type": "STATIC", "load_assignment": {"endpoints": [
        {"lb_endpoints": [{"endpoint": {"address": {"socket_address":
            {"address": "127.0.0.1", "port_value": 9901}}}}]}]}});
    let report = changed(|config| other_listener(config, apart));
    assert_eq!(rules(&report), Vec::<&str>::new(), "{:?}", report.findings);
    let report = changed(|config| {
        other_listener(config, json!({"name": "apart", "type": "STATIC"}));
        let other = &mut config["static_resources"]["listeners"][1];
        let manager = &mut other["filter_chains"][0]["filters"][0]["typed_config"];
        manager.as_object_mut().unwrap().remove("route_config");
        manager["rds"] = json!({"route_config_name": "elsewhere"});
    });
    expect(&report, Verdict::Leaks, "bypass");
}

#[test]
fn a_way_of_the_clients_choice_leaks_beside_the_filter_too() {
    let report = changed(|config| {
        let cluster = json!({"name": "original", "type": "ORIGINAL_DST"});
        push(&mut config["static_resources"]["clusters"], cluster);
        let hosts = &mut manager(config)["route_config"]["virtual_hosts"];
        hosts[0]["routes"]
            .as_array_mut()
            .unwrap()
            .insert(0, json!({"match": {"path": "/x"}, "route": {"cluster": "original"}}));
    });
    expect(&report, Verdict::Leaks, "unproven");
}

#[test]
fn a_name_is_no_place() {
    let named = quickstart()
        .replacen("- name: eu.demo-eu-west\n      type: STATIC", "- name: eu.demo-eu-west\n      type: STRICT_DNS", 1)
        .replacen(
            "lb_endpoints: &eu_west\n",
            "lb_endpoints: &eu_west\n              - endpoint: { address: { socket_address: { address: localhost, port_value: 18003 } } }\n",
            1,
        );
    let report = report(&[&named]);
    assert_eq!(rules(&report), ["host-by-name"]);
    assert_eq!(verdict(&report), Verdict::Leaks);
}

#[test]
fn programs_and_strangers_are_not_proved() {
    let lua = || typed("lua", "envoy.extensions.filters.http.lua.v3.Lua", json!({}));
    let report = changed(|config| {
        let router = manager(config)["http_filters"].as_array_mut().unwrap().last_mut().unwrap();
        router["typed_config"]["upstream_http_filters"] = json!([lua()]);
    });
    expect(&report, Verdict::NotProved, "filter-code");
    let report = changed(|config| {
        let cluster = &mut config["static_resources"]["clusters"][0];
        cluster["typed_extension_protocol_options"] = json!({
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http_protocol_options": {}},
                "http_filters": [lua()]}});
    });
    expect(&report, Verdict::NotProved, "filter-code");
    let ext_proc =
        json!({"grpc_service": {"google_grpc": {"target_uri": "10.9.9.9:1", "stat_prefix": "x"}}});
    let kind = "envoy.extensions.filters.network.ext_proc.v3.NetworkExternalProcessor";
    let report = changed(|config| {
        let filters = listener(config)["filter_chains"][0]["filters"].as_array_mut().unwrap();
        filters.insert(0, typed("ext_proc", kind, ext_proc));
        // The manager is the second now, and its exception stands.
    });
    expect(&report, Verdict::NotProved, "unknown-type");
    assert!(rules(&report).contains(&"side-service"));
}

#[test]
fn copies_are_told_wherever_they_go() {
    let not_proved = |change: &dyn Fn(&mut Json), rule| {
        expect(&changed(change), Verdict::NotProved, rule);
    };
    let tap = || typed("tap", "envoy.extensions.filters.http.tap.v3.Tap", json!({}));
    not_proved(&|config| filter_first(config, tap()), "unknown-type");
    let lambda = || {
        typed(
            "aws",
            "envoy.extensions.filters.http.aws_lambda.v3.Config",
            json!({"arn": "arn:aws:x"}),
        )
    };
    not_proved(&|config| filter_first(config, lambda()), "unknown-type");
    not_proved(
        &|config| {
            config["admin"]["address"]["socket_address"]["address"] = json!("0.0.0.0");
        },
        "admin-open",
    );
    let leaks = |change: &dyn Fn(&mut Json)| {
        let report = changed(|config| {
            abroad(config);
            change(config);
        });
        expect(&report, Verdict::Leaks, "side-service");
    };
    let zipkin = || {
        typed(
            "zipkin",
            "envoy.config.trace.v3.ZipkinConfig",
            json!({"collector_cluster": "abroad"}),
        )
    };
    leaks(&|config| manager(config)["tracing"] = json!({ "provider": zipkin() }));
    leaks(&|config| config["tracing"] = json!({ "http": zipkin() }));
    let logger = || {
        typed(
            "als",
            "envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
            json!({"common_config": {"log_name": "x", "grpc_service": {"envoy_grpc": {"cluster_name": "abroad"}}}}),
        )
    };
    leaks(&|config| push(&mut manager(config)["access_log"], logger()));
    leaks(&|config| push(&mut listener(config)["access_log"], logger()));
    leaks(&|config| push(&mut config["admin"]["access_log"], logger()));
    leaks(&|config| {
        let router = manager(config)["http_filters"].as_array_mut().unwrap().last_mut().unwrap();
        router["typed_config"]["upstream_log"] = json!([logger()]);
    });
}

type Put<'p> = &'p dyn Fn(&mut Json, Json);

/// A kind that nobody has heard of, at each place where an extension can stand.
#[test]
fn what_is_new_is_not_proved_wherever_it_stands() {
    let new = || typed("new", "example.New", json!({}));
    let places: &[Put<'_>] = &[
        &|config, new| push(&mut config["bootstrap_extensions"], new),
        &|config, new| push(&mut config["stats_sinks"], new),
        &|config, new| push(&mut config["overload_manager"]["resource_monitors"], new),
        &|config, new| config["tracing"] = json!({ "http": new }),
        &|config, new| config["default_regex_engine"] = new,
        &|config, new| push(&mut config["fatal_actions"], json!({ "config": new })),
        &|config, new| push(&mut config["admin"]["access_log"], new),
        &|config, new| push(&mut listener(config)["listener_filters"], new),
        &|config, new| push(&mut listener(config)["access_log"], new),
        &|config, new| push(&mut listener(config)["filter_chains"][0]["filters"], new),
        &|config, new| listener(config)["filter_chains"][0]["transport_socket"] = new,
        &|config, new| filter_first(config, new),
        &|config, new| push(&mut manager(config)["access_log"], new),
        &|config, new| manager(config)["tracing"] = json!({ "provider": new }),
        &|config, new| push(&mut manager(config)["early_header_mutation_extensions"], new),
        &|config, new| push(&mut manager(config)["original_ip_detection_extensions"], new),
        &|config, new| manager(config)["request_id_extension"] = new,
        &|config, new| {
            let log = &mut manager(config)["access_log"][0]["typed_config"]["log_format"];
            push(&mut log["formatters"], new);
        },
        &|config, new| {
            let host = &mut manager(config)["route_config"]["virtual_hosts"][0];
            host["typed_per_filter_config"]["new"] = new["typed_config"].clone();
        },
        &|config, new| {
            let host = &mut manager(config)["route_config"]["virtual_hosts"][0];
            host["typed_per_filter_config"]["new"] = json!({
                "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig",
                "config": new["typed_config"]});
        },
        &|config, new| {
            let route = &mut manager(config)["route_config"]["virtual_hosts"][0]["routes"][0];
            push(&mut route["route"]["retry_policy"]["retry_host_predicate"], new);
        },
        &|config, new| config["static_resources"]["clusters"][0]["transport_socket"] = new,
        &|config, new| push(&mut config["static_resources"]["clusters"][0]["filters"], new),
        &|config, new| config["static_resources"]["clusters"][0]["upstream_config"] = new,
        &|config, new| {
            let balancing = &mut config["static_resources"]["clusters"][0]["load_balancing_policy"];
            push(&mut balancing["policies"], json!({ "typed_extension_config": new }));
        },
        // As a struct of another kind.
        &|config, _| {
            let wrapped = json!({"type_url": "type.googleapis.com/example.New", "value": {}});
            filter_first(config, typed("new", "xds.type.v3.TypedStruct", wrapped));
        },
        // A name that is known, and no type.
        &|config, _| filter_first(config, json!({"name": "envoy.filters.http.cors"})),
        // What is known, but not here.
        &|config, _| {
            let kind = "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication";
            push(&mut listener(config)["listener_filters"], typed("x", kind, json!({})));
        },
        // By ECDS.
        &|config, _| {
            let filter = json!({"name": "x", "config_discovery": {"type_urls": ["x"]}});
            filter_first(config, filter);
        },
        &|config, _| config["something_new"] = json!({}),
        &|config, _| listener(config)["something_new"] = json!({}),
        &|config, _| manager(config)["something_new"] = json!({}),
        &|config, _| config["static_resources"]["clusters"][0]["something_new"] = json!({}),
        &|config, _| {
            let clusters = config["static_resources"]["clusters"].as_array_mut().unwrap();
            clusters.push(clusters[0].clone());
        },
    ];
    for (number, put) in places.iter().enumerate() {
        let report = changed(|config| put(config, new()));
        assert_eq!(verdict(&report), Verdict::NotProved, "place {number}: {:?}", report.findings);
        let open = |f: &&Finding| f.severity == Severity::Unproved;
        let found = report.findings.iter().find(open).unwrap();
        assert!(!found.path.is_empty(), "place {number}: {found:?}");
    }
}

#[test]
fn nothing_is_proved_of_an_envoy_whose_policy_is_not_read() {
    for (from, to) in
        [("\"role\": \"router\"", "\"role\": \"rooter\""), ("\"explain\": true,", "\"colour\": 1,")]
    {
        let unread = quickstart().replacen(from, to, 1);
        assert_eq!(verdict(&report(&[&unread])), Verdict::NotProved);
        // Whatever is proved of another one.
        assert_eq!(verdict(&report(&[&quickstart(), &unread])), Verdict::NotProved);
    }
}

#[test]
fn what_could_undo_the_decision_is_not_proved() {
    let not_proved = |change: &dyn Fn(&mut Json), rule| {
        expect(&changed(change), Verdict::NotProved, rule);
    };
    for header in ["X-Warmpath-Cluster", "x-gateway-destination-endpoint"] {
        let claims = json!([{"header_name": header, "claim_name": "x"}]);
        not_proved(
            &|config| {
                let kind = "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication";
                let fields = json!({"providers": {"p": {"claim_to_headers": claims}}});
                let filters = manager(config)["http_filters"].as_array_mut().unwrap();
                filters.insert(filters.len() - 1, typed("jwt", kind, fields));
            },
            "internal-header",
        );
        not_proved(
            &|config| {
                let host = &mut manager(config)["route_config"]["virtual_hosts"][0];
                host["request_headers_to_add"] = json!([{"header": {"key": header, "value": "x"}}]);
            },
            "internal-header",
        );
    }
    not_proved(
        &|config| {
            let set = json!({"on_new_connection": [{"object_key": "envoy.tcp_proxy.cluster",
                "format_string": {"text_format_source": {"inline_string": "x"}}}]});
            let kind = "envoy.extensions.filters.network.set_filter_state.v3.Config";
            let filters = listener(config)["filter_chains"][0]["filters"].as_array_mut().unwrap();
            filters.insert(0, typed("sfs", kind, set));
        },
        "filter-state",
    );
    not_proved(
        &|config| {
            let kind = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
            let keys = json!({"common_tls_context": {"key_log": {"path": "/tmp/keys"}}});
            config["static_resources"]["clusters"][0]["transport_socket"] =
                typed("tls", kind, keys);
        },
        "key-log",
    );
    not_proved(
        &|config| {
            let address =
                json!({"address": {"socket_address": {"address": "10.9.9.9", "port_value": 1}}});
            push(
                &mut config["stats_sinks"],
                typed("x", "envoy.config.metrics.v3.StatsdSink", address),
            );
        },
        "side-service",
    );
    not_proved(
        &|config| {
            let host = &mut config["static_resources"]["clusters"][0]["load_assignment"]["endpoints"]
                [0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"];
            host["network_namespace_filepath"] = json!("/run/netns/x");
        },
        "unproven",
    );
    not_proved(
        &|config| config["dynamic_resources"] = json!({"lds_resources_locator": "x"}),
        "dynamic",
    );
}

#[test]
fn an_exception_silences_what_it_names_and_nothing_else() {
    let lua = quickstart().replacen(
        "                  - name: warmpath\n",
        "                  - name: x\n                    typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua }\n                  - name: warmpath\n",
        1,
    );
    let found = report(&[&lua]);
    let path = found.findings.iter().find(|f| f.rule == "filter-code").unwrap().path.clone();
    let acknowledging = |text: &str, exception: &str| {
        let mut acknowledged = exceptions("quickstart.check.yaml");
        acknowledge(&mut acknowledged, exception, 101, None).unwrap();
        with(&[text], acknowledged)
    };
    let exception = format!("[{{rule: filter-code, path: '{path}', reason: read by ours}}]");
    let answered = acknowledging(&lua, &exception);
    assert_eq!(verdict(&answered), Verdict::Proved, "{:?}", answered.findings);
    let finding = answered.findings.iter().find(|f| f.rule == "filter-code").unwrap();
    assert!(finding.text(&["f".into()]).contains("reason: read by ours"));
    // Gone, it is stale.
    let stale = acknowledging(&quickstart(), &exception);
    assert!(stale.findings.iter().any(|f| f.rule == "stale-acknowledgement"));
    assert_eq!(Counts::of(&stale.findings).errors, 1);
    // Of another file it says nothing.
    let mut acknowledged = Acknowledged::default();
    acknowledge(&mut acknowledged, &exception, 101, Some(&[7])).unwrap();
    assert!(rules(&with(&[&lua], acknowledged)).contains(&"filter-code"));
    // A host outside is nobody's to answer for.
    let outside = quickstart().replace("port_value: 18002", "port_value: 18003");
    let found = report(&[&outside]);
    let leak = found.findings.iter().find(|f| f.rule == "outside").unwrap();
    let exception = format!("[{{rule: outside, path: '{}', reason: x}}]", leak.path);
    let refused = acknowledging(&outside, &exception);
    assert_eq!(verdict(&refused), Verdict::Leaks);
    let says = refused.findings.iter().find(|f| f.rule == "stale-acknowledgement").unwrap();
    assert!(says.what.contains("can't be acknowledged"), "{says:?}");
    for bad in [
        "a: b",
        "[{rule: x, path: y}]",
        "[{rule: x, path: y, reason: ' '}]",
        "[{rule: x, reason: y}]",
        "[{rule: x, path: y, reason: z, more: w}]",
    ] {
        assert!(acknowledge(&mut Acknowledged::default(), bad, 0, None).is_err(), "{bad}");
    }
}

#[test]
fn two_of_one_name_have_paths_of_their_own() {
    let lua = || typed("x", "envoy.extensions.filters.http.lua.v3.Lua", json!({}));
    let report = changed(|config| {
        filter_first(config, lua());
        filter_first(config, lua());
    });
    let paths: std::collections::BTreeSet<_> = report
        .findings
        .iter()
        .filter(|finding| finding.rule == "filter-code")
        .map(|finding| finding.path.clone())
        .collect();
    assert_eq!(paths.len(), 2, "{paths:?}");
}

#[test]
fn settings_by_route_need_name_nobody() {
    let at_host = |name: &str, kind: &str, settings: Json| {
        changed(|config| {
            abroad(config);
            let host = &mut manager(config)["route_config"]["virtual_hosts"][0];
            let filters = format!("envoy.extensions.filters.http.{kind}");
            host["typed_per_filter_config"][name] =
                typed(name, &filters, settings)["typed_config"].take();
        })
    };
    for (kind, settings) in [
        ("ext_authz.v3.ExtAuthzPerRoute", json!({"disabled": true})),
        (
            "ext_authz.v3.ExtAuthzPerRoute",
            json!({"check_settings": {"context_extensions": {"a": "b"}}}),
        ),
        ("ext_proc.v3.ExtProcPerRoute", json!({"disabled": true})),
        ("ratelimit.v3.RateLimitPerRoute", json!({"vh_rate_limits": "INCLUDE"})),
    ] {
        let report = at_host("x", kind, settings);
        assert_eq!(rules(&report), Vec::<&str>::new(), "{:?}", report.findings);
    }
    let service =
        json!({"overrides": {"grpc_service": {"envoy_grpc": {"cluster_name": "abroad"}}}});
    let report = at_host("x", "ext_proc.v3.ExtProcPerRoute", service);
    expect(&report, Verdict::Leaks, "side-service");
    let service =
        json!({"check_settings": {"grpc_service": {"envoy_grpc": {"cluster_name": "x"}}}});
    let report = at_host("x", "ext_authz.v3.ExtAuthzPerRoute", service);
    expect(&report, Verdict::NotProved, "side-service");
}
