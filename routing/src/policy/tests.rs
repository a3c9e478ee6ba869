//! What a policy is refused for.

use serde_json::json;

use super::*;

pub(crate) fn two_regions() -> serde_json::Value {
    json!({
        "region": "eu-west",
        "regions": {
            "eu-west": {"jurisdiction": "EU", "operator": "acme", "rtt_ms": 1},
            "us-east": {"jurisdiction": "US", "operator": "acme", "rtt_ms": 80}
        },
        "pools": {
            "demo-eu-west": {"region": "eu-west", "model": "demo"},
            "demo-us-east": {"region": "us-east", "model": "demo"}
        },
        "zones": {
            "eu": {
                "jurisdictions": ["EU"],
                "clusters": {"demo-eu-west": "eu.demo-eu-west"}
            },
            "global": {
                "regions": ["*"],
                "clusters": {
                    "demo-eu-west": "global.demo-eu-west",
                    "demo-us-east": "global.demo-us-east"
                }
            }
        }
    })
}

fn refused(pointer: &str, value: serde_json::Value) -> String {
    let mut json = two_regions();
    if pointer == "/models" || pointer.ends_with("/other") {
        json["pools"]["other"] = json!({"region": "us-east", "model": "other"});
        json["zones"]["global"]["clusters"]["other"] = json!("global.other");
    }
    if pointer == "/regions/eu-west" {
        json["zones"]["strict"] = json!({
            "jurisdictions": ["EU"],
            "forbidden_operators": ["acme"],
            "clusters": {"demo-eu-west": "strict.demo-eu-west"}
        });
    }
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    json.pointer_mut(parent).unwrap()[name] = value;
    match serde_json::from_value::<Policy>(json) {
        Ok(policy) => policy.check().unwrap_err().to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_wrong_is_named() {
    let policy: Policy = serde_json::from_value(two_regions()).unwrap();
    assert_eq!(policy.check(), Ok(()));
    for (pointer, value, message) in [
        ("/region", json!("mars"), "region: \"mars\" is not defined under regions"),
        ("/colour", json!(1), "unknown field `colour`"),
        ("/pools/demo-eu-west/region", json!("x"), "pools.demo-eu-west.region: \"x\""),
        ("/zones/eu/jurisdictions", json!([]), "zones.eu: names neither"),
        ("/zones/eu/jurisdictions", json!(["US"]), "zones.eu.clusters.demo-eu-west: region"),
        ("/zones/eu/jurisdictions", json!(["US"]), "lies outside the zone: the zone's jur"),
        ("/zones/eu/jurisdictions", json!(["CH"]), "zones.eu.jurisdictions: \"CH\" is not"),
        ("/zones/eu/clusters", json!({}), "\"demo-eu-west\" lies in the zone and has no"),
        ("/zones/eu/clusters/nope", json!("c"), "\"nope\" is not defined under pools"),
        (
            "/zones/eu/clusters/demo-us-east",
            json!("c"),
            "zones.eu.clusters.demo-us-east: region \"us-east\" lies outside the zone",
        ),
        ("/zone_source", json!({"default": "x"}), "zone_source.default: \"x\""),
        ("/zone_source", json!({"from": [{"header": ""}]}), "zone_source.from[0]: can never say"),
        (
            "/zones/global/regions",
            json!(["*", "eu-west"]),
            "zones.global.regions: has \"*\" beside",
        ),
        (
            "/zones/global/clusters/other",
            json!("global.demo-eu-west"),
            "cluster \"global.demo-eu-west\" is also that of a pool of demo",
        ),
        (
            "/zone_source",
            json!({"from": [{"header": "x"}, {"host": {"a.example": "mars"}}]}),
            "zone_source.from[1]: \"mars\" is not defined under zones",
        ),
        ("/poison", json!({"engines": 5}), "poison.engines: 5 is out of range, expected 0 to 4"),
        ("/poison", json!({"refuse_ms": 999}), "poison.refuse_ms: 999 is out of range"),
        ("/poison", json!({"seconds": 1}), "unknown field `seconds`"),
        ("/admission", json!({"batch_share": 2}), "admission.batch_share: 2 is out of range"),
        ("/admission", json!({"wait_ms": 70_000}), "admission.wait_ms: 70000 is out of range"),
        ("/cost", json!({"abroad_ms_per_mb": -1}), "cost.abroad_ms_per_mb: -1 is out of"),
        ("/cost", json!({"disk_ms_per_1k_tokens": -1}), "cost.disk_ms_per_1k_tokens: -1 is"),
        ("/regions/us-east", json!({"jurisdiction": "US", "weight": -1}), "regions.*.weight"),
        ("/ring", json!({"load_factor": 0.5}), "ring.load_factor: 0.5 is out of range"),
        ("/prefix_tokens", json!(0), "prefix_tokens: 0 is out of range"),
        ("/zones", json!({}), "zones: must not be empty"),
        ("/zones/eu/forbidden_operators", json!(["Acme"]), "\"Acme\" and \"acme\" differ only"),
        ("/zones/eu/forbidden_operators", json!(["a-cme"]), "\"a-cme\" and \"acme\" differ"),
        (
            "/zones/eu/forbidden_operators",
            json!(["bolt"]),
            "zones.eu.forbidden_operators: \"bolt\" is",
        ),
        ("/zones/eu/operators", json!(["*"]), "zones.eu.operators: \"*\" is not defined under"),
        ("/zones/eu/operators", json!([""]), "zones.eu.operators: \"\" is not defined under"),
        ("/zones/eu/regions", json!(["EU-west"]), "zones.eu.regions: \"EU-west\" is not defined"),
        ("/zones/EU", json!({"regions": ["*"], "clusters": {}}), "zones: \"eu\" and \"EU\" differ"),
        ("/zones/", json!({"regions": ["*"], "clusters": {}}), "zones: \"\" is no name"),
        ("/zones/e u", json!({"regions": ["*"], "clusters": {}}), "zones: \"e u\" is no name"),
        ("/zones/a,b", json!({"regions": ["*"], "clusters": {}}), "zones: \"a,b\" is no name"),
        ("/zones/a\n", json!({"regions": ["*"], "clusters": {}}), "zones: \"a\\n\" is no name"),
        ("/zones/--", json!({"regions": ["*"], "clusters": {}}), "zones: \"--\" is no name"),
        ("/zones/\u{fc}", json!({"regions": ["*"], "clusters": {}}), "is no name; use ASCII"),
        ("/regions/us\"east", json!({"jurisdiction": "US"}), "regions: \"us\\\"east\" is no name"),
        ("/regions/US-east", json!({"jurisdiction": "US"}), "regions: \"us-east\" and \"US-east\""),
        (
            "/regions/mars",
            json!({"jurisdiction": "eu"}),
            "regions.*.jurisdiction: \"eu\" and \"EU\"",
        ),
        ("/regions/mars", json!({"jurisdiction": " "}), "regions.mars.jurisdiction: \" \" is no"),
        ("/regions/mars", json!({"jurisdiction": "M", "operator": "x "}), "regions.mars.operator"),
        ("/regions/mars", json!({"jurisdiction": "M", "operator": "ACME"}), "regions.*.operator"),
        ("/pools/a b", json!({"region": "us-east", "model": "demo"}), "pools: \"a b\" is no name"),
        ("/pools/p", json!({"region": "us-east", "model": ""}), "pools.p.model: must not be"),
        (
            "/regions/eu-west",
            json!({"jurisdiction": "EU"}),
            "zones.strict.clusters.demo-eu-west: region \"eu-west\" lies outside the zone: the \
             zone's rule asks for an operator and the region names none",
        ),
        ("/models", json!({"gpt": {}}), "models: \"gpt\" is not defined under pools.*.model"),
        (
            "/models",
            json!({"demo": {"adapters": ["other"]}}),
            "models.demo: the name \"other\" already means the model \"other\"",
        ),
        ("/models", json!({"demo": {"served_names": []}}), "models.demo.served_names: must not"),
        ("/models", json!({"demo": {"served_names": [" a"]}}), "models.demo: \" a\" is no name"),
        ("/models", json!({"demo": {"adapters": ["demo"]}}), "already means the model \"demo\""),
        ("/models", json!({"demo": {"adapters": ["a", "a"]}}), "means an adapter of \"demo\""),
        ("/default_model", json!("gpt"), "default_model: \"gpt\" is not defined under models or"),
    ] {
        let got = refused(pointer, value);
        assert!(got.contains(message), "{pointer}: {got}");
    }
}
