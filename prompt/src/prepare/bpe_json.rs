//! The model of a tokenizer.json: its vocabulary and merges.
//!
//! Source: src/models/bpe/serialization.rs and src/pre_tokenizers/byte_level.rs of `tokenizers` 0.23.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use crate::error::{ArtefactError, refuse};
use crate::tokenizer::bpe::{BpeDefinition, MergeDefinition};
use crate::tokenizer::spaces::SIGN;
use crate::tokenizer::vocabulary::NONE;

#[derive(Deserialize)]
pub(crate) struct ModelJson {
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
    pub(crate) byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(default)]
    vocab: Value,
    #[serde(default)]
    merges: Vec<MergeJson>,
}

impl ModelJson {
    /// Refuses, by name, what isn't BPE.
    pub(crate) fn check_kind(&self) -> Result<(), ArtefactError> {
        match self.kind.as_deref() {
            Some("BPE") => Ok(()),
            None if !self.merges.is_empty() => Ok(()),
            other => refuse(format!("the model {}", other.unwrap_or("without a type"))),
        }
    }
}

impl ModelJson {
    /// What a class of `transformers` makes of it that takes only vocabulary and merges. `characters`
    /// as in [`read`].
    pub(crate) fn rebuild(&mut self, characters: bool) -> Result<(), ArtefactError> {
        if characters && self.vocab.get("<0x0A>").is_none() {
            // Spaces and whatever isn't ASCII is dropped there, and what is around it joined.
            return refuse(
                "rules of SentencePiece's kind, by its class, for a byte-level vocabulary (if the \
                 engine goes by the file's rules, as it does for some models by their names, name \
                 the tokenizer_class TokenizersBackend in this copy)",
            );
        }
        self.dropout = None;
        self.continuing_subword_prefix = None;
        self.end_of_word_suffix = None;
        self.byte_fallback = characters;
        self.ignore_merges = false;
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum MergeJson {
    Line(String),
    Pair(String, String),
}

/// The vocabulary and merges, and the ids of the vocabulary's texts. `characters`: of
/// SentencePiece's kind, else byte-level.
pub(crate) fn read(
    model: ModelJson,
    characters: bool,
) -> Result<(BpeDefinition, HashMap<String, u32>), ArtefactError> {
    if characters != model.byte_fallback {
        return refuse(if characters { "BPE without byte_fallback" } else { "byte_fallback" });
    }
    if characters && model.ignore_merges {
        return refuse("ignore_merges without words");
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
    if characters {
        definition.fallback = vec![NONE; 256];
    }
    let mut ids = HashMap::with_capacity(vocab.len());
    for (text, id) in vocab {
        let Some(id) = id.as_u64().filter(|id| *id < 1 << 24) else {
            return refuse(format!("the token id {id}"));
        };
        let token: Option<Vec<u8>> = if !characters {
            // A token with other characters is never met: text is bytes by then.
            text.chars().map(|char| bytes.get(&char).copied()).collect()
        } else if let Some(byte) = fallback_byte(&text) {
            if let Some(place) = definition.fallback.get_mut(usize::from(byte)) {
                *place = id as u32;
            }
            None
        } else if text.contains(' ') {
            // Never met: there are no spaces by then.
            None
        } else {
            Some(text.replace(SIGN, " ").into_bytes())
        };
        if let Some(token) = token {
            let id = id as usize;
            if definition.tokens.len() <= id {
                definition.tokens.resize(id + 1, Vec::new());
            }
            if let Some(place) = definition.tokens.get_mut(id) {
                if !place.is_empty() {
                    return refuse(format!("the id {id} for two tokens"));
                }
                *place = token;
            }
        }
        ids.insert(text, id as u32);
    }
    for (rank, merge) in model.merges.iter().enumerate() {
        let (left, right) = match merge {
            MergeJson::Line(line) => match line.split_once(' ') {
                Some(pair) => pair,
                None => return refuse(format!("merge {rank} without a space")),
            },
            MergeJson::Pair(left, right) => (left.as_str(), right.as_str()),
        };
        let met = |text: &str| {
            let id = ids.get(text).copied()?;
            definition.tokens.get(id as usize).is_some_and(|token| !token.is_empty()).then_some(id)
        };
        match (met(left), met(right), met(&format!("{left}{right}"))) {
            (Some(left), Some(right), Some(token)) => {
                definition.merges.push(MergeDefinition { left, right, token });
            }
            _ => return refuse(format!("merge {rank} of or to what is no token")),
        }
    }
    Ok((definition, ids))
}

/// The byte of a token such as `<0x0A>`.
fn fallback_byte(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let byte = u8::from_str_radix(hex, 16).ok()?;
    (format!("{byte:02X}") == hex).then_some(byte)
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
