//! What `transformers` makes of a tokenizer.json before the engine sees it.
//!
//! Many classes take only the vocabulary and merges from the file and set their own rules; which
//! class it is goes by tokenizer_config.json and config.json. For all of them further added tokens
//! come from tokenizer_config.json (see [`crate::prepare::hub_config`]), but not `add_bos_token` and
//! `add_eos_token`, which count only where there is no tokenizer.json. Source: transformers 5.19,
//! models/auto/tokenization_auto.py, tokenization_utils_base.py, tokenization_utils_tokenizers.py
//! (`convert_to_native_format`) and models/*/tokenization_*.py; vLLM 0.32 loads tokenizers so, and
//! trusts no code of a model's own (`auto_map`) unless it is told to.

use serde_json::Value;

use crate::error::{ArtefactError, refuse};
use crate::prepare::hub_models::{FILE, goes_by_file, has_unknown_rules, named_wrong, registered};
use crate::tokenizer::spaces::Prefix;

/// What GPT-2 splits by when a file says no more than `ByteLevel`.
pub(crate) const GPT2_SPLIT: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Qwen2Tokenizer's.
const QWEN2_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Qwen3_5Tokenizer's.
const QWEN3_5_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Digits one by one.
const DIGITS: &str = r"\p{N}";

/// Whose rules hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HubClass {
    /// The file's own.
    File,
    /// `LlamaTokenizer`'s: `Metaspace` by this rule.
    Llama(Prefix),
    CodeLlama(Prefix),
    Gemma,
    Gpt2,
    CodeGen,
    GptNeoX,
    Qwen2,
    Qwen3_5,
    Cohere,
}

/// Rules that a class sets in place of the file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) nfc: bool,
    pub(crate) splits: &'static [&'static str],
    /// SentencePiece's kind: when a space is put in front. None for the byte-level kind.
    pub(crate) spaces: Option<Prefix>,
    pub(crate) ends: Ends,
}

/// What is put around a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// What the file says.
    File,
    Nothing,
    /// `bos_token` before it.
    Bos,
}

impl HubClass {
    /// The class by tokenizer_config.json, config.json and the name that the engine knows the model
    /// by, if that is known.
    ///
    /// # Errors
    /// [`ArtefactError::Tokenizer`] for a class whose rules aren't known.
    pub(crate) fn of(
        config: &Value,
        model: &Value,
        name: Option<&str>,
    ) -> Result<Self, ArtefactError> {
        let class = class_name(config, model, name)?;
        if flag(config, "add_prefix_space", false)
            && matches!(
                class,
                "GPT2Tokenizer"
                    | "CodeGenTokenizer"
                    | "GPTNeoXTokenizer"
                    | "Qwen2Tokenizer"
                    | "Qwen3_5Tokenizer"
                    | "CohereTokenizer"
            )
        {
            return refuse(format!("{class} with add_prefix_space"));
        }
        Ok(match class {
            "LlamaTokenizer" => Self::Llama(prefix(config, true)),
            "CodeLlamaTokenizer" => Self::CodeLlama(prefix(config, false)),
            "GemmaTokenizer" => Self::Gemma,
            "GPT2Tokenizer" => Self::Gpt2,
            "CodeGenTokenizer" => Self::CodeGen,
            "GPTNeoXTokenizer" => Self::GptNeoX,
            "Qwen2Tokenizer" => Self::Qwen2,
            "Qwen3_5Tokenizer" => Self::Qwen3_5,
            "CohereTokenizer" => Self::Cohere,
            other if has_unknown_rules(other) => {
                return refuse(format!("the class {other}, which has rules of its own"));
            }
            _ => Self::File,
        })
    }

    /// The class's rules; none where the file's hold.
    pub(crate) fn rules(self) -> Option<Rules> {
        let byte_level = |nfc, splits| Rules { nfc, splits, spaces: None, ends: Ends::File };
        let spaces =
            |prefix| Rules { nfc: false, splits: &[], spaces: Some(prefix), ends: Ends::File };
        Some(match self {
            Self::File => return None,
            Self::Llama(prefix) => spaces(prefix),
            Self::CodeLlama(prefix) => Rules { ends: Ends::Bos, ..spaces(prefix) },
            Self::Gemma => spaces(Prefix::Never),
            Self::Gpt2 | Self::CodeGen => byte_level(false, &[GPT2_SPLIT]),
            Self::GptNeoX => Rules { ends: Ends::Nothing, ..byte_level(true, &[GPT2_SPLIT]) },
            Self::Qwen2 => byte_level(true, &[QWEN2_SPLIT]),
            Self::Qwen3_5 => byte_level(true, &[QWEN3_5_SPLIT]),
            Self::Cohere => byte_level(true, &[DIGITS, GPT2_SPLIT]),
        })
    }

    /// Special tokens that the class has even if no file names them.
    pub(crate) fn own_tokens(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::File => &[],
            Self::Llama(_) => {
                &[("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")]
            }
            Self::CodeLlama(_) => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("prefix_token", "▁<PRE>"),
                ("middle_token", "▁<MID>"),
                ("suffix_token", "▁<SUF>"),
                ("eot_token", "▁<EOT>"),
                ("fill_token", "<FILL_ME>"),
            ],
            Self::Gemma => &[
                ("bos_token", "<bos>"),
                ("eos_token", "<eos>"),
                ("unk_token", "<unk>"),
                ("pad_token", "<pad>"),
                ("mask_token", "<mask>"),
            ],
            Self::Gpt2 | Self::CodeGen => &[
                ("bos_token", "<|endoftext|>"),
                ("eos_token", "<|endoftext|>"),
                ("unk_token", "<|endoftext|>"),
            ],
            Self::GptNeoX => &[
                ("bos_token", "<|endoftext|>"),
                ("eos_token", "<|endoftext|>"),
                ("unk_token", "<|endoftext|>"),
                ("pad_token", "<|padding|>"),
            ],
            Self::Qwen2 | Self::Qwen3_5 => &[
                ("eos_token", "<|endoftext|>"),
                ("unk_token", "<|endoftext|>"),
                ("pad_token", "<|endoftext|>"),
            ],
            Self::Cohere => &[
                ("bos_token", "<BOS_TOKEN>"),
                ("eos_token", "<|END_OF_TURN_TOKEN|>"),
                ("unk_token", "<UNK>"),
                ("sep_token", "<SEP>"),
                ("pad_token", "<PAD>"),
                ("cls_token", "<CLS>"),
                ("mask_token", "<MASK_TOKEN>"),
            ],
        }
    }
}

/// The name of the class that `AutoTokenizer.from_pretrained` comes to, without "Fast"; one that it
/// doesn't know stands for the file's rules.
fn class_name<'a>(
    config: &'a Value,
    model: &'a Value,
    name: Option<&str>,
) -> Result<&'a str, ArtefactError> {
    let own_code = match config.get("auto_map") {
        Some(Value::Array(_)) => true,
        Some(map) => map.get("AutoTokenizer").is_some_and(|class| !class.is_null()),
        None => false,
    };
    if !own_code && name.is_some_and(goes_by_file) {
        return Ok(FILE);
    }
    let named = |value: &'a Value| {
        let class = value.get("tokenizer_class").and_then(Value::as_str)?;
        Some(class.strip_suffix("Fast").unwrap_or(class))
    };
    let text = |name| model.get(name).and_then(Value::as_str).unwrap_or_default();
    let registered = registered(text("model_type"));
    let Some(class) = named(config).or_else(|| named(model)) else {
        return match registered {
            _ if own_code => refuse("the model's own code for its tokenizer (auto_map)"),
            Some(class) => Ok(class),
            None => Ok(FILE),
        };
    };
    if own_code {
        // What is named is taken in place of the model's own code, if it is known.
        let known = has_unknown_rules(class) || KNOWN.contains(&class);
        if !known {
            return refuse(format!("the model's own class {class} (auto_map)"));
        }
        return Ok(class);
    }
    Ok(match registered {
        Some(FILE) => FILE,
        Some(registered) if named_wrong(text("model_type")) || named_wrong(text("model_name")) => {
            registered
        }
        _ => class,
    })
}

/// Classes that `transformers` has, beside those of which no more than that is known here.
const KNOWN: [&str; 12] = [
    "LlamaTokenizer",
    "CodeLlamaTokenizer",
    "GemmaTokenizer",
    "GPT2Tokenizer",
    "CodeGenTokenizer",
    "GPTNeoXTokenizer",
    "Qwen2Tokenizer",
    "Qwen3_5Tokenizer",
    "CohereTokenizer",
    "PreTrainedTokenizer",
    "TokenizersBackend",
    "BloomTokenizer",
];

fn flag(config: &Value, name: &str, default: bool) -> bool {
    config.get(name).and_then(Value::as_bool).unwrap_or(default)
}

/// How `Metaspace` puts a space in front.
fn prefix(config: &Value, legacy: bool) -> Prefix {
    match (flag(config, "add_prefix_space", true), legacy && flag(config, "legacy", false)) {
        (false, _) => Prefix::Never,
        (true, false) => Prefix::First,
        (true, true) => Prefix::Pieces,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// As transformers 5.19's `AutoTokenizer` chooses.
    #[test]
    fn the_class_goes_by_both_files() {
        use HubClass::*;
        let named = |class: &str| json!({"tokenizer_class": class});
        let typed = |kind: &str| json!({"model_type": kind});
        let of = |config: &Value, model: &Value| HubClass::of(config, model, None).ok();
        for (config, model, class) in [
            (named("LlamaTokenizerFast"), typed("llama"), Llama(Prefix::First)),
            (named("LlamaTokenizerFast"), typed("mistral"), File),
            (named("LlamaTokenizerFast"), Value::Null, Llama(Prefix::First)),
            (Value::Null, typed("gemma3"), Gemma),
            (named("PreTrainedTokenizerFast"), typed("llama"), File),
            (named("XTokenizer"), typed("llama"), File),
            // SmolLM2, EXAONE 4, MiniMax-Text-01.
            (named("GPT2Tokenizer"), typed("llama"), Gpt2),
            (named("GPT2Tokenizer"), typed("exaone4"), Gpt2),
            (named("GPT2Tokenizer"), typed("minimax"), Gpt2),
            (named("GPT2Tokenizer"), typed("minimax_m2"), File),
            (named("GPT2Tokenizer"), Value::Null, Gpt2),
            (Value::Null, typed("gpt2"), Gpt2),
            (Value::Null, typed("code_llama"), File),
            (named("CodeLlamaTokenizer"), typed("llama"), CodeLlama(Prefix::First)),
            (named("CodeGenTokenizer"), typed("phi"), CodeGen),
            (named("GPTNeoXTokenizerFast"), typed("gpt_neox"), GptNeoX),
            (named("CohereTokenizerFast"), typed("cohere2"), Cohere),
            // What it calls wrong on the Hub goes by the type.
            (named("PreTrainedTokenizerFast"), typed("qwen2"), Qwen2),
            (named("TokenizersBackend"), typed("qwen3"), File),
            (named("Qwen2TokenizerFast"), typed("qwen3_moe"), Qwen2),
            (named("Qwen2Tokenizer"), typed("qwen3_5_moe"), Qwen3_5),
            (Value::Null, json!({"model_type": "x", "tokenizer_class": "GPT2Tokenizer"}), Gpt2),
        ] {
            assert_eq!(of(&config, &model), Some(class), "{config} {model}");
        }
        for (more, prefix) in [
            (json!({"legacy": true}), Prefix::Pieces),
            (json!({"add_prefix_space": false}), Prefix::Never),
        ] {
            let mut config = named("LlamaTokenizer");
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            assert_eq!(of(&config, &Value::Null), Some(Llama(prefix)));
        }
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let refused = |config: Value, model: Value| {
            HubClass::of(&config, &model, None).unwrap_err().to_string()
        };
        for (config, model, name) in [
            (json!({"tokenizer_class": "RobertaTokenizerFast"}), Value::Null, "RobertaTokenizer"),
            (Value::Null, json!({"model_type": "whisper"}), "WhisperTokenizer"),
            (
                json!({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true}),
                Value::Null,
                "GPT2Tokenizer with add_prefix_space",
            ),
            (
                json!({"tokenizer_class": "HYTokenizer", "auto_map": {"AutoTokenizer": ["a.B", null]}}),
                Value::Null,
                "HYTokenizer (auto_map)",
            ),
        ] {
            let error = refused(config, model);
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn some_models_go_by_their_file_because_of_their_name() {
        let llama = json!({"tokenizer_class": "LlamaTokenizerFast"});
        let model = json!({"model_type": "llama"});
        for (name, class) in [
            ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", HubClass::File),
            ("someone/DeepSeek-R1-Distill-Llama-8B", HubClass::Llama(Prefix::First)),
        ] {
            assert_eq!(HubClass::of(&llama, &model, Some(name)).ok(), Some(class), "{name}");
        }
    }
}
