//! Changes of the quick start, as JSON.

use std::borrow::Borrow;

use serde_json::{Value as Json, json};

use super::super::node::{Node, Place, read};
use super::*;

/// The quick start as JSON, changed, with its exceptions acknowledged.
pub(super) fn changed(change: impl FnOnce(&mut Json)) -> Report {
    let mut config = read(&quickstart(), 0).unwrap().remove(0).to_json();
    change(&mut config);
    let mut input = Input::default();
    input.add(Node::from_json(Place::default(), &config)).unwrap();
    check(&input, exceptions("quickstart.check.yaml"), &|_| true)
}

pub(super) fn listener(config: &mut Json) -> &mut Json {
    &mut config["static_resources"]["listeners"][0]
}

pub(super) fn manager(config: &mut Json) -> &mut Json {
    &mut listener(config)["filter_chains"][0]["filters"][0]["typed_config"]
}

pub(super) fn push(list: &mut Json, item: Json) {
    if list.is_null() {
        *list = json!([]);
    }
    list.as_array_mut().unwrap().push(item);
}

pub(super) fn filter_first(config: &mut Json, filter: Json) {
    manager(config)["http_filters"].as_array_mut().unwrap().insert(0, filter);
}

/// A filter by its name.
pub(super) fn filter<'c>(config: &'c mut Json, name: &str) -> &'c mut Json {
    let filters = manager(config)["http_filters"].as_array_mut().unwrap();
    filters.iter_mut().find(|filter| filter["name"] == name).unwrap()
}

/// The router's own configuration, changed.
pub(super) fn policy(config: &mut Json, change: impl FnOnce(&mut Json)) {
    let plugin = &mut filter(config, "warmpath")["typed_config"]["config"]["configuration"];
    let mut json: Json = serde_json::from_str(plugin["value"].as_str().unwrap()).unwrap();
    change(&mut json);
    plugin["value"] = json!(json.to_string());
}

pub(super) fn zone_from(config: &mut Json, source: &Json) {
    policy(config, |policy| policy["zone_source"] = json!({ "from": [source] }));
}

pub(super) fn typed(name: &str, kind: &str, fields: impl Borrow<Json>) -> Json {
    let mut config = json!({ "@type": format!("type.googleapis.com/{kind}") });
    config.as_object_mut().unwrap().extend(fields.borrow().as_object().unwrap().clone());
    json!({ "name": name, "typed_config": config })
}

/// A cluster whose host stands in the United States.
pub(super) fn abroad(config: &mut Json) {
    let cluster = json!({"name": "abroad", "type": "STATIC", "load_assignment": {
        "cluster_name": "abroad", "endpoints": [{"locality": {"region": "us-east"}, "lb_endpoints": [
            {"endpoint": {"address": {"socket_address": {"address": "10.9.9.9", "port_value": 1}}}}]}]}});
    push(&mut config["static_resources"]["clusters"], cluster);
}

pub(super) fn other_listener(config: &mut Json, cluster: Json) {
    let mut other = listener(config).clone();
    other["name"] = json!("other");
    let manager = &mut other["filter_chains"][0]["filters"][0]["typed_config"];
    manager["http_filters"].as_array_mut().unwrap().retain(|filter| filter["name"] != "warmpath");
    manager["route_config"]["virtual_hosts"] = json!([{"name": "x", "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "route": {"cluster": cluster["name"]}}]}]);
    push(&mut config["static_resources"]["listeners"], other);
    push(&mut config["static_resources"]["clusters"], cluster);
}

#[track_caller]
pub(super) fn expect(report: &Report, expected: Verdict, rule: &str) {
    assert!(rules(report).contains(&rule), "{rule} is not in {:?}", report.findings);
    assert_eq!(verdict(report), expected, "{:?}", report.findings);
}
