//! Data-parallel ranks that can't be right.

use super::*;
use crate::engine::report::Engines;

fn engines(ranks: &[u32]) -> Message {
    let engines = Engines { ranks: ranks.to_vec(), complete: true, kind: Some("vllm") };
    Message::Engines { replica: 0, engines }
}

fn batch(rank: u32) -> Message {
    let batch = Batch { time: 0.0, rank: Some(rank), events: Vec::new() };
    Message::Batch { replica: 0, sequence: 0, batch }
}

#[test]
fn an_engine_of_several_ranks_that_is_listed_without_one_is_told() {
    let mut state = state(1);
    let expect = |state: &State, expected| {
        let summary = state.summary();
        assert_eq!(summary.replicas[0].rank_problem, expected);
    };
    expect(&state, None);
    state.take(engines(&[0]));
    state.take(batch(0));
    expect(&state, None);
    state.take(engines(&[0, 1]));
    expect(&state, Some("unranked"));
    assert_eq!(state.summary().replicas[0].engine_ranks, [0, 1]);
    // It came back as one of its own.
    state.take(engines(&[0]));
    expect(&state, None);
    state.take(batch(1));
    expect(&state, Some("unranked"));
    // After a restart another may publish there.
    state.take(Message::Clear { replica: 0, why: Doubt::Restarted });
    state.take(batch(1));
    expect(&state, None);
}

#[test]
fn the_rank_among_all_engines_is_no_rank_behind_a_balancer() {
    for (rank, events_rank, expected) in [
        (Some(2), Some(2), Some("out_of_range")),
        (Some(0), Some(0), Some("other_events")),
        (Some(0), Some(2), None),
    ] {
        let mut state =
            State::new(vec![Registration { rank, events_rank, ..known("127.0.0.1:0") }]);
        state.take(engines(&[2, 3]));
        assert_eq!(state.summary().replicas[0].rank_problem, expected);
    }
    let mut state = State::new(vec![Registration { rank: Some(0), ..known("127.0.0.1:0") }]);
    state.take(Message::OtherRank { replica: 0, rank: 2 });
    assert_eq!(state.summary().replicas[0].rank_problem, Some("other_events"));
}

#[tokio::test]
async fn an_engine_of_another_kind_than_its_models_prompts_are_for_is_told() {
    let mut state = State::new(vec![known("127.0.0.1:0")]);
    let other = |state: &State| state.summary().replicas[0].other_engine;
    assert_eq!(other(&state), None, "it has said nothing yet");
    for (kind, told) in [("sglang", Some("sglang")), ("vllm", None)] {
        let engines = Engines { kind: Some(kind), ..Engines::default() };
        state.take(Message::Engines { replica: 0, engines });
        assert_eq!(other(&state), told, "{kind}");
        assert_eq!(state.summary().replicas[0].engine_kind, Some(kind));
    }
}
