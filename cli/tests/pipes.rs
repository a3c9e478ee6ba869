//! A command whose reader has gone ends as it would have, and doesn't panic.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs it with standard output, or both, closed before it begins to write.
fn run(arguments: &[&str], input: &str, both: bool) -> Output {
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
    command.args(arguments).current_dir(repository());
    command.stdin(Stdio::piped()).stdout(closed());
    command.stderr(if both { Stdio::from(closed()) } else { Stdio::piped() });
    let mut child = command.spawn().unwrap();
    // It may end before it has read all.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// Nothing listens at port 1, so that what asks somebody has an error to tell.
const STATUS: &[&str] =
    &["status", "--relay", "http://127.0.0.1:1", "--envoy", "http://127.0.0.1:1"];

#[test]
fn nobody_reads() {
    let request = r#"{"model":"demo","messages":[{"role":"user","content":"hello"}]}"#;
    let model = "tests/fixtures/models/demo";
    let commands: &[(&[&str], i32)] = &[
        (STATUS, 1),
        (
            &["status", "--json", "--relay", "http://127.0.0.1:1", "--envoy", "http://127.0.0.1:1"],
            1,
        ),
        (&["check", "envoy/quickstart.yaml"], 0),
        (&["check", "--json", "envoy/quickstart.yaml"], 0),
        (&["check", "README.md"], 2),
        (&["prompt", "--model", model, "--model-version", "1", "-"], 0),
        (&["prompt", "--json", "--model", model, "--model-version", "1", "-"], 0),
        (&["relay", "--check", "--config", "envoy/quickstart.relay.yaml"], 0),
        (&["relay", "--config", "no/such/file"], 2),
        (&["events", "--file", "no/such/file"], 1),
        (&["--help"], 0),
    ];
    for (arguments, code) in commands {
        for both in [false, true] {
            let output = run(arguments, request, both);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!said.contains("panicked"), "{arguments:?}: {said}");
            assert_eq!(output.status.code(), Some(*code), "{arguments:?}, {both}: {said}");
        }
    }
}
