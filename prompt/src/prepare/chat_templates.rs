//! Which chat template of a model directory an engine takes, for chats with tools and without.
//!
//! vLLM 0.32 (vllm/renderers/hf.py, `resolve_chat_template`) asks the model's processor first, if
//! there are no tools, then its tokenizer. transformers 5.19 reads their templates from other files:
//! the processor's in processing_utils.py (`get_processor_dict`), the tokenizer's in
//! tokenization_utils_base.py (`_from_pretrained`, `get_chat_template`).

use serde_json::Value;

use crate::error::ArtefactError;
use crate::prepare::files::ModelFiles;

/// Model types that have a processor of `transformers` and chat (models/auto/processing_auto.py,
/// `PROCESSOR_MAPPING_NAMES`); for the others the files name its class, or there is none.
const WITH_PROCESSOR: [&str; 76] = [
    "aria",
    "audioflamingo3",
    "aya_vision",
    "chameleon",
    "cohere2_vision",
    "cosmos3_edge",
    "deepseek_ocr2",
    "deepseek_vl",
    "deepseek_vl_hybrid",
    "diffusion_gemma",
    "emu3",
    "ernie4_5_vl_moe",
    "exaone4_5",
    "fuyu",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4_unified",
    "glm46v",
    "glm4v",
    "glm4v_moe",
    "glm5_next",
    "glm_image",
    "glmasr",
    "got_ocr2",
    "granite4_vision",
    "granite_speech",
    "granite_speech_plus",
    "hunyuan_vl",
    "hyperclovax_vision_v2",
    "idefics",
    "idefics2",
    "idefics3",
    "inkling_mm_model",
    "internvl",
    "janus",
    "kimi_k25",
    "lfm2_vl",
    "lighton_ocr",
    "llama4",
    "llava",
    "llava_next",
    "llava_next_video",
    "llava_onevision",
    "minicpmv4_6",
    "minicpmv4_7",
    "minimax_m3_vl",
    "mistral3",
    "mllama",
    "muse_glimmer",
    "nemotron_h_omni",
    "ovis2",
    "paddleocr_vl",
    "paligemma",
    "perception_lm",
    "phi4_multimodal",
    "pixtral",
    "qianfan_ocr",
    "qwen2_5_omni",
    "qwen2_5_vl",
    "qwen2_audio",
    "qwen2_vl",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_asr",
    "qwen3_omni_moe",
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen4_exp",
    "smolvlm",
    "step3p7",
    "t5gemma2",
    "video_llama_3",
    "video_llava",
    "vipllava",
    "voxtral",
];

/// The templates that an engine takes.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Chosen {
    /// For chats without tools.
    pub(crate) chat: Option<String>,
    /// For chats with tools.
    pub(crate) tools: Option<String>,
}

impl Chosen {
    /// One for all chats.
    pub(crate) fn one(template: Option<String>) -> Self {
        Self { chat: template.clone(), tools: template }.with_lines()
    }

    /// Lines end as Jinja2 reads them.
    fn with_lines(self) -> Self {
        let lines = |text: String| text.replace("\r\n", "\n").replace('\r', "\n");
        Self { chat: self.chat.map(lines), tools: self.tools.map(lines) }
    }
}

/// Templates by name, of which only these are ever taken unasked.
#[derive(Debug, Default, PartialEq)]
struct Named {
    default: Option<String>,
    tool_use: Option<String>,
}

/// A processor's template.
#[derive(Debug, PartialEq)]
enum OfProcessor {
    None,
    One(String),
    /// With these, vLLM fails at each chat without tools.
    Several,
}

/// Whether the engine has a processor for the model.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Processor {
    No,
    Yes,
    /// It is the model's own code, or the files don't name it.
    Perhaps,
}

/// Chooses among a model's templates. `tokenizer` is tokenizer_config.json, `model` config.json.
///
/// # Errors
/// [`ArtefactError::Format`] for files that aren't what they should be, [`ArtefactError::Template`]
/// where it can't be told what the engine takes.
pub(crate) fn choose(
    files: &ModelFiles,
    tokenizer: &Value,
    model: &Value,
) -> Result<Chosen, ArtefactError> {
    let Named { default, tool_use } = of_tokenizer(files, tokenizer)?;
    let tools = tool_use.or_else(|| default.clone());
    let of_processor = of_processor(files)?;
    let (chat, same) = match of_processor {
        OfProcessor::None => (default.clone(), true),
        OfProcessor::One(text) => {
            let same = default.as_ref() == Some(&text);
            (Some(text), same)
        }
        OfProcessor::Several => (None, false),
    };
    let chat = match processor(files, tokenizer, model)? {
        _ if same => chat,
        Processor::Yes => chat,
        Processor::No => default,
        Processor::Perhaps => {
            let what = "the files of tokenizer and processor have different ones, and which one the \
                        engine takes goes by a processor that isn't known";
            return Err(ArtefactError::Template(what.to_owned()));
        }
    };
    Ok(Chosen { chat, tools }.with_lines())
}

/// What SGLang takes, which asks the processor first and, of several templates, takes the first,
/// whatever its name is (SGLang 0.5.23, parser/template_manager.py, `_resolve_hf_chat_template`,
/// `_select_named_template`).
///
/// # Errors
/// As [`choose`].
pub(crate) fn choose_for_sglang(
    files: &ModelFiles,
    tokenizer: &Value,
) -> Result<Chosen, ArtefactError> {
    let of_processor = json("processor_config.json", files.processor_config_json.as_deref())?;
    let several = !files.additional_chat_templates.is_empty()
        || files.chat_template_json.is_some()
        || of_processor.get("chat_template").is_some_and(|template| !template.is_null());
    if several {
        let what = "the directory has chat templates of which it isn't known which one SGLang takes; \
                    name the one that the engine uses as chat_template";
        return Err(ArtefactError::Template(what.to_owned()));
    }
    let own = match (&files.chat_template_jinja, tokenizer.get("chat_template")) {
        (Some(source), _) | (None, Some(Value::String(source))) => Some(source.clone()),
        (None, Some(Value::Array(all))) => {
            let first = all.first().and_then(|entry| entry.get("template"));
            first.and_then(Value::as_str).map(str::to_owned)
        }
        (None, None | Some(Value::Null)) => None,
        (None, Some(_)) => {
            let reason = "chat_template is neither a string nor a list".to_owned();
            return Err(ArtefactError::Format { file: "tokenizer_config.json", reason });
        }
    };
    Ok(Chosen::one(own))
}

/// Files go before tokenizer_config.json.
fn of_tokenizer(files: &ModelFiles, tokenizer: &Value) -> Result<Named, ArtefactError> {
    let mut named = Named::default();
    let mut put = |name: &str, text: &str| match name {
        "default" => named.default = Some(text.to_owned()),
        "tool_use" => named.tool_use = Some(text.to_owned()),
        _ => {}
    };
    if files.chat_template_jinja.is_some() || !files.additional_chat_templates.is_empty() {
        if let Some(text) = &files.chat_template_jinja {
            put("default", text);
        }
        for (name, text) in &files.additional_chat_templates {
            put(name, text);
        }
        return Ok(named);
    }
    match tokenizer.get("chat_template") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => put("default", text),
        Some(Value::Object(all)) => {
            for (name, text) in all {
                put(name, text.as_str().unwrap_or_default());
            }
        }
        Some(Value::Array(all)) => {
            for entry in all {
                let text = |name| entry.get(name).and_then(Value::as_str);
                if let (Some(name), Some(text)) = (text("name"), text("template")) {
                    put(name, text);
                }
            }
        }
        Some(_) => {
            let reason = "chat_template is neither a string nor a list".to_owned();
            return Err(ArtefactError::Format { file: "tokenizer_config.json", reason });
        }
    }
    Ok(named)
}

fn of_processor(files: &ModelFiles) -> Result<OfProcessor, ArtefactError> {
    let value = |template: &Value| match template {
        Value::Null => OfProcessor::None,
        Value::String(text) => OfProcessor::One(text.clone()),
        _ => OfProcessor::Several,
    };
    let config = json("processor_config.json", files.processor_config_json.as_deref())?;
    if let Some(template) = config.get("chat_template").filter(|template| !template.is_null()) {
        return Ok(value(template));
    }
    let legacy = json("chat_template.json", files.chat_template_json.as_deref())?;
    if let Some(template) = legacy.get("chat_template") {
        // With both the processor doesn't load.
        let loads = files.additional_chat_templates.is_empty();
        return Ok(if loads { value(template) } else { OfProcessor::None });
    }
    let mut names = files.additional_chat_templates.iter().map(|(name, _)| name.as_str());
    if names.any(|name| name != "default") {
        return Ok(OfProcessor::Several);
    }
    let further = files.additional_chat_templates.first().map(|(_, text)| text);
    let default = files.chat_template_jinja.as_ref().or(further);
    Ok(default.map_or(OfProcessor::None, |text| OfProcessor::One(text.clone())))
}

fn processor(
    files: &ModelFiles,
    tokenizer: &Value,
    model: &Value,
) -> Result<Processor, ArtefactError> {
    let own = [
        json("processor_config.json", files.processor_config_json.as_deref())?,
        json("preprocessor_config.json", files.preprocessor_config_json.as_deref())?,
    ];
    if own.iter().all(Value::is_null) {
        // Without these it doesn't load.
        return Ok(Processor::No);
    }
    let mut all = own.iter().chain([tokenizer, model]);
    let own_code = |value: &Value| value.pointer("/auto_map/AutoProcessor").is_some();
    if all.clone().any(own_code) {
        return Ok(Processor::Perhaps);
    }
    let named = all.any(|value| value.get("processor_class").is_some_and(Value::is_string));
    let of_type = model.get("model_type").and_then(Value::as_str);
    let registered = of_type.is_some_and(|name| WITH_PROCESSOR.contains(&name));
    Ok(if named || registered { Processor::Yes } else { Processor::Perhaps })
}

/// A file's JSON; null if there is no such file.
pub(crate) fn json(file: &'static str, bytes: Option<&[u8]>) -> Result<Value, ArtefactError> {
    match bytes {
        Some(bytes) => serde_json::from_slice(bytes)
            .map_err(|error| ArtefactError::Format { file, reason: error.to_string() }),
        None => Ok(Value::Null),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A directory: its files by name. Each template is a text of one letter.
    fn chosen(files: &[(&str, Value)]) -> Result<(String, String), ArtefactError> {
        let mut dir = ModelFiles::default();
        let (mut tokenizer, mut model) = (Value::Null, Value::Null);
        for (name, value) in files {
            let text = value.as_str().unwrap_or_default().to_owned();
            let bytes = Some(value.to_string().into_bytes());
            match *name {
                "chat_template.jinja" => dir.chat_template_jinja = Some(text),
                "chat_template.json" => dir.chat_template_json = bytes,
                "processor_config.json" => dir.processor_config_json = bytes,
                "preprocessor_config.json" => dir.preprocessor_config_json = bytes,
                "tokenizer_config.json" => tokenizer = value.clone(),
                "config.json" => model = value.clone(),
                name => dir.additional_chat_templates.push((name.to_owned(), text)),
            }
        }
        let Chosen { chat, tools } = choose(&dir, &tokenizer, &model)?;
        Ok((chat.unwrap_or_default(), tools.unwrap_or_default()))
    }

    /// Each as transformers 5.19's `get_processor_dict` and `get_chat_template` gave it, in the order of
    /// vLLM 0.32's `resolve_chat_template`: without and with tools.
    #[test]
    fn the_engines_choice_is_made() {
        let of_config =
            |template: Value| ("tokenizer_config.json", json!({"chat_template": template}));
        let qwen = ("preprocessor_config.json", json!({"processor_class": "Qwen2VLProcessor"}));
        let legacy = ("chat_template.json", json!({"chat_template": "l"}));
        let several = of_config(json!([
            {"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"},
            {"name": "rag", "template": "r"},
        ]));
        let default = ("chat_template.jinja", json!("j"));
        let for_tools = ("tool_use", json!("u"));
        for (files, chat, tools) in [
            (vec![of_config(json!("c"))], "c", "c"),
            (vec![several.clone()], "d", "t"),
            (vec![of_config(json!({"tool_use": "t"}))], "", "t"),
            (vec![of_config(json!([{"name": "rag", "template": "r"}]))], "", ""),
            // Files go before the configuration, all of it.
            (vec![several.clone(), default.clone()], "j", "j"),
            (vec![default.clone(), for_tools.clone()], "j", "u"),
            (vec![of_config(json!("c")), for_tools.clone()], "", "u"),
            (vec![default.clone(), ("rag", json!("r"))], "j", "j"),
            (vec![default.clone(), ("default", json!("x"))], "x", "x"),
            // No processor, no template of one.
            (vec![legacy.clone()], "", ""),
            (vec![legacy.clone(), of_config(json!("c"))], "c", "c"),
            (vec![qwen.clone(), legacy.clone()], "l", ""),
            (vec![qwen.clone(), legacy.clone(), of_config(json!("c"))], "l", "c"),
            (vec![qwen.clone(), legacy.clone(), default.clone()], "l", "j"),
            (vec![qwen.clone(), default.clone()], "j", "j"),
            // The processor doesn't load, or vLLM fails with what it has.
            (vec![qwen.clone(), legacy.clone(), default.clone(), for_tools.clone()], "j", "u"),
            (vec![qwen.clone(), default.clone(), for_tools.clone()], "", "u"),
            (
                vec![
                    (
                        "processor_config.json",
                        json!({"processor_class": "Gemma3Processor", "chat_template": "p"}),
                    ),
                    default.clone(),
                ],
                "p",
                "j",
            ),
        ] {
            let expected = (chat.to_owned(), tools.to_owned());
            assert_eq!(chosen(&files).unwrap(), expected, "{files:?}");
        }
    }

    #[test]
    fn what_goes_by_an_unknown_processor_is_refused() {
        let own = json!({"auto_map": {"AutoProcessor": "a.B"}});
        let legacy = ("chat_template.json", json!({"chat_template": "l"}));
        let default = ("chat_template.jinja", json!("j"));
        let error = chosen(&[("preprocessor_config.json", own.clone()), legacy, default.clone()]);
        assert!(error.unwrap_err().to_string().contains("a processor that isn't known"));
        let same = chosen(&[("preprocessor_config.json", own), default]).unwrap();
        assert_eq!(same, ("j".to_owned(), "j".to_owned()));
    }

    #[test]
    fn lines_end_as_jinja2_ends_them() {
        let (chat, _) = chosen(&[("chat_template.jinja", json!("a\r\nb\rc\n"))]).unwrap();
        assert_eq!(chat, "a\nb\nc\n");
    }
}
