//! A model, loaded: its tokenizer and its chat template.

use std::sync::OnceLock;

use super::artefact::Definition;
use super::error::ArtefactError;
use super::template::Template;
use super::tokenizer::Tokenizer;

/// A model's tokenizer and chat template, ready for requests.
pub struct Model {
    hash: [u8; 32],
    pub(super) tokenizer: Tokenizer,
    pub(super) template: Template,
    /// What Anthropic's disabled thinking comes to; found out when first asked for.
    pub(super) disabled_effort: OnceLock<&'static str>,
}

impl Model {
    /// Loads what [`super::preprocess`] made: keeps the bytes, in which the vocabulary is looked
    /// up, and compiles the template, once.
    ///
    /// # Errors
    /// [`ArtefactError::Artefact`] for bytes that are damaged or of another format.
    pub fn load(bytes: Vec<u8>) -> Result<Self, ArtefactError> {
        let definition = Definition::read(bytes)?;
        Ok(Self {
            hash: definition.hash,
            template: Template::compile(&definition.template)?,
            disabled_effort: OnceLock::new(),
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

    /// The hash over tokenizer.json, chat template and special tokens.
    pub fn tokenizer_hash(&self) -> &[u8; 32] {
        &self.hash
    }
}
