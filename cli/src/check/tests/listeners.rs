//! Hosts that are listeners of the same Envoy, and addresses that are no host's.

use serde_json::{Value as Json, json};

use super::change::*;
use super::*;

/// A listener that passes on what comes to it.
fn passes_on(config: &mut Json, address: &str, port: u16, cluster: &str) {
    let kind = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";
    let filter = typed("tcp", kind, json!({"stat_prefix": "x", "cluster": cluster}));
    push(
        &mut config["static_resources"]["listeners"],
        json!({"name": "passes",
            "address": {"socket_address": {"address": address, "port_value": port}},
            "filter_chains": [{"filters": [filter]}]}),
    );
}

fn at(config: &mut Json, name: &str, address: &str, port: u16) {
    push(
        &mut config["static_resources"]["clusters"],
        json!({"name": name, "type": "STATIC", "load_assignment": {"endpoints": [{"lb_endpoints": [
            {"endpoint": {"address": {"socket_address":
                {"address": address, "port_value": port}}}}]}]}}),
    );
}

#[test]
fn a_host_that_is_a_listener_of_this_envoy_is_not_the_end() {
    for address in ["127.0.0.1", "0.0.0.0", "::"] {
        let report = changed(|config| {
            at(config, "elsewhere", "10.9.9.9", 1);
            passes_on(config, address, 18001, "elsewhere");
        });
        expect(&report, Verdict::NotProved, "unproven");
    }
    let report = changed(|config| {
        at(config, "elsewhere", "10.9.9.9", 1);
        passes_on(config, "127.0.0.1", 18009, "elsewhere");
    });
    assert_eq!(rules(&report), Vec::<&str>::new(), "{:?}", report.findings);
    // A listener before the one with the filter passes nobody by.
    let report = changed(|config| {
        at(config, "filtered", "127.0.0.1", 10_000);
        passes_on(config, "127.0.0.1", 18009, "filtered");
    });
    assert_eq!(rules(&report), Vec::<&str>::new(), "{:?}", report.findings);
}

#[test]
fn nobody_from_elsewhere_is_led_to_the_admin_page() {
    for page in ["127.0.0.1", "0.0.0.0"] {
        let led = |address: &str| {
            changed(|config| {
                at(config, "page", page, 9901);
                passes_on(config, address, 18009, "page");
            })
        };
        expect(
            &led("0.0.0.0"),
            if page == "0.0.0.0" { Verdict::Leaks } else { Verdict::NotProved },
            if page == "0.0.0.0" { "bypass" } else { "admin-open" },
        );
    }
    let report = changed(|config| {
        at(config, "page", "127.0.0.1", 9901);
        passes_on(config, "127.0.0.1", 18009, "page");
    });
    assert_eq!(rules(&report), Vec::<&str>::new(), "{:?}", report.findings);
}

#[test]
fn an_address_of_no_host_is_no_place() {
    let any = quickstart().replacen(
        "address: 127.0.0.1, port_value: 18001",
        "address: 0.0.0.0, port_value: 18003",
        1,
    );
    expect(&report(&[&any]), Verdict::NotProved, "unproven");
}

#[test]
fn a_redirect_that_takes_the_body_along_is_told() {
    let redirected = |redirect: Json| {
        changed(|config| {
            let host = &mut manager(config)["route_config"]["virtual_hosts"][0];
            let routes = host["routes"].as_array_mut().unwrap();
            routes.insert(1, json!({"match": {"path": "/v1/x"}, "redirect": redirect}));
        })
    };
    for code in [json!("TEMPORARY_REDIRECT"), json!("PERMANENT_REDIRECT"), json!(3)] {
        let report = redirected(json!({"host_redirect": "us.example.com", "response_code": code}));
        expect(&report, Verdict::NotProved, "redirect-elsewhere");
    }
    for redirect in [
        json!({"host_redirect": "us.example.com", "response_code": "SEE_OTHER"}),
        json!({"https_redirect": true, "response_code": "PERMANENT_REDIRECT"}),
    ] {
        let report = redirected(redirect);
        assert_eq!(rules(&report), Vec::<&str>::new(), "{:?}", report.findings);
    }
}
