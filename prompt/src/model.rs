//! A model, loaded: its tokenizer and its chat template.

use std::sync::OnceLock;

use minijinja::Value;

use crate::artefact::Definition;
use crate::dialect::{Dialect, Engine};
use crate::error::ArtefactError;
use crate::json::Json;
use crate::request::Request;
use crate::request::api::Api;
use crate::template::Template;
use crate::tokenizer::Tokenizer;

/// A model's tokenizer and chat template, ready for requests.
pub struct Model {
    hash: [u8; 32],
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Template,
    pub(crate) dialect: Dialect,
    /// `--default-chat-template-kwargs`, by name.
    pub(crate) defaults: Vec<(String, Value)>,
    /// What Anthropic's disabled thinking comes to; found out when first asked for.
    pub(crate) disabled_effort: OnceLock<&'static str>,
    later_system: OnceLock<bool>,
}

impl Model {
    /// Loads what [`crate::prepare`] made: keeps the bytes, in which the vocabulary is looked
    /// up, and compiles the template, once.
    ///
    /// # Errors
    /// [`ArtefactError::Artefact`] for bytes that are damaged or of another format.
    pub fn load(bytes: Vec<u8>) -> Result<Self, ArtefactError> {
        let definition = Definition::read(bytes)?;
        let defaults = defaults(&definition.dialect.template_kwargs)?;
        Ok(Self {
            hash: definition.hash,
            template: Template::compile(&definition.template)?,
            dialect: definition.dialect,
            defaults,
            disabled_effort: OnceLock::new(),
            later_system: OnceLock::new(),
            tokenizer: Tokenizer::new(&definition.tokenizer, definition.vocabulary)
                .map_err(ArtefactError::Artefact)?,
        })
    }

    /// The same model, but its templates are rendered by the template engine alone: what takes the
    /// short way is held against it.
    #[must_use]
    pub fn interpreted(mut self) -> Self {
        self.template.forget_scripts();
        self
    }

    /// Whether the template writes a system message that isn't the first.
    pub(crate) fn writes_later_system(&self) -> bool {
        *self.later_system.get_or_init(|| self.template.writes_later_system())
    }

    /// The engine that its prompts are made for.
    pub fn engine(&self) -> Engine {
        self.dialect.engine
    }

    /// The salt that the engine's cache is keyed by for a request; empty for none. SGLang's Messages
    /// have none (0.5.23, entrypoints/anthropic/protocol.py).
    pub fn cache_salt<'r>(&self, request: &'r Request<'_>) -> &'r str {
        match (self.dialect.engine, request.api) {
            (Engine::Sglang, Api::Messages) => "",
            _ => request.cache_salt(),
        }
    }

    /// The hash over tokenizer.json, chat template and special tokens.
    pub fn tokenizer_hash(&self) -> &[u8; 32] {
        &self.hash
    }
}

fn defaults(kwargs: &str) -> Result<Vec<(String, Value)>, ArtefactError> {
    if kwargs.is_empty() {
        return Ok(Vec::new());
    }
    let wrong = |_| ArtefactError::Artefact("the template's arguments".to_owned());
    let kwargs: Json<'_> = serde_json::from_str(kwargs).map_err(wrong)?;
    let pairs = kwargs.map().unwrap_or_default();
    Ok(pairs.iter().map(|(name, json)| (name.clone().into_owned(), json.to_value())).collect())
}
