//! Holds what the relay's view says of an engine against what the engine said that it had cached.
//!
//! `cargo run -p warmpath-relay --example hits -- [--drop none|draft|all] CAPTURE…`: JSON lines, in the order in which they
//! were seen: `{"frame": "<payload in hexadecimal>"}` is a batch of events, `{"ask": [token ids],
//! "cached": tokens, "how": "a name"}` a request, with the cached tokens of the engine's usage.

#![allow(clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::io::BufRead;

use serde_json::Value;
use warmpath_relay::events::decode;
use warmpath_relay::index::{BlockDrop, Changes, Duplicates, Limits, ModelScope, View};
use warmpath_routing::fingerprint::{Chain, Scope};
use warmpath_routing::reuse::cached_tokens;

const TOKENIZER: [u8; 32] = [0; 32];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut drop = BlockDrop::None;
    let mut arguments = std::env::args().skip(1);
    while let Some(path) = arguments.next() {
        if path == "--drop" {
            drop = match arguments.next().as_deref() {
                Some("none") => BlockDrop::None,
                Some("draft") => BlockDrop::Draft,
                Some("all") => BlockDrop::All,
                other => return Err(format!("--drop {other:?}").into()),
            };
            continue;
        }
        let scope = ModelScope { version: "1".into(), tokenizer_hash: TOKENIZER };
        let mut view = View::new(scope.into(), Duplicates::Count, Limits::default()).dropping(drop);
        let mut changes = Changes::default();
        // By class: requests, exact, over, under.
        let mut classes: BTreeMap<String, [u32; 4]> = BTreeMap::new();
        let file = std::io::BufReader::new(std::fs::File::open(&path)?);
        for (number, line) in file.lines().enumerate() {
            let value: Value = serde_json::from_str(&line?)?;
            if let Some(hex) = value["frame"].as_str() {
                let bytes: Result<Vec<u8>, _> = (0..hex.len() / 2)
                    .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16))
                    .collect();
                for event in &decode(&bytes?)?.events {
                    if view.lacks_ends(event) {
                        view.open_ends(1, &mut changes);
                    }
                    view.apply(event, 0, &mut changes);
                    changes.take();
                }
                continue;
            }
            let list = value["ask"].as_array().into_iter().flatten();
            let tokens: Vec<u32> = list.filter_map(Value::as_u64).map(|id| id as u32).collect();
            let actual = value["cached"].as_u64().unwrap_or(0) as u32;
            let expected = expected(&view, &tokens);
            let how = value["how"].as_str().unwrap_or("request").to_owned();
            let of = classes.entry(how.clone()).or_default();
            of[0] += 1;
            of[1 + usize::from(expected != actual) + usize::from(expected < actual)] += 1;
            if expected != actual {
                let length = tokens.len();
                println!(
                    "line {}: {how}, {length} tokens, expected {expected}, actual {actual}",
                    number + 1
                );
            }
        }
        println!("{path}");
        for (class, [all, exact, over, under]) in &classes {
            println!("  {class}: {exact} of {all} exact, {over} over, {under} under");
        }
        let sum = |at: usize| classes.values().map(|of| of[at]).sum::<u32>();
        println!("  all: {} of {} exact, {} over, {} under", sum(1), sum(0), sum(2), sum(3));
        for group in view.groups() {
            let counted = if group.counted { "" } else { ", not counted" };
            println!(
                "  group {}: {}, blocks of {}{counted}",
                group.group, group.what, group.block_tokens
            );
        }
        println!("  {:?}", view.seen());
    }
    Ok(())
}

fn expected(view: &View, tokens: &[u32]) -> u32 {
    let scope = Scope { model_version: "1", tokenizer_hash: &TOKENIZER, adapter: "", salt: "" };
    let mut keys = Vec::new();
    Chain::new(&scope).push(tokens, |fingerprint| keys.push(fingerprint.key()));
    let held = keys.iter().take_while(|key| view.holds(key)).count();
    let dropped = view.dropped_tokens();
    let drops_last = view.ends().is_some() && dropped > 0;
    let most = tokens.len().saturating_sub(usize::from(!drops_last));
    let cached =
        |blocks: usize| cached_tokens(blocks as u32, view.block_tokens(), dropped, most as u32);
    if view.ends().is_none() {
        return cached(held);
    }
    let last = held.min(most / 16);
    let end = (1..=last).rev().find(|&blocks| view.ends_at(&keys[blocks - 1]));
    end.map_or(0, cached)
}
