//! The models and their preprocessed tokenizers, as the side-stream carries them.

use std::path::Path;

use warmpath_proto::v1;
use warmpath_routing::prompt::{self, ModelFiles, preprocess};

/// A tokenizer with its chat template, preprocessed for the filter.
#[derive(Clone, Debug)]
pub struct Artefact {
    /// BLAKE3 of `bytes`.
    pub id: [u8; 32],
    /// What the filter loads.
    pub bytes: Vec<u8>,
    /// BLAKE3 over tokenizer and chat template.
    pub tokenizer_hash: [u8; 32],
}

/// Makes an artefact of a model's directory. Given from outside, so that tests need no tokenizer.
pub type Build = fn(&Path) -> Result<Artefact, String>;

/// All models.
#[derive(Debug, Default)]
pub struct Catalogue {
    models: v1::Models,
    artefacts: Vec<Artefact>,
}

impl Catalogue {
    /// Adds a model, and its artefact where it has one.
    pub fn add(&mut self, mut model: v1::Model, artefact: Option<Artefact>) {
        if let Some(artefact) = artefact {
            model.artefact = artefact.id.to_vec();
            if self.artefacts.iter().all(|other| other.id != artefact.id) {
                self.artefacts.push(artefact);
            }
        }
        self.models.models.push(model);
    }

    /// The whole table.
    pub fn models(&self) -> v1::Models {
        self.models.clone()
    }

    /// Each artefact once.
    pub fn artefacts(&self) -> &[Artefact] {
        &self.artefacts
    }
}

/// Builds with the routing core's preprocessor.
///
/// # Errors
/// What is wrong with the directory's files.
pub fn build(path: &Path) -> Result<Artefact, String> {
    let failed = |error| format!("{}: {error}", path.display());
    let files = ModelFiles::read_dir(path).map_err(failed)?;
    let prompt::Artefact { bytes, tokenizer_hash } = preprocess(&files).map_err(failed)?;
    Ok(Artefact { id: *blake3::hash(&bytes).as_bytes(), bytes, tokenizer_hash })
}
