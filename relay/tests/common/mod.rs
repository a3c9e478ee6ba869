//! Captured frames, and what they mean by their decoded JSON, found without the relay's decoder.
#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod relay;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
use warmpath_relay::events::{Batch, EngineHash, Event, ExtraKeys, Kind, Medium, Removed, Stored};
use warmpath_routing::fingerprint::{Chain, Key, Scope};

pub struct Frame {
    pub sequence: u64,
    pub topic: Vec<u8>,
    pub payload: Vec<u8>,
    pub decoded: Value,
}

/// The directory of captures, where there is one.
pub fn captures() -> Option<PathBuf> {
    let shared = std::env::var_os("WARMPATH_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"), PathBuf::from);
    let directory = shared.join("engine-captures");
    if directory.is_dir() {
        Some(directory)
    } else {
        eprintln!("SKIPPED: no captures at {}; set WARMPATH_SHARED", directory.display());
        None
    }
}

pub fn lines(path: &Path) -> Vec<Value> {
    let bytes = std::fs::read(path).unwrap();
    let mut text = String::new();
    if path.extension().is_some_and(|extension| extension == "gz") {
        flate2::read::GzDecoder::new(bytes.as_slice()).read_to_string(&mut text).unwrap();
    } else {
        text = String::from_utf8(bytes).unwrap();
    }
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub fn frames(path: &Path) -> Vec<Frame> {
    lines(path)
        .into_iter()
        .map(|line| Frame {
            sequence: line["seq"].as_u64().unwrap(),
            topic: line["topic"].as_str().unwrap_or_default().as_bytes().to_vec(),
            payload: unhex(line["payload_hex"].as_str().unwrap()),
            decoded: line["decoded"].clone(),
        })
        .collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// What a frame means, by its JSON.
pub fn meaning(decoded: &Value) -> Batch {
    Batch {
        time: decoded[0].as_f64().unwrap(),
        rank: decoded[2].as_u64().map(|rank| rank as u32),
        events: decoded[1].as_array().unwrap().iter().map(event).collect(),
    }
}

fn event(value: &Value) -> Event {
    // Arrays get the names of vLLM's fields; SGLang's first seven are the same.
    let stored = [
        "type",
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
    ];
    let removed = ["type", "block_hashes", "medium", "group_idx"];
    let named = match value {
        Value::Array(list) => {
            let names: &[&str] = if list[0] == "BlockStored" { &stored } else { &removed };
            names
                .iter()
                .zip(list)
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect()
        }
        Value::Object(map) => map.clone(),
        _ => panic!("not an event: {value}"),
    };
    let get = |name: &str| named.get(name).cloned().unwrap_or_default();
    let text = |name: &str| get(name).as_str().map(str::to_owned);
    let hashes = || get("block_hashes").as_array().unwrap().iter().map(hash).collect();
    let medium = match get("medium").as_str() {
        None | Some("GPU") => Medium::Gpu,
        other => panic!("{other:?}"),
    };
    let group = get("group_idx").as_u64().map(|group| group as u32);
    match named["type"].as_str().unwrap() {
        "BlockStored" => Event::Stored(Stored {
            hashes: hashes(),
            parent: Some(get("parent_block_hash")).filter(|v| !v.is_null()).as_ref().map(hash),
            tokens: get("token_ids")
                .as_array()
                .unwrap()
                .iter()
                .map(|t| t.as_u64().unwrap() as u32)
                .collect(),
            block_size: get("block_size").as_u64().unwrap() as u32,
            has_lora_id: !get("lora_id").is_null(),
            lora_name: text("lora_name"),
            medium,
            extra_keys: get("extra_keys").as_array().map_or_else(Vec::new, |list| {
                list.iter()
                    .map(|keys| {
                        let texts = keys.as_array().map_or_else(Vec::new, |keys| {
                            keys.iter().map(|key| key.as_str().unwrap().to_owned()).collect()
                        });
                        ExtraKeys::Texts(texts)
                    })
                    .collect()
            }),
            group,
            sparse: false,
            window: get("kv_cache_spec_sliding_window").as_u64().map(|window| window as u32),
            kind: match get("kv_cache_spec_kind").as_str() {
                None => Kind::Unsaid,
                Some("full_attention") => Kind::Full,
                Some(_) => Kind::Other,
            },
            cache_salt: text("cache_salt"),
        }),
        "BlockRemoved" => Event::Removed(Removed { hashes: hashes(), medium, group }),
        "AllBlocksCleared" => Event::Cleared,
        other => panic!("{other}"),
    }
}

fn hash(value: &Value) -> EngineHash {
    if let Some(hex) = value["$bytes"].as_str() {
        EngineHash::from_bytes(&unhex(hex))
    } else {
        EngineHash::from_int(value.as_u64().unwrap_or_else(|| value.as_i64().unwrap() as u64))
    }
}

/// Parent, adapter and salt, tokens.
type Block = (Option<EngineHash>, (String, String), Vec<u32>);

/// The held set after some batches, the plain way: nothing incremental, no index.
#[derive(Default)]
pub struct Engine {
    held: BTreeMap<EngineHash, Block>,
}

impl Engine {
    pub fn apply(&mut self, batch: &Batch) {
        for event in &batch.events {
            match event {
                Event::Stored(stored) => {
                    let mut parent = stored.parent;
                    let tokens = stored.tokens.chunks(stored.block_size as usize);
                    for (i, (&hash, tokens)) in stored.hashes.iter().zip(tokens).enumerate() {
                        let adapter = stored.lora_name.clone().unwrap_or_default();
                        let salt = match stored.extra_keys.get(i) {
                            Some(ExtraKeys::Texts(texts)) => {
                                texts.iter().find(|text| **text != adapter).cloned()
                            }
                            _ => None,
                        };
                        let scope = (adapter, salt.unwrap_or_default());
                        self.held.insert(hash, (parent, scope, tokens.to_vec()));
                        parent = Some(hash);
                    }
                }
                Event::Removed(removed) => {
                    for hash in &removed.hashes {
                        self.held.remove(hash);
                    }
                }
                Event::Cleared => self.held.clear(),
                other => panic!("{other:?}"),
            }
        }
    }

    pub fn keys(&self, version: &str, tokenizer_hash: &[u8; 32]) -> BTreeSet<Key> {
        let mut keys = BTreeSet::new();
        'blocks: for &hash in self.held.keys() {
            let mut tokens = Vec::new();
            let mut at = Some(hash);
            let mut root = None;
            while let Some(hash) = at {
                let Some((parent, scope, own)) = self.held.get(&hash) else { continue 'blocks };
                tokens.splice(0..0, own.iter().copied());
                root = Some(scope);
                at = *parent;
            }
            let (adapter, salt) = root.unwrap();
            keys.extend(prefix_keys(version, tokenizer_hash, adapter, salt, &tokens));
        }
        keys
    }
}

pub fn prefix_keys(
    version: &str,
    tokenizer_hash: &[u8; 32],
    adapter: &str,
    salt: &str,
    tokens: &[u32],
) -> Vec<Key> {
    let scope = Scope { model_version: version, tokenizer_hash, adapter, salt };
    let mut keys = Vec::new();
    Chain::new(&scope).push(tokens, |fingerprint| keys.push(fingerprint.key()));
    keys
}
