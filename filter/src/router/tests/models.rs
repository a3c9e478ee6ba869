//! The right model, whatever the relay has told and whatever the body is.

use warmpath_prompt::model_in_path;

use super::*;

/// Two models in the EU, of which the relay tells `demo` alone.
fn two_models() -> serde_json::Value {
    json!({
        "pools": {
            "demo-eu": {"region": "eu-west", "model": "demo"},
            "demo-us": {"region": "us-east", "model": "demo"},
            "beta-eu": {"region": "eu-west", "model": "beta"},
            "gamma-us": {"region": "us-east", "model": "gamma"}
        },
        "zones": {
            "eu": {"jurisdictions": ["EU"], "clusters": {
                "demo-eu": "eu.demo-eu", "beta-eu": "eu.beta-eu"
            }},
            "global": {"regions": ["*"], "clusters": {
                "demo-eu": "global.demo-eu", "demo-us": "global.demo-us",
                "beta-eu": "global.beta-eu", "gamma-us": "global.gamma-us"
            }}
        },
        "models": {"beta": {"served_names": ["beta", "beta-alias"], "adapters": ["beta-lora"]}}
    })
}

fn with(more: &serde_json::Value) -> serde_json::Value {
    let mut config = two_models();
    let serde_json::Value::Object(more) = more else { panic!() };
    config.as_object_mut().unwrap().extend(more.clone());
    config
}

impl Gateway {
    /// The cluster that a request goes to, or why it goes nowhere.
    fn goes(&mut self, zone: &str, path: &str, body: Body<'_>) -> String {
        match self.ask(Some(zone), path, body) {
            Decided::Route(mut told) => {
                self.router.landed(&mut told.ticket);
                told.cluster
            }
            Decided::Refuse(refusal) => format!("{} {}", refusal.status, refusal.code),
            Decided::Wait => panic!("nobody may wait"),
        }
    }

    fn named(&mut self, model: &str) -> String {
        let body = json!({"model": model, "messages": [{"role": "user", "content": "Hi"}]});
        self.goes("eu", CHAT, Body::Whole(body.to_string().as_bytes()))
    }
}

#[test]
fn a_request_goes_to_its_own_model_before_the_relay_is_heard_and_after() {
    let mut silent = Gateway::offline(two_models());
    let mut heard = Gateway::with(two_models());
    for (model, before, after) in [
        ("demo", "eu.demo-eu", "eu.demo-eu"),
        ("beta", "eu.beta-eu", "eu.beta-eu"),
        ("beta-alias", "eu.beta-eu", "eu.beta-eu"),
        ("beta-lora", "eu.beta-eu", "eu.beta-eu"),
        ("gamma", "403 model_not_in_zone", "403 model_not_in_zone"),
        // Only the relay knows these; "lora" is an adapter.
        ("alias", "503 model_unknown", "eu.demo-eu"),
        ("lora", "503 model_unknown", "eu.demo-eu"),
        ("gpt-9", "503 model_unknown", "404 model_not_found"),
        ("", "404 model_not_found", "404 model_not_found"),
    ] {
        assert_eq!(silent.named(model), before, "{model:?} before");
        assert_eq!(heard.named(model), after, "{model:?} after");
    }
    // What was told survives the relay's absence.
    heard.router.tick(NOW + 60_000);
    assert_eq!(heard.named("alias"), "eu.demo-eu");
}

#[test]
fn whatever_the_body_is_its_model_counts() {
    let mut gateway = Gateway::with(two_models());
    let form = b"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nx\r\n\
        --b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nbeta\r\n--b--\r\n";
    let kind = b"multipart/form-data; boundary=b";
    let asked = Asked {
        zone: Claim::Zone("eu"),
        api: None,
        body: Body::Whole(form),
        response: None,
        content_length: None,
        form: Some(kind),
        batch: false,
        may_wait: false,
    };
    let Decided::Route(told) = gateway.router.dispatch(&asked, NOW) else { panic!() };
    assert_eq!(told.cluster, "eu.beta-eu");

    let text = "x".repeat(100_000);
    let body = format!("{{\"messages\": [\"{text}\"], \"model\": \"beta\"}}");
    let mut large = Large::new(None);
    let part = |at: usize, most: usize| Ok::<_, ()>(body.as_bytes()[at..at + most].to_vec());
    assert!(large.feed(body.len(), true, part).unwrap());
    assert_eq!(gateway.goes("eu", CHAT, Body::TooLarge(&large, body.as_bytes())), "eu.beta-eu");

    for (path, body, goes) in [
        ("/v1/embeddings", &br#"{"input": "a", "model": "beta"}"#[..], "eu.beta-eu"),
        ("/v1/embeddings", br#"{"input": "a"}"#, "404 model_not_found"),
        (CHAT, br#"{"model": "beta", "messages": "wrong"}"#, "eu.beta-eu"),
        (CHAT, br#"{"model": "beta", "messages": ["#, "eu.beta-eu"),
        (CHAT, br#"{"model": "beta", "messages": [], "model": "demo"}"#, "eu.demo-eu"),
        (CHAT, br#"{"model": 7, "messages": []}"#, "404 model_not_found"),
        (CHAT, b"\x1f\x8b\x08", "404 model_not_found"),
    ] {
        assert_eq!(gateway.goes("eu", path, Body::Whole(body)), goes, "{}", body.escape_ascii());
    }
    let by_path = model_in_path("/v1/models/beta");
    assert_eq!(gateway.goes("eu", "/v1/models/beta", Body::None(&by_path)), "eu.beta-eu");
    assert_eq!(gateway.goes("eu", "/v1/responses/r", NO_BODY), "404 model_not_found");
}

#[test]
fn a_request_without_a_model_is_the_default_s() {
    let mut gateway = Gateway::with(with(&json!({"default_model": "beta-alias"})));
    let none = br#"{"messages": [{"role": "user", "content": "Hi"}]}"#;
    assert_eq!(gateway.goes("eu", CHAT, Body::Whole(none)), "eu.beta-eu");
    assert_eq!(gateway.goes("eu", "/v1/responses/r", NO_BODY), "eu.beta-eu");
    // What can't be read may name another one.
    assert_eq!(gateway.goes("eu", CHAT, Body::Whole(b"{{{")), "404 model_not_found");

    // With one model there is no other. And its prompt is read.
    let mut one = Gateway::new();
    let Decided::Route(told) = one.ask(Some("eu"), CHAT, Body::Whole(none)) else { panic!() };
    assert!(told.ticket.expected.is_some() || told.explain.contains("prompt="), "{told:?}");
    assert!(!told.explain.contains("degrade"), "{}", told.explain);
    assert_eq!(one.goes("eu", CHAT, Body::Whole(b"{{{")), "eu.demo-eu");
}

#[test]
fn the_gateway_lists_the_zone_s_models() {
    let gateway = Gateway::with(two_models());
    let models = |zone, name| gateway.router.models(zone, name, 17_999);
    let listed: serde_json::Value =
        serde_json::from_str(&models(Claim::Zone("eu"), None).unwrap()).unwrap();
    let ids: Vec<&str> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| card["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["beta", "beta-alias", "beta-lora", "demo", "alias", "lora"]);
    assert_eq!(listed["data"][0]["created"], 17);
    let one = models(Claim::Zone("eu"), Some("lora")).unwrap();
    assert!(one.contains("\"parent\":\"demo\""), "{one}");
    for (zone, name, code) in [
        (Claim::Zone("eu"), Some("gamma"), "model_not_in_zone"),
        (Claim::Zone("eu"), Some("nope"), "model_not_found"),
        (Claim::Zone("mars"), None, "zone_unknown"),
        (Claim::Silent, None, "zone_missing"),
        (Claim::Unmapped, None, "zone_unknown"),
    ] {
        assert_eq!(models(zone, name).unwrap_err().code, code);
    }
}

#[test]
fn a_replica_that_is_filed_wrongly_is_never_used() {
    let mut gateway = Gateway::with(two_models());
    let wrong = |slot| Replica { pool: "beta-eu".into(), ..replica(slot) };
    gateway.say(Said::Replicas(Replicas { replicas: vec![replica(1), wrong(2)] }));
    gateway.tick();
    assert_eq!(gateway.named("beta"), "503 no_replica");
    assert_eq!(gateway.named("demo"), "eu.demo-eu");
}

#[test]
fn a_large_body_is_held_back_only_where_its_model_matters() {
    assert!(Gateway::offline(two_models()).router.parts_models());
    assert!(!Gateway::offline(json!({})).router.parts_models());
    assert!(Gateway::new().router.parts_models(), "the relay told of an adapter");
}

#[test]
fn an_adapter_goes_to_the_replica_that_has_it() {
    let mut gateway = Gateway::with(two_models());
    let knows = |slot, adapters: &[&str]| Replica {
        adapters: adapters.iter().map(|name| (*name).to_owned()).collect(),
        adapters_known: true,
        ..replica(slot)
    };
    for (one, other, endpoints) in [
        (replica(1), knows(2, &[]), "10.0.0.1:8000"),
        (knows(1, &["other"]), knows(2, &["lora"]), "10.0.0.2:8000"),
    ] {
        gateway.say(Said::Replicas(Replicas { replicas: vec![one, other] }));
        gateway.tick();
        let body = br#"{"model": "lora", "messages": [{"role": "user", "content": "Hi"}]}"#;
        let Decided::Route(told) = gateway.ask(Some("eu"), CHAT, Body::Whole(body)) else {
            panic!()
        };
        assert_eq!(told.ticket.named.endpoints(), endpoints);
        // Where it is not known who has it any of them may.
        assert!(told.only_named);
    }
    let listed = |gateway: &Gateway| gateway.router.models(Claim::Zone("eu"), Some("lora"), 0);
    assert!(listed(&gateway).is_ok());
    gateway.say(Said::Replicas(Replicas { replicas: vec![knows(1, &[]), knows(2, &[])] }));
    gateway.tick();
    assert_eq!(listed(&gateway).unwrap_err().code, "model_not_found");
    assert_eq!(gateway.named("lora"), "404 model_not_found");
    assert_eq!(gateway.named("demo"), "eu.demo-eu");
}

#[test]
fn the_policy_s_pools_are_there_for_the_relay_to_hear_of() {
    let gateway = Gateway::with(two_models());
    let value = gateway.router.map.0.0.get(shared::POOLS).cloned().unwrap();
    let pools = v1::Pools::decode(value.as_slice()).unwrap().pools;
    let pools: Vec<(&str, &str)> =
        pools.iter().map(|pool| (pool.name.as_str(), pool.model.as_str())).collect();
    let all =
        [("beta-eu", "beta"), ("demo-eu", "demo"), ("demo-us", "demo"), ("gamma-us", "gamma")];
    assert_eq!(pools, all);
}
