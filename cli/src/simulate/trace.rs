//! A recorded trace.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

/// Tokens that one id of a trace stands for.
pub(super) const ID_TOKENS: u64 = 512;

pub(super) struct Trace {
    pub(super) requests: Vec<Request>,
}

/// One request. Equal ids at equal places after equal ids are equal tokens.
#[derive(Deserialize)]
pub(super) struct Request {
    #[serde(rename = "timestamp")]
    pub(super) at_ms: f64,
    #[serde(rename = "input_length")]
    pub(super) input_tokens: u64,
    #[serde(rename = "output_length")]
    pub(super) output_tokens: u64,
    #[serde(rename = "hash_ids")]
    pub(super) ids: Vec<u64>,
}

impl Request {
    /// Ids that stand for whole blocks, which alone are cached.
    pub(super) fn whole(&self) -> &[u64] {
        let count = (self.input_tokens / ID_TOKENS) as usize;
        self.ids.get(..count.min(self.ids.len())).unwrap_or_default()
    }

    /// The tokens that a cache with `ids` of the prompt's ids saves: never the last one.
    pub(super) fn saved(&self, ids: usize) -> u64 {
        (ids as u64 * ID_TOKENS).min(self.input_tokens.saturating_sub(1))
    }
}

impl Trace {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| format!("--trace {}", path.display()))?;
        let plain: Box<dyn Read> = if path.extension().is_some_and(|ext| ext == "gz") {
            Box::new(flate2::read::GzDecoder::new(file))
        } else {
            Box::new(file)
        };
        let mut requests = Vec::new();
        for (number, line) in BufReader::new(plain).lines().enumerate() {
            let place = || format!("{} line {}", path.display(), number + 1);
            let line = line.with_context(place)?;
            if !line.trim().is_empty() {
                requests.push(serde_json::from_str::<Request>(&line).with_context(place)?);
            }
        }
        requests.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
        Ok(Self { requests })
    }

    pub(super) fn prompt_tokens(&self) -> u64 {
        self.requests.iter().map(|request| request.input_tokens).sum()
    }

    /// The share of prompt tokens that one unbounded cache which sees every request would hold.
    pub(super) fn best_share(&self) -> f64 {
        let mut held = HashSet::new();
        let mut saved = 0;
        for request in &self.requests {
            let ids = request.whole();
            saved += request.saved(ids.iter().take_while(|id| held.contains(*id)).count());
            held.extend(ids.iter().copied());
        }
        saved as f64 / self.prompt_tokens().max(1) as f64
    }
}
