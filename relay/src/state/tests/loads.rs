//! Loads that engines report, or don't any more.

use super::*;

#[test]
fn a_load_that_is_not_seen_any_more_is_forgotten() {
    let mut state = state(1);
    let waits = |state: &State| state.summary().replicas[0].requests_waiting;
    let blind = || {
        let report = Report { up: true, load: None, round_trip: None };
        Message::Report { replica: 0, report }
    };
    state.take(report(0, 7));
    for _ in 0..9 {
        state.take(blind());
        assert_eq!(waits(&state), Some(7), "one that answers late is no reason");
    }
    state.take(blind());
    assert_eq!(waits(&state), None);
    state.take(report(0, 3));
    state.take(blind());
    assert_eq!(waits(&state), Some(3));
}
