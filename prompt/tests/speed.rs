//! How fast it is, and how much memory it takes; says, never judges:
//! `cargo test --release -p warmpath-prompt --features preprocess --test speed -- --ignored --nocapture`
//! with model directories in `MODELS`, separated by colons. With `ARTEFACTS=DIR` the prepared models
//! are left there; an artefact may stand in `MODELS` instead of a directory, as it does for
//! prompt/tests/speed.mjs, which runs this in V8.
#![cfg(feature = "preprocess")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_precision_loss)] // Tests, helpers included.

use std::path::{Path, PathBuf};
use std::time::Instant;

use warmpath_prompt::{Api, Model, ModelFiles, Prompter, Request, preprocess};
use warmpath_routing::fingerprint::Fingerprint;

/// The time of one call, in seconds: the median of some.
fn median(times: usize, mut call: impl FnMut()) -> f64 {
    let mut all: Vec<f64> = (0..times)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed().as_secs_f64()
        })
        .collect();
    all.sort_by(f64::total_cmp);
    all[times / 2]
}

/// Bytes of linear memory, which never shrinks; none outside of wasm.
fn memory() -> Option<usize> {
    #[cfg(target_arch = "wasm32")]
    return Some(core::arch::wasm32::memory_size(0) * 65536);
    #[cfg(not(target_arch = "wasm32"))]
    None
}

fn artefact(path: &Path) -> Vec<u8> {
    if path.is_file() {
        return std::fs::read(path).unwrap();
    }
    let name = path.file_name().unwrap().to_string_lossy();
    let files = ModelFiles::read_dir(path).unwrap();
    let start = Instant::now();
    let bytes = preprocess(&files).unwrap().bytes;
    eprintln!("{name}: prepared in {:.2} s", start.elapsed().as_secs_f64());
    if let Some(dir) = std::env::var_os("ARTEFACTS") {
        std::fs::write(Path::new(&dir).join(format!("{name}.warmpath")), &bytes).unwrap();
    }
    bytes
}

fn measure(path: &Path) {
    let artefact = artefact(path);
    let before = memory();
    let start = Instant::now();
    let first = Model::load(artefact.clone()).unwrap();
    let first_load = start.elapsed().as_secs_f64();
    let after = memory();
    let memory = match (before, after) {
        (Some(before), Some(after)) => {
            format!(", {:.0} MB more memory", (after - before) as f64 / 1e6)
        }
        _ => String::new(),
    };
    // The least of some: other work on the machine weighs on anything this long.
    let loaded = (0..12)
        .map(|_| {
            let start = Instant::now();
            drop(Model::load(artefact.clone()).unwrap());
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    eprintln!(
        "{}: artefact {:.2} MB, loaded in {:.0} ms, then {:.0} ms at best{memory}",
        path.file_name().unwrap().to_string_lossy(),
        artefact.len() as f64 / 1e6,
        first_load * 1e3,
        loaded * 1e3
    );
    let source = include_str!("../src/request/mod.rs");
    let prose = include_str!("../../LICENSE");
    let mut cold = Prompter::new(first, 0);
    let mut warm = Prompter::new(Model::load(artefact.clone()).unwrap(), 8 << 20);
    for (kind, text) in [("prose", prose), ("code", source)] {
        for bytes in [8 << 10, 64 << 10] {
            let text: String = text.chars().cycle().take(bytes).collect();
            let body = serde_json::json!({"model": "m", "messages": [
                {"role": "system", "content": text}, {"role": "user", "content": "Why?"},
            ]})
            .to_string();
            let root = Fingerprint([1; 32]);
            let run = |prompter: &mut Prompter| {
                let request = Request::parse(Api::Chat, body.as_bytes()).unwrap();
                prompter.prefix(&request, root, usize::MAX, 0).unwrap().tokens
            };
            let parsed = median(300, || drop(Request::parse(Api::Chat, body.as_bytes()).unwrap()));
            let start = Instant::now();
            let tokens = run(&mut cold);
            let first = start.elapsed().as_secs_f64();
            let cold = median(300, || {
                run(&mut cold);
            });
            let warm = median(300, || {
                run(&mut warm);
            });
            let speed = |seconds: f64| body.len() as f64 / 1e6 / seconds;
            eprintln!(
                "  {kind} {:>2} KB, {tokens} tokens: cold {:.0} µs ({:.1} MB/s; first {:.0}), warm {:.0} µs ({:.0} MB/s), of which parsing {:.0}",
                bytes >> 10,
                cold * 1e6,
                speed(cold),
                first * 1e6,
                warm * 1e6,
                speed(warm),
                parsed * 1e6
            );
        }
    }
}

#[test]
#[ignore = "measures"]
fn speed() {
    match std::env::var("MODELS") {
        Ok(models) => models.split(':').for_each(|model| measure(Path::new(model))),
        Err(_) => measure(
            &PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/demo"),
        ),
    }
}
