//! The state by its messages: what streams hear, and when.

mod adapters;
mod lessons;
mod loads;
mod policy;
mod ranks;
mod speculation;

use std::collections::BTreeSet;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use warmpath_proto::v1::{down::Body, replica::State as ReplicaState, tier};

use super::streams::{QUEUE, QUEUE_BYTES};
use super::*;
use crate::engine::report::Load;
use crate::events::{EngineHash, Kind, Medium, Removed, Stored};
use crate::index::{Duplicates, Limits, ModelScope, View};

fn known(endpoint: &str) -> Registration {
    let scope = Arc::new(ModelScope { version: "1".into(), tokenizer_hash: [1; 32] });
    Registration {
        endpoint: endpoint.into(),
        rank: None,
        events_rank: None,
        pool: "pool".into(),
        model: "model".into(),
        engine: "vllm",
        draining: false,
        has_events: true,
        silence: Some(Duration::from_millis(20)),
        store: None,
        weight: 100,
        adapters: None,
        says_speculation: false,
        view: View::new(scope, Duplicates::Doubt, Limits::default()),
        counters: Arc::default(),
    }
}

fn state(replicas: usize) -> State {
    State::new((0..replicas).map(|i| known(&format!("127.0.0.1:{i}"))).collect())
}

fn store(state: &mut State, replica: usize, hash: u32) {
    let stored = Stored {
        hashes: vec![EngineHash::from_int(hash.into())],
        tokens: vec![hash; 16],
        block_size: 16,
        ..Stored::default()
    };
    let batch = Batch { time: 0.0, rank: None, events: vec![Event::Stored(stored)] };
    state.take(Message::Batch { replica, sequence: 0, batch });
}

/// A poll's answer with so many requests that wait.
fn report(replica: usize, waiting: u32) -> Message {
    let load = Some(Load { waiting, running: 1, kv_usage: 0.5 });
    Message::Report { replica, report: Report { up: true, load, round_trip: None } }
}

fn subscribe(state: &mut State) -> oneshot::Receiver<Subscription> {
    let (reply, answer) = oneshot::channel();
    state.take(Message::Subscribe { reply });
    answer
}

#[tokio::test]
async fn the_first_snapshot_waits_until_the_past_is_known() {
    let (sender, messages) = mpsc::channel(16);
    let running = tokio::spawn(state(1).run(messages, CancellationToken::new()));
    let (reply, mut answer) = oneshot::channel();
    sender.send(Message::Subscribe { reply }).await.unwrap();
    let report = Report { up: true, load: None, round_trip: None };
    sender.send(Message::Report { replica: 0, report }).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(answer.try_recv().is_err());
    sender.send(Message::Settled { replica: 0 }).await.unwrap();
    answer.await.unwrap();
    drop(sender);
    running.await.unwrap();
}

#[tokio::test]
async fn a_reader_that_does_not_keep_up_is_ended_and_others_go_on() {
    let mut state = state(1);
    state.settle();
    let slow = subscribe(&mut state).await.unwrap();
    let mut quick = subscribe(&mut state).await.unwrap();
    let mut keys = 0;
    for hash in 0..=QUEUE as u32 {
        store(&mut state, 0, hash);
        state.flush();
        let delta = quick.deltas.next().await.unwrap();
        for body in &delta.bodies {
            let Body::Blocks(blocks) = body else { continue };
            keys += blocks.changes.iter().map(|change| change.held.len() / 16).sum::<usize>();
        }
    }
    assert!(slow.deltas.ended.is_cancelled());
    assert!(!quick.deltas.ended.is_cancelled());
    assert_eq!((keys, state.listeners.len(), state.streams_too_slow), (QUEUE + 1, 1, 1));
}

#[tokio::test]
async fn a_reader_further_behind_than_a_snapshot_is_long_is_ended() {
    let mut state = state(1);
    state.settle();
    let slow = subscribe(&mut state).await.unwrap();
    assert_eq!(state.most_queued(), QUEUE_BYTES);
    // As if so much were in its queue.
    state.listeners[0].bytes.store(QUEUE_BYTES + 1, Ordering::Relaxed);
    store(&mut state, 0, 1);
    state.flush();
    assert!(slow.deltas.ended.is_cancelled());
    assert_eq!(state.streams_too_slow, 1);
}

#[tokio::test]
async fn a_clear_gives_a_slot_that_nobody_had() {
    let mut state = state(3);
    state.settle();
    state.take(Message::Clear { replica: 1, why: Doubt::Gap });
    assert_eq!(state.replicas[&1].slot, 1, "nothing was said under this one");
    let mut seen: BTreeSet<u32> = state.replicas.values().map(|replica| replica.slot).collect();
    while seen.len() < 65_536 {
        store(&mut state, 1, 7);
        state.take(Message::Clear { replica: 1, why: Doubt::Gap });
        assert!(seen.insert(state.replicas[&1].slot), "a slot used twice");
    }
    // All are used: every stream begins again, and so do the slots.
    let stream = subscribe(&mut state).await.unwrap();
    store(&mut state, 1, 7);
    state.take(Message::Clear { replica: 1, why: Doubt::Restarted });
    assert!(stream.deltas.ended.is_cancelled());
    let slots: BTreeSet<u32> = state.replicas.values().map(|replica| replica.slot).collect();
    assert_eq!(slots, BTreeSet::from([0, 1, 2]));
    assert!(state.replicas[&1].known.view.is_empty());
}

#[test]
fn states_tell_what_may_be_sent_and_believed() {
    let mut state = state(1);
    let mut expect = |message: Option<Message>, expected: ReplicaState| {
        if let Some(message) = message {
            state.take(message);
        }
        assert_eq!(state.replicas[&0].state(), expected);
    };
    let report = |up| {
        Some(Message::Report { replica: 0, report: Report { up, load: None, round_trip: None } })
    };
    let heard = |heard| Some(Message::Heard { replica: 0, heard });
    expect(None, ReplicaState::Down);
    expect(heard(true), ReplicaState::Down);
    expect(report(true), ReplicaState::Ready);
    expect(heard(false), ReplicaState::Suspect);
    expect(report(false), ReplicaState::Down);
    state.replicas.get_mut(&0).unwrap().known.draining = true;
    assert_eq!(state.replicas[&0].state(), ReplicaState::Down);
    state.replicas.get_mut(&0).unwrap().up = Some(true);
    assert_eq!(state.replicas[&0].state(), ReplicaState::Draining);
}

#[tokio::test]
async fn an_engine_that_sleeps_takes_nothing_new_and_is_claimed_to_hold_nothing() {
    let mut state = state(1);
    state.settle();
    let report = Report { up: true, load: None, round_trip: None };
    state.take(Message::Report { replica: 0, report });
    state.take(Message::Heard { replica: 0, heard: true });
    store(&mut state, 0, 7);
    let slot = state.replicas[&0].slot;
    state.take(Message::Sleep { replica: 0, sleep: Some(Sleep::Paused) });
    assert_eq!(state.replicas[&0].state(), ReplicaState::Draining);
    assert_eq!(held(&mut state).await.len(), 1, "it may have kept its cache");
    state.take(Message::Sleep { replica: 0, sleep: Some(Sleep::Emptied) });
    assert!(held(&mut state).await.is_empty());
    assert_ne!(state.replicas[&0].slot, slot);
    assert_eq!(state.summary().replicas[0].asleep, Some("emptied"));
    state.take(Message::Sleep { replica: 0, sleep: None });
    assert_eq!(state.replicas[&0].state(), ReplicaState::Ready);
}

#[test]
fn a_load_is_told_when_it_changes_and_under_a_new_slot() {
    let mut state = state(1);
    state.take(report(0, 1));
    assert!(state.replicas[&0].load_is_news());
    state.flush();
    state.take(report(0, 1));
    assert!(!state.replicas[&0].load_is_news());
    state.take(report(0, 2));
    assert!(state.replicas[&0].load_is_news());
    state.flush();
    store(&mut state, 0, 1);
    state.take(Message::Clear { replica: 0, why: Doubt::Gap });
    assert!(state.replicas[&0].load_is_news());
}

#[tokio::test]
async fn loads_of_many_engines_come_together_and_hold_up_nothing_else() {
    let mut state = state(2);
    state.settle();
    let mut deltas = subscribe(&mut state).await.unwrap().deltas;
    let mut told = move || {
        let mut told = Vec::new();
        while let Ok(delta) = deltas.receiver.try_recv() {
            told.extend(delta.bodies.iter().map(|body| match body {
                Body::Loads(loads) => loads.loads.len(),
                _ => 0,
            }));
        }
        told
    };
    for replica in [0, 1] {
        state.take(report(replica, 1));
    }
    store(&mut state, 0, 1);
    state.flush();
    assert_eq!(told(), [0, 0, 2], "a new table, a block, and with the table the loads");

    state.take(report(0, 2));
    store(&mut state, 0, 2);
    state.flush();
    state.take(report(1, 2));
    state.flush();
    assert_eq!(told(), [0], "the block alone");
    // By then, but not sooner, unless there are blocks.
    let due = state.loads_told_at + LOADS_EVERY;
    assert_eq!(state.flush_at, Some(due));
    store(&mut state, 0, 3);
    assert!(state.flush_at < Some(due));
    state.flush();
    assert_eq!((told(), state.flush_at), (vec![0], Some(due)));
    state.loads_told_at -= LOADS_EVERY;
    state.flush();
    assert_eq!((told(), state.flush_at), (vec![2], None));
}

#[tokio::test]
async fn a_stream_that_begins_while_loads_are_held_back_is_told_when_they_fall_again() {
    let mut state = state(1);
    state.settle();
    state.take(report(0, 1));
    state.flush();
    state.take(report(0, 9));
    let mut stream = subscribe(&mut state).await.unwrap();
    assert_eq!(stream.loads.loads[0].waiting, 9);
    state.take(report(0, 1));
    state.loads_told_at -= LOADS_EVERY;
    state.flush();
    let delta = stream.deltas.next().await.unwrap();
    let [Body::Loads(loads)] = &delta.bodies[..] else { panic!("{:?}", delta.bodies) };
    assert_eq!(loads.loads[0].waiting, 1);
}

#[test]
fn a_round_trip_is_told_when_it_is_another() {
    let mut state = state(1);
    let report = |micros| {
        let round_trip = Some(Duration::from_micros(micros));
        Message::Report { replica: 0, report: Report { up: true, load: None, round_trip } }
    };
    state.take(report(9_000));
    assert!(state.replicas[&0].load_is_news());
    state.flush();
    assert_eq!(state.replicas[&0].load_told.unwrap().rtt_us, 9_000);
    for (micros, news) in [(9_800, false), (8_200, false), (7_900, true), (30_000, true)] {
        state.take(report(micros));
        assert_eq!(state.replicas[&0].load_is_news(), news, "{micros}");
    }
}

#[tokio::test]
async fn what_joins_and_leaves_is_told_and_no_slot_comes_twice() {
    let mut state = state(1);
    state.settle();
    store(&mut state, 0, 1);
    let mut stream = subscribe(&mut state).await.unwrap();
    state.take(Message::Join { replica: 7, known: Box::new(known("127.0.0.1:7")) });
    store(&mut state, 7, 2);
    state.flush();
    let delta = stream.deltas.next().await.unwrap();
    let [Body::Replicas(table), Body::Blocks(_)] = delta.bodies.as_slice() else { panic!() };
    assert_eq!(table.replicas.iter().map(|r| r.slot).collect::<Vec<_>>(), [0, 1]);
    state.take(Message::Leave { replica: 0 });
    store(&mut state, 0, 3);
    state.flush();
    let delta = stream.deltas.next().await.unwrap();
    let [Body::Replicas(table)] = delta.bodies.as_slice() else { panic!() };
    assert_eq!(table.replicas.iter().map(|r| r.slot).collect::<Vec<_>>(), [1]);
    state.take(Message::Join { replica: 8, known: Box::new(known("127.0.0.1:0")) });
    assert_eq!(state.replicas[&8].slot, 2);
}

#[test]
fn a_drain_by_hand_holds_until_it_is_taken_back_also_for_a_replica_that_comes_again() {
    let mut state = state(2);
    let up = |replica| Message::Report {
        replica,
        report: Report { up: true, load: None, round_trip: None },
    };
    let drain = |state: &mut State, endpoint: &str, drain| {
        let (reply, mut answer) = oneshot::channel();
        let endpoint = endpoint.to_owned();
        state.take(Message::Drain { endpoint, rank: None, drain, reply });
        answer.try_recv().unwrap()
    };
    assert_eq!(drain(&mut state, "127.0.0.1:9", true), 0);
    assert_eq!(drain(&mut state, "127.0.0.1:1", true), 1);
    state.take(Message::Leave { replica: 1 });
    state.take(Message::Join { replica: 2, known: Box::new(known("127.0.0.1:1")) });
    state.take(up(2));
    assert_eq!(state.replicas[&2].state(), ReplicaState::Draining);
    assert_eq!(drain(&mut state, "127.0.0.1:1", false), 1);
    assert_eq!(state.replicas[&2].state(), ReplicaState::Suspect);
}

#[test]
fn holders_are_those_whose_view_has_the_key() {
    let mut state = state(3);
    store(&mut state, 0, 5);
    store(&mut state, 2, 5);
    let key = state.replicas[&0].known.view.keys().next().unwrap();
    let endpoints: Vec<_> = state.holders(&key).into_iter().map(|h| h.endpoint).collect();
    assert_eq!(endpoints, ["127.0.0.1:0", "127.0.0.1:2"]);
    assert!(state.holders(&Key([0; 16])).is_empty());
}

#[test]
fn one_that_runs_requests_without_a_word_is_suspect_until_it_speaks() {
    let mut state = state(1);
    let report = |running| {
        let load = Some(Load { waiting: 0, running, kv_usage: 0.1 });
        Message::Report { replica: 0, report: Report { up: true, load, round_trip: None } }
    };
    let expect = |state: &State, expected| assert_eq!(state.replicas[&0].state(), expected);
    state.take(Message::Heard { replica: 0, heard: true });
    state.take(report(0));
    std::thread::sleep(Duration::from_millis(25));
    state.take(report(1));
    expect(&state, ReplicaState::Ready);
    std::thread::sleep(Duration::from_millis(25));
    state.take(report(1));
    expect(&state, ReplicaState::Suspect);
    store(&mut state, 0, 1);
    expect(&state, ReplicaState::Ready);
}

fn tell(state: &mut State, replica: usize, event: Event) {
    let batch = Batch { time: 0.0, rank: None, events: vec![event] };
    state.take(Message::Batch { replica, sequence: 0, batch });
}

/// A block is copied to a slower tier, by its name only.
fn copy(state: &mut State, replica: usize, hash: u32, medium: Medium) {
    let hashes = vec![EngineHash::from_int(hash.into())];
    tell(state, replica, Event::Stored(Stored { hashes, medium, ..Stored::default() }));
}

fn drop_copy(state: &mut State, replica: usize, hash: u32, medium: Medium) {
    let hashes = vec![EngineHash::from_int(hash.into())];
    tell(state, replica, Event::Removed(Removed { hashes, medium, group: None }));
}

/// Slots and media of a replica's row.
fn tiers(state: &State, replica: usize) -> Vec<(u32, tier::Medium)> {
    let row = &state.table().replicas[replica];
    row.tiers.iter().map(|tier| (tier.slot, tier.medium())).collect()
}

/// Keys by slot, as a new stream gets them.
async fn held(state: &mut State) -> BTreeMap<u32, usize> {
    let blocks = subscribe(state).await.unwrap().blocks;
    blocks.into_iter().map(|(slot, keys)| (slot, keys.len())).filter(|(_, n)| *n > 0).collect()
}

/// Two blocks of a group, the second one alone for groups that are sparse.
fn store_in(state: &mut State, group: u32, kind: Kind) {
    let sparse = kind != Kind::Full;
    let hashes = if sparse { vec![2] } else { vec![1, 2] };
    let stored = Stored {
        hashes: hashes.into_iter().map(EngineHash::from_int).collect(),
        tokens: vec![1; 32],
        block_size: 16,
        sparse,
        group: Some(group),
        kind,
        window: sparse.then_some(16),
        ..Stored::default()
    };
    tell(state, 0, Event::Stored(stored));
}

#[tokio::test]
async fn where_hits_end_has_a_slot_from_the_first_further_group_until_the_view_is_cleared() {
    let mut state = state(2);
    state.settle();
    let mut stream = subscribe(&mut state).await.unwrap();
    let ends = |state: &State| state.table().replicas[0].ends.map(|ends| ends.slot);
    store(&mut state, 1, 7);
    assert_eq!(ends(&state), None);
    store_in(&mut state, 0, Kind::Window);
    store_in(&mut state, 1, Kind::Full);
    assert_eq!((ends(&state), state.table().replicas[1].ends), (Some(2), None));
    state.flush();
    let delta = stream.deltas.next().await.unwrap();
    assert!(matches!(delta.bodies.first(), Some(Body::Replicas(_))), "the table comes first");
    assert_eq!(held(&mut state).await, BTreeMap::from([(0, 2), (1, 1), (2, 1)]));
    let summary = &state.summary().replicas[0];
    let words: Vec<_> = summary.groups.iter().map(|group| group.what.as_str()).collect();
    assert_eq!(words, ["sliding window of 16 tokens", "full attention"]);
    assert_eq!(summary.ends.as_ref().map(|ends| ends.announced), Some(1));
    state.restart_slots();
    assert_eq!(ends(&state), Some(1));
    assert_eq!(held(&mut state).await, BTreeMap::from([(0, 2), (1, 1), (2, 1)]));
    state.take(Message::Clear { replica: 0, why: Doubt::Gap });
    assert_eq!(ends(&state), None);
    assert_eq!(held(&mut state).await.len(), 1);
}

#[tokio::test]
async fn a_tier_has_a_slot_from_its_first_block_until_the_view_is_cleared() {
    let mut state = state(2);
    state.settle();
    let mut stream = subscribe(&mut state).await.unwrap();
    store(&mut state, 0, 7);
    assert_eq!(tiers(&state, 0), []);
    copy(&mut state, 0, 7, Medium::Cpu);
    assert_eq!(tiers(&state, 0), [(2, tier::Medium::Cpu)]);
    state.flush();
    // The table comes before blocks of a slot that it names.
    let delta = stream.deltas.next().await.unwrap();
    assert!(matches!(delta.bodies.first(), Some(Body::Replicas(_))));
    assert_eq!(held(&mut state).await, BTreeMap::from([(0, 1), (2, 1)]));
    drop_copy(&mut state, 0, 7, Medium::Gpu);
    assert_eq!(held(&mut state).await, BTreeMap::from([(2, 1)]));
    let summary = state.summary();
    assert_eq!((summary.replicas[0].announced_prefixes, summary.replicas[0].tiers.len()), (0, 1));
    copy(&mut state, 0, 7, Medium::Disk);
    assert_eq!(tiers(&state, 0), [(2, tier::Medium::Cpu), (3, tier::Medium::Disk)]);
    state.take(Message::Clear { replica: 0, why: Doubt::Gap });
    assert_eq!(tiers(&state, 0), []);
    assert!(held(&mut state).await.is_empty());
    store(&mut state, 0, 7);
    copy(&mut state, 0, 7, Medium::Cpu);
    assert_eq!(tiers(&state, 0), [(5, tier::Medium::Cpu)], "a slot that nobody had");
    // When all numbers were used, tiers get new ones, too.
    while state.slots.take().is_some() {}
    state.take(Message::Clear { replica: 1, why: Doubt::Gap });
    store(&mut state, 1, 7);
    state.take(Message::Clear { replica: 1, why: Doubt::Gap });
    assert_eq!(tiers(&state, 0), [(1, tier::Medium::Cpu)]);
    assert_eq!(held(&mut state).await, BTreeMap::from([(0, 1), (1, 1)]));
}

#[tokio::test]
async fn a_shared_store_stands_in_the_rows_of_all_who_share_it_while_they_are_heard() {
    let sharing = |name: &str| {
        let store = Some(name.to_owned());
        (0..2)
            .map(move |i| Registration { store: store.clone(), ..known(&format!("{store:?}{i}")) })
    };
    let mut state = State::new(sharing("a").chain(sharing("b")).collect());
    state.settle();
    store(&mut state, 0, 7);
    copy(&mut state, 0, 7, Medium::Other);
    let row = [(4, tier::Medium::Shared)];
    let rows: Vec<_> = (0..4).map(|replica| tiers(&state, replica)).collect();
    assert_eq!(rows, [&row[..], &row[..], &[], &[]]);
    assert_eq!(held(&mut state).await, BTreeMap::from([(0, 1), (4, 1)]));
    let key = state.replicas[&0].known.view.keys().next().unwrap();
    let holders: Vec<_> = state.holders(&key).iter().map(|holder| holder.tier).collect();
    assert_eq!(holders, ["GPU", "shared"]);
    // The engine that computed it loses it; the store doesn't. Nor does it where one restarts.
    drop_copy(&mut state, 0, 7, Medium::Gpu);
    state.take(Message::Clear { replica: 1, why: Doubt::Restarted });
    assert_eq!(held(&mut state).await, BTreeMap::from([(4, 1)]));
    // Whoever shares it may remove from it, and what one of them may have removed isn't claimed.
    drop_copy(&mut state, 1, 7, Medium::Other);
    assert!(held(&mut state).await.is_empty());
    store(&mut state, 1, 7);
    copy(&mut state, 1, 7, Medium::Other);
    state.take(Message::Clear { replica: 0, why: Doubt::Gap });
    assert_eq!(state.summary().stores[0].announced_prefixes, 0);
    assert_eq!(state.summary().stores[0].view_cleared, 1);
    assert_ne!(tiers(&state, 0), row, "a slot of its own for what is known from now on");
    state.take(Message::Leave { replica: 0 });
    assert_eq!(state.summary().stores.len(), 1);
    state.take(Message::Leave { replica: 1 });
    assert_eq!(state.summary().stores.len(), 0);
}
