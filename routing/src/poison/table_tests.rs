//! When a prompt is suspected, refused and cleared.

use proptest::prelude::*;

use super::*;

const NOW: u64 = 1_700_000_000_000;
const MINUTE: u64 = 60_000;

fn table() -> Table {
    Table::new(Secret([5; 32]))
}

fn death(prompt: u128, client: u64, engines: &[u64], at_ms: u64) -> Death {
    Death { prompt, client, engines: engines.to_vec(), at_ms }
}

fn refused(ms: u64, engines: &[u64]) -> Verdict {
    Verdict::Refused { ms, engines: engines.to_vec() }
}

#[test]
fn two_engines_that_died_during_a_prompt_make_it_refused_for_a_while() {
    let (mut table, rule) = (table(), Poison::default());
    assert_eq!(table.died(&rule, &death(1, 9, &[10], NOW)), Verdict::Suspect);
    assert_eq!(table.died(&rule, &death(1, 9, &[10], NOW + 5)), Verdict::Suspect, "the same one");
    assert!(table.knows(1) && !table.refuses(1, NOW + 5) && !table.knows(2));
    assert_eq!(table.died(&rule, &death(1, 8, &[11], NOW + 10)), refused(5 * MINUTE, &[10, 11]));
    let end = NOW + 10 + 5 * MINUTE;
    assert!(table.refuses(1, NOW + 10) && table.refuses(1, end - 1) && !table.refuses(1, end));
    assert_eq!((table.refused(NOW + 10), table.refused(end)), (1, 0));
    assert!(!table.refuses(2, NOW + 10));
    // One that was under way by then.
    assert_eq!(table.died(&rule, &death(1, 9, &[12], NOW + 20)), Verdict::Nothing);
    assert!(!table.refuses(1, end), "doesn't prolong it");

    // On trial one death is enough; the times double, up to an hour.
    let mut at = end;
    for (ms, engine) in [(10, 11), (20, 13), (40, 14), (60, 15), (60, 16)] {
        let verdict = table.died(&rule, &death(1, 9, &[engine], at));
        assert!(matches!(&verdict, Verdict::Refused { ms: told, engines }
            if *told == ms * MINUTE && engines.contains(&engine) && engines.contains(&10)));
        assert!(table.refuses(1, at + ms * MINUTE - 1));
        at += ms * MINUTE;
        assert!(!table.refuses(1, at));
    }
    // An engine lived through it, and all is forgiven.
    assert!(table.answered(1) && !table.answered(1));
    assert_eq!(table.died(&rule, &death(1, 9, &[10], at)), Verdict::Suspect);
    // Both at once: Envoy has tried twice.
    assert_eq!(table.died(&rule, &death(2, 9, &[10, 11], at)), refused(5 * MINUTE, &[10, 11]));
}

#[test]
fn strikes_that_are_too_few_expire_and_so_do_trials() {
    let (mut table, rule) = (table(), Poison::default());
    table.died(&rule, &death(1, 9, &[10], NOW));
    let later = NOW + SUSPECT_MS + 1;
    assert_eq!(table.died(&rule, &death(1, 9, &[11], later)), Verdict::Suspect);
    let soon = later + SUSPECT_MS;
    assert_eq!(table.died(&rule, &death(1, 9, &[10], soon)), refused(5 * MINUTE, &[11, 10]));
    let over = soon + 5 * MINUTE + TRIAL_MS + 1;
    assert_eq!(table.died(&rule, &death(1, 9, &[10], over)), Verdict::Suspect);
    // A clock that was set back locks nobody out.
    table.died(&rule, &death(2, 9, &[10, 11], NOW + 100 * LONGEST_MS));
    assert!(!table.refuses(2, NOW) && table.refuses(2, NOW + 100 * LONGEST_MS));
}

#[test]
fn the_rule_says_how_many_engines_and_zero_never_refuses() {
    for (engines, at) in [(1, 1), (3, 3), (4, 4), (0, 9)] {
        let (mut table, rule) = (table(), Poison { engines, ..Poison::default() });
        let died = |engine| table.died(&rule, &death(1, 9, &[engine], NOW));
        let verdicts: Vec<Verdict> = (1..6).map(died).collect();
        let first = verdicts.iter().position(|it| matches!(it, Verdict::Refused { .. }));
        assert_eq!(first.map_or(9, |first| first + 1), at);
        assert_eq!(table.knows(1), engines > 0);
    }
}

#[test]
fn nobody_pushes_out_a_refused_prompt_with_suspects_nor_with_poison_of_one_address() {
    let (mut table, rule) = (table(), Poison::default());
    table.died(&rule, &death(1, 1, &[10, 11], NOW));
    // Many prompts of one client, all of which are refused.
    for prompt in 1_000..2_000 {
        table.died(&rule, &death(prompt, 2, &[10, 11], NOW + prompt as u64));
    }
    assert_eq!(table.entries.len(), 1 + MOST_OF_CLIENT);
    assert!(table.refuses(1, NOW + 3_000) && table.refuses(1_999, NOW + 3_000));
    // Suspects of many clients.
    for prompt in 2_000..4_000 {
        table.died(&rule, &death(prompt, prompt as u64, &[10], NOW + prompt as u64));
    }
    assert_eq!(table.entries.len(), MOST);
    assert!(table.refuses(1, NOW + 5_000) && table.refuses(1_999, NOW + 5_000));
    assert!(table.knows(3_999) && !table.knows(2_000), "the oldest suspects go");
    // Poison of many clients goes before suspects; then the oldest goes, and a suspect finds no room.
    for prompt in 4_000..4_300 {
        let verdict = table.died(&rule, &death(prompt, prompt as u64, &[10, 11], NOW + 5_000));
        assert_eq!(verdict, refused(5 * MINUTE, &[10, 11]));
    }
    assert_eq!((table.entries.len(), table.refused(NOW + 5_000)), (MOST, MOST));
    assert_eq!(table.died(&rule, &death(9, 9, &[10], NOW + 5_000)), Verdict::Nothing);
    assert!(!table.knows(9));
}

fn any_death() -> impl Strategy<Value = Death> {
    let engines = proptest::collection::vec(0_u64..5, 0..4);
    (0_u128..600, 0_u64..40, engines, 0_u64..4_000)
        .prop_map(|(prompt, client, engines, at)| death(prompt, client, &engines, NOW + at * 1_000))
}

proptest! {
    // Each is long.
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever happens it stays small, is written and read alike, and refuses nothing for longer
    /// than an hour, nor what fewer than two engines died of.
    #[test]
    fn it_is_bounded_and_just(deaths in proptest::collection::vec(any_death(), 0..900)) {
        let (mut table, rule) = (table(), Poison::default());
        let mut engines: BTreeMap<u128, std::collections::BTreeSet<u64>> = BTreeMap::new();
        let mut latest_ms = 0;
        for death in deaths {
            latest_ms = death.at_ms.max(latest_ms);
            engines.entry(death.prompt).or_default().extend(&death.engines);
            table.died(&rule, &death);
            prop_assert!(table.entries.len() <= MOST);
            for (prompt, entry) in &table.entries {
                prop_assert!(entry.engines.len() <= MOST_ENGINES);
                prop_assert!(entry.until_ms == 0 || engines[prompt].len() >= 2);
                prop_assert!(!table.refuses(*prompt, latest_ms + LONGEST_MS));
            }
        }
        let mut of_client: BTreeMap<u64, usize> = BTreeMap::new();
        table.entries.values().for_each(|entry| *of_client.entry(entry.client).or_default() += 1);
        prop_assert!(of_client.values().all(|count| *count <= MOST_OF_CLIENT));
        let bytes = table.encode();
        prop_assert!(bytes.len() <= HEAD + MOST * ENTRY);
        prop_assert_eq!(Table::decode(&bytes), Some(table));
    }

    /// Any bytes are read or refused.
    #[test]
    fn foreign_bytes_are_no_table(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..400), count in 0_u32..6,
    ) {
        if let Some(head) = bytes.first_chunk_mut::<8>() {
            head[0] = FORMAT;
            head[4..].copy_from_slice(&count.to_le_bytes());
        }
        if let Some(mut table) = Table::decode(&bytes) {
            prop_assert_eq!(Table::decode(&table.encode()), Some(table.clone()));
            table.died(&Poison::default(), &death(1, 1, &[1, 2], NOW));
        }
        bytes.resize(HEAD + count as usize * ENTRY, 0);
        bytes.get_mut(..8).unwrap()[0] = FORMAT + 1;
        prop_assert_eq!(Table::decode(&bytes), None);
    }
}

#[test]
fn the_bytes_are_pinned() {
    let mut table = Table::new(Secret([0xab; 32]));
    table.died(&Poison::default(), &death(0x0102, 7, &[10, 11], NOW));
    let bytes = table.encode();
    let hex = bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    let expected = [
        "0100000001000000",
        &"ab".repeat(32),
        "02010000000000000000000000000000",
        "0700000000000000",
        "0068e5cf8b010000",
        "e0fbe9cf8b010000",
        "0100000002000000",
        "0a000000000000000b00000000000000",
        &"00".repeat(16),
    ];
    assert_eq!(hex, expected.concat());
    assert_eq!(Table::decode(&bytes), Some(table.clone()));
    assert_eq!(Table::decode(bytes.get(..bytes.len() - 1).unwrap()), None);
    let mut more = bytes.clone();
    more[4] = 2;
    assert_eq!(Table::decode(&more), None, "it says that there are more");
    more.clone_from(&bytes);
    more[HEAD + 44] = MOST_ENGINES as u8 + 1;
    assert_eq!(Table::decode(&more), None, "more engines than there is room for");
    more.clone_from(&bytes);
    more.extend_from_slice(bytes.get(HEAD..).unwrap());
    more[4] = 2;
    assert_eq!(Table::decode(&more), None, "the same prompt twice");
    assert_eq!(Table::decode(b""), None);
}
