//! Real frames of every encoding decode to their meaning; broken ones to errors.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use warmpath_relay::events::{Batch, DecodeError, Event, ExtraKeys, Kind, Medium, decode};
use warmpath_relay::index::{Changes, Duplicates, Limits, ModelScope, View};

use common::{Frame, captures, frames, lines, meaning, prefix_keys};

fn fixture() -> Vec<Frame> {
    frames(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/frames.jsonl"))
}

fn assert_meaning(frame: &Frame, name: &str) {
    let Batch { time, rank, events } = decode(&frame.payload).unwrap();
    let expected = meaning(&frame.decoded);
    // JSON loses the last bit.
    assert!((time - expected.time).abs() < 1e-5, "{name}");
    assert_eq!(rank, expected.rank, "{name}");
    assert_eq!(events, expected.events, "{name}");
}

#[test]
fn frozen_frames_decode_to_their_meaning() {
    let frames = fixture();
    assert_eq!(frames.len(), 17);
    for frame in frames {
        assert_meaning(&frame, "fixture");
    }
}

#[test]
fn captured_frames_decode_to_their_meaning() {
    let Some(directory) = captures() else { return };
    let mut files: Vec<_> = [directory.clone(), directory.join("reencoded")]
        .iter()
        .flat_map(|directory| std::fs::read_dir(directory).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(".frames.jsonl.gz"))
        .collect();
    files.sort();
    assert!(files.len() >= 18, "{files:?}");
    for file in files {
        for frame in frames(&file) {
            assert_meaning(&frame, &file.to_string_lossy());
        }
    }
}

/// The filter asks with the tokens that the engine had in its prompt: they must be found.
#[test]
fn what_requests_left_in_the_cache_is_found_by_their_tokens() {
    let Some(directory) = captures() else { return };
    for (name, block) in [("llama31_default", 128), ("qwen3_bytes_lora", 32)] {
        let scope = Arc::new(ModelScope { version: "1".into(), tokenizer_hash: [1; 32] });
        let mut view = View::new(scope, Duplicates::Doubt, Limits::default());
        'frames: for frame in frames(&directory.join(format!("{name}.frames.jsonl.gz"))) {
            for event in &decode(&frame.payload).unwrap().events {
                if *event == Event::Cleared {
                    break 'frames;
                }
                view.apply(event, 0, &mut Changes::default());
            }
        }
        let mut asked = 0;
        for line in lines(&directory.join(format!("{name}.requests.jsonl.gz"))) {
            if line["label"] == "reset_prefix_cache" {
                break;
            }
            let response = &line["resp"];
            let choices = response["choices"].as_array().cloned().unwrap_or_default();
            for ids in choices
                .iter()
                .map(|choice| &choice["prompt_token_ids"])
                .chain([&response["prompt_token_ids"]])
            {
                let Some(ids) = ids.as_array() else { continue };
                let tokens: Vec<u32> = ids.iter().map(|id| id.as_u64().unwrap() as u32).collect();
                let request = &line["req"];
                let adapter = request["model"].as_str().filter(|name| name.starts_with("lora"));
                let salt = request["cache_salt"].as_str().unwrap_or_default();
                let keys = prefix_keys("1", &[1; 32], adapter.unwrap_or_default(), salt, &tokens);
                let cached = tokens.len() / block * block / 16;
                for (i, key) in keys.iter().take(cached).enumerate() {
                    assert!(view.holds(key), "{name} {} block {i}", line["label"]);
                }
                let other = [&[tokens[0] ^ 1], &tokens[1..]].concat();
                let other = prefix_keys("1", &[1; 32], adapter.unwrap_or_default(), salt, &other);
                assert!(!other.iter().any(|key| view.holds(key)));
                asked += usize::from(cached > 0);
            }
        }
        assert!(asked > 20, "{name}: {asked} requests");
    }
}

/// msgpack by hand, for forms that no capture has.
fn pack(value: &rmpv::Value) -> Vec<u8> {
    let mut out = Vec::new();
    rmpv::encode::write_value(&mut out, value).unwrap();
    out
}

fn batch(event: rmpv::Value) -> Vec<u8> {
    pack(&rmpv::Value::Array(vec![1.5.into(), rmpv::Value::Array(vec![event]), rmpv::Value::Nil]))
}

fn array(list: Vec<rmpv::Value>) -> rmpv::Value {
    rmpv::Value::Array(list)
}

#[test]
fn forms_that_no_capture_has() {
    let nil = rmpv::Value::Nil;
    let tokens = || array((0..4).map(Into::into).collect());
    let one = |event| match decode(&batch(event)).unwrap().events.remove(0) {
        Event::Stored(stored) => stored,
        other => panic!("{other:?}"),
    };
    let head =
        || vec!["BlockStored".into(), array(vec![7.into()]), nil.clone(), tokens(), 4.into()];

    // SGLang's array with a salt where vLLM has the adapter's name.
    let salted = [head(), vec![nil.clone(), "GPU".into(), "salt".into()]].concat();
    let stored = one(array(salted.clone()));
    assert_eq!((stored.cache_salt.as_deref(), stored.lora_name), (Some("salt"), None));
    let named = [salted, vec!["session".into(), "adapter".into()]].concat();
    let stored = one(array(named));
    assert_eq!(stored.cache_salt.as_deref(), Some("salt"));
    assert_eq!(stored.lora_name.as_deref(), Some("adapter"));

    // Token pairs of speculative decoding; images; tiers; later fields and nils at the end.
    let pairs = (0..4).map(|t| array(vec![t.into(), (t + 1).into()])).collect();
    let mut list = head();
    list[3] = array(pairs);
    let image = array(vec![array(vec!["image".into(), 3.into()])]);
    list.extend([nil.clone(), "CPU_PINNED".into(), nil.clone(), array(vec![image])]);
    list.extend([0.into(), "mla_attention".into(), nil.clone(), nil.clone(), nil.clone()]);
    list.extend([array(vec![rmpv::Value::Map(vec![(1.into(), tokens())])]), 2.5.into()]);
    let stored = one(array(list));
    assert_eq!(stored.tokens, [0, 1, 2, 3]);
    assert_eq!(stored.medium, Medium::Cpu);
    assert_eq!(stored.extra_keys, [ExtraKeys::Other]);

    // A map with the type last and unknown fields, keys that are no text.
    let map = rmpv::Value::Map(vec![
        ("later".into(), rmpv::Value::Map(vec![(tokens(), tokens())])),
        (3.into(), tokens()),
        ("block_hashes".into(), array(vec![rmpv::Value::Binary(vec![1; 32])])),
        ("token_ids".into(), tokens()),
        ("block_size".into(), 4.into()),
        ("type".into(), "BlockStored".into()),
    ]);
    assert_eq!(one(map).tokens.len(), 4);
    let unknown = array(vec!["BlockMoved".into(), tokens()]);
    assert_eq!(decode(&batch(unknown)).unwrap().events, [Event::Unknown]);
}

fn map(fields: &[(&str, rmpv::Value)]) -> rmpv::Value {
    let fields = fields.iter().map(|(name, value)| ((*name).into(), value.clone()));
    rmpv::Value::Map(fields.collect())
}

/// vLLM 0.32.0, `v1/core/block_pool.py`, `cache_full_blocks` with a mask: fewer hashes than the tokens
/// fill blocks, or none.
#[test]
fn sparse_stores_of_a_group_are_usable_and_told_as_such() {
    let stored = |kind: &str, hashes: u64, window: Option<i64>| {
        let mut fields = vec![
            ("type", "BlockStored".into()),
            ("block_hashes", array((0..hashes).map(Into::into).collect())),
            ("parent_block_hash", rmpv::Value::Nil),
            ("token_ids", array((0..16).map(Into::into).collect())),
            ("block_size", 4.into()),
            ("extra_keys", array((0..hashes).map(|_| rmpv::Value::Nil).collect())),
            ("group_idx", 1.into()),
            ("kv_cache_spec_kind", kind.into()),
        ];
        fields.extend(window.map(|window| ("kv_cache_spec_sliding_window", window.into())));
        decode(&batch(map(&fields))).unwrap().events.remove(0)
    };
    for (hashes, sparse) in [(0, true), (2, true), (4, false)] {
        let Event::Stored(event) = stored("sliding_window", hashes, Some(128)) else { panic!() };
        assert_eq!((event.sparse, event.hashes.len() as u64), (sparse, hashes));
        assert_eq!((event.kind, event.window), (Kind::Window, Some(128)));
    }
    let Event::Stored(event) = stored("mamba", 1, None) else { panic!() };
    assert_eq!((event.sparse, event.kind, event.window), (true, Kind::State, None));
    // Full attention keeps all, and nobody has more hashes than tokens.
    assert_eq!(stored("full_attention", 2, None), Event::Unusable("token_count"));
    assert_eq!(stored("sliding_window", 5, Some(8)), Event::Unusable("token_count"));
}

/// vLLM 0.32.0, `distributed/kv_transfer/kv_connector/v1/offloading/events.py`.
#[test]
fn media_of_offloading_are_told_with_their_locality() {
    let medium = |medium: &str, locality: Option<&str>| {
        let mut fields = vec![
            ("type", "BlockStored".into()),
            ("block_hashes", array(vec![7.into()])),
            ("token_ids", array(vec![])),
            // A placeholder names a block and nothing else.
            ("block_size", 0.into()),
            ("medium", medium.into()),
        ];
        fields.extend(locality.map(|locality| ("locality", locality.into())));
        match decode(&batch(map(&fields))).unwrap().events.remove(0) {
            Event::Stored(stored) => stored.medium,
            other => panic!("{other:?}"),
        }
    };
    for (name, locality, expected) in [
        ("CPU", None, Medium::Cpu),
        ("CPU", Some("LOCAL"), Medium::Cpu),
        ("CPU", Some("REMOTE"), Medium::Other),
        ("STORAGE", Some("LOCAL"), Medium::Disk),
        ("STORAGE", Some("REMOTE"), Medium::Other),
        ("STORAGE", None, Medium::Other),
        ("DISK", None, Medium::Disk),
        ("GPU", Some("REMOTE"), Medium::Gpu),
        ("cpu", Some("LOCAL"), Medium::Other),
    ] {
        assert_eq!(medium(name, locality), expected, "{name} {locality:?}");
    }
}

#[test]
fn errors_are_named() {
    let nil = rmpv::Value::Nil;
    let tokens = |n: u32| array((0..n).map(Into::into).collect());
    let stored = |hashes, tokens, size: i64| {
        batch(array(vec!["BlockStored".into(), hashes, nil.clone(), tokens, size.into()]))
    };
    let hashes = || array(vec![7.into()]);
    for (payload, error) in [
        (vec![], DecodeError::Truncated),
        (vec![0xc1], DecodeError::NotMsgpack),
        (vec![0x80], DecodeError::NotABatch),
        (vec![0x93, 0x01, 0xdd, 0xff, 0xff, 0xff, 0xff], DecodeError::Truncated),
        (batch(nil.clone()), DecodeError::NotAnEvent),
        (batch(array(vec![])), DecodeError::NotAnEvent),
        (batch(rmpv::Value::Map(vec![])), DecodeError::NotAnEvent),
        (batch(array(vec!["BlockStored".into()])), DecodeError::Missing("block_hashes")),
        (batch(array(vec!["BlockRemoved".into()])), DecodeError::Missing("block_hashes")),
        (stored(array(vec!["x".into()]), tokens(4), 4), DecodeError::Field("block_hashes")),
        (stored(hashes(), array(vec![(-1).into()]), 1), DecodeError::Field("token_ids")),
        ([stored(hashes(), tokens(4), 4), vec![0xc0]].concat(), DecodeError::Trailing),
    ] {
        assert_eq!(decode(&payload), Err(error), "{payload:02x?}");
    }
    for payload in [
        stored(hashes(), tokens(4), 0),
        stored(hashes(), tokens(4), -4),
        stored(hashes(), tokens(5), 4),
        stored(array(vec![1.into(), 2.into()]), tokens(4), 4),
    ] {
        let events = decode(&payload).unwrap().events;
        assert!(matches!(events.as_slice(), [Event::Unusable(_)]), "{events:?}");
    }
}

proptest! {
    #[test]
    fn hostile_frames_give_errors(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&payload);
    }

    #[test]
    fn damaged_frames_give_errors_or_other_events(
        pick in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let frames = fixture();
        let mut payload = pick.get(&frames).payload.clone();
        for (at, byte) in damage {
            let at = at.index(payload.len());
            payload[at] = byte;
        }
        if let Some(cut) = cut {
            payload.truncate(cut.index(payload.len()));
        }
        if let Ok(batch) = decode(&payload) {
            let scope = Arc::new(ModelScope { version: "1".into(), tokenizer_hash: [1; 32] });
            let mut view = View::new(scope, Duplicates::Doubt, Limits::default());
            for event in &batch.events {
                view.apply(event, 0, &mut Changes::default());
            }
        }
    }
}
