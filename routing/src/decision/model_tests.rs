//! The right model, always: never another one's pool, whatever is missing.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use super::residency::Claim;
use super::tests::{DEMO, held, keys};
use super::*;
use crate::catalogue::resolve;
use crate::requested::Requested;
use crate::view::{Load, Model, Replica, ReplicaState, Tier};

const POOLS: [(&str, &str, &str); 4] = [
    ("demo-eu", "eu-west", "demo"),
    ("beta-eu", "eu-west", "beta"),
    ("demo-us", "us-east", "demo"),
    ("gamma-us", "us-east", "gamma"),
];

fn policy() -> Policy {
    let of = |zone: &str, pools: &[&str]| {
        let clusters =
            pools.iter().map(|pool| ((*pool).to_owned(), json!(format!("{zone}.{pool}"))));
        serde_json::Value::Object(clusters.collect())
    };
    let pools = POOLS
        .map(|(pool, region, model)| (pool.to_owned(), json!({"region": region, "model": model})));
    let policy: Policy = serde_json::from_value(json!({
        "region": "eu-west",
        "regions": {"eu-west": {"jurisdiction": "EU"}, "us-east": {"jurisdiction": "US"}},
        "pools": serde_json::Value::Object(pools.into_iter().collect()),
        "zones": {
            "eu": {"jurisdictions": ["EU"], "clusters": of("eu", &["demo-eu", "beta-eu"])},
            "global": {"regions": ["*"], "clusters": of("global", &POOLS.map(|(pool, ..)| pool))}
        },
        "models": {"beta": {"served_names": ["beta", "beta-alias"], "adapters": ["beta-lora"]}}
    }))
    .unwrap();
    policy.check().unwrap();
    policy
}

/// A replica of each pool.
fn world() -> World {
    let replica = |(slot, (pool, ..)): (usize, (&str, &str, &str))| Replica {
        slot: slot as u16,
        endpoint: format!("10.0.0.{slot}:8000"),
        rank: None,
        pool: pool.into(),
        block_tokens: 16,
        dropped_tokens: 0,
        state: ReplicaState::Ready,
        weight: Replica::PLAIN,
        tiers: Vec::<Tier>::new(),
        ends: None,
        adapters: None,
    };
    let replicas: Vec<Replica> = POOLS.into_iter().enumerate().map(replica).collect();
    World { loads: vec![Load::default(); replicas.len()], replicas, fresh: true }
}

fn ask<'a>(zone: &'a str, model: Wants<'a>) -> Ask<'a> {
    Ask {
        zone: Claim::Zone(zone),
        model,
        keys: &[],
        prompt_tokens: 100,
        affinity: 7,
        left_out: None,
        degrade: None,
    }
}

fn wants(name: &str) -> Wants<'_> {
    Wants::Model { name, adapter: "" }
}

fn refused(world: &World, ask: &Ask<'_>) -> Refusal {
    match decide(&policy(), world, ask, &held(&[])) {
        Outcome::Refuse(refusal) => refusal,
        Outcome::Route(route) => panic!("{route:?}"),
    }
}

#[test]
fn what_is_no_model_of_the_zone_is_refused_by_its_own_name() {
    let world = world();
    let of = |ask: &Ask<'_>| {
        let refusal = refused(&world, ask);
        (refusal.status, refusal.code, refusal.retry_after)
    };
    let unknown = |certain| Wants::Unknown { name: "gpt-9", certain };
    for (ask, status, code, retry_after) in [
        (ask("eu", unknown(true)), 404, "model_not_found", None),
        (ask("eu", unknown(false)), 503, "model_unknown", Some(1)),
        (ask("eu", Wants::Unnamed), 404, "model_not_found", None),
        (ask("eu", Wants::Unreadable), 404, "model_not_found", None),
        (ask("eu", wants("gamma")), 403, "model_not_in_zone", None),
        // The relay tells of a model that no pool of this gateway has.
        (ask("global", wants("delta")), 404, "model_not_found", None),
        (ask("mars", wants("demo")), 403, "zone_unknown", None),
    ] {
        assert_eq!(of(&ask), (status, code, retry_after), "{ask:?}");
    }
    let message = refused(&world, &ask("eu", unknown(true))).message;
    assert!(message.contains("`gpt-9`") && message.contains("beta, beta-alias, beta-lora, demo"));
    assert!(!message.contains("gamma"), "{message}");
    let hostile = Wants::Unknown { name: &"`\n\u{7f}x".repeat(10_000), certain: true };
    let message = refused(&world, &ask("eu", hostile)).message;
    assert!(message.len() < 400 && !message.chars().any(char::is_control), "{message}");
}

#[test]
fn an_adapter_goes_to_where_it_is_loaded() {
    let (policy, mut world) = (policy(), world());
    let more = Replica { slot: 9, endpoint: "10.0.0.9:8000".into(), ..world.replicas[0].clone() };
    world.replicas.push(more);
    world.loads.push(Load::default());
    let lora = ask("eu", Wants::Model { name: "demo", adapter: "lora" });
    let chosen = |world: &World| match decide(&policy, world, &lora, &held(&[(0, 9)])) {
        Outcome::Route(route) => route.replicas.clone(),
        Outcome::Refuse(refusal) => panic!("{refusal:?}"),
    };
    assert_eq!(chosen(&world).len(), 2, "nothing tells where it is");
    world.replicas[0].adapters = Some(vec!["other".into()]);
    world.replicas[4].adapters = Some(vec!["other".into(), "lora".into()]);
    assert_eq!(chosen(&world), [4], "for retries, too");
    // That it is down for a moment is no reason to say that there is no such adapter.
    world.replicas[4].state = ReplicaState::Down;
    assert_eq!(refused(&world, &lora).code, "no_replica");
    world.replicas[4].adapters = Some(Vec::new());
    let none = refused(&world, &lora);
    assert_eq!((none.status, none.code), (404, "model_not_found"));
    assert!(decide(&policy, &world, &ask("eu", DEMO), &held(&[])).route().is_some());
}

#[test]
fn a_replica_under_another_model_s_pool_is_never_used() {
    let mut world = world();
    world.replicas[0].state = ReplicaState::Misfiled;
    for fresh in [true, false] {
        world.fresh = fresh;
        assert_eq!(refused(&world, &ask("eu", DEMO)).code, "no_replica", "fresh: {fresh}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever is known and whatever is asked: a request goes to a pool of the model that it names,
    /// in its zone, or nowhere.
    #[test]
    fn no_request_goes_to_another_model(
        zone in select(&["eu", "global"][..]),
        name in proptest::option::of(select(&[
            "demo", "beta", "beta-alias", "beta-lora", "gamma", "told", "told-lora", "Demo", "", "gpt",
        ][..])),
        readable in any::<bool>(),
        default in proptest::option::of(select(&["demo", "beta-alias", "beta-lora"][..])),
        told in proptest::option::of(any::<bool>()),
        known in proptest::collection::vec(any::<bool>(), 4),
        states in proptest::collection::vec(0u8..5, 4),
        fresh in any::<bool>(),
        read in any::<bool>(),
    ) {
        let mut policy = policy();
        policy.default_model = default.map(String::from);
        let mut world = world();
        world.fresh = fresh;
        for (replica, state) in world.replicas.iter_mut().zip(states) {
            replica.state = [
                ReplicaState::Ready, ReplicaState::Suspect, ReplicaState::Draining,
                ReplicaState::Down, ReplicaState::Misfiled,
            ][usize::from(state)];
        }
        let mut known = known.into_iter();
        world.replicas.retain(|_| known.next().unwrap());
        world.loads.truncate(world.replicas.len());
        // The relay told nothing; or of `demo` under more names; or of `gamma` instead.
        let told: Vec<Model> = told.into_iter().map(|demo| Model {
            name: if demo { "demo" } else { "gamma" }.into(),
            served_names: vec!["told".into()],
            adapters: vec!["told-lora".into()],
            version: "1".into(),
            tokenizer_hash: [0; 32],
        }).collect();
        let requested = match name {
            Some(name) => Requested::Name(name.into()),
            None if readable => Requested::Nothing,
            None => Requested::Unreadable,
        };
        let resolved = resolve(&policy, told.iter(), &requested);
        let keys = keys(1, if read { 20 } else { 0 });
        let ask = Ask { keys: &keys, ..ask(zone, resolved.wants) };
        let Outcome::Route(route) = decide(&policy, &world, &ask, &held(&[(0, 5), (3, 20)])) else {
            return Ok(());
        };
        let model = policy.pools[route.pool].model.as_str();
        let told_model = told.first().map(|model| model.name.as_str());
        let means = |name: &str| match name {
            "demo" | "gamma" if told_model == Some(name) => None,
            "demo" => Some("demo"),
            "gamma" => Some("gamma"),
            "beta" | "beta-alias" | "beta-lora" => Some("beta"),
            "told" | "told-lora" => told_model,
            _ => None,
        };
        let expected = match &requested {
            Requested::Name(name) => means(name),
            Requested::Nothing => default.and_then(means),
            Requested::Unreadable => None,
        };
        prop_assert_eq!(Some(model), expected);
        prop_assert!(route.cluster.starts_with(zone), "{}", route.cluster);
        for at in &route.replicas {
            let replica = &world.replicas[*at];
            prop_assert_eq!(policy.pools[&replica.pool].model.as_str(), model);
            prop_assert!(replica.state != ReplicaState::Misfiled);
        }
    }
}
