//! What `transformers` makes of a tokenizer.json before the engine sees it.
//!
//! For some classes it takes only the vocabulary and merges from the file and sets its own rules
//! for spaces; for all it takes further added tokens from tokenizer_config.json, but not
//! `add_bos_token` and `add_eos_token`, which count only where there is no tokenizer.json (before
//! transformers 5 they counted for classes of Llama's kind). Source: transformers 5.19,
//! models/auto/tokenization_auto.py, tokenization_utils_base.py, tokenization_utils_tokenizers.py,
//! models/llama and models/gemma; vLLM 0.32 loads tokenizers so.

use serde_json::Value;

use super::spaces::Prefix;

/// Whose rules for spaces hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HubClass {
    /// The file's own.
    File,
    /// `LlamaTokenizer`'s: `Metaspace` by this rule.
    Llama(Prefix),
    /// `GemmaTokenizer`'s: no space in front.
    Gemma,
}

/// Model types for which the file's rules hold, whatever class tokenizer_config.json names.
const BY_FILE: [&str; 87] = [
    "EvollaModel",
    "arctic",
    "aria",
    "bigbird_pegasus",
    "camembertv2-base",
    "canary",
    "chameleon",
    "chatlm",
    "cohere_asr",
    "deepseek_ocr",
    "deepseek_ocr2",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "deepseek_vl",
    "deepseek_vl_hybrid",
    "deepseek_vl_v2",
    "ernie4_5",
    "ernie4_5_moe",
    "flex_olmo",
    "fuyu",
    "glm",
    "glm4",
    "glm4_moe",
    "glm4_moe_lite",
    "glm4v",
    "glm4v_moe",
    "glm_image",
    "glmasr",
    "got_ocr2",
    "gpt_bigcode",
    "granite",
    "granitemoe",
    "granitemoehybrid",
    "granitemoeshared",
    "h2ovl_chat",
    "hyperclovax",
    "hyperclovax_vlm",
    "internlm2",
    "jamba",
    "janus",
    "kimi_k25",
    "kimi_linear",
    "kosmos-2",
    "llava",
    "llava_next",
    "mimo_v2_flash",
    "minicpm3",
    "minicpmv",
    "minicpmv4_6",
    "minicpmv4_7",
    "minimax_m2",
    "ministral",
    "ministral3",
    "mistral",
    "mistral3",
    "mixtral",
    "modernbert",
    "modernbert-decoder",
    "molmo",
    "molmo2",
    "nemotron",
    "nvfp4",
    "nystromformer",
    "olmo2",
    "olmo3",
    "olmo_hybrid",
    "opencua",
    "openvla",
    "paddleocr_vl",
    "pegasus_x",
    "persimmon",
    "phi3",
    "phi3_v",
    "phimoe",
    "pix2struct",
    "pixtral",
    "smolvlm",
    "stablelm",
    "step3_vl",
    "step3p5",
    "umt5",
    "vipllava",
    "voxtral",
    "voxtral_realtime",
    "xlm-roberta-xl",
];

/// Model types whose own class is Gemma's, if tokenizer_config.json names none.
const GEMMA: [&str; 11] = [
    "diffusion_gemma",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "gemma3n",
    "gemma3n_text",
    "recurrent_gemma",
    "shieldgemma2",
    "t5gemma",
    "zaya",
];

impl HubClass {
    /// The class by tokenizer_config.json and config.json.
    pub(super) fn of(config: &Value, model: &Value) -> Self {
        let model_type = model.get("model_type").and_then(Value::as_str).unwrap_or_default();
        if BY_FILE.contains(&model_type) {
            return Self::File;
        }
        let named = [config, model]
            .iter()
            .find_map(|value| value.get("tokenizer_class").and_then(Value::as_str))
            .map(|name| name.strip_suffix("Fast").unwrap_or(name));
        match named {
            Some("LlamaTokenizer") => Self::Llama(llama_prefix(config)),
            Some("GemmaTokenizer") => Self::Gemma,
            None if GEMMA.contains(&model_type) => Self::Gemma,
            None if matches!(model_type, "idefics" | "idefics2") => {
                Self::Llama(llama_prefix(config))
            }
            _ => Self::File,
        }
    }

    /// Special tokens that the class has even if no file names them.
    pub(super) fn own_tokens(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::File => &[],
            Self::Llama(_) => {
                &[("unk_token", "<unk>"), ("bos_token", "<s>"), ("eos_token", "</s>")]
            }
            Self::Gemma => &[
                ("unk_token", "<unk>"),
                ("bos_token", "<bos>"),
                ("eos_token", "<eos>"),
                ("pad_token", "<pad>"),
                ("mask_token", "<mask>"),
            ],
        }
    }
}

fn llama_prefix(config: &Value) -> Prefix {
    let flag = |name: &str, default| config.get(name).and_then(Value::as_bool).unwrap_or(default);
    match (flag("add_prefix_space", true), flag("legacy", false)) {
        (false, _) => Prefix::Never,
        (true, false) => Prefix::First,
        (true, true) => Prefix::Pieces,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_class_goes_by_both_files() {
        let llama = json!({"tokenizer_class": "LlamaTokenizerFast"});
        for (config, model, class) in [
            (&llama, json!({"model_type": "llama"}), HubClass::Llama(Prefix::First)),
            (&llama, json!({"model_type": "mistral"}), HubClass::File),
            (&llama, Value::Null, HubClass::Llama(Prefix::First)),
            (
                &json!({"tokenizer_class": "LlamaTokenizer", "legacy": true}),
                json!({"model_type": "llama"}),
                HubClass::Llama(Prefix::Pieces),
            ),
            (
                &json!({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": false}),
                Value::Null,
                HubClass::Llama(Prefix::Never),
            ),
            (&Value::Null, json!({"model_type": "gemma3"}), HubClass::Gemma),
            (
                &json!({"tokenizer_class": "PreTrainedTokenizerFast"}),
                json!({"model_type": "llama"}),
                HubClass::File,
            ),
        ] {
            assert_eq!(HubClass::of(config, &model), class, "{config} {model}");
        }
    }
}
