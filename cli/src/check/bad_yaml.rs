//! What can't be read as YAML, or not as Envoy would read it.

/// What can't be read as YAML.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct BadYaml(String);

impl BadYaml {
    pub(super) fn new(what: String) -> Self {
        Self(what)
    }
}
