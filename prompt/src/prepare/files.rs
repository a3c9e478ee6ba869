//! The files of a model directory that bear on its prompts.

use std::fs;
use std::io::Read;
use std::path::Path;

use crate::error::ArtefactError;

/// A tokenizer.json is at most this large, unpacked.
const MAX_FILE_BYTES: u64 = 256 * 1024 * 1024;

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
    /// special_tokens_map.json and added_tokens.json of older models, if there are such.
    pub special_tokens_map_json: Option<Vec<u8>>,
    /// See there.
    pub added_tokens_json: Option<Vec<u8>>,
    /// chat_template.jinja, if there is one; it goes before the template in the configuration.
    pub chat_template_jinja: Option<String>,
    /// The files of additional_chat_templates, by name without ".jinja".
    pub additional_chat_templates: Vec<(String, String)>,
    /// chat_template.json of older processors, if there is one.
    pub chat_template_json: Option<Vec<u8>>,
    /// processor_config.json, if there is one.
    pub processor_config_json: Option<Vec<u8>>,
    /// preprocessor_config.json or video_preprocessor_config.json, if there is one.
    pub preprocessor_config_json: Option<Vec<u8>>,
    /// The name of the model on the Hub, if the directory lies in a cache of it.
    pub hub_name: Option<String>,
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
        let preprocessor = match read(&dir.join("preprocessor_config.json"))? {
            None => read(&dir.join("video_preprocessor_config.json"))?,
            some => some,
        };
        Ok(Self {
            tokenizer_json,
            tokenizer_config_json: read(&dir.join("tokenizer_config.json"))?,
            config_json: read(&dir.join("config.json"))?,
            special_tokens_map_json: read(&dir.join("special_tokens_map.json"))?,
            added_tokens_json: read(&dir.join("added_tokens.json"))?,
            chat_template_jinja: read_text(&dir.join("chat_template.jinja"))?,
            additional_chat_templates: additional(&dir.join("additional_chat_templates"))?,
            chat_template_json: read(&dir.join("chat_template.json"))?,
            processor_config_json: read(&dir.join("processor_config.json"))?,
            preprocessor_config_json: preprocessor,
            hub_name: hub_name(dir),
            mistral_common: mistral_common(dir)?,
        })
    }
}

/// The templates of a directory, in the order of their names.
fn additional(dir: &Path) -> Result<Vec<(String, String)>, ArtefactError> {
    let failed = |error: std::io::Error| unreadable(dir, &error.to_string());
    let mut all = Vec::new();
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(all),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(name) = name.strip_suffix(".jinja")
            && let Some(text) = read_text(&path)?
        {
            all.push((name.to_owned(), text));
        }
    }
    all.sort();
    Ok(all)
}

/// The name in the path of a Hub cache: `…/models--ORG--NAME/snapshots/…`.
fn hub_name(dir: &Path) -> Option<String> {
    let path = fs::canonicalize(dir).ok()?;
    let name = |part: std::path::Component<'_>| {
        let name = part.as_os_str().to_str()?.strip_prefix("models--")?.replace("--", "/");
        Some(name)
    };
    [path.as_path(), dir].iter().find_map(|path| path.components().find_map(name))
}

fn read_text(path: &Path) -> Result<Option<String>, ArtefactError> {
    let text = |bytes| String::from_utf8(bytes).map_err(|_| unreadable(path, "it is not UTF-8"));
    read(path)?.map(text).transpose()
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
