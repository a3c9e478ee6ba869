//! What is wrong with a configuration, and where.

use std::path::PathBuf;

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("can't read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Not YAML, or not of the expected shape.
    #[error("{file}: {error}")]
    Shape {
        /// The file.
        file: String,
        /// What and where.
        error: String,
    },
    /// A value that can't be meant.
    #[error("{file}:{line}:{column}: {field}: {what}")]
    Value {
        /// The file.
        file: String,
        /// From 1.
        line: u64,
        /// From 1.
        column: u64,
        /// Path of the field, such as `replicas[1].events`.
        field: String,
        /// What is wrong and what to do.
        what: String,
    },
}
