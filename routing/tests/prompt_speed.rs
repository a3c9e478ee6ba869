//! How fast it is; says, never judges:
//! `cargo test --release -p warmpath-routing --features preprocess --test prompt_speed -- --ignored --nocapture`
//! with model directories in `MODELS`, separated by colons.
#![cfg(feature = "preprocess")]
#![allow(clippy::unwrap_used, clippy::cast_precision_loss)] // Tests, helpers included.

use std::path::{Path, PathBuf};
use std::time::Instant;

use warmpath_routing::fingerprint::Fingerprint;
use warmpath_routing::prompt::{Api, Model, ModelFiles, Prompter, Request, preprocess};

/// The time of one call, in seconds: the best of some.
fn best(times: usize, mut call: impl FnMut()) -> f64 {
    (0..times)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

fn measure(name: &str, dir: &Path) {
    let files = ModelFiles::read_dir(dir).unwrap();
    let start = Instant::now();
    let artefact = preprocess(&files).unwrap();
    let prepared = start.elapsed().as_secs_f64();
    let loaded = best(3, || drop(Model::load(&artefact.bytes).unwrap()));
    eprintln!(
        "{name}: artefact {:.2} MB, prepared in {prepared:.2} s, loaded in {:.0} ms",
        artefact.bytes.len() as f64 / 1e6,
        loaded * 1e3
    );
    let source = include_str!("../src/prompt/preprocess.rs");
    let prose = include_str!("../../LICENSE");
    for (kind, text) in [("prose", prose), ("code", source)] {
        for bytes in [8 << 10, 64 << 10] {
            let text: String = text.chars().cycle().take(bytes).collect();
            let body = serde_json::json!({"model": "m", "messages": [
                {"role": "system", "content": text}, {"role": "user", "content": "Why?"},
            ]})
            .to_string();
            let root = Fingerprint([1; 32]);
            let mut cold = Prompter::new(Model::load(&artefact.bytes).unwrap(), 0);
            let mut warm = Prompter::new(Model::load(&artefact.bytes).unwrap(), 8 << 20);
            let run = |prompter: &mut Prompter| {
                let request = Request::parse(Api::Chat, body.as_bytes()).unwrap();
                prompter.prefix(&request, root, usize::MAX, 0).unwrap().tokens
            };
            let tokens = run(&mut warm);
            let cold = best(50, || {
                run(&mut cold);
            });
            let warm = best(50, || {
                run(&mut warm);
            });
            let speed = |seconds: f64| body.len() as f64 / 1e6 / seconds;
            eprintln!(
                "  {kind} {:>2} KB, {tokens} tokens: cold {:.0} µs ({:.1} MB/s), warm {:.0} µs ({:.0} MB/s)",
                bytes >> 10,
                cold * 1e6,
                speed(cold),
                warm * 1e6,
                speed(warm)
            );
        }
    }
}

#[test]
#[ignore = "measures"]
fn speed() {
    let demo = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/demo");
    measure("demo", &demo);
    for dir in std::env::split_paths(&std::env::var_os("MODELS").unwrap_or_default()) {
        measure(&dir.file_name().unwrap().to_string_lossy(), &dir);
    }
}
