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
    let chains = |by: &str| {
        changed(|config| {
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
    expect(&chains("server_names"), Verdict::Leaks, "zone-by-host");
    assert_eq!(rules(&chains("source_prefix_ranges")), Vec::<&str>::new());
    // One zone for all is nobody's choice.
    let one = quickstart().replace("value: global }", "value: eu }");
    assert_eq!(rules(&bare(&[&one])), Vec::<&str>::new());
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
