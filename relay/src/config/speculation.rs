//! How a model's engines speculate, as far as their caches show it.

use warmpath_prompt::Engine;

use super::ConfigError;
use super::check::Checker;
use super::raw::RawModel;
use crate::index::BlockDrop;

/// vLLM's `--speculative-config`, of which more fields have no bearing on its cache.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct Speculation {
    /// How it drafts.
    pub method: Option<String>,
    /// The draft's model, by whose name vLLM may tell the method.
    pub model: Option<String>,
    /// It drops nothing, whatever the method.
    #[serde(default)]
    pub disable_eagle_block_drop: bool,
}

/// Methods by which vLLM drops a block of each hit, and how: 0.32.0, `config/speculative.py`,
/// `use_eagle` and `use_eagle_block_drop`. Of MTP it knows the layers that draft; of the others it
/// does with some models only (`v1/core/kv_cache_utils.py`, `_uses_trailing_mtp_layers`).
const DROPPING: [(&str, BlockDrop); 5] = [
    ("mtp", BlockDrop::Draft),
    ("eagle", BlockDrop::All),
    ("eagle3", BlockDrop::All),
    ("dflash", BlockDrop::All),
    ("dspark", BlockDrop::All),
];

/// Those by which it doesn't (`SpeculativeMethod`, `extract_hidden_states` among `EagleModelTypes`).
const KEEPING: [&str; 9] = [
    "ngram",
    "[ngram]",
    "ngram_gpu",
    "draft_model",
    "suffix",
    "medusa",
    "mlp_speculator",
    "extract_hidden_states",
    "custom_class",
];

/// Older names of MTP (`MTPModelTypes`), which vLLM still takes.
const MTP: [&str; 26] = [
    "deepseek_mtp",
    "dots3_note_mtp",
    "mimo_mtp",
    "mimo_v2_mtp",
    "glm4_moe_mtp",
    "glm4_moe_lite_mtp",
    "glm_ocr_mtp",
    "ernie_mtp",
    "nemotron_h_mtp",
    "exaone_moe_mtp",
    "exaone4_5_mtp",
    "qwen3_next_mtp",
    "qwen4_exp_mtp",
    "qwen3_5_mtp",
    "longcat_flash_mtp",
    "bailing_hybrid_v3_mtp",
    "minimax_m3_mtp",
    "bailing_hybrid_mtp",
    "kimi_k3_mtp",
    "pangu_ultra_moe_mtp",
    "step3p5_mtp",
    "hy_v3_mtp",
    "hy_v4_mtp",
    "gemma4_mtp",
    "inkling_mtp",
    "glm5_next_mtp",
];

/// What engines drop that speculate by a method; `None` of one that isn't known.
fn drop_of(method: &str) -> Option<BlockDrop> {
    let dropping = DROPPING.into_iter().find(|(name, _)| *name == method);
    let mtp = MTP.contains(&method).then_some(BlockDrop::Draft);
    let keeping = KEEPING.contains(&method).then_some(BlockDrop::None);
    dropping.map(|(_, drop)| drop).or(mtp).or(keeping)
}

/// The method that vLLM takes a draft model for by its name, where none or `draft_model` is given.
fn method_of(model: &str) -> Option<&'static str> {
    let model = model.to_lowercase();
    let parts =
        [("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark")];
    if let "ngram" | "[ngram]" = model.as_str() {
        return Some("ngram");
    }
    parts.into_iter().find(|(part, _)| model.contains(part)).map(|(_, method)| method)
}

impl Speculation {
    /// What engines drop of their hits that speculate so.
    ///
    /// # Errors
    /// The field that can't be meant, and why.
    pub fn block_drop(&self) -> Result<BlockDrop, (&'static str, String)> {
        let unsaid = self.method.as_deref().is_none_or(|method| method == "draft_model");
        let told = self.model.as_deref().filter(|_| unsaid).and_then(method_of);
        let Some(method) = told.or(self.method.as_deref()) else {
            let what =
                "is missing: vLLM may tell it from the draft's weights, which aren't read here";
            return Err(("method", what.to_owned()));
        };
        let Some(drop) = drop_of(method) else {
            let known = DROPPING.iter().map(|(name, _)| *name).chain(KEEPING).collect::<Vec<_>>();
            let what = format!(
                "{method:?} is none of vLLM's: {}, or an older name of mtp ({})",
                known.join(", "),
                MTP.join(", ")
            );
            return Err(("method", what));
        };
        Ok(if self.disable_eagle_block_drop { BlockDrop::None } else { drop })
    }
}

impl Checker<'_> {
    /// None where nothing is said.
    pub(super) fn block_drop(
        &self,
        of: &str,
        raw: &RawModel,
    ) -> Result<Option<BlockDrop>, ConfigError> {
        let Some(speculation) = &raw.speculative_config else { return Ok(None) };
        let wrong = |field: String, what| Err(self.error(speculation.referenced, &field, what));
        let engine = raw.engine.as_ref().map_or("vllm", |name| &name.value);
        if matches!(Engine::of(engine, None), Ok(Engine::Sglang)) {
            let what =
                "is an option of vLLM's; SGLang gives no block back and needs no such setting";
            return wrong(format!("{of}.speculative_config"), what.to_owned());
        }
        match speculation.value.block_drop() {
            Ok(drop) => Ok(Some(drop)),
            Err((field, what)) => wrong(format!("{of}.speculative_config.{field}"), what),
        }
    }
}
