//! The models and their preprocessed tokenizers, as the side-stream carries them.

use std::path::Path;

use warmpath_prompt::{ArtefactError, ModelFiles, Serving, preprocess_for};
use warmpath_proto::v1;

use crate::engine::listing::Listings;

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

/// Makes an artefact of a model's directory, for those who serve it so. Given from outside, so that tests need no tokenizer.
pub type Build = fn(&Path, &Serving) -> Result<Artefact, Unbuilt>;

/// Why there is no artefact of a model's directory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unbuilt {
    /// A kind of tokenizer or template that isn't supported: the model is routed by the ring.
    #[error("{0}")]
    Unsupported(String),
    /// Files that are missing or damaged.
    #[error("{0}")]
    Unusable(String),
}

/// All models.
#[derive(Clone, Debug, Default)]
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

    /// The same, with the names that engines list beside.
    pub(crate) fn with(&self, listings: &Listings) -> Self {
        let mut with = self.clone();
        listings.add_to(&mut with.models.models);
        with
    }

    /// The artefacts' names.
    pub(crate) fn ids(&self) -> Vec<[u8; 32]> {
        self.artefacts.iter().map(|artefact| artefact.id).collect()
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
/// [`Unbuilt::Unsupported`] for a kind of tokenizer or chat template that isn't supported,
/// [`Unbuilt::Unusable`] where files are missing or damaged.
pub fn build(path: &Path, serving: &Serving) -> Result<Artefact, Unbuilt> {
    let failed = |error| {
        let what = format!("{}: {error}", path.display());
        match error {
            ArtefactError::Tokenizer(_)
            | ArtefactError::Template(_)
            | ArtefactError::MistralCommon(_) => Unbuilt::Unsupported(what),
            ArtefactError::File { .. }
            | ArtefactError::Format { .. }
            | ArtefactError::Artefact(_) => Unbuilt::Unusable(what),
        }
    };
    let files = ModelFiles::read_dir(path).map_err(failed)?;
    let made = preprocess_for(&files, serving).map_err(failed)?;
    let (bytes, tokenizer_hash) = (made.bytes, made.tokenizer_hash);
    Ok(Artefact { id: *blake3::hash(&bytes).as_bytes(), bytes, tokenizer_hash })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unsupported_is_told_from_what_is_damaged() {
        let dir = std::env::temp_dir().join(format!("warmpath-artefact-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let built = |tokenizer: &str| {
            std::fs::write(dir.join("tokenizer.json"), tokenizer).unwrap();
            build(&dir, &Serving::default())
        };
        let damaged = built("{");
        let unigram = built(r#"{"model":{"type":"Unigram","vocab":[]}}"#);
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(matches!(damaged, Err(Unbuilt::Unusable(_))), "{damaged:?}");
        let Err(Unbuilt::Unsupported(what)) = unigram else { panic!("was built") };
        assert!(what.contains("Unigram"), "{what}");
    }
}
