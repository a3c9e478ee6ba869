//! tokenizer.json of Hugging Face `tokenizers` → a tokenizer's definition.
//!
//! Source: the serialisation in `tokenizers` 0.23 (src/models/bpe, src/normalizers,
//! src/pre_tokenizers, src/processors).

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde_json::Value;

use crate::error::{ArtefactError, refuse};
use crate::prepare::bpe_json::{self, ModelJson};
use crate::prepare::hub_class::{Ends, GPT2_SPLIT};
use crate::prepare::hub_config::{HubConfig, Token};
use crate::tokenizer::added::AddedToken;
use crate::tokenizer::bpe::BpeDefinition;
use crate::tokenizer::spaces::{Prefix, SIGN};
use crate::tokenizer::{TokenizerDefinition, nfc};

#[derive(Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    added_tokens: Vec<Token>,
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

/// The tokenizer as an engine loads it, from tokenizer.json and what the files beside it say.
pub(crate) fn definition(
    file: &[u8],
    hub: &HubConfig,
) -> Result<(TokenizerDefinition, BpeDefinition), ArtefactError> {
    let mut json: TokenizerJson = serde_json::from_slice(file).map_err(|error| {
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
    if flag(&hub.config, "split_special_tokens", false) {
        return refuse("split_special_tokens");
    }
    if flag(&hub.config, "fix_mistral_regex", false) && is_mended(&hub.model) {
        return refuse("fix_mistral_regex");
    }
    let rules = hub.class.rules();
    if let Some(rules) = rules {
        definition.nfc = rules.nfc;
        definition.splits = rules.splits.iter().map(|split| (*split).to_owned()).collect();
        definition.spaces = rules.spaces;
        json.model.rebuild(rules.spaces.is_some())?;
    } else {
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
    let ends = rules.map_or(Ends::File, |rules| rules.ends);
    if ends == Ends::File {
        post_processor(&json.post_processor, &mut definition)?;
    }
    let (bpe, ids) = bpe_json::read(json.model, definition.spaces.is_some())?;
    add_tokens(&mut definition, json.added_tokens, &ids, hub)?;
    if ends == Ends::Bos {
        let special = hub.special();
        let bos = special.iter().find(|(name, _)| name == "bos_token");
        let bos = bos.map(|(_, token)| token.content.as_str());
        let id = bos.and_then(|bos| {
            let added = definition.added.iter().find(|token| token.content == bos);
            added.map(|token| token.id).or_else(|| ids.get(bos).copied())
        });
        definition.before.extend(id);
    }
    Ok((definition, bpe))
}

/// Whether `fix_mistral_regex` does something: for models of Mistral's written by transformers below
/// 5, and what doesn't say by which (tokenization_utils_tokenizers.py, `_patch_mistral_regex`).
fn is_mended(model: &Value) -> bool {
    const MISTRAL: [&str; 5] = ["mistral", "mistral3", "voxtral", "ministral", "pixtral"];
    let text = |name| model.get(name).and_then(Value::as_str);
    let major = text("transformers_version").and_then(|version| version.split('.').next());
    match major.and_then(|major| major.parse::<u32>().ok()) {
        Some(5..) => false,
        Some(_) => text("model_type").is_none_or(|name| MISTRAL.contains(&name)),
        None => !model.is_null(),
    }
}

/// Adds the file's tokens, and those that only the files beside it have. Ids go by the vocabulary,
/// then by the order, whatever a file says (`tokenizers` 0.23, src/tokenizer/added_vocabulary.rs).
fn add_tokens(
    definition: &mut TokenizerDefinition,
    file: Vec<Token>,
    ids: &HashMap<String, u32>,
    hub: &HubConfig,
) -> Result<(), ArtefactError> {
    let named = hub.special();
    let of_class = hub.class.own_tokens();
    let own = named.iter().filter(|(name, _)| {
        !HubConfig::is_standard(name) && of_class.iter().all(|(own, _)| own != name)
    });
    let own: Vec<_> = own.map(|(_, token)| token.content.clone()).collect();
    let special = named.into_iter().map(|(_, token)| token).chain(hub.further());
    let (mut all, listed) = if hub.class.rules().is_none() {
        let mut listed = hub.listed.clone().unwrap_or_else(|| hub.older.clone());
        listed.sort_by_key(|token| token.id);
        (file, listed)
    } else {
        // A class that builds its own tokenizer takes the file's only if there is no other list.
        let listed = hub.listed.clone().unwrap_or_else(|| {
            let mut listed = file.clone();
            let taken: HashSet<_> = listed.iter().map(|token| token.id).collect();
            let free = |token: &&Token| !taken.contains(&token.id);
            listed.extend(hub.older.iter().filter(free).cloned());
            listed.sort_by_key(|token| token.id);
            listed
        });
        (Vec::new(), listed)
    };
    let mut known: HashSet<String> = all.iter().map(|token| token.content.clone()).collect();
    known.extend(listed.iter().map(|token| token.content.clone()));
    let new = |text: &&String| !known.contains(*text) && !ids.contains_key(*text);
    if own.iter().filter(new).collect::<HashSet<_>>().len() > 1 {
        // Their ids go by their order in a file, which isn't kept here.
        return refuse("several special tokens that no list of added tokens has");
    }
    known = all.iter().map(|token| token.content.clone()).collect();
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
        let id = ids.get(&token.content).copied().unwrap_or(next);
        next = next.max(id + 1);
        let normalized = token.is_normalized();
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
