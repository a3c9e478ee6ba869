//! A tokenizer's configuration as `transformers` puts it together from several files.
//!
//! Source: transformers 5.19, tokenization_utils_base.py, `_from_pretrained` and
//! `PreTrainedTokenizerBase.__init__`.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::ArtefactError;
use crate::prepare::hub_class::HubClass;

/// The names of special tokens that all tokenizers have, in its order.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// A token of a list of added tokens.
#[allow(clippy::struct_excessive_bools)] // As in the files.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Token {
    #[serde(default)]
    pub(crate) id: Option<u32>,
    pub(crate) content: String,
    #[serde(default)]
    pub(crate) single_word: bool,
    #[serde(default)]
    pub(crate) lstrip: bool,
    #[serde(default)]
    pub(crate) rstrip: bool,
    pub(crate) normalized: Option<bool>,
    #[serde(default)]
    pub(crate) special: bool,
}

impl Token {
    /// A special token: a text, or one with its own flags.
    fn special(value: &Value) -> Option<Self> {
        if let Some(text) = value.as_str() {
            return Some(Self {
                id: None,
                content: text.to_owned(),
                single_word: false,
                lstrip: false,
                rstrip: false,
                normalized: Some(false),
                special: true,
            });
        }
        let token = Self::deserialize(value).ok()?;
        Some(Self { id: None, special: true, ..token })
    }

    pub(crate) fn is_normalized(&self) -> bool {
        self.normalized.unwrap_or(!self.special)
    }
}

/// What the files beside tokenizer.json say about a tokenizer.
#[derive(Debug)]
pub(crate) struct HubConfig {
    /// tokenizer_config.json, with special_tokens_map.json in it where that counts.
    pub(crate) config: Value,
    /// config.json.
    pub(crate) model: Value,
    pub(crate) class: HubClass,
    /// Added tokens by a file other than tokenizer.json, by id; none if tokenizer.json's count too.
    pub(crate) listed: Option<Vec<Token>>,
    /// Those of added_tokens.json, if they count.
    pub(crate) older: Vec<Token>,
}

impl HubConfig {
    /// Puts them together. `special_tokens_map` and `added_tokens` are null if there is no such file,
    /// `byte_level` is whether the vocabulary has no tokens for bytes as SentencePiece has.
    ///
    /// # Errors
    /// [`ArtefactError::Format`] for what isn't what it should be, [`ArtefactError::Tokenizer`] for a
    /// class whose rules aren't known.
    pub(crate) fn new(
        mut config: Value,
        model: Value,
        special_tokens_map: Value,
        added_tokens: Value,
        name: Option<&str>,
        byte_level: bool,
    ) -> Result<Self, ArtefactError> {
        let mut class = HubClass::of(&config, &model, name)?;
        if model.is_null() && byte_level && class.rules().is_some_and(|r| r.spaces.is_some()) {
            // Without a model's type its class is not to be trusted: this one can't read the file.
            class = HubClass::File;
        }
        let mut further = config.get("extra_special_tokens").cloned().unwrap_or_default();
        if is_empty(&further) {
            further = config.get("additional_special_tokens").cloned().unwrap_or_default();
        }
        let listed = match config.get("added_tokens_decoder") {
            Some(Value::Object(tokens)) => Some(listed(tokens)?),
            _ => None,
        };
        let mut older = Vec::new();
        if listed.is_none() {
            if let Value::Object(map) = special_tokens_map {
                if config.is_null() {
                    config = Value::Object(Map::new());
                }
                for (name, value) in map {
                    match (name.as_str(), value, &mut further) {
                        ("extra_special_tokens", Value::Array(more), Value::Array(all)) => {
                            all.extend(more);
                        }
                        ("extra_special_tokens", value, _) => further = value,
                        // It came too late where others are named.
                        ("additional_special_tokens", value, _) => {
                            if is_empty(&further) {
                                further = value;
                            }
                        }
                        (_, value, _) => {
                            if let Some(config) = config.as_object_mut() {
                                config.insert(name, value);
                            }
                        }
                    }
                }
            }
            if let Value::Object(tokens) = added_tokens {
                older = legacy(&tokens);
            }
        }
        if let Some(config) = config.as_object_mut() {
            config.remove("additional_special_tokens");
            config.insert("extra_special_tokens".to_owned(), further);
        }
        let mut this = Self { config, model, class, listed, older };
        let special: Vec<_> = this.special().into_iter().map(|(_, token)| token.content).collect();
        let further: Vec<_> = this.further().into_iter().map(|token| token.content).collect();
        for token in &mut this.older {
            token.special = special.contains(&token.content) || further.contains(&token.content);
        }
        Ok(this)
    }

    /// Special tokens by name: those that all have, the class's, and the model's own.
    pub(crate) fn special(&self) -> Vec<(String, Token)> {
        let mut all: Vec<(String, Token)> = Vec::new();
        let mut add = |name: &str, value: &Value| {
            if let Some(token) = Token::special(value) {
                match all.iter_mut().find(|(known, _)| known == name) {
                    Some(known) => known.1 = token,
                    None => all.push((name.to_owned(), token)),
                }
            }
        };
        let own = self.class.own_tokens();
        let own_of = |name: &str| own.iter().find(|(own, _)| *own == name).map(|(_, text)| *text);
        for name in SPECIAL_TOKENS {
            match (self.config.get(name), own_of(name)) {
                (Some(value), _) => add(name, value),
                (None, Some(text)) => add(name, &Value::from(text)),
                (None, None) => {}
            }
        }
        for (name, text) in own {
            if !SPECIAL_TOKENS.contains(name) {
                add(name, &Value::from(*text));
            }
        }
        let config = self.config.as_object();
        let named = config.into_iter().flatten().filter(|(name, value)| {
            name.ends_with("_token")
                && !SPECIAL_TOKENS.contains(&name.as_str())
                && (value.is_string() || value.get("content").is_some())
        });
        for (name, value) in named {
            add(name, value);
        }
        if let Some(Value::Object(tokens)) = self.config.get("extra_special_tokens") {
            for (name, value) in tokens {
                add(name, value);
            }
        }
        all
    }

    /// Whether a special token is one that all tokenizers have, by name.
    pub(crate) fn is_standard(name: &str) -> bool {
        SPECIAL_TOKENS.contains(&name)
    }

    /// Special tokens without a name.
    pub(crate) fn further(&self) -> Vec<Token> {
        match self.config.get("extra_special_tokens") {
            Some(Value::Array(values)) => values.iter().filter_map(Token::special).collect(),
            _ => Vec::new(),
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(values) => values.is_empty(),
        _ => false,
    }
}

fn listed(tokens: &Map<String, Value>) -> Result<Vec<Token>, ArtefactError> {
    let wrong = |reason: String| ArtefactError::Format { file: "tokenizer_config.json", reason };
    let mut listed = Vec::with_capacity(tokens.len());
    for (id, token) in tokens {
        let token = Token::deserialize(token).map_err(|error| wrong(error.to_string()))?;
        let id = id.parse().map_err(|_| wrong(format!("{id:?} is no token's id")))?;
        listed.push(Token { id: Some(id), ..token });
    }
    listed.sort_by_key(|token| token.id);
    Ok(listed)
}

/// Of added_tokens.json: ids by text.
fn legacy(tokens: &Map<String, Value>) -> Vec<Token> {
    let token = |(text, id): (&String, &Value)| {
        let id = u32::try_from(id.as_u64()?).ok()?;
        let token = Token::special(&Value::from(text.as_str()))?;
        Some(Token { id: Some(id), normalized: None, special: false, ..token })
    };
    let mut all: Vec<_> = tokens.iter().filter_map(token).collect();
    all.sort_by_key(|token| token.id);
    all
}
