//! What clusters send on.

use serde_json::{Value as Json, json};

use super::change::*;
use super::*;

/// A cluster at this machine, with what it sends on.
fn side(config: &mut Json, name: &str, mirror: &str) {
    push(
        &mut config["static_resources"]["clusters"],
        json!({"name": name, "type": "STATIC",
            "load_assignment": {"endpoints": [{"locality": {"region": "eu-west"}, "lb_endpoints": [
                {"endpoint": {"address": {"socket_address": {"address": "10.0.0.9", "port_value": 1}}}}]}]},
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                    "explicit_http_config": {"http2_protocol_options": {}},
                    "request_mirror_policies": [{"cluster": mirror}]}}}),
    );
}

fn asks(name: &str) -> Json {
    let service = json!({"grpc_service": {"envoy_grpc": {"cluster_name": name}},
        "with_request_body": {"max_request_bytes": 8192}});
    typed("authz", "envoy.extensions.filters.http.ext_authz.v3.ExtAuthz", service)
}

#[test]
fn what_a_side_services_cluster_copies_stays_inside() {
    let report = changed(|config| {
        abroad(config);
        side(config, "authz", "abroad");
        filter_first(config, asks("authz"));
    });
    expect(&report, Verdict::Leaks, "mirror-outside");
    // By way of a mirror that stays.
    let report = changed(|config| {
        abroad(config);
        side(config, "authz", "near");
        side(config, "near", "abroad");
        filter_first(config, asks("authz"));
    });
    expect(&report, Verdict::Leaks, "mirror-outside");
    // The program's own calls are copied too.
    let report = changed(|config| {
        abroad(config);
        side(config, "copied", "abroad");
        let mut relay = config["static_resources"]["clusters"].as_array().unwrap().clone();
        let options = relay.pop().unwrap()["typed_extension_protocol_options"].clone();
        let relay = config["static_resources"]["clusters"].as_array_mut().unwrap();
        let relay = relay.iter_mut().find(|cluster| cluster["name"] == "warmpath-relay").unwrap();
        relay["typed_extension_protocol_options"] = options;
    });
    expect(&report, Verdict::Leaks, "mirror-outside");
    // Inside every zone it may be copied, and what nothing of ours names may do as it likes.
    let report = changed(|config| {
        abroad(config);
        side(config, "authz", "near");
        side(config, "near", "authz");
        side(config, "other", "abroad");
        filter_first(config, asks("authz"));
    });
    assert_eq!(rules(&report), Vec::<&str>::new(), "{:?}", report.findings);
}
