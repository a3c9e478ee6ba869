//! A short, repeatable run of what fuzz/ does for hours: real bodies, damaged.
#![cfg(feature = "preprocess")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Tests, helpers included.

use std::path::Path;
use std::sync::{LazyLock, Mutex};

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::value::RawValue;
use warmpath_prompt::Prompter;

#[path = "../../fuzz/src/lib.rs"]
#[allow(unreachable_pub)] // It is another crate there.
mod fuzz;

const MEMO: usize = 1 << 16;

#[derive(serde::Deserialize)]
struct Case {
    body: Box<RawValue>,
}

/// Bodies of the conformance fixtures: chats with tools, both other APIs, texts of all kinds.
static BODIES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/conformance");
    let mut bodies = Vec::new();
    for file in ["apis.jsonl", "demo.jsonl"] {
        for line in std::fs::read_to_string(dir.join(file)).unwrap().lines() {
            let case: Case = serde_json::from_str(line).unwrap();
            bodies.push(case.body.get().as_bytes().to_vec());
        }
    }
    bodies
});

static PROMPTERS: LazyLock<Mutex<[Prompter; 2]>> =
    LazyLock::new(|| Mutex::new([fuzz::demo(MEMO), fuzz::demo(0)]));

#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Cut(Index),
    /// A part of another body goes in.
    Splice(Index, Index, Index, usize),
    Repeat(Index, usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    prop_oneof![
        4 => (at(), prop_oneof![any::<u8>(), Just(b'"'), Just(b'{'), Just(b'['), Just(b','), Just(b'\\')])
            .prop_map(|(at, byte)| Change::Set(at, byte)),
        1 => at().prop_map(Change::Cut),
        3 => (at(), at(), at(), 1usize..80).prop_map(|(to, body, from, n)| Change::Splice(to, body, from, n)),
        1 => (at(), 1usize..40, 2usize..60).prop_map(|(at, n, times)| Change::Repeat(at, n, times)),
    ]
}

fn apply(mut body: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        if body.is_empty() {
            break;
        }
        match change {
            Change::Set(at, byte) => {
                let at = at.index(body.len());
                body[at] = *byte;
            }
            Change::Cut(at) => body.truncate(at.index(body.len())),
            Change::Splice(to, other, from, count) => {
                let other = &BODIES[other.index(BODIES.len())];
                let from = from.index(other.len());
                let part = other[from..other.len().min(from + count)].to_vec();
                let to = to.index(body.len());
                body.splice(to..to, part);
            }
            Change::Repeat(at, count, times) => {
                let at = at.index(body.len());
                let part = body[at..body.len().min(at + count)].repeat(*times);
                body.splice(at..at, part);
            }
        }
    }
    body
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn damaged_bodies_are_answered(
        body in any::<Index>(), changes in proptest::collection::vec(change(), 0..5),
    ) {
        let body = apply(BODIES[body.index(BODIES.len())].clone(), &changes);
        let mut prompters = PROMPTERS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let [warm, cold] = &mut *prompters;
        fuzz::body(warm, cold, MEMO, &body);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn damaged_bodies_name_their_model_however_they_are_split(
        body in any::<Index>(),
        form in any::<bool>(),
        length in any::<u8>(),
        changes in proptest::collection::vec(change(), 0..6),
    ) {
        const FORM: &[u8] = b"--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n\
            \r-\r\n--\r\n--B\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nbeta\r\n--B--\r\n";
        let body = if form { FORM.to_vec() } else { BODIES[body.index(BODIES.len())].clone() };
        fuzz::model_name(&[&[u8::from(form), length], apply(body, &changes).as_slice()].concat());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn damaged_artefacts_are_refused_or_tokenize(
        changes in proptest::collection::vec(any::<u8>(), 6..30),
    ) {
        fuzz::artefact(&changes);
    }

    #[test]
    fn damaged_templates_are_refused_or_render_or_fail(
        at in any::<Index>(),
        piece in prop_oneof![
            Just("{{"), Just("%}"), Just("{% for m in messages %}"), Just("{% endfor %}"),
            Just("{{ messages[0].content.x.y }}"), Just("{{ messages|tojson(indent=9) }}"),
            Just("{{ messages[5:1:-1] }}"), Just("{% macro a(b) %}{{ a(b) }}{% endmacro %}{{ a(1) }}"),
            Just("{{ 'a' * 99 }}"), Just("{{ raise_exception('x') }}"), Just("{{ 1/0 }}"),
            Just("{{ strftime_now('%Q%') }}"), Just("{% generation %}"), Just("\u{0}{"),
        ],
    ) {
        const SOURCE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}";
        let mut source = SOURCE.to_owned();
        source.insert_str(at.index(source.len()), piece);
        // As much stack as a program has: the engine's deepest recursion takes 2 MB unoptimised,
        // which is all that a test has.
        let law = move || fuzz::template(source.as_bytes());
        std::thread::Builder::new().stack_size(8 << 20).spawn(law).unwrap().join().unwrap();
    }
}
