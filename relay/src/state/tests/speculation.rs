//! Engines that speculate, and what they drop of their hits.

use super::*;
use crate::index::BlockDrop;

#[test]
fn an_engine_that_speculates_unsaid_is_told_of() {
    let unsaid = |says_speculation, speculates| {
        let mut state = State::new(vec![Registration { says_speculation, ..known("127.0.0.1:0") }]);
        state.take(Message::Speculates { replica: 0, speculates });
        state.summary().replicas[0].speculates_unsaid
    };
    assert!(unsaid(false, true));
    assert!(!unsaid(true, true) && !unsaid(false, false));
}

#[test]
fn what_an_engine_drops_is_in_the_table() {
    let mut dropping = known("127.0.0.1:0");
    dropping.view = dropping.view.dropping(BlockDrop::All);
    let mut state = State::new(vec![dropping, known("127.0.0.1:1")]);
    let dropped = |state: &State| {
        state.table().replicas.iter().map(|replica| replica.dropped_tokens).collect::<Vec<_>>()
    };
    assert_eq!(dropped(&state), [0, 0], "no block is known yet");
    store(&mut state, 0, 1);
    store(&mut state, 1, 1);
    assert_eq!(dropped(&state), [16, 0]);
}
