//! A model directory's files → an artefact. Native only; the workers get the result.
//!
//! Understood: tokenizer.json of Hugging Face `tokenizers` with a BPE model, byte-level or of
//! SentencePiece's kind, and the chat template in tokenizer_config.json or chat_template.jinja. What
//! isn't understood is refused by name: a tokenizer that is nearly right makes every look-up miss.

pub(crate) mod bpe_json;
pub(crate) mod chat_templates;
pub(crate) mod content_format;
pub(crate) mod files;
pub(crate) mod hub_class;
pub(crate) mod hub_config;
pub(crate) mod hub_models;
pub(crate) mod lay_out;
pub(crate) mod safe_cuts;
pub(crate) mod syntax;
pub(crate) mod tokenizer_json;

use crate::prepare::files::ModelFiles;

use serde_json::Value;

use crate::artefact::{Artefact, Definition, TemplateDefinition};
use crate::dialect::{ContentFormat, Dialect, Engine, Serving};
use crate::error::ArtefactError;
use crate::prepare::chat_templates::{Chosen, choose, choose_for_sglang, json};
use crate::prepare::content_format::{sglang_takes_parts, takes_parts};
use crate::prepare::hub_class::HubClass;
use crate::prepare::hub_config::HubConfig;
use crate::prepare::safe_cuts::safe_cuts;
use crate::sglang::has_own_renderer as sglang_has_own_renderer;
use crate::template::Template;
use crate::tokenizer::spaces::Prefix;
use crate::tokenizer::{Tokenizer, TokenizerDefinition};

const HASH_CONTEXT: &str = "warmpath tokenizer v1";

/// Architectures whose chats engines render without a chat template (vLLM 0.32,
/// vllm/config/model.py).
const OWN_RENDERERS: [&str; 8] = [
    "DeepseekV32ForCausalLM",
    "DeepseekV4ForCausalLM",
    "DeepseekV4ForConditionalGeneration",
    "DeepseekV41ForCausalLM",
    "InklingForCausalLM",
    "InklingForConditionalGeneration",
    "KimiK3ForConditionalGeneration",
    "MoonshotKimiaForCausalLM",
];

/// Prepares a model for the workers, as vLLM without options serves it.
///
/// # Errors
/// As [`preprocess_for`].
pub fn preprocess(files: &ModelFiles) -> Result<Artefact, ArtefactError> {
    preprocess_for(files, &Serving::default())
}

/// Prepares a model for the workers.
///
/// # Errors
/// [`ArtefactError::Format`] for files that are not understood, [`ArtefactError::Tokenizer`] and
/// [`ArtefactError::Template`] for features that are not supported, by name.
pub fn preprocess_for(files: &ModelFiles, serving: &Serving) -> Result<Artefact, ArtefactError> {
    if let Some(file) = &files.mistral_common {
        return Err(ArtefactError::MistralCommon(file.clone()));
    }
    let hub = HubConfig::new(
        json("tokenizer_config.json", files.tokenizer_config_json.as_deref())?,
        json("config.json", files.config_json.as_deref())?,
        json("special_tokens_map.json", files.special_tokens_map_json.as_deref())?,
        json("added_tokens.json", files.added_tokens_json.as_deref())?,
        files.hub_name.as_deref(),
        memchr::memmem::find(&files.tokenizer_json, b"\"<0x0A>\"").is_none(),
    )?;
    let mut template = template(files, serving, &hub)?;
    let (mut tokenizer, mut bpe) = tokenizer_json::definition(&files.tokenizer_json, &hub)?;
    let is_marked = !tokenizer.before.is_empty() || !tokenizer.after.is_empty();
    if serving.engine == Engine::Sglang && is_marked && takes_media(&hub.model) {
        // Prompts are written out again and read as texts (SGLang 0.5.23, serving_chat.py,
        // `_can_reuse_text_only_prompt_ids`), which need not come to the same.
        template.source = None;
    }
    let hash = hash(files, &template, &tokenizer, hub.class);

    // What only the finished tables can say.
    let refused = ArtefactError::Tokenizer;
    let built = Tokenizer::new(&tokenizer, bpe.lay_out().map_err(refused)?).map_err(refused)?;
    bpe.unreachable = built.bpe().unreachable();
    tokenizer.cuts = safe_cuts(&built, &tokenizer.added);
    Template::compile(&template)?;
    let vocabulary = bpe.lay_out().map_err(refused)?;
    let dialect = Dialect::from(serving);
    let definition = Definition { hash, template, dialect, tokenizer, vocabulary };
    Ok(Artefact { tokenizer_hash: definition.hash, bytes: definition.write() })
}

/// Over everything that decides the ids: tokenizer.json, the template, special tokens, and what
/// the other files change about the tokenizer.
fn hash(
    files: &ModelFiles,
    template: &TemplateDefinition,
    tokenizer: &TokenizerDefinition,
    class: HubClass,
) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(HASH_CONTEXT);
    let mut field = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    field(&files.tokenizer_json);
    for source in [&template.source, &template.tools_source] {
        field(source.as_deref().unwrap_or_default().as_bytes());
    }
    for (name, value) in &template.special {
        field(name.as_bytes());
        field(value.as_bytes());
    }
    field(&[Prefix::code(tokenizer.spaces) as u8]);
    for ids in [&tokenizer.before, &tokenizer.after] {
        field(&ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>());
    }
    for token in &tokenizer.added {
        field(&token.id.to_le_bytes());
        field(token.content.as_bytes());
        field(&[token.lstrip, token.rstrip, token.normalized].map(u8::from));
    }
    if class.rules().is_some() {
        field(tokenizer.splits.concat().as_bytes());
        field(&[u8::from(tokenizer.nfc)]);
    }
    if template.chat_only {
        field(b"chat only");
    }
    *hasher.finalize().as_bytes()
}

/// Whether engines render the model's chats by code. What makes gpt-oss's is told by its type
/// (vLLM 0.32, vllm/renderers/online_renderer.py, `use_harmony`).
fn has_own_renderer(model: &Value) -> bool {
    let text = |path| model.pointer(path).and_then(Value::as_str).unwrap_or_default();
    text("/model_type") == "gpt_oss" || OWN_RENDERERS.contains(&text("/architectures/0"))
}

fn template(
    files: &ModelFiles,
    serving: &Serving,
    hub: &HubConfig,
) -> Result<TemplateDefinition, ArtefactError> {
    let mut definition = TemplateDefinition::default();
    let own_renderer = match serving.engine {
        Engine::Vllm | Engine::Vllm023 => has_own_renderer(&hub.model),
        Engine::Sglang => {
            let architecture = hub.model.pointer("/architectures/0").and_then(Value::as_str);
            sglang_has_own_renderer(architecture, &hub.model)
        }
    };
    // Without a template the chats are refused.
    if !own_renderer {
        let Chosen { chat, tools } = chosen(files, serving, hub)?;
        definition.chat_only = chat.is_some() && tools.is_none();
        definition.tools_source = tools.filter(|tools| chat.as_ref() != Some(tools));
        definition.source = chat;
    }
    let takes_parts = |source: &Option<String>| match (serving.content_format, serving.engine) {
        (ContentFormat::String, _) => false,
        (ContentFormat::OpenAi, _) => true,
        (ContentFormat::Auto, Engine::Sglang) => source.as_deref().is_some_and(sglang_takes_parts),
        (ContentFormat::Auto, _) => source.as_deref().is_some_and(takes_parts),
    };
    definition.content_parts = takes_parts(&definition.source);
    definition.tools_content_parts = takes_parts(&definition.tools_source);
    for (name, token) in hub.special() {
        definition.special.push((name, token.content));
    }
    Ok(definition)
}

/// The template that the engine was given, else the one that it takes of the model's.
fn chosen(files: &ModelFiles, serving: &Serving, hub: &HubConfig) -> Result<Chosen, ArtefactError> {
    match (&serving.chat_template, serving.engine) {
        // As it reads the file (SGLang 0.5.23, parser/template_manager.py, `_load_jinja_template`).
        (Some(source), Engine::Sglang) => {
            Ok(Chosen::one(Some(source.trim_matches('\n').replace("\\n", "\n"))))
        }
        (Some(source), _) => Ok(Chosen::one(Some(source.clone()))),
        (None, Engine::Sglang) => choose_for_sglang(files, &hub.config),
        (None, _) => choose(files, &hub.config, &hub.model),
    }
}

/// Whether a model takes images, audio or video, by its config.json.
fn takes_media(model: &Value) -> bool {
    let keys = ["vision_config", "audio_config", "video_config", "thinker_config"];
    keys.iter().any(|key| model.get(key).is_some_and(Value::is_object))
}
