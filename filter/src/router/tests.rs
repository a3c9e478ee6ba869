//! The sidestream writes, the router reads: both over the same stand-in for shared data.

use prost::Message;
use serde_json::json;
use warmpath_prompt::{
    Api, Body, Large, Model as Loadable, ModelFiles, Prompter, Request, preprocess,
};
use warmpath_proto::v1::{
    self, ArtefactChunk, BlockChange, Blocks, Down, Load, Loads, Model, Models, Replica, Replicas,
    SnapshotBegin, SnapshotEnd, down::Body as Said,
};
use warmpath_routing::decision::{Degrade, Reason};
use warmpath_routing::drift::Kind;
use warmpath_routing::fingerprint::{Chain, Scope};
use warmpath_routing::prefix_map::Layout;
use warmpath_routing::requested::Requested;
use warmpath_routing::residency::Claim;

use super::dispatch::{Asked, Decided, Dispatch, Told};
use super::loaded_models::{self, Loaded};
use super::ticket::{Answer, Ticket};
use crate::config::Config;
use crate::shared::{self, Data as _, Memory};
use crate::sidestream::Follower;

const CHAT: &str = "/v1/chat/completions";
const NOW: u64 = 1_000_000;
const NO_BODY: Body<'_> = Body::None(&Requested::Nothing);

struct Gateway {
    follower: Follower<Memory>,
    next: u64,
    router: Dispatch<Memory>,
    config: crate::config::Router,
    artefact: Vec<u8>,
    hash: [u8; 32],
}

impl Gateway {
    /// A relay in step, of one model with replicas 1 and 2 (EU) and 3 (US).
    fn new() -> Self {
        Self::with(json!({}))
    }

    /// The same, with more in the filter's configuration.
    fn with(more: serde_json::Value) -> Self {
        let mut gateway = Self::offline(more);
        gateway.connect();
        gateway
    }

    /// The same, before the relay was heard.
    fn offline(more: serde_json::Value) -> Self {
        let mut config = json!({
            "role": "router",
            "region": "eu-west",
            "max_body_bytes": 100_000,
            "regions": {
                "eu-west": {"jurisdiction": "EU", "rtt_ms": 1},
                "us-east": {"jurisdiction": "US", "rtt_ms": 80}
            },
            "pools": {
                "demo-eu": {"region": "eu-west", "model": "demo"},
                "demo-us": {"region": "us-east", "model": "demo"}
            },
            "zones": {
                "eu": {"jurisdictions": ["EU"], "clusters": {"demo-eu": "eu.demo-eu"}},
                "global": {"regions": ["*"], "clusters": {
                    "demo-eu": "global.demo-eu", "demo-us": "global.demo-us"
                }}
            }
        });
        let serde_json::Value::Object(more) = more else { panic!() };
        config.as_object_mut().unwrap().extend(more);
        let Config::Router(config) = Config::parse(config.to_string().as_bytes()).unwrap() else {
            panic!()
        };
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/models/demo");
        let files = ModelFiles::read_dir(directory.as_ref()).unwrap();
        let model = preprocess(&files).unwrap();
        Self {
            follower: Follower::new(Memory::default(), Layout::default()),
            next: 0,
            router: Dispatch::new((*config).clone(), Memory::default(), 1, || None),
            config: *config,
            artefact: model.bytes,
            hash: model.tokenizer_hash,
        }
    }

    /// Another worker of the same Envoy.
    fn worker(&self, id: u64) -> Dispatch<Memory> {
        Dispatch::new(self.config.clone(), Memory::default(), id, || None)
    }

    fn connect(&mut self) {
        self.follower.hello("n".into());
        self.next = 0;
        self.serve_version("1");
        let id = blake3::hash(&self.artefact).as_bytes().to_vec();
        let (total, data) = (self.artefact.len() as u64, self.artefact.clone());
        self.say(Said::Artefact(ArtefactChunk { id, offset: 0, total, data }));
        self.say(Said::Replicas(Replicas {
            replicas: vec![
                replica(1),
                Replica { rank: Some(5), ..replica(2) },
                Replica { pool: "demo-us".into(), ..replica(3) },
            ],
        }));
        self.say(Said::SnapshotBegin(SnapshotBegin::default()));
        self.say(Said::SnapshotEnd(SnapshotEnd {}));
        self.tick();
        self.tick();
    }

    fn serve_version(&mut self, version: &str) {
        let model = Model {
            name: "demo".into(),
            served_names: vec!["demo".into(), "alias".into()],
            adapters: vec!["lora".into()],
            version: version.into(),
            tokenizer_hash: self.hash.to_vec(),
            artefact: blake3::hash(&self.artefact).as_bytes().to_vec(),
        };
        self.say(Said::Models(Models { models: vec![model] }));
    }

    fn say(&mut self, body: Said) {
        let down = Down { epoch: 7, sequence: self.next, body: Some(body) };
        self.next += 1;
        self.follower.receive(&down.encode_to_vec(), NOW).unwrap();
        self.router.map.0.clone_from(self.follower.data());
    }

    fn tick(&mut self) {
        self.router.tick(NOW);
    }

    /// What became of answers is known.
    fn settle(&mut self) {
        self.tick();
        self.router.tick(NOW + 760);
        self.tick();
    }

    fn hold(&mut self, slot: u32, ids: &[u32], adapter: &str, salt: &str) {
        let scope = Scope { model_version: "1", tokenizer_hash: &self.hash, adapter, salt };
        let mut held = Vec::new();
        Chain::new(&scope).push(ids, |name| held.extend_from_slice(&name.key().0));
        self.say(Said::Blocks(Blocks { changes: vec![BlockChange { slot, lost: vec![], held }] }));
    }

    fn ask(&mut self, zone: Option<&str>, path: &str, body: Body<'_>) -> Decided {
        let zone = zone.map_or(Claim::Silent, Claim::Zone);
        let api = Api::of_path(path);
        let asked = Asked {
            zone,
            api,
            body,
            response: None,
            form: None,
            content_length: None,
            batch: false,
            may_wait: false,
        };
        self.router.dispatch(&asked, NOW + 100)
    }

    /// Loads a model that is not loaded yet, if there is one.
    fn load_one(&self) -> Loaded {
        let router = &self.router;
        loaded_models::load_one(&mut router.reader.borrow_mut(), &router.view, &router.map.0, 0)
    }

    fn routed(&mut self, zone: &str, body: &serde_json::Value) -> Told {
        let body = body.to_string();
        let path = if body.contains("messages") { CHAT } else { "/v1/completions" };
        match self.ask(Some(zone), path, Body::Whole(body.as_bytes())) {
            Decided::Route(mut told) => {
                self.router.landed(&mut told.ticket);
                told
            }
            other => panic!("{other:?}"),
        }
    }
}

fn replica(slot: u32) -> Replica {
    Replica {
        slot,
        endpoint: format!("10.0.0.{slot}:8000"),
        pool: "demo-eu".into(),
        model: "demo".into(),
        block_tokens: 16,
        state: v1::replica::State::Ready.into(),
        ..Replica::default()
    }
}

fn says(told: &Told, member: &str, value: &dyn std::fmt::Display) {
    let line = format!("{}, ", told.explain);
    let member = format!("{member}={value}, ");
    assert!(line.contains(&member), "{line} should say {member}");
}

fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

/// Replicas that lack what was expected, and that hold what was not.
fn drifting(router: &Dispatch<Memory>) -> [usize; 2] {
    let table = router.feedback.drifts.table();
    [Kind::Missing, Kind::Surprise].map(|kind| table.drifting(kind))
}

#[test]
fn a_held_prefix_attracts_and_is_foretold_to_the_token() {
    let mut gateway = Gateway::new();
    let ids: Vec<u32> = (100..164).collect();
    gateway.hold(2, &ids[..48], "", "");
    let told = gateway.routed("eu", &json!({"model": "alias", "prompt": ids}));
    assert_eq!(told.ticket.named.endpoints(), "10.0.0.2:8000", "the others have other ranks");
    assert_eq!((told.cluster.as_str(), told.rank), ("eu.demo-eu", Some(5)));
    says(&told, "reason", &quoted(Reason::Warm.name()));
    says(&told, "cached", &48);
    says(&told, "prompt", &64);

    // Neither another adapter's cache nor another salt's is this one's.
    for other in [
        json!({"model": "lora", "prompt": ids}),
        json!({"model": "demo", "prompt": ids, "cache_salt": "s"}),
    ] {
        says(&gateway.routed("eu", &other), "cached", &0);
    }
    gateway.hold(1, &ids, "lora", "s");
    let salted = json!({"model": "lora", "prompt": ids, "cache_salt": "s"});
    let told = gateway.routed("eu", &salted);
    assert_eq!((told.slot, told.rank), (Some(1), None));
    says(&told, "cached", &48);
}

#[test]
fn what_a_tier_holds_attracts_too_and_is_foretold_as_cached() {
    let mut gateway = Gateway::new();
    let tiers = vec![
        v1::Tier { slot: 8, medium: 99 },
        v1::Tier { slot: 9, medium: v1::tier::Medium::Disk.into() },
    ];
    let replicas = vec![replica(1), Replica { tiers, ..replica(2) }];
    gateway.say(Said::Replicas(Replicas { replicas }));
    gateway.tick();
    let ids: Vec<u32> = (100..260).collect();
    gateway.hold(1, &ids[..16], "", "");
    gateway.hold(2, &ids[..16], "", "");
    gateway.hold(8, &ids, "", "");
    gateway.hold(9, &ids[..80], "", "");
    let told = gateway.routed("eu", &json!({"model": "demo", "prompt": ids}));
    assert_eq!(told.slot, Some(2));
    says(&told, "reason", &quoted("warm"));
    says(&told, "cached", &80);
    says(&told, "tier", &quoted("disk"));
    says(&told, "offloaded", &64);
    let expected = told.ticket.expected.unwrap();
    assert_eq!((expected.cached, expected.certain, told.ticket.offloaded), (80, true, 64));
    // It is on its way to the GPU now.
    let again = gateway.routed("eu", &json!({"model": "demo", "prompt": ids}));
    says(&again, "load_ms", &"0.0");
}

#[test]
fn of_an_engine_of_several_groups_what_is_held_is_hit_up_to_where_it_may_end() {
    let mut gateway = Gateway::new();
    let ends = Some(v1::Ends { slot: 8 });
    let replicas = vec![replica(1), Replica { ends, block_tokens: 32, ..replica(2) }];
    gateway.say(Said::Replicas(Replicas { replicas }));
    gateway.tick();
    let ids: Vec<u32> = (100..260).collect();
    gateway.hold(2, &ids[..128], "", "");
    gateway.hold(8, &ids[..64], "", "");
    let told = gateway.routed("eu", &json!({"model": "demo", "prompt": ids}));
    assert_eq!(told.slot, Some(2));
    says(&told, "cached", &64);
    assert_eq!(told.ticket.expected.unwrap().cached, 64);
    // The last token is always computed: of a prompt of four blocks two are the longest hit.
    let told = gateway.routed("eu", &json!({"model": "demo", "prompt": &ids[..64]}));
    says(&told, "cached", &32);
}

#[test]
fn the_zone_binds_whatever_is_warm_elsewhere() {
    let mut gateway = Gateway::new();
    let ids: Vec<u32> = (0..16 * 400).collect();
    gateway.hold(3, &ids, "", "");
    let body = json!({"model": "demo", "prompt": ids});
    let told = gateway.routed("global", &body);
    assert_eq!((told.slot, told.cluster.as_str()), (Some(3), "global.demo-us"));
    let told = gateway.routed("eu", &body);
    assert!(
        !told.ticket.named.endpoints().contains("10.0.0.3"),
        "{}",
        told.ticket.named.endpoints()
    );
    assert_eq!(told.cluster, "eu.demo-eu");
    for zone in [None, Some("mars")] {
        assert!(!gateway.router.knows_zone(zone.map_or(Claim::Silent, Claim::Zone)));
        let decided = gateway.ask(zone, CHAT, NO_BODY);
        assert!(matches!(decided, Decided::Refuse(refusal) if refusal.status == 403));
    }
}

#[test]
fn what_cannot_be_read_is_routed_and_named() {
    let mut gateway = Gateway::new();
    let image = br#"{"model": "demo", "messages": [{"role": "user", "content": [{"type": "image_url",
        "image_url": {"url": "https://example.com/a.png"}}, {"type": "text", "text": "What is it?"}]}]}"#;
    let body = format!("{{\"prompt\": \"{}\"", "x".repeat(100_000));
    let mut large = Large::new(None);
    large
        .feed(body.len(), false, |at, most| Ok::<_, ()>(body.as_bytes()[at..at + most].to_vec()))
        .unwrap();
    for (path, body, degrade) in [
        (CHAT, NO_BODY, Degrade::NoBody),
        (CHAT, Body::Whole(b"0123456789"), Degrade::BadRequest),
        (CHAT, Body::Whole(b"{\"model\":"), Degrade::BadRequest),
        (CHAT, Body::TooLarge(&large, body.as_bytes()), Degrade::BodyTooLarge),
        ("/v1/embeddings", Body::Whole(b"{\"model\":\"demo\"}"), Degrade::UnknownApi),
        ("/v1/responses/resp_1", NO_BODY, Degrade::UnknownApi),
        (CHAT, Body::Whole(image), Degrade::Media),
    ] {
        let Decided::Route(told) = gateway.ask(Some("eu"), path, body) else { panic!("{body:?}") };
        says(&told, "degrade", &quoted(degrade.name()));
        assert!(told.slot.is_some(), "{told:?}");
    }
}

#[test]
fn a_stale_map_is_not_believed_and_a_new_epoch_not_before_its_replicas() {
    let mut gateway = Gateway::new();
    let ids: Vec<u32> = (0..64).collect();
    gateway.hold(2, &ids, "", "");
    let body = json!({"model": "demo", "prompt": ids});
    says(&gateway.routed("eu", &body), "reason", &quoted("warm"));

    // Another relay: its slots are others, and this worker has not read its table yet.
    let mut held = Vec::new();
    let scope = Scope { model_version: "1", tokenizer_hash: &gateway.hash, adapter: "", salt: "" };
    Chain::new(&scope).push(&ids, |name| held.extend_from_slice(&name.key().0));
    gateway.follower.hello("n".into());
    for (sequence, body) in [
        Said::Replicas(Replicas::default()),
        Said::SnapshotBegin(SnapshotBegin::default()),
        Said::Blocks(Blocks { changes: vec![BlockChange { slot: 1, lost: vec![], held }] }),
        Said::SnapshotEnd(SnapshotEnd {}),
    ]
    .into_iter()
    .enumerate()
    {
        let down = Down { epoch: 8, sequence: sequence as u64, body: Some(body) };
        gateway.follower.receive(&down.encode_to_vec(), NOW).unwrap();
    }
    gateway.router.map.0.clone_from(gateway.follower.data());
    says(&gateway.routed("eu", &body), "cached", &0);

    let mut gateway = Gateway::new();
    gateway.hold(2, &ids, "", "");
    gateway.follower.stale();
    gateway.router.map.0.clone_from(gateway.follower.data());
    gateway.tick();
    let told = gateway.routed("eu", &body);
    says(&told, "degrade", &quoted("stale_map"));
    assert!(told.slot.is_some(), "the replicas that were known still serve");
}

#[test]
fn requests_in_flight_count_until_they_end_and_outlive_a_refresh() {
    let mut gateway = Gateway::new();
    let body = json!({"model": "demo", "prompt": (0..64).collect::<Vec<u32>>()});
    let body = body.to_string();
    let mut tickets: Vec<(u16, Ticket)> = (0..10)
        .map(|_| {
            let whole = Body::Whole(body.as_bytes());
            match gateway.ask(Some("eu"), "/v1/completions", whole) {
                Decided::Route(told) => (told.slot.unwrap(), told.ticket),
                other => panic!("{other:?}"),
            }
        })
        .collect();
    let slots: Vec<u16> = tickets.iter().map(|(slot, _)| *slot).collect();
    let on = |gateway: &Gateway, slot: u16| {
        let world = &gateway.router.view.world;
        let at = world.replicas.iter().position(|replica| replica.slot == slot).unwrap();
        world.loads[at].in_flight as usize
    };
    let count = |slot: u16| slots.iter().filter(|s| **s == slot).count();
    assert!(count(1) > 0 && count(2) > 0, "the bound spreads equal prompts: {slots:?}");
    for slot in [1, 2] {
        assert_eq!(on(&gateway, slot), count(slot));
    }
    let loads = vec![Load { slot: 1, waiting: 3, ..Load::default() }];
    gateway.say(Said::Loads(Loads { loads }));
    gateway.tick();
    assert_eq!(on(&gateway, 1), count(1));
    for (_, ticket) in &mut tickets {
        gateway.router.landed(ticket);
        gateway.router.landed(ticket);
    }
    assert_eq!((on(&gateway, 1), on(&gateway, 2)), (0, 0), "and never fall below zero");
}

/// An answer by the endpoint, after so many attempts.
mod answers;
mod beginnings;
mod loading;
/// Which model a request goes to.
mod models;
mod poison;
mod recall;
mod stored;
mod usage;
mod workers;
