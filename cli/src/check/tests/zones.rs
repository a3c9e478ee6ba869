//! Whoever chooses a request's zone, it is no client.

use serde_json::{Value as Json, json};

use super::change::*;
use super::*;

#[test]
fn what_a_client_sends_chooses_no_zone() {
    let leaks = |change: &dyn Fn(&mut Json)| {
        expect(&changed(change), Verdict::Leaks, "zone-from-client");
    };
    for path in [
        json!(["request", "headers", "x-zone"]),
        json!(["request", "query"]),
        json!(["request", "host"]),
        json!(["connection", "requested_server_name"]),
    ] {
        leaks(&|config| zone_from(config, &json!({ "property": path })));
        leaks(&|config| {
            zone_from(config, &json!({"mapped": {"of": {"property": path}, "zones": {"a": "eu"}}}));
        });
    }
    let to_metadata = |rule: Json| {
        typed(
            "h2m",
            "envoy.extensions.filters.http.header_to_metadata.v3.Config",
            json!({ "request_rules": [rule] }),
        )
    };
    let tenant = json!({"property": ["metadata", "filter_metadata", "tenant", "zone"]});
    for from in [json!({"header": "x-zone"}), json!({"cookie": "zone"})] {
        leaks(&|config| {
            let mut rule = from.clone();
            rule["on_header_present"] = json!({"metadata_namespace": "tenant", "key": "zone"});
            filter_first(config, to_metadata(rule));
            zone_from(config, &tenant);
        });
    }
    for value in ["%REQ(x-zone)%", "%QUERY_PARAM(zone)%", "%PATH(NQ)%", "%REQUESTED_SERVER_NAME%"] {
        leaks(&|config| {
            let set = json!({"on_request_headers": [{"object_key": "tenant", "factory_key": "envoy.string",
                "format_string": {"text_format_source": {"inline_string": value}}}]});
            let kind = "envoy.extensions.filters.http.set_filter_state.v3.Config";
            filter_first(config, typed("sfs", kind, set));
            zone_from(config, &json!({"property": ["filter_state", "tenant"]}));
        });
        // The header that names the zone, set by a filter or by a virtual host.
        let append = json!({"append": {"header": {"key": "X-Warmpath-Zone", "value": value}}});
        leaks(&|config| {
            let filter = &mut filter(config, "envoy.filters.http.header_mutation")["typed_config"];
            filter["mutations"] = json!({ "request_mutations": [append] });
        });
        leaks(&|config| {
            manager(config)["route_config"]["virtual_hosts"][0]["request_headers_to_add"] =
                json!([{"header": {"key": "x-warmpath-zone", "value": value}}]);
        });
    }
    // By way of another header, and by the second of two.
    leaks(&|config| {
        let header =
            |key: &str, value: &str| json!({"append": {"header": {"key": key, "value": value}}});
        let filter = &mut filter(config, "envoy.filters.http.header_mutation")["typed_config"];
        filter["mutations"] = json!({ "request_mutations": [
            header("x-warmpath-explain", "%QUERY_PARAM(zone)%"),
            header("x-warmpath-zone", "%REQ(x-warmpath-hash?x-warmpath-explain)%")] });
    });
    leaks(&|config| {
        filter_first(
            config,
            typed(
                "jwt",
                "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
                json!({"rules": [{"requires": {"extract_only_without_validation": {}}}]}),
            ),
        );
        let path =
            ["metadata", "filter_metadata", "envoy.filters.http.jwt_authn", "payload", "zone"];
        zone_from(config, &json!({ "property": path }));
    });
}

#[test]
fn what_envoy_has_checked_does() {
    let jwt = typed(
        "jwt",
        "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
        json!({"providers": {"p": {"payload_in_metadata": "payload", "remote_jwks": {"http_uri": {
            "uri": "https://login.example.com", "cluster": "login", "timeout": "1s"}}}}}),
    );
    let report = changed(|config| {
        filter_first(config, jwt);
        let path =
            ["metadata", "filter_metadata", "envoy.filters.http.jwt_authn", "payload", "zone"];
        zone_from(config, &json!({ "property": path }));
    });
    assert_eq!(rules(&report), Vec::<&str>::new(), "{:?}", report.findings);
    let certificate = |trusted: Json| {
        changed(|config| {
            let context = json!({ "require_client_certificate": true,
                "common_tls_context": { "validation_context": trusted } });
            listener(config)["filter_chains"][0]["transport_socket"] = typed(
                "tls",
                "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                context,
            );
            zone_from(config, &json!({"property": ["connection", "uri_san_peer_certificate"]}));
        })
    };
    assert_eq!(
        rules(&certificate(json!({"trusted_ca": {"filename": "ca.pem"}}))),
        Vec::<&str>::new()
    );
    expect(&certificate(json!({})), Verdict::Leaks, "zone-from-client");
    expect(
        &certificate(json!({"trusted_ca": {"filename": "ca.pem"},
            "trust_chain_verification": "ACCEPT_UNTRUSTED"})),
        Verdict::Leaks,
        "zone-from-client",
    );
}

#[test]
fn of_other_sources_nothing_is_known() {
    for path in [
        json!(["filter_state", "nobody.sets.this"]),
        json!(["metadata", "filter_metadata", "nobody"]),
        json!(["response", "headers", "x"]),
        json!(["something", "new"]),
    ] {
        let report = changed(|config| zone_from(config, &json!({ "property": path })));
        expect(&report, Verdict::NotProved, "zone-source");
    }
    let report = changed(|config| {
        let append = json!({"append": {"header": {"key": "x-warmpath-zone", "value": "%NEW(x)%"}}});
        filter(config, "envoy.filters.http.header_mutation")["typed_config"]["mutations"] =
            json!({ "request_mutations": [append] });
    });
    expect(&report, Verdict::NotProved, "zone-source");
}

#[test]
fn a_zone_by_host_needs_an_answer() {
    let plain = bare(&[&quickstart()]);
    expect(&plain, Verdict::Leaks, "zone-by-host");
    for source in [
        json!({"host": {"eu.demo.local": "eu", "global.demo.local": "global"}}),
        json!({"property": ["xds", "route_metadata", "filter_metadata", "warmpath", "zone"]}),
    ] {
        expect(&changed(|config| zone_from(config, &source)), Verdict::Leaks, "zone-by-host");
    }
    // By the server name of TLS, too.
    let chains = |by: &str, proxied: Json| {
        changed(|config| {
            push(&mut listener(config)["listener_filters"], proxied);
            let chain = listener(config)["filter_chains"][0].clone();
            let chains = listener(config)["filter_chains"].as_array_mut().unwrap();
            chains.push(chain);
            for (chain, zone) in chains.iter_mut().zip(["eu", "global"]) {
                chain["filter_chain_match"] = json!({ by: [zone] });
                let manager = &mut chain["filters"][0]["typed_config"];
                for host in manager["route_config"]["virtual_hosts"].as_array_mut().unwrap() {
                    host.as_object_mut().unwrap().remove("typed_per_filter_config");
                }
                let filters = manager["http_filters"].as_array_mut().unwrap();
                let named = "envoy.filters.http.header_mutation";
                let mutation = filters.iter_mut().find(|filter| filter["name"] == named).unwrap();
                mutation["typed_config"]["mutations"] = json!({"request_mutations": [
                    {"append": {"header": {"key": "x-warmpath-zone", "value": zone}}}]});
            }
        })
    };
    let tls = || {
        let kind = "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector";
        typed("tls", kind, json!({}))
    };
    let proxy = || {
        let kind = "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol";
        typed("proxy", kind, json!({}))
    };
    expect(&chains("server_names", tls()), Verdict::Leaks, "zone-by-host");
    expect(&chains("source_ports", tls()), Verdict::Leaks, "zone-by-host");
    assert_eq!(rules(&chains("source_prefix_ranges", tls())), Vec::<&str>::new());
    // A PROXY line says the address, which a client can send.
    expect(&chains("source_prefix_ranges", proxy()), Verdict::NotProved, "zone-source");
    assert_eq!(rules(&chains("direct_source_prefix_ranges", proxy())), Vec::<&str>::new());
    // One zone for all is nobody's choice.
    let one = quickstart().replace("value: global }", "value: eu }");
    assert_eq!(rules(&bare(&[&one])), Vec::<&str>::new());
}

/// A filter's settings, at a virtual host.
fn at_host(config: &mut Json, number: usize, name: &str, settings: Json) {
    let host = &mut manager(config)["route_config"]["virtual_hosts"][number];
    host["typed_per_filter_config"][name] = settings;
}

#[test]
fn what_a_host_or_route_overrides_is_by_host() {
    let metadata = |zone: &str| {
        typed(
            "set_metadata",
            "envoy.extensions.filters.http.set_metadata.v3.Config",
            json!({"metadata": [{"metadata_namespace": "tenant", "value": {"zone": zone}}]}),
        )
    };
    let from = json!({"property": ["metadata", "filter_metadata", "tenant", "zone"]});
    let report = changed(|config| {
        filter_first(config, metadata("eu"));
        zone_from(config, &from);
    });
    assert_eq!(rules(&report), Vec::<&str>::new(), "{:?}", report.findings);
    for wrapped in [false, true] {
        let report = changed(|config| {
            filter_first(config, metadata("eu"));
            let mut own = metadata("global")["typed_config"].take();
            if wrapped {
                own = json!({"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig",
                    "config": own});
            }
            at_host(config, 1, "set_metadata", own);
            zone_from(config, &from);
        });
        expect(&report, Verdict::Leaks, "zone-by-host");
    }
    let state = |zone: &str| {
        typed(
            "sfs",
            "envoy.extensions.filters.http.set_filter_state.v3.Config",
            json!({"on_request_headers": [{"object_key": "tenant", "factory_key": "envoy.string",
                "format_string": {"text_format_source": {"inline_string": zone}}}]}),
        )
    };
    let from = json!({"property": ["filter_state", "tenant"]});
    let report = changed(|config| {
        filter_first(config, state("eu"));
        zone_from(config, &from);
    });
    assert_eq!(rules(&report), Vec::<&str>::new(), "{:?}", report.findings);
    let report = changed(|config| {
        filter_first(config, state("eu"));
        at_host(config, 1, "sfs", state("global")["typed_config"].take());
        zone_from(config, &from);
    });
    expect(&report, Verdict::Leaks, "zone-by-host");
    // A header that isn't there, and what is told of that by host.
    let missing = |zone: &str| {
        typed(
            "h2m",
            "envoy.extensions.filters.http.header_to_metadata.v3.Config",
            json!({"request_rules": [{"header": "x-warmpath-hash", "on_header_missing": {
                "metadata_namespace": "tenant", "key": "zone", "value": zone}}]}),
        )
    };
    let report = changed(|config| {
        filter_first(config, missing("eu"));
        at_host(config, 1, "h2m", missing("global")["typed_config"].take());
        zone_from(config, &json!({"property": ["metadata", "filter_metadata", "tenant", "zone"]}));
    });
    expect(&report, Verdict::Leaks, "zone-by-host");
    // By way of another header, which virtual hosts set.
    let report = changed(|config| {
        let set =
            |key: &str, value: &str| json!({"append": {"header": {"key": key, "value": value}}});
        let filter = &mut filter(config, "envoy.filters.http.header_mutation")["typed_config"];
        filter["mutations"] =
            json!({"request_mutations": [set("x-warmpath-zone", "%REQ(x-warmpath-hash)%")]});
        for host in manager(config)["route_config"]["virtual_hosts"].as_array_mut().unwrap() {
            let zone = host["name"].clone();
            host["typed_per_filter_config"] = json!({});
            host["request_headers_to_add"] =
                json!([{"header": {"key": "x-warmpath-hash", "value": zone}}]);
        }
    });
    expect(&report, Verdict::Leaks, "zone-by-host");
    // One zone by host, another for the rest.
    let report = changed(|config| {
        at_host(config, 0, "envoy.filters.http.header_mutation", json!({}));
        policy(config, |policy| policy["zone_source"] = json!({"default": "eu"}));
    });
    assert!(
        report.findings.iter().any(|finding| finding.rule == "zone-by-host"),
        "{:?}",
        report.findings
    );
}

#[test]
fn a_zone_is_by_host_in_either_spelling() {
    let camel = quickstart()
        .replace("route_config:", "routeConfig:")
        .replace("virtual_hosts:", "virtualHosts:");
    expect(&bare(&[&camel]), Verdict::Leaks, "zone-by-host");
}

#[test]
fn whatever_writes_the_zones_header_is_looked_at() {
    let tagging = || {
        typed(
            "tags",
            "envoy.extensions.filters.http.ip_tagging.v3.IPTagging",
            json!({"request_type": "BOTH", "ip_tag_header": {"header": "X-Warmpath-Zone"},
                "ip_tags": [{"ip_tag_name": "global",
                    "cidr_list": [{"address_prefix": "10.0.0.0", "prefix_len": 8}]}]}),
        )
    };
    let report = changed(|config| {
        filter_first(config, tagging());
        manager(config)["use_remote_address"] = json!(false);
    });
    expect(&report, Verdict::Leaks, "zone-from-client");
    let report = changed(|config| {
        filter_first(config, tagging());
        manager(config)["use_remote_address"] = json!(true);
        manager(config)["xff_num_trusted_hops"] = json!(1);
    });
    expect(&report, Verdict::NotProved, "zone-source");
    let report = changed(|config| {
        filter_first(config, tagging());
        manager(config)["use_remote_address"] = json!(true);
    });
    assert_eq!(rules(&report), Vec::<&str>::new(), "{:?}", report.findings);
    let limit = json!({"stat_prefix": "x", "request_headers_to_add_when_not_enforced": [
        {"header": {"key": "x-warmpath-zone", "value": "global"}}]});
    let report = changed(|config| {
        let kind = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit";
        filter_first(config, typed("limit", kind, limit));
    });
    expect(&report, Verdict::NotProved, "zone-source");
    let jwt = |rules: Json| {
        changed(|config| {
            let claims = json!([{"header_name": "x-warmpath-zone", "claim_name": "zone"}]);
            filter_first(
                config,
                typed(
                    "jwt",
                    "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
                    json!({"providers": {"p": {"claim_to_headers": claims}}, "rules": rules}),
                ),
            );
        })
    };
    assert_eq!(rules(&jwt(json!([]))), Vec::<&str>::new());
    let unchecked = json!([{"requires": {"extract_only_without_validation": {}}}]);
    expect(&jwt(unchecked), Verdict::Leaks, "zone-from-client");
    // What Envoy can't take away.
    let report = changed(|config| {
        let early = &mut manager(config)["early_header_mutation_extensions"];
        let early = &mut early[0]["typed_config"]["mutations"];
        push(early, json!({"remove_on_match": {"key_matcher": {"exact": ":path"}}}));
        let set =
            json!({"append": {"header": {"key": "x-warmpath-zone", "value": "%REQ(:path)%"}}});
        filter(config, "envoy.filters.http.header_mutation")["typed_config"]["mutations"] =
            json!({ "request_mutations": [set] });
    });
    expect(&report, Verdict::Leaks, "zone-from-client");
}

#[test]
fn a_deny_list_that_names_nobody_is_no_proof() {
    for (wrong, what) in [
        (json!({"forbidden_operators": ["Acme"]}), "differ only in case or punctuation"),
        (json!({"forbidden_operators": ["bolt"]}), "is not defined under regions.*.operator"),
        (json!({"forbidden_operators": ["acme"]}), "the zone forbids its operator"),
    ] {
        let found = changed(|config| {
            policy(config, |policy| {
                let zone = policy["zones"]["eu"].as_object_mut().unwrap();
                zone.extend(wrong.as_object().unwrap().clone());
            });
        });
        assert!(rules(&found).contains(&"policy"), "{wrong}");
        assert_ne!(verdict(&found), Verdict::Proved);
        let told = found.findings.iter().any(|finding| finding.what.contains(what));
        assert!(told, "{wrong}: {:?}", found.findings);
    }
    // A region that names no operator is not admitted where a rule asks for one.
    let found = changed(|config| {
        policy(config, |policy| {
            policy["regions"]["eu-west"].as_object_mut().unwrap().remove("operator");
            policy["zones"]["eu"]["forbidden_operators"] = json!(["acme"]);
        });
    });
    let told = found.findings.iter().any(|finding| finding.what.contains("names none"));
    assert!(told && verdict(&found) != Verdict::Proved, "{:?}", found.findings);
}
