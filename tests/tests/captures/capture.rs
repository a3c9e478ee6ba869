//! A capture: the frames that a real engine published, and the requests that caused them.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::Value;

/// A held engine block: its scope and all tokens up to its end.
pub(crate) type Block = (String, String, Vec<u32>);

pub(crate) struct Capture {
    pub(crate) frames: Vec<Frame>,
    pub(crate) requests: Vec<Request>,
    pub(crate) block_tokens: usize,
}

pub(crate) struct Frame {
    pub(crate) at: f64,
    pub(crate) topic: String,
    pub(crate) seq: u64,
    pub(crate) payload: Vec<u8>,
    changes: Vec<Change>,
}

enum Change {
    Hold(Block),
    Lose(Block),
    Clear,
}

pub(crate) struct Request {
    pub(crate) label: String,
    pub(crate) sent: f64,
    pub(crate) path: String,
    pub(crate) body: String,
    pub(crate) adapter: String,
    pub(crate) salt: String,
    pub(crate) prompt_token_ids: Vec<u32>,
    /// What the engine said it had cached, where it says so.
    pub(crate) cached_tokens: Option<usize>,
}

impl Capture {
    pub(crate) fn read(dir: &Path, name: &str) -> Self {
        let mut by_hash = HashMap::new();
        let frames: Vec<Frame> = lines(&dir.join(format!("{name}.frames.jsonl.gz")))
            .map(|line| frame(&line, &mut by_hash))
            .collect();
        let block_tokens = by_hash.values().map(|(_, size)| *size).next().unwrap();
        let requests = lines(&dir.join(format!("{name}.requests.jsonl.gz")))
            .filter_map(|line| request(&line))
            .collect();
        Self { frames, requests, block_tokens }
    }
}

impl Frame {
    pub(crate) fn apply(&self, held: &mut HashSet<Block>) {
        for change in &self.changes {
            match change {
                Change::Hold(block) => drop(held.insert(block.clone())),
                Change::Lose(block) => drop(held.remove(block)),
                Change::Clear => held.clear(),
            }
        }
    }
}

impl Request {
    /// Tokens that an engine which holds these blocks finds cached: whole blocks from the start,
    /// never the last token. It reads none for who wants to know how likely the prompt was.
    pub(crate) fn cached_by(&self, held: &HashSet<Block>, block_tokens: usize) -> usize {
        if self.body.contains("\"prompt_logprobs\"") {
            return 0;
        }
        let ids = &self.prompt_token_ids;
        (1..=(ids.len() - 1) / block_tokens)
            .map(|block| block * block_tokens)
            .take_while(|end| {
                held.contains(&(self.adapter.clone(), self.salt.clone(), ids[..*end].to_vec()))
            })
            .last()
            .unwrap_or(0)
    }
}

fn lines(path: &Path) -> impl Iterator<Item = Value> {
    let file = std::fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let lines = BufReader::new(flate2::read::GzDecoder::new(file)).lines();
    lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap())
}

fn frame(line: &Value, by_hash: &mut HashMap<String, (Block, usize)>) -> Frame {
    let hex = line["payload_hex"].as_str().unwrap();
    let payload = (0..hex.len()).step_by(2);
    let mut changes = Vec::new();
    for event in line["decoded"][1].as_array().unwrap() {
        // From 0.24 on an event is a map, before that an array in this order.
        let field = |name: &str, at: usize| event.get(name).or_else(|| event.get(at));
        let kind = field("type", 0).and_then(Value::as_str).unwrap();
        let hashes = || field("block_hashes", 1).and_then(Value::as_array).unwrap();
        match kind {
            "BlockStored" => {
                let size = field("block_size", 4).and_then(Value::as_u64).unwrap() as usize;
                let tokens = ids(field("token_ids", 3).unwrap());
                let parent = field("parent_block_hash", 2).unwrap();
                let extra = field("extra_keys", 8).cloned().unwrap_or_default();
                let adapter = field("lora_name", 7).and_then(Value::as_str).unwrap_or_default();
                let ((adapter, salt), mut prefix) = if parent.is_null() {
                    let keys = extra[0].as_array().cloned().unwrap_or_default();
                    let salt = keys.iter().filter_map(Value::as_str).find(|k| *k != adapter);
                    ((adapter.to_owned(), salt.unwrap_or_default().to_owned()), Vec::new())
                } else {
                    let ((adapter, salt, prefix), _) = by_hash[&parent.to_string()].clone();
                    ((adapter, salt), prefix)
                };
                for (hash, block) in hashes().iter().zip(tokens.chunks_exact(size)) {
                    prefix.extend_from_slice(block);
                    let block = (adapter.clone(), salt.clone(), prefix.clone());
                    by_hash.insert(hash.to_string(), (block.clone(), size));
                    changes.push(Change::Hold(block));
                }
            }
            "BlockRemoved" => {
                for hash in hashes() {
                    changes.push(Change::Lose(by_hash[&hash.to_string()].0.clone()));
                }
            }
            "AllBlocksCleared" => changes.push(Change::Clear),
            other => panic!("{other}"),
        }
    }
    Frame {
        at: line["t"].as_f64().unwrap(),
        topic: line["topic"].as_str().unwrap().to_owned(),
        seq: line["seq"].as_u64().unwrap(),
        payload: payload.map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect(),
        changes,
    }
}

/// The request, if it is one that the engine answered with the prompt's token ids.
fn request(line: &Value) -> Option<Request> {
    let answer = &line["resp"];
    let ids_of = answer.get("prompt_token_ids").filter(|ids| ids.is_array());
    let prompt_token_ids = ids(ids_of.or_else(|| answer.pointer("/choices/0/prompt_token_ids"))?);
    let model = line["req"]["model"].as_str()?;
    let cached = answer.pointer("/usage/prompt_tokens_details/cached_tokens");
    Some(Request {
        label: line["label"].as_str()?.to_owned(),
        sent: line["t0"].as_f64()?,
        path: line["path"].as_str()?.to_owned(),
        body: line["req"].to_string(),
        adapter: if model == "tiny" { String::new() } else { model.to_owned() },
        salt: line["req"]["cache_salt"].as_str().unwrap_or_default().to_owned(),
        cached_tokens: cached.and_then(Value::as_u64).map(|n| n as usize),
        prompt_token_ids,
    })
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}
