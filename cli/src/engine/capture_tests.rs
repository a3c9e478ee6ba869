//! The cache against a real engine's: the same requests bring the same events.

use std::collections::HashMap;

use serde_json::Value;

use super::cache::{Cache, Prompt};
use super::captures::{bytes, lines};
use super::event::Event;
use super::event_tests::read;
use super::hash::{BlockHash, Keys};

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// vLLM 0.23.0 with blocks of 32 tokens and 64 of them, one of which it never uses: hits, a salt,
/// evictions and a reset. Hashes differ, but stand for each other one to one.
#[test]
fn a_real_engines_events_are_brought_by_its_requests() {
    let name = "vllm023_llama31_bs32";
    let (Some(requests), Some(frames)) =
        (lines(&format!("{name}.requests")), lines(&format!("{name}.frames")))
    else {
        return;
    };
    let mut cache = Cache::new(32, 63);
    let mut batches: Vec<Vec<Event>> = Vec::new();
    for request in requests {
        let answer = &request["resp"];
        if request["path"] == "/reset_prefix_cache" {
            assert!(cache.reset());
            continue;
        }
        let Some(choice) = answer["choices"].get(0) else { continue };
        let prompt = answer["prompt_token_ids"]
            .as_array()
            .map_or(&choice["prompt_token_ids"], |_| &answer["prompt_token_ids"]);
        let (prompt, answered) = (ids(prompt), ids(&choice["token_ids"]));
        let salt = request["req"]["cache_salt"].as_str().map(Into::into);
        let prompt = Prompt::new(prompt, Keys { lora: None, salt }, 32);
        let mut sequence = cache.admit(prompt, answered.len(), false).unwrap();
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        assert_eq!(sequence.hit_tokens() as u64, cached.unwrap_or(0), "{}", request["label"]);
        for &token in answered.split_last().unwrap().1 {
            cache.append(&mut sequence, token);
        }
        cache.release(&mut sequence);
        batches.extend(Some(cache.take_events()).filter(|events| !events.is_empty()));
    }
    assert_eq!(batches.len(), frames.len());
    let mut theirs_of: HashMap<BlockHash, BlockHash> = HashMap::new();
    let mut same = |ours: &[BlockHash], theirs: &[BlockHash]| {
        ours.len() == theirs.len()
            && ours.iter().zip(theirs).all(|(a, b)| theirs_of.entry(*a).or_insert(*b) == b)
    };
    for (ours, frame) in batches.iter().zip(frames) {
        let payload = bytes(frame["payload_hex"].as_str().unwrap());
        let batch = rmpv::decode::read_value(&mut payload.as_slice()).unwrap();
        let theirs: Vec<Event> =
            batch[1].as_array().unwrap().iter().map(|event| read(event).unwrap()).collect();
        assert_eq!(ours.len(), theirs.len(), "sequence {}: {ours:?}", frame["seq"]);
        for pair in ours.iter().zip(&theirs) {
            let equal = match pair {
                (Event::Cleared, Event::Cleared) => true,
                (Event::Removed(a), Event::Removed(b)) => same(&[*a], &[*b]),
                (
                    Event::Stored { hashes, parent, tokens, extra_keys, .. },
                    Event::Stored { hashes: h, parent: p, tokens: t, extra_keys: e, .. },
                ) => {
                    same(hashes, h)
                        && same(parent.as_slice(), p.as_slice())
                        && (tokens, extra_keys) == (t, e)
                }
                _ => false,
            };
            assert!(equal, "sequence {}: {pair:?}", frame["seq"]);
        }
    }
}
