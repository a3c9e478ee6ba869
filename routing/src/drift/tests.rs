//! When an alarm is raised, what it names as the cause, and when it ends.

use proptest::prelude::*;

use super::*;

fn seen(expected: u32, actual: u32) -> Observation {
    let prompt = Some(1_000);
    Observation { expected, actual, our_prompt: prompt, their_prompt: prompt, ..Default::default() }
}

fn after(told: bool, announced: bool) -> After {
    After { came: Some(told), announced, removed: false }
}

/// Answers until something changes.
fn until(
    drift: &mut Drift,
    hints: Hints,
    mut seen: impl FnMut(u32) -> Observation,
) -> (u32, Change) {
    (1..1_000).find_map(|n| Some((n, drift.observe(&seen(n), hints).next()?))).unwrap()
}

#[test]
fn drift_is_told_within_tens_of_requests_and_so_is_its_end() {
    use Change::{Began, Ended};
    let gone = After { removed: true, ..After::default() };
    let unnamed = Observation { after: after(false, true), ..seen(0, 800) };
    let lost = Observation { after: after(false, false), ..seen(0, 800) };
    for (wrong, began, most) in [
        (seen(800, 0), Began(Kind::Missing, Suspect::Events), 5),
        (seen(800, 400), Began(Kind::Missing, Suspect::Events), 11),
        (seen(800, 592), Began(Kind::Missing, Suspect::BlockSize), 30),
        (Observation { after: gone, ..seen(800, 0) }, Began(Kind::Evicted, Suspect::Evictions), 5),
        (seen(0, 800), Began(Kind::Surprise, Suspect::Events), 6),
        (unnamed, Began(Kind::Surprise, Suspect::Template), 6),
        (
            Observation { asked: Asked::Text, ..unnamed },
            Began(Kind::Surprise, Suspect::Tokenizer),
            6,
        ),
        (Observation { asked: Asked::Ids, ..unnamed }, Began(Kind::Surprise, Suspect::Version), 6),
        (lost, Began(Kind::Surprise, Suspect::Events), 6),
        (
            Observation { after: after(false, false), ..seen(0, 0) },
            Began(Kind::Unannounced, Suspect::Events),
            4,
        ),
        (
            Observation { after: after(false, false), sent_before: 800, ..seen(0, 0) },
            Began(Kind::Unannounced, Suspect::PrefixCaching),
            4,
        ),
    ] {
        let mut drift = Drift::default();
        let (n, change) = until(&mut drift, Hints::default(), |_| wrong);
        assert_eq!(change, began, "{wrong:?}");
        assert!(n <= most, "{wrong:?}: {n}");
        for _ in 0..10_000 {
            assert_eq!(drift.observe(&wrong, Hints::default()).next(), None, "it is told once");
        }
        let right = Observation { after: After::default(), ..seen(800, 800) };
        let right = match began {
            Began(Kind::Unannounced, _) => Observation { after: after(true, true), ..right },
            _ => right,
        };
        let (n, change) = until(&mut drift, Hints::default(), |_| right);
        assert!(matches!(change, Ended(_)));
        assert!(n <= 60, "{n}");
        for _ in 0..60 {
            let _ = drift.observe(&right, Hints::default());
        }
        assert!(drift.is_calm());
    }
}

/// Chats of 3 lengths and up to 4 turns: what an engine counts of each.
fn counted(n: u32, theirs: impl Fn(u32, u8) -> u32) -> Observation {
    let ours = 900 + 37 * (n % 3);
    let turns = 1 + (n % 4) as u8;
    Observation {
        our_prompt: Some(ours),
        their_prompt: Some(theirs(ours, turns)),
        turns,
        after: after(false, true),
        ..seen(0, 800)
    }
}

#[test]
fn counts_tell_a_tokenizer_from_a_template() {
    let suspect = |theirs: &dyn Fn(u32, u8) -> u32| {
        let mut drift = Drift::default();
        let mut last = None;
        for n in 0..25 {
            for change in drift.observe(&counted(n, theirs), Hints::default()) {
                let (Change::Began(_, suspect) | Change::Renamed(_, suspect)) = change else {
                    panic!("{change:?}")
                };
                assert_eq!(last.replace(suspect), None, "named once");
            }
        }
        last.unwrap()
    };
    // One more, some for each message, a default system prompt; and none, but another text.
    assert_eq!(suspect(&|ours, _| ours + 1), Suspect::Template);
    assert_eq!(suspect(&|ours, turns| ours + 3 * u32::from(turns)), Suspect::Template);
    assert_eq!(suspect(&|ours, _| ours + 22), Suspect::Template);
    assert_eq!(suspect(&|ours, _| ours - 1), Suspect::Template);
    assert_eq!(suspect(&|ours, _| ours), Suspect::Template);
    // A few in a hundred, or now and then one.
    assert_eq!(suspect(&|ours, _| ours * 21 / 20), Suspect::Tokenizer);
    assert_eq!(suspect(&|ours, _| ours + ours % 5), Suspect::Tokenizer);
    assert_eq!(suspect(&|ours, _| ours / 2), Suspect::Tokenizer);
}

#[test]
fn texts_tell_them_apart_as_well() {
    for (theirs, suspect) in [(1_000, Suspect::Template), (1_001, Suspect::Tokenizer)] {
        let mut drift = Drift::default();
        let (_, change) = until(&mut drift, Hints::default(), |n| {
            if n % 2 == 0 {
                return counted(n, |ours, _| ours + n % 7 + 1);
            }
            Observation {
                asked: Asked::Text,
                their_prompt: Some(theirs),
                after: after(theirs == 1_000, true),
                ..seen(0, 800)
            }
        });
        assert_eq!(change, Change::Began(Kind::Surprise, suspect));
    }
}

#[test]
fn a_wrong_tokenizer_is_named_however_few_prompts_were_counted() {
    for every in [1, 2, 4, 5] {
        for (expected, actual) in [(0, 800), (800, 0), (48, 800), (800, 400)] {
            let mut drift = Drift::default();
            let mut changes = Vec::new();
            for n in 1..60_u32 {
                let our_prompt = n.is_multiple_of(every).then_some(1_000 - 7 * (n % 9));
                let doubt = drift.is_in_doubt();
                let seen = Observation { our_prompt, ..seen(expected, actual) };
                let seen = Observation { their_prompt: our_prompt.map(|n| n * 3 / 2), ..seen };
                let seen = Observation { their_prompt: seen.their_prompt.or(Some(9)), ..seen };
                let told: Vec<Change> = drift.observe(&seen, Hints::default()).collect();
                assert!(doubt || told.is_empty(), "no doubt before {told:?}");
                changes.extend(told);
            }
            assert!(
                matches!(changes[..], [Change::Began(_, Suspect::Tokenizer)]),
                "one in {every}: {changes:?}"
            );
        }
    }
    // A few that were equal outweigh one that wasn't.
    let mut drift = Drift::default();
    for theirs in [990, 1_000, 1_000, 1_000, 1_000] {
        let seen = Observation { their_prompt: Some(theirs), ..seen(800, 0) };
        let _ = drift.observe(&seen, Hints::default());
    }
    assert_eq!(drift.suspect(Kind::Missing), Some(Suspect::Events));
}

#[test]
fn what_the_engine_says_of_itself_goes_before() {
    let hints = Hints { caches_nothing: true, ..Hints::default() };
    let mut table = Table::default();
    let began = Change::Began(Kind::Unannounced, Suspect::PrefixCaching);
    assert_eq!(table.hint(7, true), Some(began));
    assert_eq!(table.hint(7, true), None);
    assert!(table.is_hinted(7) && !table.is_hinted(8));
    assert_eq!(table.suspected(Suspect::PrefixCaching), 1);
    assert_eq!(table.hint(7, false), Some(Change::Ended(Kind::Unannounced)));
    assert_eq!(table, Table::default());
    let mut drift = Drift::default();
    let (_, change) = until(&mut drift, hints, |_| seen(0, 800));
    assert_eq!(change, Change::Began(Kind::Surprise, Suspect::PrefixCaching));
    // Not heard: whatever else comes into the map at that time is another's.
    let silent = Hints { silent: true, ..Hints::default() };
    let wrong = Observation { after: after(false, true), ..seen(0, 800) };
    let (_, change) = until(&mut Drift::default(), silent, |_| wrong);
    assert_eq!(change, Change::Began(Kind::Surprise, Suspect::Events));
}

#[test]
fn one_replica_that_differs_from_the_others_of_its_model_has_another_version() {
    let (odd, even) = (Id { model: 1, replica: 1 }, Id { model: 1, replica: 2 });
    let mut table = Table::default();
    assert!(!table.minds(even));
    let mut told = Vec::new();
    for n in 0..8 {
        let wrong = Observation { after: after(false, true), ..seen(0, 800) };
        told.extend(table.observe(odd, &wrong, Hints::default()));
        assert!(table.minds(even) && !table.minds(Id { model: 2, replica: 2 }), "{n}");
        told.extend(table.observe(even, &seen(800, 800), Hints::default()));
    }
    assert_eq!(told, [Change::Began(Kind::Surprise, Suspect::Version)]);
    assert_eq!(table.drifting(Kind::Surprise), 1);
    assert_eq!(table.suspected(Suspect::Version), 1);
    // It is mended: nothing is left.
    for _ in 0..60 {
        told.extend(table.observe(odd, &seen(800, 800), Hints::default()));
    }
    assert_eq!(told[1..], [Change::Ended(Kind::Surprise)]);
    assert_eq!(table, Table::default());
    // All of them: it is what they have in common.
    let mut told = Vec::new();
    for n in 0..16 {
        let wrong = Observation { after: after(false, true), ..seen(0, 800) };
        told.extend(table.observe([odd, even][n % 2], &wrong, Hints::default()));
    }
    assert_eq!(told, [Change::Began(Kind::Surprise, Suspect::Template); 2]);
}

#[test]
fn what_turns_out_to_be_another_cause_is_told_once() {
    let mut drift = Drift::default();
    let lost = Observation { after: after(false, false), ..seen(0, 800) };
    let (_, change) = until(&mut drift, Hints::default(), |_| lost);
    assert_eq!(change, Change::Began(Kind::Surprise, Suspect::Events));
    let unnamed = Observation { after: after(false, true), ..seen(0, 800) };
    let (n, change) = until(&mut drift, Hints::default(), |_| unnamed);
    assert_eq!(change, Change::Renamed(Kind::Surprise, Suspect::Template));
    assert!(n < 20, "{n}");
    for _ in 0..1_000 {
        assert_eq!(drift.observe(&unnamed, Hints::default()).next(), None);
    }
}

#[test]
fn what_is_usual_is_no_drift() {
    let mut drift = Drift::default();
    for n in 0..10_000 {
        let seen = match n % 12 {
            0 => seen(800, 0),
            4 | 7 => seen(0, 800),
            _ => seen(800, 800),
        };
        assert_eq!(drift.observe(&seen, Hints::default()).next(), None, "request {n}");
    }
    for n in 0..1_000 {
        for right in [
            seen(0, 0),
            Observation { hoped: 800, ..seen(0, 800) },
            // Its events came, if late; a prompt that others computed meanwhile.
            Observation { after: after(true, true), ..seen(0, 800) },
            Observation { after: after(true, true), ..seen(0, 0) },
        ] {
            assert_eq!(drift.observe(&right, Hints::default()).next(), None, "{n}: {right:?}");
        }
    }
}

fn any_observation() -> impl Strategy<Value = Observation> {
    let numbers = (0..2_000_u32, 0..2_000_u32, any::<u32>(), any::<Option<u32>>());
    let after = (any::<Option<bool>>(), any::<bool>(), any::<bool>());
    (numbers, any::<Option<u32>>(), 0..3_u8, any::<u8>(), after).prop_map(
        |((expected, actual, hoped, our_prompt), their_prompt, asked, turns, after)| Observation {
            expected,
            actual,
            hoped,
            sent_before: hoped,
            our_prompt,
            their_prompt,
            asked: [Asked::Ids, Asked::Text, Asked::Chat][usize::from(asked)],
            turns,
            after: After { came: after.0, announced: after.1, removed: after.2 },
        },
    )
}

proptest! {
    /// Any answers: sums stay bounded, changes alternate, right answers end every drift, and what is
    /// in shared data comes back from there as it was.
    #[test]
    fn changes_alternate(
        answers in proptest::collection::vec((0..3_u64, 0..2_u64, any_observation()), 0..200),
    ) {
        let mut table = Table::default();
        for (replica, model, seen) in &answers {
            let id = Id { model: *model, replica: *replica };
            let before = table.all.get(&id).copied().unwrap_or_default();
            let changes = table.observe(id, seen, Hints::default());
            let drift = table.all.get(&id).copied().unwrap_or_default();
            for change in changes {
                match change {
                    Change::Began(kind, _) => {
                        prop_assert!(!before.drifts(kind) && drift.drifts(kind));
                    }
                    Change::Renamed(kind, suspect) => {
                        prop_assert!(before.drifts(kind));
                        prop_assert_eq!(drift.suspect(kind), Some(suspect));
                    }
                    Change::Ended(kind) => {
                        prop_assert!(before.drifts(kind) && !drift.drifts(kind));
                    }
                }
            }
            for sum in drift.sums {
                prop_assert!((0.0..=MOST).contains(&sum.total));
            }
        }
        let again = Table::decode(&table.encode());
        prop_assert_eq!(again.as_ref(), Some(&table));
        for _ in 0..80 {
            for id in 0..6 {
                let id = Id { model: id % 2, replica: id / 2 };
                let right = Observation { after: after(true, true), ..seen(100, 100) };
                let _ = table.observe(id, &right, Hints::default());
            }
        }
        prop_assert_eq!(table, Table::default());
    }

    /// A cache that is too short, and events on their way, whatever the mix: the map is right, and is
    /// not accused.
    #[test]
    fn a_short_cache_is_no_fault_of_the_map(
        answers in proptest::collection::vec((1..1_000_u32, 0..1_000_u32, any::<bool>()), 0..300),
    ) {
        let mut drift = Drift::default();
        for (expected, actual, announced) in answers {
            let told = (actual > expected).then_some(true);
            let after = After { came: told, announced, removed: actual < expected };
            let seen = Observation { after, ..seen(expected, actual) };
            for change in drift.observe(&seen, Hints::default()) {
                let evicted = matches!(
                    change,
                    Change::Began(Kind::Evicted, Suspect::Evictions) | Change::Ended(Kind::Evicted)
                );
                prop_assert!(evicted, "{:?}", change);
            }
        }
    }

    #[test]
    fn any_bytes_are_a_table_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Table::decode(&bytes);
        let mut formed = vec![FORMAT_OF_TESTS, 0, 0, 0];
        formed.extend(bytes);
        if let Some(mut table) = Table::decode(&formed) {
            let _ = table.observe(Id::default(), &seen(0, 800), Hints::default());
        }
    }
}

const FORMAT_OF_TESTS: u8 = 1;
