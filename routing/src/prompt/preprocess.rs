//! A model directory's files → an artefact. Native only; the workers get the result.
//!
//! Understood: tokenizer.json of Hugging Face `tokenizers` with a byte-level BPE model, and the
//! chat template in tokenizer_config.json or chat_template.jinja. What isn't understood is refused
//! by name: a tokenizer that is nearly right makes every look-up miss.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::added::AddedToken;
use super::artefact::{Artefact, Definition, TemplateDefinition};
use super::bpe::BpeDefinition;
use super::content_format::takes_parts;
use super::error::ArtefactError;
use super::template::Template;
use super::tokenizer::{Cuts, Tokenizer, TokenizerDefinition, nfc};

const HASH_CONTEXT: &str = "warmpath tokenizer v1";

/// A tokenizer.json is at most this large, unpacked.
const MAX_FILE_BYTES: u64 = 256 * 1024 * 1024;

/// What GPT-2 splits by when a file says no more than `ByteLevel`.
const GPT2_SPLIT: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The files of a model that say how its prompts are made.
#[derive(Clone, Debug, Default)]
pub struct ModelFiles {
    /// tokenizer.json.
    pub tokenizer_json: Vec<u8>,
    /// tokenizer_config.json, if there is one.
    pub tokenizer_config_json: Option<Vec<u8>>,
    /// chat_template.jinja, if there is one; it goes before the template in the configuration.
    pub chat_template_jinja: Option<String>,
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
            chat_template_jinja,
        })
    }
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

/// Prepares a model for the workers.
///
/// # Errors
/// [`ArtefactError::Format`] for files that are not understood, [`ArtefactError::Tokenizer`] and
/// [`ArtefactError::Template`] for features that are not supported, by name.
pub fn preprocess(files: &ModelFiles) -> Result<Artefact, ArtefactError> {
    let json: TokenizerJson = serde_json::from_slice(&files.tokenizer_json).map_err(|error| {
        ArtefactError::Format { file: "tokenizer.json", reason: error.to_string() }
    })?;
    let config: Value = match &files.tokenizer_config_json {
        Some(bytes) => serde_json::from_slice(bytes).map_err(|error| ArtefactError::Format {
            file: "tokenizer_config.json",
            reason: error.to_string(),
        })?,
        None => Value::Null,
    };
    let template = template(files, &config)?;
    let mut definition =
        Definition { hash: hash(files, &template), template, tokenizer: tokenizer(json)? };

    // What only the finished tables can say.
    let built = Tokenizer::new(&definition.tokenizer).map_err(ArtefactError::Tokenizer)?;
    definition.tokenizer.bpe.unreachable = built.bpe().unreachable();
    definition.tokenizer.cuts = safe_cuts(&built, &definition.tokenizer.added);
    Template::compile(&definition.template)?;
    Ok(Artefact { tokenizer_hash: definition.hash, bytes: definition.write()? })
}

fn hash(files: &ModelFiles, template: &TemplateDefinition) -> [u8; 32] {
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
    *hasher.finalize().as_bytes()
}

fn template(files: &ModelFiles, config: &Value) -> Result<TemplateDefinition, ArtefactError> {
    let mut definition = TemplateDefinition::default();
    match (&files.chat_template_jinja, config.get("chat_template")) {
        (Some(source), _) | (None, Some(Value::String(source))) => {
            definition.source = Some(source.clone());
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
    definition.content_parts = definition.source.as_deref().is_some_and(takes_parts);
    definition.tools_content_parts = definition.tools_source.as_deref().is_some_and(takes_parts);
    for name in
        ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
    {
        let value = match config.get(name) {
            Some(Value::String(value)) => Some(value.as_str()),
            Some(value) => value.get("content").and_then(Value::as_str),
            None => None,
        };
        if let Some(value) = value {
            definition.special.push((name.to_owned(), value.to_owned()));
        }
    }
    Ok(definition)
}

#[derive(Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    added_tokens: Vec<AddedTokenJson>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    truncation: Value,
    #[serde(default)]
    padding: Value,
    model: ModelJson,
}

#[allow(clippy::struct_excessive_bools)] // As in the file.
#[derive(Deserialize)]
struct AddedTokenJson {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
}

#[derive(Deserialize)]
struct ModelJson {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(default)]
    vocab: Value,
    #[serde(default)]
    merges: Vec<MergeJson>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum MergeJson {
    Line(String),
    Pair(String, String),
}

fn refuse<T>(what: impl Into<String>) -> Result<T, ArtefactError> {
    Err(ArtefactError::Tokenizer(what.into()))
}

fn tokenizer(json: TokenizerJson) -> Result<TokenizerDefinition, ArtefactError> {
    let mut definition = TokenizerDefinition::default();
    if !json.truncation.is_null() {
        return refuse("truncation");
    }
    if !json.padding.is_null() {
        return refuse("padding");
    }
    normalizer(&json.normalizer, &mut definition)?;
    let byte_level = pre_tokenizer(&json.pre_tokenizer, &mut definition)?;
    post_processor(&json.post_processor, &mut definition)?;
    definition.bpe = bpe(json.model, byte_level)?;
    for token in json.added_tokens {
        if token.single_word {
            return refuse(format!("the added token {:?} as a single word", token.content));
        }
        if token.content.is_empty() {
            continue;
        }
        let content = if token.normalized && definition.nfc {
            nfc(&token.content).into_owned()
        } else {
            token.content
        };
        definition.added.push(AddedToken {
            id: token.id,
            content,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            normalized: token.normalized,
        });
    }
    Ok(definition)
}

fn kind(value: &Value) -> &str {
    value.get("type").and_then(Value::as_str).unwrap_or("without a type")
}

fn flag(value: &Value, name: &str, default: bool) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or(default)
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn normalizer(value: &Value, definition: &mut TokenizerDefinition) -> Result<(), ArtefactError> {
    if value.is_null() {
        return Ok(());
    }
    match kind(value) {
        "NFC" => definition.nfc = true,
        "Sequence" => {
            for inner in list(value, "normalizers") {
                normalizer(inner, definition)?;
            }
        }
        other => return refuse(format!("the normalizer {other}")),
    }
    Ok(())
}

/// Returns whether text becomes bytes at the end.
fn pre_tokenizer(
    value: &Value,
    definition: &mut TokenizerDefinition,
) -> Result<bool, ArtefactError> {
    if value.is_null() {
        return Ok(false);
    }
    match kind(value) {
        "Sequence" => {
            let mut byte_level = false;
            for inner in list(value, "pretokenizers") {
                if byte_level {
                    return refuse("a pre-tokenizer after ByteLevel");
                }
                byte_level = pre_tokenizer(inner, definition)?;
            }
            Ok(byte_level)
        }
        "ByteLevel" => {
            if flag(value, "add_prefix_space", true) {
                return refuse("ByteLevel with add_prefix_space");
            }
            if flag(value, "use_regex", true) {
                definition.splits.push(GPT2_SPLIT.to_owned());
            }
            Ok(true)
        }
        "Digits" => {
            let single = flag(value, "individual_digits", false);
            definition.splits.push(if single { r"\p{N}" } else { r"\p{N}+" }.to_owned());
            Ok(false)
        }
        "Split" => {
            let behavior = value.get("behavior").and_then(Value::as_str).unwrap_or_default();
            if behavior != "Isolated" || flag(value, "invert", false) {
                return refuse(format!("Split with the behavior {behavior}"));
            }
            match value.get("pattern").and_then(|pattern| pattern.get("Regex")) {
                Some(Value::String(pattern)) => definition.splits.push(pattern.clone()),
                _ => return refuse("Split by a text that is no pattern"),
            }
            Ok(false)
        }
        other => refuse(format!("the pre-tokenizer {other}")),
    }
}

fn post_processor(
    value: &Value,
    definition: &mut TokenizerDefinition,
) -> Result<(), ArtefactError> {
    if value.is_null() {
        return Ok(());
    }
    match kind(value) {
        // Moves offsets only.
        "ByteLevel" => Ok(()),
        "Sequence" => {
            for inner in list(value, "processors") {
                post_processor(inner, definition)?;
            }
            Ok(())
        }
        "TemplateProcessing" => {
            let mut seen = false;
            for piece in list(value, "single") {
                if piece.get("Sequence").is_some() {
                    seen = true;
                } else if let Some(name) = piece.pointer("/SpecialToken/id").and_then(Value::as_str)
                {
                    let token = value.get("special_tokens").and_then(|all| all.get(name));
                    let ids = token.and_then(|token| token.get("ids")).and_then(Value::as_array);
                    let Some(ids) = ids else {
                        return refuse(format!("the post-processor's token {name:?} without ids"));
                    };
                    let ids = ids.iter().filter_map(Value::as_u64).map(|id| id as u32);
                    if seen {
                        definition.after.extend(ids);
                    } else {
                        definition.before.extend(ids);
                    }
                } else {
                    return refuse("a post-processor's unknown piece");
                }
            }
            Ok(())
        }
        other => refuse(format!("the post-processor {other}")),
    }
}

fn bpe(model: ModelJson, byte_level: bool) -> Result<BpeDefinition, ArtefactError> {
    match model.kind.as_deref() {
        Some("BPE") => {}
        None if !model.merges.is_empty() => {}
        other => return refuse(format!("the model {}", other.unwrap_or("without a type"))),
    }
    if model.byte_fallback || !byte_level {
        return refuse("a BPE model that is not byte-level");
    }
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return refuse("BPE with dropout");
    }
    for (name, value) in [
        ("continuing_subword_prefix", &model.continuing_subword_prefix),
        ("end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if value.as_ref().is_some_and(|value| !value.is_empty()) {
            return refuse(format!("BPE with {name}"));
        }
    }
    // With a token for every byte nothing is ever unknown.
    drop(model.unk_token);
    let Value::Object(vocab) = model.vocab else { return refuse("a vocabulary that is no map") };
    let bytes = byte_of_char();
    let mut definition =
        BpeDefinition { ignore_merges: model.ignore_merges, ..BpeDefinition::default() };
    let mut ids = HashMap::with_capacity(vocab.len());
    for (text, id) in vocab {
        let Some(id) = id.as_u64().filter(|id| *id < 1 << 24) else {
            return refuse(format!("the token id {id}"));
        };
        // A token with other characters is never met: text is bytes by then.
        let token: Option<Vec<u8>> = text.chars().map(|char| bytes.get(&char).copied()).collect();
        if let Some(token) = token {
            let id = id as usize;
            if definition.tokens.len() <= id {
                definition.tokens.resize(id + 1, Vec::new());
            }
            if let Some(place) = definition.tokens.get_mut(id) {
                *place = token;
            }
            ids.insert(text, id as u32);
        }
    }
    for (rank, merge) in model.merges.iter().enumerate() {
        let (left, right) = match merge {
            MergeJson::Line(line) => match line.split_once(' ') {
                Some(pair) => pair,
                None => return refuse(format!("merge {rank} without a space")),
            },
            MergeJson::Pair(left, right) => (left.as_str(), right.as_str()),
        };
        match (ids.get(left), ids.get(right)) {
            (Some(left), Some(right)) => definition.merges.push((*left, *right)),
            _ => return refuse(format!("merge {rank} of parts that are no tokens")),
        }
    }
    Ok(definition)
}

/// GPT-2's way to write bytes as visible characters.
fn byte_of_char() -> HashMap<char, u8> {
    let mut table = HashMap::with_capacity(256);
    let mut next = 256;
    for byte in 0..=255u8 {
        let char = match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).unwrap_or_default()
            }
        };
        table.insert(char, byte);
    }
    table
}

/// Tries the cuts on every short text of the characters that matter: a cut is safe if words end
/// there, and if the words before it are the same when nothing comes after it.
fn safe_cuts(tokenizer: &Tokenizer, added: &[AddedToken]) -> Cuts {
    const CHARS: [char; 11] = ['a', 'Z', ' ', '\n', '\r', '\t', '.', '\'', '7', 'é', '漢'];
    let holds = |before: &str, after: &str| {
        let all = tokenizer.words(&format!("{before}{after}"));
        let cut: Vec<_> = tokenizer.words(before);
        let rest = tokenizer.words(after);
        let rest = rest.iter().map(|(start, end)| (start + before.len(), end + before.len()));
        all.into_iter().eq(cut.into_iter().chain(rest))
    };
    let mut befores = vec![String::new()];
    let mut from = 0;
    for _ in 0..3 {
        let to = befores.len();
        for at in from..to {
            for char in CHARS {
                let text = format!("{}{char}", befores.get(at).map_or("", String::as_str));
                befores.push(text);
            }
        }
        from = to;
    }
    let crosses = |cut: fn(&[u8]) -> bool| {
        added.iter().any(|token| token.content.as_bytes().windows(3).any(cut))
    };
    let letter_ends = added.iter().any(|token| {
        token.rstrip && token.content.ends_with(|char: char| char.is_ascii_alphabetic())
            || token.lstrip && token.content.starts_with(|char: char| char.is_ascii_alphabetic())
            || token.content.contains('\n')
    });
    Cuts {
        words: !letter_ends
            && !crosses(
                |w| matches!(w, [a, b' ', b] if a.is_ascii_alphabetic() && b.is_ascii_alphabetic()),
            )
            && befores.iter().all(|before| {
                ["", "'s"].iter().all(|end| {
                    [" ab", " Ab", " a b", " a'", " aé", " a\n"]
                        .iter()
                        .all(|after| holds(&format!("{before}a{end}"), after))
                        && [" ab", " Z."]
                            .iter()
                            .all(|after| holds(&format!("{before}Z{end}"), after))
                })
            }),
        lines: !letter_ends
            && befores.iter().all(|before| {
                ["ab", "Ab", "a b", "a'", "aé", "a\n"]
                    .iter()
                    .all(|after| holds(&format!("{before}\n"), after))
            }),
    }
}
