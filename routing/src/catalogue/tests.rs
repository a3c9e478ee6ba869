//! Which model a name means, and what a zone lists.

use serde_json::json;

use super::*;

/// Two models in two regions; `beta` in one of them.
fn policy(more: Value) -> Policy {
    let mut policy = json!({
        "region": "eu-west",
        "regions": {"eu-west": {"jurisdiction": "EU"}, "us-east": {"jurisdiction": "US"}},
        "pools": {
            "demo-eu": {"region": "eu-west", "model": "demo"},
            "demo-us": {"region": "us-east", "model": "demo"},
            "beta-us": {"region": "us-east", "model": "beta"}
        },
        "zones": {
            "eu": {"jurisdictions": ["EU"], "clusters": {"demo-eu": "eu.demo"}},
            "global": {"regions": ["*"], "clusters": {
                "demo-eu": "g.demo-eu", "demo-us": "g.demo-us", "beta-us": "g.beta-us"
            }}
        }
    });
    let Value::Object(more) = more else { panic!() };
    policy.as_object_mut().unwrap().extend(more);
    let policy: Policy = serde_json::from_value(policy).unwrap();
    policy.check().unwrap();
    policy
}

fn told(name: &str, served: &[&str], adapters: &[&str]) -> Model {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Model {
        name: name.into(),
        served_names: names(served),
        adapters: names(adapters),
        version: "1".into(),
        tokenizer_hash: [0; 32],
    }
}

fn one_model() -> Policy {
    let mut policy = policy(json!({}));
    policy.pools.get_mut("beta-us").unwrap().model = "demo".into();
    policy
}

/// As `model+adapter@place`, or what is wrong.
fn of(policy: &Policy, models: &[Model], requested: &Requested<'_>) -> String {
    let Resolved { wants, told } = resolve(policy, models.iter(), requested);
    let at = told.map_or(String::new(), |place| format!("@{place}"));
    match wants {
        Wants::Model { name, adapter: "" } => format!("{name}{at}"),
        Wants::Model { name, adapter } => format!("{name}+{adapter}{at}"),
        Wants::Unknown { certain, .. } => if certain { "wrong" } else { "unknown" }.into(),
        Wants::Unnamed => "unnamed".into(),
        Wants::Unreadable => "unreadable".into(),
    }
}

fn named(policy: &Policy, models: &[Model], name: &str) -> String {
    of(policy, models, &Requested::Name(name.into()))
}

#[test]
fn before_the_relay_is_heard_a_name_that_the_policy_lacks_is_unknown() {
    let plain = policy(json!({}));
    assert_eq!(named(&plain, &[], "demo"), "demo");
    assert_eq!(named(&plain, &[], "beta"), "beta");
    assert_eq!(named(&plain, &[], "beta-alias"), "unknown");
    let listed = policy(json!({"models": {
        "beta": {"served_names": ["beta-alias"], "adapters": ["sql"]}, "demo": {"adapters": ["d"]}
    }}));
    assert_eq!(named(&listed, &[], "beta-alias"), "beta");
    assert_eq!(named(&listed, &[], "sql"), "beta+sql");
    assert_eq!(named(&listed, &[], "d"), "demo+d");
    assert_eq!(named(&listed, &[], "demo"), "demo", "the default of served_names");
    assert_eq!(named(&listed, &[], "beta"), "unknown", "its names are listed, and this is none");
}

#[test]
fn what_the_relay_tells_is_added_and_the_policy_goes_first() {
    let models = [told("demo", &["demo", "alias"], &["lora"]), told("beta", &["b", "taken"], &[])];
    let plain = policy(json!({}));
    for (name, means) in [
        ("alias", "demo@0"),
        ("lora", "demo+lora@0"),
        ("b", "beta@1"),
        ("beta", "wrong"),
        ("gpt-9", "wrong"),
        ("", "wrong"),
    ] {
        assert_eq!(named(&plain, &models, name), means, "{name:?}");
    }
    let listed = policy(json!({"models": {"demo": {"served_names": ["taken"]}}}));
    assert_eq!(named(&listed, &models, "taken"), "demo@0");
    assert_eq!(named(&listed, &models, "alias"), "demo@0", "the relay's names hold as well");
    // A model of the relay's that no pool has is known, and the decision finds no pool for it.
    assert_eq!(named(&plain, &[told("other", &["other"], &[])], "other"), "other@0");
}

#[test]
fn without_a_name_it_is_the_only_model_or_the_default_or_none() {
    let models = [told("demo", &["demo"], &[])];
    let (several, one) = (policy(json!({})), one_model());
    let default = policy(json!({"default_model": "beta"}));
    let adapter =
        policy(json!({"default_model": "sql", "models": {"beta": {"adapters": ["sql"]}}}));
    for (policy, requested, means) in [
        (&several, Requested::Nothing, "unnamed"),
        (&several, Requested::Unreadable, "unreadable"),
        (&one, Requested::Nothing, "demo@0"),
        (&one, Requested::Unreadable, "demo@0"),
        (&default, Requested::Nothing, "beta"),
        (&default, Requested::Unreadable, "unreadable"),
        (&adapter, Requested::Nothing, "beta+sql"),
    ] {
        assert_eq!(of(policy, &models, &requested), means, "{requested:?}");
    }
}

#[test]
fn the_only_model_takes_strange_names_until_the_relay_has_told_all() {
    let one = one_model();
    assert_eq!(named(&one, &[], "alias"), "demo");
    assert_eq!(named(&one, &[told("demo", &["demo"], &[])], "alias"), "wrong");
}

#[test]
fn a_zone_lists_what_can_be_asked_for_in_it() {
    let listed = policy(json!({"models": {"demo": {"served_names": ["demo", "b"]}}}));
    let models =
        [told("demo", &["demo", "alias"], &["lora"]), told("beta", &["b", "beta"], &["sql"])];
    let ids = |zone: &str, models: &[Model]| {
        let entries = of_zone(&listed, &models.iter(), &listed.zones[zone]);
        entries.iter().map(|entry| entry.id.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids("eu", &models), ["demo", "b", "alias", "lora"], "beta is not in this zone");
    assert_eq!(ids("global", &models), ["beta", "sql", "demo", "b", "alias", "lora"]);
    assert_eq!(ids("global", &[]), ["beta", "demo", "b"]);
    let entries = of_zone(&listed, &models.iter(), &listed.zones["eu"]);
    let list = list(&entries, 17);
    assert_eq!(list["object"], "list");
    assert_eq!(
        list["data"][3],
        json!({"id": "lora", "object": "model", "created": 17, "owned_by": "warmpath",
            "root": "demo", "parent": "demo"})
    );
    assert_eq!(list["data"][0]["parent"], Value::Null);
}
