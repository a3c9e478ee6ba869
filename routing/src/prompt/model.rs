//! A model, loaded: its tokenizer and its chat template.

use super::artefact::Definition;
use super::error::ArtefactError;
use super::template::Template;
use super::tokenizer::Tokenizer;

/// A model's tokenizer and chat template, ready for requests.
pub struct Model {
    hash: [u8; 32],
    pub(super) tokenizer: Tokenizer,
    pub(super) template: Template,
}

impl Model {
    /// Loads what [`super::preprocess`] made: builds the tables and compiles the template, once.
    ///
    /// # Errors
    /// [`ArtefactError::Artefact`] for bytes that are damaged or of another format.
    pub fn load(bytes: &[u8]) -> Result<Self, ArtefactError> {
        let definition = Definition::read(bytes)?;
        Ok(Self {
            hash: definition.hash,
            template: Template::compile(&definition.template)?,
            tokenizer: Tokenizer::new(&definition.tokenizer).map_err(ArtefactError::Artefact)?,
        })
    }

    /// The hash over tokenizer.json, chat template and special tokens.
    pub fn tokenizer_hash(&self) -> &[u8; 32] {
        &self.hash
    }
}
