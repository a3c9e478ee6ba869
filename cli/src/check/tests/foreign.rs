//! A host that doesn't belong there is found wherever a request could reach it.

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::super::finding::Severity;
use super::super::node::{Node, Place, read};
use super::*;

/// Where the foreign host is put.
#[derive(Clone, Copy, Debug)]
enum Hole {
    /// Among the hosts of a zone's cluster.
    Endpoint,
    /// In a group of its own, of a later priority.
    Priority,
    AdditionalAddress,
    NamedEndpoint,
    /// The zone's cluster becomes an aggregate, this deep, whose last member is the foreigner's.
    Aggregate,
    Eds,
    Route,
    WeightedRoute,
    RouteMirror,
    HostMirror,
    TableMirror,
    OtherListener,
    TcpProxy,
    ExtProc,
    AccessLog,
}

/// What is known of it.
#[derive(Clone, Copy, Debug)]
enum Stranger {
    /// The other region's own replica, with the label of this one.
    Disguised,
    /// The other region's own replica, without a label.
    Bare,
    /// A new host, labelled with the other region.
    Labelled,
    /// Of a region that the policy doesn't know.
    Undefined,
    /// Nothing says where it stands.
    Unknown,
}

fn group(stranger: Stranger, priority: u64) -> Json {
    let (port, region) = match stranger {
        Stranger::Disguised => (18003, json!("eu-west")),
        Stranger::Bare => (18003, json!("")),
        Stranger::Labelled => (19000, json!("us-east")),
        Stranger::Undefined => (19000, json!("moon")),
        Stranger::Unknown => (19000, json!("")),
    };
    json!({"priority": priority, "locality": {"region": region}, "lb_endpoints": [endpoint(port)]})
}

fn endpoint(port: u16) -> Json {
    json!({"endpoint": {"address": address(port)}})
}

fn address(port: u16) -> Json {
    json!({"socket_address": {"address": "127.0.0.1", "port_value": port}})
}

fn put(config: &mut Json, hole: Hole, stranger: Stranger, depth: usize, at: usize) -> Vec<Json> {
    let group = group(stranger, 0);
    let port = group["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]["port_value"]
        .as_u64()
        .unwrap() as u16;
    let assigned = json!({"cluster_name": "foreign", "endpoints": [group]});
    let foreign = json!({"name": "foreign", "type": "STATIC", "load_assignment": assigned});
    let resources = &mut config["static_resources"];
    let eu = &mut resources["clusters"][0];
    let endpoints = eu["load_assignment"]["endpoints"].as_array_mut().unwrap();
    match hole {
        Hole::Endpoint => endpoints[0]["lb_endpoints"].as_array_mut().unwrap().push(endpoint(port)),
        Hole::Priority => {
            let mut group = group;
            group["priority"] = json!(depth + 1);
            endpoints.push(group);
        }
        Hole::AdditionalAddress => {
            let host = &mut endpoints[0]["lb_endpoints"][at % 2]["endpoint"];
            host["additional_addresses"] = json!([{ "address": address(port) }]);
        }
        Hole::NamedEndpoint => {
            let hosts = endpoints[0]["lb_endpoints"].as_array_mut().unwrap();
            hosts.push(json!({"endpoint_name": "x.y"}));
            eu["load_assignment"]["named_endpoints"] = json!({"x.y": {"address": address(port)}});
        }
        Hole::Aggregate => {
            let mut inner = eu.clone();
            inner["name"] = json!("inner");
            *eu = aggregate("eu.demo-eu-west", &["inner", "step0"]);
            let clusters = resources["clusters"].as_array_mut().unwrap();
            clusters.push(inner);
            for step in 0..depth {
                // Circles end.
                let members = ["step0", "inner", &format!("step{}", step + 1)];
                clusters.push(aggregate(&format!("step{step}"), &members));
            }
            clusters.push(aggregate(&format!("step{depth}"), &["foreign"]));
        }
        Hole::Eds => {
            eu["type"] = json!("EDS");
            eu["eds_cluster_config"] = json!({"service_name": "foreign"});
            return vec![assigned];
        }
        Hole::Route => route(resources, at, &json!({"cluster": "foreign"})),
        Hole::WeightedRoute => route(
            resources,
            at,
            &json!({"weighted_clusters": {"clusters": [
                {"name": "warmpath-relay", "weight": 99}, {"name": "foreign", "weight": 1}]}}),
        ),
        Hole::RouteMirror => {
            let hosts = table(resources)["virtual_hosts"].as_array_mut().unwrap();
            hosts[at % 3]["routes"][0]["route"]["request_mirror_policies"] = mirror();
        }
        Hole::HostMirror => {
            let hosts = table(resources)["virtual_hosts"].as_array_mut().unwrap();
            hosts[at % 3]["requestMirrorPolicies"] = mirror();
        }
        Hole::TableMirror => table(resources)["request_mirror_policies"] = mirror(),
        Hole::OtherListener => {
            let mut other = resources["listeners"][0].clone();
            let manager = &mut other["filter_chains"][0]["filters"][0]["typed_config"];
            let filters = manager["http_filters"].as_array_mut().unwrap();
            filters.retain(|filter| filter["name"] != "warmpath");
            manager["route_config"]["virtual_hosts"] = json!([{"name": "x", "domains": ["*"],
                "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "global.demo-us-east"}}]}]);
            resources["listeners"].as_array_mut().unwrap().push(other);
        }
        Hole::TcpProxy => {
            let filter = json!({"name": "tcp", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                "cluster": "eu.demo-eu-west"}});
            resources["listeners"][0]["default_filter_chain"] = json!({"filters": [filter]});
        }
        Hole::ExtProc => {
            let filters = manager(resources)["http_filters"].as_array_mut().unwrap();
            filters.insert(
                0,
                json!({"name": "envoy.filters.http.ext_proc",
                "typed_config": {"grpc_service": {"envoy_grpc": {"cluster_name": "foreign"}}}}),
            );
        }
        Hole::AccessLog => {
            manager(resources)["access_log"] = json!([{"name": "x", "typed_config": {
                "common_config": {"grpc_service": {"envoy_grpc": {"cluster_name": "foreign"}}}}}]);
        }
    }
    resources["clusters"].as_array_mut().unwrap().push(foreign);
    Vec::new()
}

fn aggregate(name: &str, members: &[&str]) -> Json {
    json!({"name": name, "lb_policy": "CLUSTER_PROVIDED", "cluster_type": {
        "name": "envoy.clusters.aggregate", "typed_config": {"clusters": members}}})
}

fn manager(resources: &mut Json) -> &mut Json {
    &mut resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
}

fn table(resources: &mut Json) -> &mut Json {
    &mut manager(resources)["route_config"]
}

fn route(resources: &mut Json, at: usize, action: &Json) {
    let hosts = table(resources)["virtual_hosts"].as_array_mut().unwrap();
    let routes = hosts[at % 3]["routes"].as_array_mut().unwrap();
    let at = at % (routes.len() + 1);
    routes.insert(at, json!({"match": {"prefix": "/v1"}, "route": action}));
}

fn mirror() -> Json {
    json!([{"cluster": "foreign"}])
}

proptest! {
    #[test]
    fn a_foreign_host_is_found_wherever_it_is_put(
        hole in prop::sample::select(vec![
            Hole::Endpoint, Hole::Priority, Hole::AdditionalAddress, Hole::NamedEndpoint,
            Hole::Aggregate, Hole::Eds, Hole::Route, Hole::WeightedRoute, Hole::RouteMirror,
            Hole::HostMirror, Hole::TableMirror, Hole::OtherListener, Hole::TcpProxy,
            Hole::ExtProc, Hole::AccessLog,
        ]),
        stranger in prop::sample::select(vec![
            Stranger::Disguised, Stranger::Bare, Stranger::Labelled, Stranger::Undefined,
            Stranger::Unknown,
        ]),
        depth in 0usize..4,
        at in 0usize..12,
    ) {
        let mut config = read(&quickstart(), 0).unwrap().remove(0).to_json();
        let assignments = put(&mut config, hole, stranger, depth, at);
        let mut input = Input::default();
        for document in std::iter::once(&config).chain(&assignments) {
            input.add(Node::from_json(Place::default(), document)).unwrap();
        }
        let report = check(&input, exceptions("quickstart.check.yaml"), &|_| true);
        // A host of which nothing else is known is where its group's label says.
        let labelled = matches!(hole, Hole::Endpoint | Hole::AdditionalAddress | Hole::NamedEndpoint)
            && matches!(stranger, Stranger::Unknown);
        let watched = matches!(hole, Hole::ExtProc | Hole::AccessLog);
        let open = report.findings.iter().filter(|f| f.acknowledged.is_none());
        let worst = open.map(|finding| finding.severity).min();
        if labelled {
            prop_assert_eq!(worst, None, "{:?}", report.findings);
        } else if watched && matches!(stranger, Stranger::Undefined | Stranger::Unknown) {
            prop_assert_eq!(worst, Some(Severity::Unproved), "{:?}", report.findings);
        } else {
            prop_assert_eq!(worst, Some(Severity::Leak), "{:?}", report.findings);
        }
    }
}

#[test]
fn the_relays_own_list_tells_what_a_label_hides() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy/quickstart.relay.yaml");
    let relay = std::fs::read_to_string(path).unwrap();
    assert_eq!(rules(&report(&[&quickstart(), &relay])), Vec::<&str>::new());
    let moved = relay.replacen("pool: demo-eu-west", "pool: demo-us-east", 1);
    let found = rules(&report(&[&quickstart(), &moved]));
    assert!(found.contains(&"outside") && found.contains(&"region-conflict"), "{found:?}");
    let more = relay.replacen("127.0.0.1:18001", "127.0.0.1:18009", 1);
    let found = rules(&report(&[&quickstart(), &more]));
    assert_eq!(found, ["stranger"]);
    let (start, rest) = relay.split_once("  - endpoint: 127.0.0.1:18002").unwrap();
    let rest = rest.split_once("  - endpoint").unwrap().1;
    let more =
        format!("{relay}  - endpoint: 127.0.0.1:18009\n    pool: demo-us-east\n    model: demo\n");
    assert_eq!(rules(&report(&[&quickstart(), &more])), ["replica-missing"]);
    let fewer = format!("{start}  - endpoint{rest}");
    assert_eq!(rules(&report(&[&quickstart(), &fewer])), ["stranger"]);
}

#[test]
fn what_is_no_configuration_is_refused() {
    let mut input = Input::default();
    for text in ["a: 1", "[1]", "text", "a: [", "resources: [{name: x}]"] {
        assert!(take(&mut input, text, 0).is_err(), "{text}");
    }
    assert!(take(&mut input, "---\n---\n", 0).is_ok());
    assert_eq!(rules(&check(&input, Acknowledged::default(), &|_| true)), ["no-router"]);
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "(?s).{0,200}") {
        let mut input = Input::default();
        if take(&mut input, &text, 0).is_ok() {
            let _ = check(&input, Acknowledged::default(), &|_| true);
        }
    }
}
