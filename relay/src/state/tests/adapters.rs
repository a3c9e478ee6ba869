//! Which adapters the table says are loaded where.

use super::super::adapters::MOST_BYTES;
use super::*;
use crate::engine::adapters::Adapters;

fn list<T: FromIterator<String>>(names: &[&str]) -> T {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Adapters in a replica's row; none where they aren't known.
fn row(state: &State, replica: usize) -> Option<Vec<String>> {
    let row = state.table().replicas.swap_remove(replica);
    assert!(row.adapters_known || row.adapters.is_empty());
    row.adapters_known.then_some(row.adapters)
}

fn serves(replica: usize, names: &[&str]) -> Message {
    Message::Serves { replica, wrong: None, adapters: Some(list(names)), root: None }
}

#[tokio::test]
async fn adapters_stand_in_the_row_of_their_replica_and_change_no_slot() {
    let mut state = state(2);
    state.settle();
    let up =
        |up| Message::Report { replica: 0, report: Report { up, load: None, round_trip: None } };
    state.take(up(true));
    store(&mut state, 0, 7);
    assert_eq!(row(&state, 0), None, "not yet asked");
    let mut stream = subscribe(&mut state).await.unwrap();
    state.take(serves(0, &["b", "a", "b"]));
    assert!(state.flush_at.is_some_and(|at| at <= Instant::now() + FLUSH_EVERY), "told at once");
    state.flush();
    let delta = stream.deltas.next().await.unwrap();
    let [Body::Replicas(table)] = delta.bodies.as_slice() else { panic!() };
    assert_eq!(table.replicas[0].adapters, ["a", "b"]);
    assert_eq!((table.replicas[0].slot, row(&state, 1)), (0, None));
    assert_eq!(state.summary().replicas[0].adapters, Some(list(&["a", "b"])));
    assert_eq!(state.summary().replicas[1].adapters, None);
    // The same again is no news; others are; nothing of the view is lost.
    state.take(serves(0, &["a", "b"]));
    assert!(!state.replicas_changed);
    state.take(serves(0, &[]));
    assert_eq!((row(&state, 0), state.replicas_changed), (Some(list(&[])), true));
    assert_eq!(held(&mut state).await, BTreeMap::from([(0, 1)]));
    // One that is down may come back with others.
    state.take(up(false));
    assert_eq!(row(&state, 0), None);
    state.take(serves(0, &["a"]));
    state.take(Message::Serves { replica: 0, wrong: Some("x".into()), adapters: None, root: None });
    assert_eq!(row(&state, 0), None);
}

#[test]
fn what_the_engine_lists_goes_before_what_the_configuration_says() {
    let of = |names: &[&str]| Registration { adapters: Some(list(names)), ..known("127.0.0.1:0") };
    let mut state = State::new(vec![of(&["a"])]);
    assert_eq!(row(&state, 0), Some(list(&["a"])));
    let told = |names: &[&str]| Message::Reconfigure {
        replica: 0,
        draining: false,
        weight: 100,
        adapters: Some(list(names)),
    };
    state.take(told(&["a", "b"]));
    assert_eq!(row(&state, 0), Some(list(&["a", "b"])));
    state.take(serves(0, &["c"]));
    state.take(told(&["d"]));
    assert_eq!(row(&state, 0), Some(list(&["c"])));
    // It lists more than is taken.
    state.take(Message::Serves { replica: 0, wrong: None, adapters: None, root: None });
    assert_eq!(row(&state, 0), None);
    let report = Report { up: false, load: None, round_trip: None };
    state.take(Message::Report { replica: 0, report });
    assert_eq!(row(&state, 0), Some(list(&["d"])));
    state.take(Message::Join { replica: 5, known: Box::new(of(&["e"])) });
    assert_eq!(row(&state, 1), Some(list(&["e"])));
}

#[test]
fn the_tables_adapters_are_bounded_and_those_left_out_are_not_known() {
    let mut state = state(200);
    let many: Vec<String> = (0..1000).map(|i| format!("adapter-{i:06}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for replica in 0..200 {
        state.take(serves(replica, &many));
    }
    let known = |state: &State| (0..200).filter(|replica| row(state, *replica).is_some()).count();
    let each = list::<Adapters>(&many).bytes();
    assert_eq!(known(&state), MOST_BYTES / each);
    let with = prost::Message::encoded_len(&state.table());
    assert!(with < MOST_BYTES + 200 * 64, "{with}");
    // A replica keeps no old list when its new one finds no place, and takes what others free.
    state.take(serves(199, &["a"]));
    assert_eq!(row(&state, 199), Some(list(&["a"])));
    state.take(serves(199, &many));
    assert_eq!(row(&state, 199), None);
    state.take(serves(0, &[]));
    state.take(serves(199, &many));
    assert_eq!(row(&state, 199).map(|names| names.len()), Some(1000));
}
