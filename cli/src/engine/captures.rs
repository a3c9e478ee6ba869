//! Captures of real engines, for tests: beside the repository, or where WARMPATH_SHARED says.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The JSON lines of `engine-captures/NAME.jsonl.gz`; None, said aloud, where there are none.
pub(super) fn lines(name: &str) -> Option<Vec<serde_json::Value>> {
    let shared = match std::env::var_os("WARMPATH_SHARED") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared")),
    };
    let path = shared.join("engine-captures").join(format!("{name}.jsonl.gz"));
    if !path.is_file() {
        eprintln!("SKIPPED: no captures of real engines here (set WARMPATH_SHARED)");
        return None;
    }
    let mut unzip = Command::new("gzip")
        .arg("-dc")
        .arg(path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("gzip reads the captures");
    let mut text = String::new();
    unzip.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(unzip.wait().unwrap().success());
    Some(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// Hex digits to bytes.
pub(super) fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}
