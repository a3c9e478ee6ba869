//! A model and what its prompts are read with.

use warmpath_routing::fingerprint::Fingerprint;
use warmpath_routing::view::Model;

/// A model that the relay has told of.
#[derive(Clone, Debug)]
pub struct KnownModel {
    /// Its names and what its fingerprints are rooted in.
    pub model: Model,
    /// BLAKE3 of the artefact; `None` where the model has none.
    pub artefact: Option<[u8; 32]>,
    /// What the fingerprints of plain requests begin with.
    root: Fingerprint,
}

impl KnownModel {
    /// A model, and the BLAKE3 of the artefact that its prompts are read with, if it has one.
    pub fn new(model: Model, artefact: Option<[u8; 32]>) -> Self {
        Self { root: model.scope("", "").root(), model, artefact }
    }

    /// What fingerprints begin with for a request for the adapter (empty: none) with the salt.
    pub(super) fn root(&self, adapter: &str, salt: &str) -> Fingerprint {
        if adapter.is_empty() && salt.is_empty() {
            self.root
        } else {
            self.model.scope(adapter, salt).root()
        }
    }
}
