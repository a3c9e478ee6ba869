//! The crate as the filter runs it: in wasm. `scripts/test wasm` runs this under Node.
#![cfg(target_family = "wasm")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::convert::Infallible;

use warmpath_routing::catalogue::Wants;
use warmpath_routing::decision::{Ask, Outcome, Reason, decide};
use warmpath_routing::fingerprint::{Chain, Fingerprint, Key, Scope};
use warmpath_routing::policy::Policy;
use warmpath_routing::prefix_map::{Hint, Layout, Lookup, Matches, Store, Wanted, Writer, find};
use warmpath_routing::residency::Claim;
use warmpath_routing::ring;
use warmpath_routing::view::{Load, Replica, ReplicaState, World};
use wasm_bindgen_test::wasm_bindgen_test;

fn names(tokens: &[u32]) -> Vec<Fingerprint> {
    let scope =
        Scope { model_version: "llama-3.1-8b@1", tokenizer_hash: &[7; 32], adapter: "", salt: "" };
    let mut names = Vec::new();
    Chain::new(&scope).push(tokens, |name| names.push(name));
    names
}

fn replica(slot: u16) -> Replica {
    Replica {
        slot,
        endpoint: format!("10.0.0.{slot}:8000"),
        rank: None,
        pool: "p".into(),
        block_tokens: 16,
        dropped_tokens: 0,
        state: ReplicaState::Ready,
        weight: Replica::PLAIN,
        tiers: Vec::new(),
        ends: None,
        adapters: None,
    }
}

/// The same vectors as in the crate's own tests, which were computed by another implementation.
#[wasm_bindgen_test]
fn golden_vectors() {
    let tokens: Vec<u32> = (0..40).map(|i| i * 3001).collect();
    let names = names(&tokens);
    assert_eq!(
        names[0].to_string(),
        "6849de6edb60ba71f88be831d8026fadc24b9cb1f6f589fd6fb705c5a23471c2"
    );
    assert_eq!(
        names[1].to_string(),
        "82760ff357f11d1d53c18e18342ba5b94d52d15095e8cd4fa97e77b1d7b3f680"
    );
    assert_eq!(ring::place(1, &replica(1)), 0xcb7f_b02d_b259_0549);
}

#[derive(Default)]
struct Memory(BTreeMap<u32, Vec<u8>>);

impl Store for Memory {
    type Error = Infallible;
    fn get(&self, bucket: u32) -> Result<Option<Vec<u8>>, Infallible> {
        Ok(self.0.get(&bucket).cloned())
    }
    fn set(&mut self, bucket: u32, value: &[u8]) -> Result<(), Infallible> {
        self.0.insert(bucket, value.to_vec());
        Ok(())
    }
}

impl Lookup for Memory {
    fn matches(&self, keys: &[Key], wanted: &dyn Wanted) -> Matches {
        find(self, Layout::default(), 1, keys, Hint::default(), wanted)
    }
}

#[wasm_bindgen_test]
fn a_held_prefix_is_found_and_decides() {
    let policy: Policy = serde_json::from_str(
        r#"{"region": "r", "regions": {"r": {"jurisdiction": "EU"}},
            "pools": {"p": {"region": "r", "model": "m"}},
            "zones": {"z": {"regions": ["*"], "clusters": {"p": "z.p"}}}}"#,
    )
    .unwrap();
    policy.check().unwrap();
    let tokens: Vec<u32> = (0..8192).collect();
    let keys: Vec<Key> = names(&tokens).iter().map(Fingerprint::key).collect();
    let mut map = Memory::default();
    let mut writer = Writer::new(Layout::default(), 1);
    let held: Vec<u8> = keys[..300].iter().flat_map(|key| key.0).collect();
    let Ok(()) = writer.change(&map, 2, &[], &held);
    let Ok(_) = writer.flush(&mut map);

    let world = World {
        replicas: (0..4).map(replica).collect(),
        loads: vec![Load::default(); 4],
        fresh: true,
    };
    let ask = Ask {
        zone: Claim::Zone("z"),
        model: Wants::Model { name: "m", adapter: "" },
        keys: &keys,
        prompt_tokens: 8192,
        affinity: 0,
        left_out: None,
        degrade: None,
    };
    let Outcome::Route(route) = decide(&policy, &world, &ask, &map) else { panic!("refused") };
    assert_eq!((route.replicas[0], route.reason), (2, Reason::Warm));
    assert_eq!(route.cached_tokens, 4800);
}
