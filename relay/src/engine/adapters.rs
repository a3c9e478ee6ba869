//! The LoRA adapters that one engine has loaded.

use std::collections::BTreeSet;
use std::sync::Arc;

/// Their names, in order and each once; cheap to hand around.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapters {
    names: Arc<[String]>,
    bytes: usize,
}

impl FromIterator<String> for Adapters {
    fn from_iter<I: IntoIterator<Item = String>>(names: I) -> Self {
        let names: Arc<[String]> = names.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        // With a tag and a length before each.
        let bytes = names.iter().map(|name| name.len() + 3).sum();
        Self { names, bytes }
    }
}

impl Adapters {
    /// The names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Bytes that they take on the side-stream, about.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}
