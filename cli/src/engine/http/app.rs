//! What the handlers share.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;

use super::error::ApiError;
use super::responses::Store;
use crate::engine::fault::Faults;
use crate::engine::filler::Filler;
use crate::engine::hash::Lora;
use crate::engine::rank::Rank;
use crate::engine::tokens::Tokenizer;

/// What `system_fingerprint` says: nobody should take these answers for a model's.
pub(super) const FINGERPRINT: &str = "warmpath-simulated";

/// Everything that the handlers share.
pub(crate) struct App {
    pub(crate) ranks: Vec<Arc<Rank>>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) filler: Filler,
    /// The base model's names; never empty.
    pub(crate) names: Vec<String>,
    pub(crate) loras: Vec<Lora>,
    /// What `/v1/models` gives as the model's root.
    pub(crate) root: String,
    pub(crate) block_size: usize,
    /// It has the counters of an engine that speculates.
    pub(crate) speculates: bool,
    /// Most tokens of prompt and answer together.
    pub(crate) max_model_len: usize,
    /// Length of an answer that `max_tokens` doesn't cut.
    pub(crate) output_tokens: usize,
    /// The vLLM version whose protocols are spoken.
    pub(crate) version: &'static str,
    /// Seconds since 1970.
    pub(crate) started: u64,
    /// This engine's own address.
    pub(crate) address: String,
    pub(crate) region: Option<String>,
    pub(crate) responses: Store,
    pub(crate) faults: Faults,
    pub(crate) event_sources: serde_json::Value,
}

impl App {
    pub(super) fn base_name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    /// The adapter that a request's model name asks for; no name means the base model.
    pub(super) fn adapter(&self, model: Option<&str>) -> Result<Option<Lora>, ApiError> {
        let Some(model) = model.filter(|model| !model.is_empty()) else { return Ok(None) };
        if self.names.iter().any(|name| name == model) {
            return Ok(None);
        }
        match self.loras.iter().find(|lora| &*lora.name == model) {
            Some(lora) => Ok(Some(lora.clone())),
            None => Err(ApiError::unknown_model(model)),
        }
    }
}

pub(super) type Shared = State<Arc<App>>;

/// The rank that serves a request: the one its header pins, or else the least busy one. As in vLLM
/// 0.32.0 the header counts the ranks behind this API, and one that is no number says nothing
/// (`entrypoints/generate/base/serving.py`, `v1/engine/input_processor.py`).
pub(super) fn choose_rank<'a>(
    app: &'a App,
    headers: &HeaderMap,
) -> Result<&'a Arc<Rank>, ApiError> {
    const NAME: &str = "x-data-parallel-rank";
    let given = headers.get(NAME).and_then(|value| value.to_str().ok());
    if let Some(wanted) = given.and_then(|value| value.trim().parse::<i64>().ok()) {
        let rank = usize::try_from(wanted).ok().and_then(|wanted| app.ranks.get(wanted));
        return rank.ok_or_else(|| {
            let all = app.ranks.len();
            let message = format!("data_parallel_rank {wanted} is out of range [0, {all}).");
            ApiError::bad(None, message)
        });
    }
    app.ranks
        .iter()
        .min_by_key(|rank| rank.running() + rank.waiting())
        .ok_or_else(|| ApiError::internal("no rank is running".to_owned()))
}
