//! tokenizer.json of Hugging Face `tokenizers` → a tokenizer's definition.
//!
//! Source: the serialisation in `tokenizers` 0.23 (src/models/bpe, src/normalizers,
//! src/pre_tokenizers, src/processors).

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde_json::Value;

use super::added::AddedToken;
use super::bpe::BpeDefinition;
use super::bpe_json::{self, ModelJson};
use super::error::ArtefactError;
use super::hub_class::HubClass;
use super::spaces::{Prefix, SIGN};
use super::tokenizer::{TokenizerDefinition, nfc};

/// What GPT-2 splits by when a file says no more than `ByteLevel`.
const GPT2_SPLIT: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

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
#[derive(Clone, Deserialize)]
struct AddedTokenJson {
    #[serde(default)]
    id: Option<u32>,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
}

pub(super) fn refuse<T>(what: impl Into<String>) -> Result<T, ArtefactError> {
    Err(ArtefactError::Tokenizer(what.into()))
}

/// What a file says about spaces.
#[derive(Default)]
struct Spaces {
    prepend: bool,
    replace: bool,
    metaspace: Option<Prefix>,
    /// Splits at spaces, of which a `Replace` leaves none.
    split: bool,
}

impl Spaces {
    fn prefix(&self) -> Result<Option<Prefix>, ArtefactError> {
        if self.split && !self.replace {
            return refuse("Split at spaces");
        }
        match (self.prepend, self.replace, self.metaspace) {
            (false, false, None) => Ok(None),
            (false, true, None) => Ok(Some(Prefix::Never)),
            (true, true, None) => Ok(Some(Prefix::Always)),
            (false, _, Some(prefix)) => Ok(Some(prefix)),
            (true, false, None) => refuse("Prepend without Replace"),
            (true, _, Some(_)) => refuse("Prepend with Metaspace"),
        }
    }
}

/// The tokenizer as an engine loads it, from tokenizer.json, tokenizer_config.json and config.json.
pub(super) fn definition(
    file: &[u8],
    config: &Value,
    model: &Value,
) -> Result<(TokenizerDefinition, BpeDefinition), ArtefactError> {
    let json: TokenizerJson = serde_json::from_slice(file).map_err(|error| {
        ArtefactError::Format { file: "tokenizer.json", reason: error.to_string() }
    })?;
    json.model.check_kind()?;
    let mut definition = TokenizerDefinition::default();
    if !json.truncation.is_null() {
        return refuse("truncation");
    }
    if !json.padding.is_null() {
        return refuse("padding");
    }
    if flag(config, "split_special_tokens", false) {
        return refuse("split_special_tokens");
    }
    // The classes that have rules of their own are of SentencePiece's kind.
    let class = if json.model.byte_fallback { HubClass::of(config, model) } else { HubClass::File };
    match class {
        HubClass::File => {
            let mut spaces = Spaces::default();
            normalizer(&json.normalizer, &mut definition, &mut spaces)?;
            let byte_level = pre_tokenizer(&json.pre_tokenizer, &mut definition, &mut spaces)?;
            definition.spaces = spaces.prefix()?;
            if byte_level && definition.spaces.is_some() {
                return refuse("ByteLevel with other rules for spaces");
            }
            if !byte_level && definition.spaces.is_none() {
                return refuse("a BPE model that is neither byte-level nor SentencePiece's");
            }
            if !byte_level && !definition.splits.is_empty() {
                return refuse("a pre-tokenizer that splits SentencePiece's text");
            }
        }
        HubClass::Llama(prefix) => definition.spaces = Some(prefix),
        HubClass::Gemma => definition.spaces = Some(Prefix::Never),
    }
    post_processor(&json.post_processor, &mut definition)?;
    let (bpe, ids) = bpe_json::read(json.model, definition.spaces.is_some())?;
    add_tokens(&mut definition, json.added_tokens, &ids, config, class)?;
    Ok((definition, bpe))
}

/// The names under which tokenizer_config.json has special tokens.
pub(super) const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The content of a special token of tokenizer_config.json.
pub(super) fn special<'a>(config: &'a Value, name: &str) -> Option<&'a str> {
    content(config.get(name)?)
}

fn content(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content").and_then(Value::as_str))
}

fn special_of<'a>(config: &'a Value, name: &str, class: HubClass) -> Option<&'a str> {
    match config.get(name) {
        Some(value) => content(value),
        None => class.own_tokens().iter().find(|(own, _)| *own == name).map(|(_, text)| *text),
    }
}

/// Adds the file's tokens, and those that only tokenizer_config.json has.
fn add_tokens(
    definition: &mut TokenizerDefinition,
    file: Vec<AddedTokenJson>,
    ids: &HashMap<String, u32>,
    config: &Value,
    class: HubClass,
) -> Result<(), ArtefactError> {
    let mut listed = Vec::new();
    if let Some(Value::Object(tokens)) = config.get("added_tokens_decoder") {
        for (id, token) in tokens {
            let token = AddedTokenJson::deserialize(token).map_err(|error| {
                ArtefactError::Format { file: "tokenizer_config.json", reason: error.to_string() }
            })?;
            listed.push(AddedTokenJson { id: id.parse().ok(), ..token });
        }
        listed.sort_by_key(|token| token.id);
    }
    // A class that builds its own tokenizer takes the file's only if there is no other list.
    let mut all = if class == HubClass::File || listed.is_empty() { file } else { Vec::new() };
    let mut known: HashSet<String> = all.iter().map(|token| token.content.clone()).collect();
    let named = SPECIAL_TOKENS.iter().filter_map(|name| special_of(config, name, class));
    let further =
        ["extra_special_tokens", "additional_special_tokens"].iter().flat_map(|name| match config
            .get(name)
        {
            Some(Value::Array(values)) => values.iter().filter_map(content).collect(),
            Some(Value::Object(values)) => values.values().filter_map(content).collect(),
            _ => Vec::new(),
        });
    let special = named.chain(further).map(|text| AddedTokenJson {
        id: None,
        content: text.to_owned(),
        single_word: false,
        lstrip: false,
        rstrip: false,
        normalized: Some(false),
        special: true,
    });
    for token in listed.into_iter().chain(special) {
        if known.insert(token.content.clone()) {
            all.push(token);
        }
    }
    let mut next = ids.len() as u32;
    for token in all {
        if token.content.is_empty() {
            continue;
        }
        if token.single_word {
            return refuse(format!("the added token {:?} as a single word", token.content));
        }
        let id = ids.get(&token.content).copied().or(token.id).unwrap_or(next);
        next = next.max(id + 1);
        let normalized = token.normalized.unwrap_or(!token.special);
        let content =
            if normalized { normalized_token(definition, token.content)? } else { token.content };
        let (lstrip, rstrip) = (token.lstrip, token.rstrip);
        definition.added.push(AddedToken { id, content, lstrip, rstrip, normalized });
    }
    Ok(())
}

/// What a token that is looked for in normalised text looks like there.
fn normalized_token(
    definition: &TokenizerDefinition,
    content: String,
) -> Result<String, ArtefactError> {
    let content = if definition.nfc { nfc(&content).into_owned() } else { content };
    match definition.spaces {
        Some(Prefix::Always) => Ok(format!(" {}", content.replace(SIGN, " "))),
        Some(_) if content.contains([' ', '\u{2581}']) => {
            refuse(format!("the added token {content:?} in normalised text"))
        }
        _ => Ok(content),
    }
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

fn normalizer(
    value: &Value,
    definition: &mut TokenizerDefinition,
    spaces: &mut Spaces,
) -> Result<(), ArtefactError> {
    if value.is_null() {
        return Ok(());
    }
    match kind(value) {
        "NFC" => definition.nfc = true,
        "Sequence" => {
            for inner in list(value, "normalizers") {
                normalizer(inner, definition, spaces)?;
            }
        }
        "Prepend" => {
            if value.get("prepend").and_then(Value::as_str) != Some(SIGN) {
                return refuse("Prepend of another text than ▁");
            }
            spaces.prepend = true;
        }
        "Replace" => {
            let pattern = value.pointer("/pattern/String").and_then(Value::as_str);
            if (pattern, value.get("content").and_then(Value::as_str)) != (Some(" "), Some(SIGN)) {
                return refuse("Replace of anything but a space by ▁");
            }
            spaces.replace = true;
        }
        other => return refuse(format!("the normalizer {other}")),
    }
    Ok(())
}

/// Returns whether text becomes bytes at the end.
fn pre_tokenizer(
    value: &Value,
    definition: &mut TokenizerDefinition,
    spaces: &mut Spaces,
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
                byte_level = pre_tokenizer(inner, definition, spaces)?;
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
        "Metaspace" => {
            if value.get("replacement").and_then(Value::as_str) != Some(SIGN) {
                return refuse("Metaspace with another sign than ▁");
            }
            if flag(value, "split", true) {
                return refuse("Metaspace that splits");
            }
            let scheme = match value.get("prepend_scheme").and_then(Value::as_str) {
                Some(scheme) => scheme,
                None if flag(value, "add_prefix_space", true) => "always",
                None => "never",
            };
            spaces.metaspace = Some(match scheme {
                "always" => Prefix::Pieces,
                "first" => Prefix::First,
                "never" => Prefix::Never,
                other => return refuse(format!("Metaspace with the scheme {other}")),
            });
            Ok(false)
        }
        "Split"
            if value.pointer("/pattern/String").and_then(Value::as_str) == Some(" ")
                && value.get("behavior").and_then(Value::as_str) == Some("MergedWithPrevious") =>
        {
            spaces.split = true;
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
