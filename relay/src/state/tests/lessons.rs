//! What answers teach of replicas that were joined late.

use warmpath_routing::fingerprint::Key;

use super::*;
use crate::index::lesson::Lesson;

fn batch(state: &mut State, sequence: u64, events: Vec<Event>) {
    let batch = Batch { time: 0.0, rank: None, events };
    state.take(Message::Batch { replica: 0, sequence, batch });
}

fn teach(state: &mut State, key: u8) {
    let slot = state.replicas[&0].slot;
    let keys = vec![Key([key; 16])];
    let lesson = Lesson { slot, after: None, blocks: 0, keys, missing: None };
    state.take(Message::Lessons { lessons: vec![lesson] });
}

/// Whether the table says so, and what is known of answers.
fn partial(state: &State) -> (bool, usize) {
    (state.table().replicas[0].partial, state.replicas[&0].taught.len())
}

fn stored(hash: u32, group: Option<u32>) -> Event {
    Event::Stored(Stored {
        hashes: vec![EngineHash::from_int(hash.into())],
        tokens: vec![hash; 16],
        block_size: 16,
        group,
        ..Stored::default()
    })
}

#[tokio::test]
async fn only_one_whose_events_were_not_heard_from_the_first_on_is_taught() {
    let mut state = state(1);
    state.settle();
    teach(&mut state, 1);
    assert_eq!(partial(&state), (false, 0), "nothing is known of it");
    batch(&mut state, 0, vec![stored(1, None)]);
    teach(&mut state, 1);
    assert_eq!(partial(&state), (false, 0), "all is known of it");
    // The gap can't be replayed.
    state.take(Message::Clear { replica: 0, why: Doubt::Gap });
    batch(&mut state, 9, vec![stored(2, None)]);
    batch(&mut state, 10, vec![]);
    teach(&mut state, 1);
    assert_eq!(partial(&state), (true, 1));
    let (reply, answer) = oneshot::channel();
    state.take(Message::Holders { key: Key([1; 16]), reply });
    let holders = answer.await.unwrap();
    assert_eq!((holders.len(), holders[0].tier), (1, "GPU"));
    let blocks = subscribe(&mut state).await.unwrap().blocks;
    assert!(blocks[0].1.contains(&Key([1; 16])) && blocks[0].1.len() == 2);
    // One of another life of its cache says nothing of this one.
    let slot = state.replicas[&0].slot;
    let old = Lesson {
        slot: slot + 1_000,
        after: None,
        blocks: 0,
        keys: vec![Key([2; 16])],
        missing: None,
    };
    state.take(Message::Lessons { lessons: vec![old] });
    assert_eq!(partial(&state), (true, 1));

    batch(&mut state, 11, vec![Event::Cleared, stored(3, None)]);
    assert_eq!(partial(&state), (false, 0), "there is nothing left to be taught of");
    assert_ne!(state.replicas[&0].slot, slot, "what the map says of it is void");
}

#[tokio::test]
async fn what_was_taught_ends_with_the_engine_s_life() {
    for why in [Doubt::Restarted, Doubt::Disconnected, Doubt::Gap, Doubt::Unreadable] {
        let mut state = state(1);
        state.settle();
        batch(&mut state, 5, vec![]);
        teach(&mut state, 1);
        let slot = state.replicas[&0].slot;
        assert_eq!(partial(&state), (true, 1));
        state.take(Message::Clear { replica: 0, why });
        assert_eq!(partial(&state), (false, 0), "{why:?}");
        assert_ne!(state.replicas[&0].slot, slot, "{why:?}: the slot was told of");
        batch(&mut state, 0, vec![]);
        assert_eq!(partial(&state), (false, 0), "{why:?}: it is heard from the first on");
    }
}

#[tokio::test]
async fn an_engine_of_several_groups_is_not_taught() {
    let mut state = state(1);
    state.settle();
    batch(&mut state, 5, vec![stored(1, Some(0)), stored(1, Some(1))]);
    teach(&mut state, 1);
    assert_eq!(partial(&state), (false, 0));
    assert!(state.summary().replicas[0].joined_late);
}
