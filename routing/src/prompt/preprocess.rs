//! A model directory's files → an artefact. Native only; the workers get the result.
//!
//! Understood: tokenizer.json of Hugging Face `tokenizers` with a BPE model, byte-level or of
//! SentencePiece's kind, and the chat template in tokenizer_config.json or chat_template.jinja. What
//! isn't understood is refused by name: a tokenizer that is nearly right makes every look-up miss.

use std::fs;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use super::artefact::{Artefact, Definition, TemplateDefinition};
use super::content_format::{sglang_takes_parts, takes_parts};
use super::dialect::{ContentFormat, Dialect, Engine, Serving};
use super::error::ArtefactError;
use super::safe_cuts::safe_cuts;
use super::sglang::has_own_renderer as sglang_has_own_renderer;
use super::spaces::Prefix;
use super::template::Template;
use super::tokenizer::{Tokenizer, TokenizerDefinition};
use super::tokenizer_json::{self, SPECIAL_TOKENS, special};

const HASH_CONTEXT: &str = "warmpath tokenizer v1";

/// A tokenizer.json is at most this large, unpacked.
const MAX_FILE_BYTES: u64 = 256 * 1024 * 1024;

/// Architectures whose chats engines render without a chat template (vLLM 0.32:
/// vllm/config/model.py and, for gpt-oss, vllm/entrypoints/openai/responses/serving.py).
const OWN_RENDERERS: [&str; 9] = [
    "GptOssForCausalLM",
    "DeepseekV32ForCausalLM",
    "DeepseekV4ForCausalLM",
    "DeepseekV4ForConditionalGeneration",
    "DeepseekV41ForCausalLM",
    "InklingForCausalLM",
    "InklingForConditionalGeneration",
    "KimiK3ForConditionalGeneration",
    "MoonshotKimiaForCausalLM",
];

/// The files of a model that say how its prompts are made.
#[derive(Clone, Debug, Default)]
pub struct ModelFiles {
    /// tokenizer.json.
    pub tokenizer_json: Vec<u8>,
    /// tokenizer_config.json, if there is one.
    pub tokenizer_config_json: Option<Vec<u8>>,
    /// config.json, if there is one; only `model_type`, `architectures` and
    /// `tokenizer_class` count.
    pub config_json: Option<Vec<u8>>,
    /// chat_template.jinja, if there is one; it goes before the template in the configuration.
    pub chat_template_jinja: Option<String>,
    /// The name of a tokenizer file of `mistral_common`, if there is one.
    pub mistral_common: Option<String>,
}

impl ModelFiles {
    /// Reads the files of a model directory; tokenizer.json may be packed as tokenizer.json.gz.
    ///
    /// # Errors
    /// [`ArtefactError::File`] for what can't be read or unpacked.
    pub fn read_dir(dir: &Path) -> Result<Self, ArtefactError> {
        let packed = dir.join("tokenizer.json.gz");
        let tokenizer_json = match read(&dir.join("tokenizer.json"))? {
            Some(bytes) => bytes,
            None => match read(&packed)? {
                Some(bytes) => {
                    let mut unpacked = Vec::new();
                    flate2::read::GzDecoder::new(bytes.as_slice())
                        .take(MAX_FILE_BYTES)
                        .read_to_end(&mut unpacked)
                        .map_err(|error| unreadable(&packed, &error.to_string()))?;
                    unpacked
                }
                None => {
                    return Err(unreadable(
                        &dir.join("tokenizer.json"),
                        "it isn't there, nor is tokenizer.json.gz",
                    ));
                }
            },
        };
        let template = dir.join("chat_template.jinja");
        let chat_template_jinja = match read(&template)? {
            Some(bytes) => Some(
                String::from_utf8(bytes).map_err(|_| unreadable(&template, "it is not UTF-8"))?,
            ),
            None => None,
        };
        Ok(Self {
            tokenizer_json,
            tokenizer_config_json: read(&dir.join("tokenizer_config.json"))?,
            config_json: read(&dir.join("config.json"))?,
            chat_template_jinja,
            mistral_common: mistral_common(dir)?,
        })
    }
}

/// The file for which vLLM leaves tokenizer.json and template aside and goes by `mistral_common`
/// (vLLM 0.32, vllm/tokenizers/registry.py, which looks for consolidated weights too).
fn mistral_common(dir: &Path) -> Result<Option<String>, ArtefactError> {
    let failed = |error: std::io::Error| unreadable(dir, &error.to_string());
    let mut found = None;
    for entry in fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if name == "tekken.json" || name.starts_with("tokenizer.model.v") {
            found = found.max(Some(name));
        }
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, ArtefactError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(path, &error.to_string())),
    }
}

fn unreadable(path: &Path, reason: &str) -> ArtefactError {
    ArtefactError::File { path: path.display().to_string(), reason: reason.to_owned() }
}

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
    let config = json("tokenizer_config.json", files.tokenizer_config_json.as_deref())?;
    let model = json("config.json", files.config_json.as_deref())?;
    let mut template = template(files, serving, &config, &model)?;
    let (mut tokenizer, mut bpe) =
        tokenizer_json::definition(&files.tokenizer_json, &config, &model)?;
    let is_marked = !tokenizer.before.is_empty() || !tokenizer.after.is_empty();
    if serving.engine == Engine::Sglang && is_marked && takes_media(&model) {
        // Prompts are written out again and read as texts (SGLang 0.5.23, serving_chat.py,
        // `_can_reuse_text_only_prompt_ids`), which need not come to the same.
        template.source = None;
    }
    let hash = hash(files, &template, &tokenizer);

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

fn json(file: &'static str, bytes: Option<&[u8]>) -> Result<Value, ArtefactError> {
    match bytes {
        Some(bytes) => serde_json::from_slice(bytes)
            .map_err(|error| ArtefactError::Format { file, reason: error.to_string() }),
        None => Ok(Value::Null),
    }
}

/// Over everything that decides the ids: tokenizer.json, the template, special tokens, and what
/// the other files change about the tokenizer.
fn hash(
    files: &ModelFiles,
    template: &TemplateDefinition,
    tokenizer: &TokenizerDefinition,
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
    *hasher.finalize().as_bytes()
}

fn template(
    files: &ModelFiles,
    serving: &Serving,
    config: &Value,
    model: &Value,
) -> Result<TemplateDefinition, ArtefactError> {
    let mut definition = TemplateDefinition::default();
    let architecture = model.pointer("/architectures/0").and_then(Value::as_str);
    // Without a template their chats are refused.
    let own_renderer = match serving.engine {
        Engine::Vllm | Engine::Vllm023 => {
            architecture.is_some_and(|name| OWN_RENDERERS.contains(&name))
        }
        Engine::Sglang => sglang_has_own_renderer(architecture, model),
    };
    let own = (&files.chat_template_jinja, config.get("chat_template"));
    match (&serving.chat_template, own) {
        // As it reads the file (SGLang 0.5.23, parser/template_manager.py, `_load_jinja_template`).
        (Some(source), _) if serving.engine == Engine::Sglang => {
            definition.source = Some(source.trim_matches('\n').replace("\\n", "\n"));
        }
        (Some(source), _) => definition.source = Some(source.clone()),
        (None, own) => own_template(serving.engine, own, &mut definition)?,
    }
    let takes_parts = |source: &Option<String>| match (serving.content_format, serving.engine) {
        (ContentFormat::String, _) => false,
        (ContentFormat::OpenAi, _) => true,
        (ContentFormat::Auto, Engine::Sglang) => source.as_deref().is_some_and(sglang_takes_parts),
        (ContentFormat::Auto, _) => source.as_deref().is_some_and(takes_parts),
    };
    definition.content_parts = takes_parts(&definition.source);
    definition.tools_content_parts = takes_parts(&definition.tools_source);
    if own_renderer {
        (definition.source, definition.tools_source) = (None, None);
    }
    for name in SPECIAL_TOKENS {
        if let Some(value) = special(config, name) {
            definition.special.push((name.to_owned(), value.to_owned()));
        }
    }
    Ok(definition)
}

/// Whether a model takes images, audio or video, by its config.json.
fn takes_media(model: &Value) -> bool {
    let keys = ["vision_config", "audio_config", "video_config", "thinker_config"];
    keys.iter().any(|key| model.get(key).is_some_and(Value::is_object))
}

/// The model's own template: that of its file, else that of tokenizer_config.json.
fn own_template(
    engine: Engine,
    own: (&Option<String>, Option<&Value>),
    definition: &mut TemplateDefinition,
) -> Result<(), ArtefactError> {
    match own {
        (Some(source), _) | (None, Some(Value::String(source))) => {
            definition.source = Some(source.clone());
        }
        // Whatever its name is (SGLang 0.5.23, parser/template_manager.py, `_select_named_template`).
        (None, Some(Value::Array(named))) if engine == Engine::Sglang => {
            let first = named.first().and_then(|entry| entry.get("template"));
            definition.source = first.and_then(Value::as_str).map(str::to_owned);
        }
        (None, Some(Value::Array(named))) => {
            // Several templates by name: `tool_use`, if there is one, is for requests with tools.
            for entry in named {
                let name = entry.get("name").and_then(Value::as_str);
                let source = entry.get("template").and_then(Value::as_str).map(str::to_owned);
                match name {
                    Some("default") => definition.source = source,
                    Some("tool_use") => definition.tools_source = source,
                    _ => {}
                }
            }
        }
        (None, None | Some(Value::Null)) => {}
        (None, Some(_)) => {
            return Err(ArtefactError::Format {
                file: "tokenizer_config.json",
                reason: "chat_template is neither a string nor a list".into(),
            });
        }
    }
    Ok(())
}
