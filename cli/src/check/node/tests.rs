//! YAML as the check reads it.

use super::*;

#[test]
fn nodes_know_their_lines() {
    let text = "a: 1\nb: &x\n  - c: 0s\n    'd': true\n  - e\nf: *x\ng: |\n  one\n  two\n---\nh: {i: 1.5}\n";
    let documents = read(text, 7).unwrap();
    assert_eq!(documents.len(), 2);
    let root = At::root(&documents[0]);
    assert_eq!(root.number("a"), Some(1.0));
    let items = root.items("f");
    assert_eq!(items[0].path, "f[0]");
    assert_eq!(items[0].get("c").unwrap().node.place, Place { file: 7, line: 3, column: 8 });
    assert!(items[0].is_true("d"));
    assert_eq!(root.get("g").unwrap().node.place.line, 8, "the first line of a block");
    assert_eq!(At::root(&documents[1]).get("h.i").unwrap().node.place.line, 11);
}

#[test]
fn both_spellings_are_found() {
    assert!(same("per_connection_buffer_limit_bytes", "per_connection_buffer_limit_bytes"));
    assert!(same("perConnectionBufferLimitBytes", "per_connection_buffer_limit_bytes"));
    assert!(!same("Name", "name"));
}

#[test]
fn a_field_stands_once() {
    for twice in ["a: 1\na: 2", "x: [{typed_config: 1, typedConfig: 2}]", "{\"a\": 1, \"a\": 2}"] {
        assert!(read(twice, 0).is_err(), "{twice}");
    }
    assert!(read("a: {x_y: 1}\nb: {xY: 1}", 0).is_ok());
}

#[test]
fn what_envoy_reads_otherwise_is_refused() {
    for text in ["a: {!ignore b: 1}", "port_value: 043123"] {
        assert!(read(text, 0).is_err(), "{text}");
    }
}

#[test]
fn hostile_yaml_is_refused() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for n in 1..12 {
        let alias = vec![format!("*a{}", n - 1); 10].join(", ");
        bomb = format!("{bomb}a{n}: &a{n} [{alias}]\n");
    }
    assert!(read(&bomb, 0).is_err());
    assert!(read("a: [", 0).is_err());
    assert!(read(&"[".repeat(10_000), 0).is_err());
}
