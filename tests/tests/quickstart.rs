//! The files that users start from are what Envoy and the relay take.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use std::process::Command;

use warmpath_tests::{Tools, repository};

#[test]
fn envoy_takes_the_quick_start() {
    let tools = Tools::find().unwrap();
    let wasm = repository().join("target/wasm32-wasip1/filter/warmpath_filter.wasm");
    assert!(wasm.is_file(), "scripts/build-filter puts the filter where the quick start says");
    let out = Command::new(tools.envoy)
        .args(["--mode", "validate", "-c", "envoy/quickstart.yaml"])
        .current_dir(repository())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{text}");
    assert!(!text.contains("[error]"), "{text}");
    assert!(!text.to_lowercase().contains("deprecated"), "{text}");
}

#[test]
fn the_relay_takes_its_quick_start() {
    let tools = Tools::find().unwrap();
    let out = Command::new(tools.warmpath)
        .args(["relay", "--check", "--config", "envoy/quickstart.relay.yaml"])
        .current_dir(repository())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn the_quick_start_is_proved_to_keep_its_zones() {
    let tools = Tools::find().unwrap();
    let out = Command::new(tools.warmpath)
        .args(["check", "--strict", "envoy/quickstart.yaml", "envoy/quickstart.relay.yaml"])
        .current_dir(repository())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}
