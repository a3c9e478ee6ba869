//! The exit codes of `warmpath check`, by files as an operator has them.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::Command;

const EXCEPTIONS: &str = "quickstart.check.yaml";

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn shipped(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy").join(file))
        .unwrap()
}

fn check(arguments: &[&Path]) -> (i32, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_warmpath")).arg("check").args(arguments).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn three_verdicts_have_three_exit_codes() {
    let folder = folder("verdicts");
    let config = folder.join("quickstart.yaml");
    std::fs::write(&config, shipped("quickstart.yaml")).unwrap();
    // Nothing stands beside it: a client chooses its zone by the host.
    let (code, said) = check(&[&config]);
    assert_eq!(code, 1, "{said}");
    assert!(said.ends_with("verdict: leaks: 1 way out of a zone\n"), "{said}");
    assert!(!said.contains("all in"), "a proof was printed: {said}");
    let exceptions = folder.join(EXCEPTIONS);
    std::fs::write(&exceptions, shipped(EXCEPTIONS)).unwrap();
    let (code, said) = check(&[&config]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("all in eu-west"), "{said}");
    // Named, by a pattern or on purpose, it counts once.
    for arguments in
        [vec![&*config, &*exceptions], vec![&*config, Path::new("--acknowledge"), &*exceptions]]
    {
        assert_eq!(check(&arguments).0, 0);
    }
    let lua = "- name: x\n                    typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua }\n                  - name: warmpath\n";
    let text = shipped("quickstart.yaml").replacen("- name: warmpath\n", lua, 1);
    std::fs::write(&config, text).unwrap();
    let (code, said) = check(&[&config]);
    assert_eq!(code, 3, "{said}");
    assert!(said.ends_with("verdict: not proved: 1 thing might lead out\n"), "{said}");
    assert!(!said.contains("all in"), "a proof was printed: {said}");
    let (code, said) = check(&[Path::new("--json"), &config]);
    let last: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!((code, &last["verdict"]), (3, &serde_json::json!("not proved")));
    std::fs::write(&exceptions, "- { rule: x, path: y }\n").unwrap();
    assert_eq!(check(&[&config]).0, 2);
}
