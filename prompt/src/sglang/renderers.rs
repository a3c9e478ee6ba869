//! Models whose chats SGLang renders without the model's own template, or changes first.

use serde_json::Value;

/// Parts of architectures' names (entrypoints/openai/chat_encoding.py; `GptOss`, whose Responses are
/// rendered by Harmony, and parser/python_chat_template.py; `MiniMaxM3` and `HunYuan`, whose efforts
/// become others).
const ARCHITECTURES: [&str; 9] = [
    "DeepseekV4",
    "DeepseekV32",
    "KimiK3",
    "Inkling",
    "GptOss",
    "GlmMoeDsa",
    "Glm5Next",
    "MiniMaxM3",
    "HunYuan",
];

/// Types of models (parser/conversation.py, `MODEL_TYPE_TO_TEMPLATE`).
const TYPES: [&str; 12] = [
    "deepseek_v41",
    "internvl_chat",
    "deepseek_vl_v2",
    "multi_modality",
    "phi4mm",
    "minicpmv",
    "minicpmo",
    "moss_vl",
    "deepseek-ocr",
    "unlimited-ocr",
    "paddleocr_vl",
    "whisper",
];

/// Whether the chats of a model aren't made by its template alone, by its config.json.
pub(crate) fn has_own_renderer(architecture: Option<&str>, model: &Value) -> bool {
    let kind = model.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let by_name = |name: &str| ARCHITECTURES.iter().any(|part| name.contains(part));
    architecture.is_some_and(by_name) || TYPES.contains(&kind)
}
