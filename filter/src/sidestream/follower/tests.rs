//! What the service makes of a relay's messages.

use warmpath_proto::v1::{
    ArtefactChunk, Beat, BlockChange, Blocks, Down, Ends, Load, Loads, Model, Models, Replica,
    Replicas, SnapshotBegin, SnapshotEnd, Tier, tier,
};
use warmpath_routing::fingerprint::Key;
use warmpath_routing::prefix_map::{Hint, Matches, find};

use super::*;
use crate::shared::Memory;

/// A relay that counts right.
struct Relay {
    epoch: u64,
    next: u64,
}

impl Relay {
    fn new(epoch: u64) -> Self {
        Self { epoch, next: 0 }
    }

    fn down(&mut self, body: Body) -> Vec<u8> {
        let sequence = self.next;
        self.next += 1;
        Down { epoch: self.epoch, sequence, body: Some(body) }.encode_to_vec()
    }
}

fn follower() -> Follower<Memory> {
    Follower::new(Memory::default(), Layout { buckets: 256, bucket_bytes: 4096 })
}

fn keys(n: u8) -> Vec<Key> {
    (1..=n).map(|i| Key(*blake3::hash(&[i]).as_bytes().first_chunk().unwrap())).collect()
}

fn blocks(slot: u32, held: &[Key]) -> Body {
    let held = held.iter().flat_map(|key| key.0).collect();
    Body::Blocks(Blocks { changes: vec![BlockChange { slot, lost: vec![], held }] })
}

fn replicas(slots: &[u32]) -> Body {
    let replica = |slot: &u32| Replica { slot: *slot, ..Replica::default() };
    Body::Replicas(Replicas { replicas: slots.iter().map(replica).collect() })
}

fn found(follower: &Follower<Memory>, keys: &[Key]) -> Matches {
    let mut memory = Memory(follower.data.0.clone());
    find(
        &Map(&mut memory),
        follower.layout,
        follower.state.map_generation,
        keys,
        Hint::default(),
        &|_| true,
    )
}

fn saved(follower: &Follower<Memory>) -> State {
    State::decode(&follower.data.0[shared::STATE]).unwrap()
}

fn sync(follower: &mut Follower<Memory>, relay: &mut Relay, held: &[Key]) {
    follower.hello("n".into());
    for body in [
        replicas(&[3, 4]),
        Body::SnapshotBegin(SnapshotBegin::default()),
        blocks(3, held),
        Body::SnapshotEnd(SnapshotEnd {}),
    ] {
        follower.receive(&relay.down(body), 1_000).unwrap();
    }
}

#[test]
fn a_snapshot_and_deltas_reach_shared_data() {
    let (mut follower, mut relay, keys) = (follower(), Relay::new(7), keys(5));
    sync(&mut follower, &mut relay, &keys[..3]);
    assert!(saved(&follower).synced);
    assert_eq!(saved(&follower).epoch, 7);
    assert_eq!(found(&follower, &keys).blocks(3), 3);

    follower.receive(&relay.down(blocks(3, &keys[3..])), 1_100).unwrap();
    assert_eq!(found(&follower, &keys).blocks(3), 5);
    let told = follower.receive(&relay.down(blocks(70_000, &keys)), 1_100).unwrap();
    assert_eq!(told.refused, 1, "a slot that is none is left out");
}

#[test]
fn beats_are_seen_by_the_workers_with_the_next_tick() {
    let (mut follower, mut relay) = (follower(), Relay::new(7));
    sync(&mut follower, &mut relay, &[]);
    let told = follower.receive(&relay.down(Body::Beat(Beat { unix_ms: 1_990 })), 2_000).unwrap();
    assert_eq!(told.lag_ms, Some(10));
    let ahead = follower.receive(&relay.down(Body::Beat(Beat { unix_ms: 2_500 })), 2_000).unwrap();
    assert_eq!(ahead.lag_ms, Some(500), "clocks that differ show either way");
    let untold = follower.receive(&relay.down(Body::Beat(Beat { unix_ms: 0 })), 2_000).unwrap();
    assert_eq!(untold.lag_ms, None);
    follower.tick().unwrap();
    assert_eq!(saved(&follower).heard_ms, 2_000, "by this host's clock, not the relay's");
}

#[test]
fn a_gap_makes_the_map_stale_until_the_next_snapshot() {
    let (mut follower, mut relay, keys) = (follower(), Relay::new(7), keys(3));
    sync(&mut follower, &mut relay, &keys);
    relay.next += 1;
    let error = follower.receive(&relay.down(replicas(&[3])), 1_000).unwrap_err();
    assert!(matches!(error, Broken::Gap(_)), "{error}");
    assert!(!saved(&follower).synced);

    sync(&mut follower, &mut Relay::new(8), &keys[..1]);
    assert!(saved(&follower).synced);
    assert_eq!(found(&follower, &keys).blocks(3), 1, "what was held before is void");
}

#[test]
fn what_cannot_be_decoded_breaks_the_stream_and_nothing_else() {
    let mut follower = follower();
    sync(&mut follower, &mut Relay::new(7), &[]);
    assert!(matches!(follower.receive(b"\xff\xff\xff", 0), Err(Broken::Decode(_))));
    assert!(!saved(&follower).synced);
}

#[test]
fn a_dead_slot_is_swept_out_by_and_by() {
    let (mut follower, mut relay, keys) = (follower(), Relay::new(7), keys(40));
    sync(&mut follower, &mut relay, &keys);
    follower.receive(&relay.down(replicas(&[4])), 1_000).unwrap();
    assert_eq!(found(&follower, &keys).blocks(3), 40);
    for _ in 0..=256 / SWEEP_BUCKETS {
        follower.tick().unwrap();
    }
    assert_eq!(found(&follower, &keys).found, []);
}

#[test]
fn slots_of_tiers_live_as_long_as_the_table_names_them() {
    let (mut follower, mut relay, keys) = (follower(), Relay::new(7), keys(40));
    sync(&mut follower, &mut relay, &keys);
    let of_tier = |slot| {
        let tiers = vec![Tier { slot, medium: tier::Medium::Cpu.into() }];
        Body::Replicas(Replicas {
            replicas: vec![Replica { slot: 4, tiers, ..Replica::default() }],
        })
    };
    follower.receive(&relay.down(of_tier(9)), 1_000).unwrap();
    follower.receive(&relay.down(blocks(9, &keys)), 1_000).unwrap();
    let sweep = |follower: &mut Follower<Memory>| {
        for _ in 0..=256 / SWEEP_BUCKETS {
            follower.tick().unwrap();
        }
        let found = found(follower, &keys);
        (found.blocks(3), found.blocks(9))
    };
    assert_eq!(sweep(&mut follower), (0, 40));
    assert_eq!(follower.replicas(), 1, "a tier is no replica");
    follower.receive(&relay.down(of_tier(10)), 1_000).unwrap();
    assert_eq!(sweep(&mut follower), (0, 0));
}

#[test]
fn the_slot_of_where_hits_end_lives_as_long_as_the_table_names_it() {
    let (mut follower, mut relay, keys) = (follower(), Relay::new(7), keys(40));
    sync(&mut follower, &mut relay, &keys);
    let row = |ends: Option<u32>| {
        let ends = ends.map(|slot| Ends { slot });
        Body::Replicas(Replicas { replicas: vec![Replica { slot: 3, ends, ..Replica::default() }] })
    };
    follower.receive(&relay.down(row(Some(9))), 1_000).unwrap();
    follower.receive(&relay.down(blocks(9, &keys)), 1_000).unwrap();
    let sweep = |follower: &mut Follower<Memory>| {
        for _ in 0..=256 / SWEEP_BUCKETS {
            follower.tick().unwrap();
        }
        found(follower, &keys).blocks(9)
    };
    assert_eq!(sweep(&mut follower), 40);
    follower.receive(&relay.down(row(None)), 1_000).unwrap();
    assert_eq!(sweep(&mut follower), 0);
}

#[test]
fn loads_come_one_by_one_and_lie_together() {
    let (mut follower, mut relay) = (follower(), Relay::new(7));
    sync(&mut follower, &mut relay, &[]);
    let load = |slot, waiting| Load { slot, waiting, ..Load::default() };
    for loads in [vec![load(4, 1)], vec![load(3, 2)], vec![load(4, 5)]] {
        follower.receive(&relay.down(Body::Loads(Loads { loads })), 1_000).unwrap();
    }
    let all = Loads::decode(follower.data.0[shared::LOADS].as_slice()).unwrap();
    assert_eq!(all.loads, [load(3, 2), load(4, 5)]);
    follower.receive(&relay.down(replicas(&[3])), 1_000).unwrap();
    follower.receive(&relay.down(Body::Loads(Loads::default())), 1_000).unwrap();
    let all = Loads::decode(follower.data.0[shared::LOADS].as_slice()).unwrap();
    assert_eq!(all.loads, [load(3, 2)], "who is gone has no load");
}

#[test]
fn adapters_of_each_replica_reach_the_workers() {
    let (mut follower, mut relay) = (follower(), Relay::new(7));
    sync(&mut follower, &mut relay, &[]);
    let knows = |slot, adapters: &[&str]| Replica {
        slot,
        adapters: adapters.iter().map(|name| (*name).to_owned()).collect(),
        adapters_known: true,
        ..Replica::default()
    };
    let rows = vec![knows(3, &["sql"]), knows(4, &[]), Replica { slot: 5, ..Replica::default() }];
    let table = Replicas { replicas: rows };
    follower.receive(&relay.down(Body::Replicas(table.clone())), 1_000).unwrap();
    let there = Replicas::decode(follower.data.0[shared::REPLICAS].as_slice()).unwrap();
    assert_eq!(there, table);
}

fn artefact(bytes: &[u8]) -> Body {
    let id = blake3::hash(bytes).as_bytes().to_vec();
    let total = bytes.len() as u64;
    Body::Artefact(ArtefactChunk { id, offset: 0, total, data: bytes.to_vec() })
}

#[test]
fn artefacts_are_kept_once_and_named_in_the_next_hello() {
    let (mut follower, mut relay) = (follower(), Relay::new(7));
    sync(&mut follower, &mut relay, &[]);
    let before = saved(&follower).models;
    follower.receive(&relay.down(artefact(b"tokenizer")), 1_000).unwrap();
    assert_eq!(saved(&follower).models, before + 1);
    let index = Artefacts::decode(follower.data.0[shared::ARTEFACTS].as_slice()).unwrap();
    let key = shared::artefact_key(index.at[0].place);
    assert_eq!(follower.data.0[key.as_slice()], b"tokenizer");

    // Another life of the service over the same shared data.
    let mut next = Follower::new(Memory(follower.data.0.clone()), follower.layout);
    let Some(v1::up::Body::Hello(hello)) = next.hello("n".into()).body else { panic!() };
    assert_eq!(hello.artefacts, [blake3::hash(b"tokenizer").as_bytes().to_vec()]);
    assert!(!next.state().synced);
}

#[test]
fn places_of_artefacts_are_reused_but_not_those_in_use() {
    let (mut follower, mut relay) = (follower(), Relay::new(7));
    sync(&mut follower, &mut relay, &[]);
    let used = Model { artefact: blake3::hash(&[0]).as_bytes().to_vec(), ..Model::default() };
    let models = Models { models: vec![used.clone()] };
    follower.receive(&relay.down(Body::Models(models)), 1_000).unwrap();
    for n in 0..3 * shared::ARTEFACT_PLACES {
        follower.receive(&relay.down(artefact(&[n as u8])), 1_000).unwrap();
    }
    let index = Artefacts::decode(follower.data.0[shared::ARTEFACTS].as_slice()).unwrap();
    assert!(index.at.len() <= shared::ARTEFACT_PLACES as usize);
    assert!(index.at.iter().any(|at| at.id == used.artefact));
}

#[test]
fn lessons_of_this_stream_alone_are_told_and_once() {
    let (mut follower, mut relay) = (follower(), Relay::new(7));
    let lesson = |epoch| v1::Lesson { epoch, slot: 3, ..v1::Lesson::default() };
    let told = |follower: &mut Follower<Memory>, epochs: &[u64]| {
        for &epoch in epochs {
            assert!(shared::add_lessons(&mut follower.data, vec![lesson(epoch)]).unwrap());
        }
        let Some(v1::up::Body::Lessons(lessons)) = follower.lessons().unwrap()?.body else {
            panic!()
        };
        Some(lessons.lessons.iter().map(|lesson| lesson.epoch).collect::<Vec<_>>())
    };
    assert_eq!(told(&mut follower, &[7]), None, "no snapshot yet: the slot may be another's");
    sync(&mut follower, &mut relay, &[]);
    assert_eq!(told(&mut follower, &[]), None, "they are gone with that");
    assert_eq!(told(&mut follower, &[7, 6, 7]), Some(vec![7, 7]));
    assert_eq!(told(&mut follower, &[]), None);
    follower.data.0.insert(shared::LESSONS.to_vec(), b"\xff\xff".to_vec());
    assert_eq!(told(&mut follower, &[]), None);
    assert_eq!(told(&mut follower, &[7]), Some(vec![7]), "what can't be read is no reason to stop");
}
