//! Events against bytes: golden ones, and captured frames of real engines where they are at hand.

use std::fmt::Write as _;

use rmpv::Value;

use super::captures::{bytes, lines};
use super::event::{Encoding, Event, Form, HashForm};
use super::hash::{BlockHash, Lora};

fn hash(last: u8) -> BlockHash {
    let mut bytes = [0; 32];
    bytes[31] = last;
    bytes[0] = 0xee;
    BlockHash(bytes)
}

fn sample() -> Vec<Event> {
    vec![
        Event::Cleared,
        Event::Removed(hash(9)),
        Event::Stored {
            hashes: vec![hash(2), hash(3)],
            parent: Some(hash(1)),
            tokens: vec![7, 300, 70_000, 0],
            block_size: 2,
            lora: Some(Lora { name: "lo".into(), id: 1 }),
            extra_keys: vec![vec!["lo".into(), "t1".into()], vec![]],
        },
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

/// Written out with Python's msgpack from the fields of captured frames.
#[test]
fn golden_bytes() {
    let batch = |form, hashes| hex(&Encoding { form, hashes }.batch(1.5, &sample(), 3));
    assert_eq!(batch(Form::Map, HashForm::Int), MAP);
    assert_eq!(batch(Form::Array, HashForm::Int), ARRAY);
    assert_eq!(batch(Form::Array, HashForm::Bytes), ARRAY_BYTES);
}

const MAP: &str = "93cb3ff80000000000009381a474797065b0416c6c426c6f636b73436c656172656484a474797065ac426c6f\
    636b52656d6f766564ac626c6f636b5f6861736865739109a66d656469756da3475055a967726f75705f6964\
    78008ba474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573920203b1706172656e745f\
    626c6f636b5f6861736801a9746f6b656e5f6964739407cd012cce0001117000aa626c6f636b5f73697a6502\
    a76c6f72615f696401a66d656469756da3475055a96c6f72615f6e616d65a26c6faa65787472615f6b657973\
    9292a26c6fa27431c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c\
    5f617474656e74696f6e03";
const ARRAY: &str = "93cb3ff80000000000009391b0416c6c426c6f636b73436c656172656494ac426c6f636b52656d6f76656491\
    09a3475055009cab426c6f636b53746f726564920203019407cd012cce00011170000201a3475055a26c6f92\
    92a26c6fa27431c000ae66756c6c5f617474656e74696f6ec003";
const ARRAY_BYTES: &str = "93cb3ff80000000000009391b0416c6c426c6f636b73436c656172656494ac426c6f636b52656d6f76656491\
    c420ee00000000000000000000000000000000000000000000000000000000000009a3475055009cab426c6f\
    636b53746f72656492c420ee00000000000000000000000000000000000000000000000000000000000002c4\
    20ee00000000000000000000000000000000000000000000000000000000000003c420ee0000000000000000\
    00000000000000000000000000000000000000000000019407cd012cce00011170000201a3475055a26c6f92\
    92a26c6fa27431c000ae66756c6c5f617474656e74696f6ec003";

/// A captured event, read into ours; None for fields that the simulated engine never writes.
pub(super) fn read(event: &Value) -> Option<Event> {
    let fields: Vec<(String, Value)> = match event {
        Value::Map(map) => {
            map.iter().map(|(key, value)| (key.as_str().unwrap().into(), value.clone())).collect()
        }
        Value::Array(array) => {
            let names: &[&str] = match array[0].as_str().unwrap() {
                "BlockRemoved" => &["type", "block_hashes", "medium", "group_idx"],
                _ => &[
                    "type",
                    "block_hashes",
                    "parent_block_hash",
                    "token_ids",
                    "block_size",
                    "lora_id",
                    "medium",
                    "lora_name",
                    "extra_keys",
                ],
            };
            names.iter().map(|name| (*name).to_owned()).zip(array.iter().cloned()).collect()
        }
        _ => panic!("neither map nor array"),
    };
    let get = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value);
    if get("session_id").is_some() {
        return None;
    }
    let hash = |value: &Value| match value {
        Value::Binary(bytes) => BlockHash(bytes.as_slice().try_into().unwrap()),
        number => {
            let mut bytes = [0; 32];
            bytes[24..].copy_from_slice(&number.as_u64().unwrap().to_be_bytes());
            BlockHash(bytes)
        }
    };
    let list = |name: &str| get(name).unwrap().as_array().unwrap().clone();
    Some(match get("type").unwrap().as_str().unwrap() {
        "AllBlocksCleared" => Event::Cleared,
        "BlockRemoved" => Event::Removed(hash(&list("block_hashes")[0])),
        "BlockStored" => Event::Stored {
            hashes: list("block_hashes").iter().map(hash).collect(),
            parent: get("parent_block_hash").filter(|value| !value.is_nil()).map(hash),
            tokens: list("token_ids").iter().map(|id| id.as_u64().unwrap() as u32).collect(),
            block_size: get("block_size").unwrap().as_u64().unwrap() as usize,
            lora: get("lora_name").and_then(Value::as_str).map(|name| Lora {
                name: name.into(),
                id: get("lora_id").unwrap().as_u64().unwrap(),
            }),
            extra_keys: list("extra_keys")
                .iter()
                .map(|keys| {
                    let keys = keys.as_array().map(Vec::as_slice).unwrap_or_default();
                    keys.iter().map(|key| key.as_str().unwrap().into()).collect()
                })
                .collect(),
        },
        other => panic!("unknown event {other}"),
    })
}

#[test]
fn captured_frames_come_out_byte_by_byte() {
    for (name, form, hashes) in [
        ("llama31_default", Form::Map, HashForm::Int),
        ("qwen3_bytes_lora", Form::Map, HashForm::Bytes),
        ("vllm023_llama31_bs32", Form::Array, HashForm::Int),
    ] {
        let mut compared = 0;
        let Some(frames) = lines(&format!("{name}.frames")) else { return };
        for frame in frames {
            let payload = frame["payload_hex"].as_str().unwrap();
            let batch = rmpv::decode::read_value(&mut bytes(payload).as_slice()).unwrap();
            let events = batch[1].as_array().unwrap().iter().map(read).collect::<Option<Vec<_>>>();
            let Some(events) = events else { continue };
            let seconds = batch[0].as_f64().unwrap();
            let rank = batch[2].as_u64().unwrap() as u32;
            let ours = Encoding { form, hashes }.batch(seconds, &events, rank);
            assert_eq!(hex(&ours), payload, "{name}, sequence {}", frame["seq"]);
            compared += 1;
        }
        assert!(compared > 15, "{name}: only {compared} frames");
    }
}
