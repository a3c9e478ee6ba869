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
use warmpath_routing::fingerprint::{Chain, Scope};
use warmpath_routing::prefix_map::Layout;
use warmpath_routing::requested::Requested;
use warmpath_routing::residency::Claim;

use super::dispatch::{Asked, Decided, Dispatch, Told};
use super::prompts::Loaded;
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
            router: Dispatch::new((*config).clone(), Memory::default(), 1),
            config: *config,
            artefact: model.bytes,
            hash: model.tokenizer_hash,
        }
    }

    /// Another worker of the same Envoy.
    fn worker(&self, id: u64) -> Dispatch<Memory> {
        Dispatch::new(self.config.clone(), Memory::default(), id)
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
        self.router.data_mut().clone_from(self.follower.data());
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
        let asked =
            Asked { zone, api, body, response: None, form: None, batch: false, may_wait: false };
        self.router.decide(&asked, NOW + 100)
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
fn bodies_that_begin_alike_are_read_as_each_alone_would_be() {
    let system = "You are a helpful assistant. Answer briefly and in plain words. ".repeat(40);
    let body = |model: &str, question: &str| {
        let question =
            format!("{question} {}", "When does it close, and is there a train? ".repeat(3));
        json!({"model": model, "messages": [
            {"role": "system", "content": system}, {"role": "user", "content": question},
        ]})
    };
    let mut gateway = Gateway::new();
    let mut keys = std::collections::BTreeSet::new();
    for version in ["1", "2"] {
        gateway.serve_version(version);
        gateway.tick();
        for model in ["demo", "alias", "lora"] {
            for question in ["Why?", "And the \"night train\"?\n", "\u{e9}", "Why?"] {
                let unknown = body("unknown", question).to_string();
                let decided = gateway.ask(Some("eu"), CHAT, Body::Whole(unknown.as_bytes()));
                assert!(matches!(decided, Decided::Refuse(refusal) if refusal.status == 404));
                let body = body(model, question);
                let key = gateway.routed("eu", &body).last_key;
                // Another VM, which has read nothing else.
                let alone = std::thread::spawn(move || {
                    let mut gateway = Gateway::new();
                    gateway.serve_version(version);
                    gateway.tick();
                    gateway.routed("eu", &body).last_key
                });
                assert_eq!(key, alone.join().unwrap(), "{model} {version} {question}");
                keys.insert(key);
            }
        }
    }
    assert_eq!(keys.len(), 2 * 2 * 3, "two versions, with and without adapter, three questions");
}

#[test]
fn a_question_is_read_to_its_end_where_somebody_holds_its_start() {
    let system = "You are a helpful assistant. Answer briefly and in plain words. ".repeat(160);
    let body = |question: &str| {
        json!({"model": "demo", "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": format!("{question} When does the library close today?")},
        ]})
    };
    let mut gateway = Gateway::new();
    let mut prompter = Prompter::new(Loadable::load(gateway.artefact.clone()).unwrap(), 0);
    let mut ids = |body: &serde_json::Value| {
        let body = body.to_string();
        let request = Request::parse(Api::Chat, body.as_bytes()).unwrap();
        prompter.tokens(&request, None, 0).unwrap().ids
    };
    let asked = body("We have asked this one before, in the very same words, and more than once.");
    let (known, other) = (ids(&asked), ids(&body("Another one.")));
    let shared = known.iter().zip(&other).take_while(|(a, b)| a == b).count();
    gateway.hold(1, &known, "", "");
    gateway.hold(3, &known[..shared], "", "");
    let whole = |told: &Told| told.ticket.expected.unwrap().prompt.is_some();
    let mut left_out = 0;
    for at in 0..24 {
        let told = gateway.routed("eu", &body(&format!("Number {at} is another one.")));
        says(&told, "cached", &(shared / 16 * 16));
        left_out += usize::from(!whole(&told));
    }
    assert!((15..24).contains(&left_out), "{left_out}: mostly, and not always");
    // What some replica holds that the zone doesn't admit is nobody's.
    let elsewhere = body("And this one has been asked elsewhere, by others, in the same words.");
    gateway.hold(3, &ids(&elsewhere), "", "");
    for others in 20..24 {
        let told = gateway.routed("eu", &asked);
        assert!(whole(&told));
        says(&told, "cached", &((known.len() - 1) / 16 * 16));
        says(&told, "prompt", &known.len());
        let told = gateway.routed("eu", &elsewhere);
        says(&told, "cached", &(shared / 16 * 16));
        assert_eq!(told.slot, Some(1));
        // As it mattered, all are read for a while.
        let told: Vec<Told> =
            (0..others).map(|_| gateway.routed("eu", &body("One that nobody asked."))).collect();
        assert!(!told[16..].iter().all(whole));
    }
}

#[test]
fn questions_are_read_whole_where_leaving_out_would_mislead() {
    let body = |question: &str, times: usize| {
        let system =
            "You are a helpful assistant. Answer briefly and in plain words. ".repeat(times);
        json!({"model": "demo", "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": question},
        ]})
    };
    let whole = |told: &Told| told.ticket.expected.unwrap().prompt.is_some();
    let left_out = |gateway: &mut Gateway, question: &str| {
        let all = (0..8).map(|_| gateway.routed("eu", &body(question, 160)));
        all.filter(|told| !whole(told)).count()
    };
    let mut gateway = Gateway::new();
    left_out(&mut gateway, "What is it?");
    assert!(left_out(&mut gateway, "What is it?") > 5);
    assert!(left_out(&mut gateway, "\u{6f22}\u{5b57} \u{e9}t\u{e9}?") > 5);
    // Each of these is three characters when it is normalised, and many tokens.
    assert_eq!(left_out(&mut gateway, &"\u{1d160}".repeat(30)), 0);
    assert_eq!(left_out(&mut gateway, &"0123456789".repeat(30)), 0);

    // While the map and an engine may drift apart, its counts of tokens are wanted.
    for at in 0..8 {
        let mut told = gateway.routed("eu", &body("What is it?", 160));
        told.ticket.at = gateway.router.names().first().copied();
        let expected = told.ticket.expected.as_mut().unwrap();
        expected.cached = 1_600;
        expected.next.slot = 1;
        let cached = warmpath_routing::usage::Reported::Tokens(0);
        let usage = warmpath_routing::usage::Usage { prompt: Some(2_000), cached };
        gateway.router.finished(&told.ticket, Some(usage));
        gateway.settle();
        assert!(at < 3 || whole(&gateway.routed("eu", &body("What is it?", 160))));
    }

    // What names a prompt on the ring is read.
    let mut gateway = Gateway::with(json!({"ring": {"blocks": 500}}));
    let mut keys = std::collections::BTreeSet::new();
    for _ in 0..20 {
        keys.insert(gateway.routed("eu", &body(&"What is it? ".repeat(9), 160)).last_key);
    }
    assert_eq!(keys.len(), 1);
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
fn text_is_tokenized_once_the_model_is_loaded() {
    let mut gateway = Gateway::new();
    let text = "The library on Harbour Street lends books, tools and a cello. ".repeat(20);
    let body = json!({"model": "demo", "messages": [{"role": "user", "content": text}]});
    let told = gateway.routed("eu", &body);
    says(&told, "reason", &quoted("cold"));
    assert!(!told.explain.contains("blocks=0"), "{}", told.explain);
    assert_eq!(
        gateway.routed("eu", &body).ticket.named.endpoints(),
        told.ticket.named.endpoints(),
        "equal prompts meet"
    );
}

#[test]
fn a_tokenizer_is_loaded_once_and_a_damaged_one_refused_once() {
    let mut gateway = Gateway::new();
    gateway.connect();
    assert_eq!(gateway.router.load_one(), Loaded::Nothing);

    let mut gateway = Gateway::new();
    gateway.artefact = b"no artefact".to_vec();
    gateway.connect();
    assert_eq!(gateway.router.load_one(), Loaded::Nothing, "the tick has tried it");
    let told = gateway.routed("eu", &json!({"model": "demo", "prompt": [1, 2, 3]}));
    says(&told, "degrade", &quoted("no_tokenizer"));
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
    gateway.router.data_mut().clone_from(gateway.follower.data());
    says(&gateway.routed("eu", &body), "cached", &0);

    let mut gateway = Gateway::new();
    gateway.hold(2, &ids, "", "");
    gateway.follower.stale();
    gateway.router.data_mut().clone_from(gateway.follower.data());
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
        let world = gateway.router.world();
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
/// Which model a request goes to.
mod models;
mod poison;
mod recall;
mod stored;
mod usage;
mod workers;
