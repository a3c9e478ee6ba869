//! The hot path in pieces: each a fixture and the call that is measured. For criterion (time) and
//! for the guard (instructions).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hint::black_box;

use anyhow::Context;
use fastrand::Rng;
use warmpath_prompt::{Api, Beginnings, Model, ModelFiles, Prompter, Reach, Request, preprocess};
use warmpath_routing::catalogue::Wants;
use warmpath_routing::decision::{Ask, decide};
use warmpath_routing::fingerprint::{Chain, Fingerprint, Key};
use warmpath_routing::policy::Policy;
use warmpath_routing::prefix_map::{Hint, Layout, Lookup, Matches, Store, Wanted, Writer, find};
use warmpath_routing::residency::Claim;
use warmpath_routing::view::{Load, Replica, ReplicaState, World};
use warmpath_tests::repository;

use crate::bodies::{Bodies, Kind};

/// A call that is measured.
pub type Call = Box<dyn FnMut()>;

/// Makes a call and all that it needs.
type Setup = fn() -> anyhow::Result<Call>;

/// Blocks of the prompts whose matches are sought: 8,192 tokens.
pub(crate) const BLOCKS: u64 = 512;

/// Other prompts in the map: 100,000 blocks.
const OTHERS: u16 = 200;

const GENERATION: u32 = 1;

/// All cases, by name.
pub const CASES: [(&str, Setup); 13] = [
    ("fingerprint/128_blocks", || Ok(fingerprint())),
    ("parse/8k", || Ok(parse())),
    ("prompt/8k_cold", || prompt(8 << 10, 8_192, 0)),
    ("prompt/8k_warm", || prompt(8 << 10, 8_192, 8 << 20)),
    ("prompt/8k_beginning", || beginning(Reach::News)),
    ("prompt/8k_beginning_whole", || beginning(Reach::Whole)),
    ("match/512_blocks_4_replicas", || Ok(matching(4, OTHERS))),
    ("match/512_blocks_64_replicas", || Ok(matching(64, OTHERS))),
    ("match/512_blocks_1024_replicas", || Ok(matching(1024, OTHERS))),
    ("decide/64_replicas", || deciding(64)),
    ("decide/1024_replicas", || deciding(1024)),
    ("map/hold_1000", || Ok(apply(true, OTHERS))),
    ("map/lose_1000", || Ok(apply(false, OTHERS))),
];

/// The case of this name.
///
/// # Errors
/// When there is no such case, or its fixture can't be made.
pub fn case(name: &str) -> anyhow::Result<Call> {
    let names = || CASES.map(|(name, _)| name).join(", ");
    let found = CASES.iter().find(|(known, _)| *known == name);
    let (_, setup) = found.with_context(|| format!("no case {name}; there are {}", names()))?;
    setup()
}

fn fingerprint() -> Call {
    let tokens: Vec<u32> = (0..128 * 16).map(|i| i * 31 % 150_000).collect();
    Box::new(move || {
        let mut chain = Chain::from_root(Fingerprint([1; 32]));
        chain.push(black_box(&tokens), |name| {
            black_box(name);
        });
    })
}

fn parse() -> Call {
    let body = Bodies::new(8 << 10).any(Kind::Shared, &mut Rng::with_seed(1));
    Box::new(move || {
        let _ = black_box(Request::parse(Api::Chat, black_box(&body)));
    })
}

/// A prompter of the demo model.
///
/// # Errors
/// When the model's files can't be read.
pub fn demo_prompter(memo_bytes: usize) -> anyhow::Result<Prompter> {
    let files = ModelFiles::read_dir(&repository().join("tests/fixtures/models/demo"))?;
    Ok(Prompter::new(Model::load(preprocess(&files)?.bytes)?, memo_bytes))
}

/// Body to fingerprints; with a memo, each time with a known system prompt and a new question.
pub(crate) fn prompt(bytes: usize, limit: usize, memo_bytes: usize) -> anyhow::Result<Call> {
    let mut prompter = demo_prompter(memo_bytes)?;
    let bodies = Bodies::new(bytes);
    let mut rng = Rng::with_seed(1);
    let mut fingerprints = move |body: &[u8]| {
        let request = Request::parse(Api::Chat, black_box(body)).ok();
        let prefix = request.map(|r| prompter.prefix(&r, Fingerprint([1; 32]), limit, 0));
        let _ = black_box(prefix);
    };
    // Unknown prompts are others each time: a processor learns the branches of some thousand tokens by
    // heart, and longer prompts would look dearer for that.
    let prefix = |at: usize| if memo_bytes == 0 { at } else { 0 };
    let known: Vec<Vec<u8>> = (0..64).map(|at| bodies.shared(prefix(at), &mut rng)).collect();
    // The words of the language are known either way, as they are in a worker that runs.
    fingerprints(&bodies.shared(0, &mut rng));
    let mut at = 0;
    Ok(Box::new(move || {
        if let Some(body) = known.get(at % known.len()) {
            fingerprints(body);
        }
        at += 1;
    }))
}

/// Body to fingerprints, of a body that begins as others did.
fn beginning(reach: Reach) -> anyhow::Result<Call> {
    const ROOT: Fingerprint = Fingerprint([1; 32]);
    const LIMIT: usize = 8_192;
    let mut prompter = demo_prompter(8 << 20)?;
    let mut beginnings = Beginnings::new(1 << 20);
    let bodies = Bodies::new(8 << 10);
    let mut rng = Rng::with_seed(1);
    for _ in 0..2 {
        let body = bodies.shared(0, &mut rng);
        let request = Request::parse(Api::Chat, &body)?;
        prompter.prefix(&request, ROOT, LIMIT, 0)?;
        beginnings.learn(&body, &request, &mut prompter, ROOT, LIMIT, 0);
    }
    let known: Vec<Vec<u8>> = (0..63).map(|_| bodies.shared(0, &mut rng)).collect();
    let first = known.first().context("a body")?;
    anyhow::ensure!(beginnings.find(first, 0).is_some(), "no beginning was learned");
    // The words of the language are known, as they are in a worker that runs.
    for body in &known {
        prompter.prefix(&Request::parse(Api::Chat, body)?, ROOT, LIMIT, 0)?;
    }
    let mut at = 0;
    Ok(Box::new(move || {
        let body = known.get(at % known.len()).map_or(&[][..], Vec::as_slice);
        if let Some(found) = beginnings.find(black_box(body), 0) {
            let _ = black_box(prompter.prefix_after(&found, &ROOT, LIMIT, reach));
        }
        at += 1;
    }))
}

/// Buckets in memory, copied when read, as Envoy's are.
#[derive(Clone, Default)]
struct Buckets(BTreeMap<u32, Vec<u8>>);

impl Store for Buckets {
    type Error = Infallible;

    fn get(&self, bucket: u32) -> Result<Option<Vec<u8>>, Infallible> {
        Ok(self.0.get(&bucket).cloned())
    }

    fn set(&mut self, bucket: u32, value: &[u8]) -> Result<(), Infallible> {
        self.0.insert(bucket, value.to_vec());
        Ok(())
    }
}

struct Map(Buckets);

impl Lookup for Map {
    fn matches(&self, keys: &[Key], wanted: &dyn Wanted) -> Matches {
        find(&self.0, Layout::default(), GENERATION, keys, Hint::default(), wanted)
    }
}

fn keys(seed: u64, blocks: u64) -> Vec<Key> {
    let name = |block: u64| blake3::hash(&[seed.to_le_bytes(), block.to_le_bytes()].concat());
    (0..blocks).map(|block| Fingerprint(*name(block).as_bytes()).key()).collect()
}

fn bytes(keys: &[Key]) -> Vec<u8> {
    keys.iter().flat_map(|key| key.0).collect()
}

/// A prompt of which every second replica holds some, one of them all; among so many other prompts.
fn filled(replicas: u16, others: u16) -> (Map, Vec<Key>) {
    let mut buckets = Buckets::default();
    let mut writer = Writer::new(Layout::default(), GENERATION);
    for other in 0..others {
        let _ = writer.change(
            &buckets,
            other % replicas,
            &[],
            &bytes(&keys(1 + u64::from(other), BLOCKS)),
        );
    }
    let asked = keys(0, BLOCKS);
    let mut rng = Rng::with_seed(7);
    for slot in (0..replicas).step_by(2) {
        let blocks = if slot == 0 { asked.len() } else { rng.usize(1..asked.len()) };
        let held = asked.get(..blocks).unwrap_or(&asked);
        let _ = writer.change(&buckets, slot, &[], &bytes(held));
    }
    let _ = writer.flush(&mut buckets);
    (Map(buckets), asked)
}

/// The longest matches in a map of so many other prompts.
pub(crate) fn matching(replicas: u16, others: u16) -> Call {
    let (map, asked) = filled(replicas, others);
    Box::new(move || {
        black_box(map.matches(black_box(&asked), &|slot: u16| slot < replicas));
    })
}

/// A decision among so many replicas.
pub(crate) fn deciding(replicas: u16) -> anyhow::Result<Call> {
    let (map, asked) = filled(replicas, OTHERS);
    let policy: Policy = serde_json::from_value(serde_json::json!({
        "region": "eu-west",
        "regions": {
            "eu-west": {"jurisdiction": "EU", "operator": "acme", "rtt_ms": 1},
            "us-east": {"jurisdiction": "US", "operator": "acme", "rtt_ms": 80}
        },
        "pools": {
            "demo-eu-west": {"region": "eu-west", "model": "demo"},
            "demo-us-east": {"region": "us-east", "model": "demo"}
        },
        "zones": {"global": {"regions": ["*"], "clusters": {
            "demo-eu-west": "global.demo-eu-west",
            "demo-us-east": "global.demo-us-east"
        }}}
    }))?;
    policy.check()?;
    let replica = |slot: u16| Replica {
        slot,
        endpoint: format!("10.0.{}.{}:8000", slot >> 8, slot & 255),
        rank: None,
        pool: if slot.is_multiple_of(4) { "demo-us-east" } else { "demo-eu-west" }.into(),
        block_tokens: 16,
        dropped_tokens: 0,
        state: ReplicaState::Ready,
        weight: Replica::PLAIN,
        tiers: Vec::new(),
        ends: None,
        adapters: None,
    };
    let mut rng = Rng::with_seed(3);
    let world = World {
        replicas: (0..replicas).map(replica).collect(),
        loads: (0..replicas)
            .map(|_| Load { running: rng.u32(..8), kv_usage: rng.f32(), ..Load::default() })
            .collect(),
        fresh: true,
    };
    Ok(Box::new(move || {
        let ask = Ask {
            zone: Claim::Zone("global"),
            model: Wants::Model { name: "demo", adapter: "" },
            keys: black_box(&asked),
            prompt_tokens: asked.len() as u32 * 16 + 5,
            affinity: 0,
            left_out: None,
            degrade: None,
        };
        black_box(decide(&policy, &world, &ask, &map));
    }))
}

/// A batch of a thousand keys into, or out of, a map of so many other prompts.
pub(crate) fn apply(hold: bool, others: u16) -> Call {
    let (Map(buckets), _) = filled(64, others);
    let buckets = RefCell::new(buckets);
    let batch = bytes(&keys(if hold { 5_000 } else { 1 }, 1_000));
    Box::new(move || {
        let mut buckets = buckets.borrow_mut();
        let mut writer = Writer::new(Layout::default(), GENERATION);
        let (lost, held) = if hold { (&[][..], &*batch) } else { (&*batch, &[][..]) };
        let _ = writer.change(&*buckets, 3, lost, held);
        let _ = black_box(writer.flush(&mut *buckets));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixture_is_what_it_says() {
        let (map, asked) = filled(64, OTHERS);
        let matches = map.matches(&asked, &|_: u16| true);
        assert_eq!(matches.found.len(), 32);
        assert_eq!(matches.blocks(0), BLOCKS as u32);
        assert_eq!(matches.blocks(1), 0);
    }

    #[test]
    fn every_case_runs() {
        for (name, setup) in CASES {
            let mut call = setup().unwrap_or_else(|error| panic!("{name}: {error}"));
            call();
            call();
        }
    }
}
