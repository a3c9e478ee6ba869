//! What can go wrong between a model's files and a request's prefix.

use thiserror::Error;

/// A model that can't be prepared or loaded.
#[derive(Debug, Error)]
pub enum ArtefactError {
    /// A file that couldn't be read.
    #[error("can't read {path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// A file that isn't what its name says.
    #[error("{file} is not understood: {reason}")]
    Format {
        /// The file.
        file: &'static str,
        /// What was wrong, and where.
        reason: String,
    },
    /// A feature of the tokenizer that is not supported, by name.
    #[error(
        "this tokenizer needs {0}, which is not supported; its requests are routed without tokens"
    )]
    Tokenizer(String),
    /// A model that engines tokenize by `mistral_common`: the file they go by.
    #[error(
        "{0} makes vLLM go by mistral_common instead of tokenizer.json, which is not supported; \
         if the engines run with --tokenizer-mode hf, give a directory without that file"
    )]
    MistralCommon(String),
    /// A chat template that doesn't compile.
    #[error("the chat template can't be used: {0}")]
    Template(String),
    /// Bytes that are no artefact, or one of another version.
    #[error("the artefact is not understood: {0}; prepare it again from the model's files")]
    Artefact(String),
}

/// A request body that can't be understood.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RequestError {
    /// Not JSON, or nested too deeply.
    #[error("the body is not JSON, or is nested too deeply (line {line}, column {column})")]
    NotJson {
        /// Where parsing stopped; from 1.
        line: usize,
        /// Where parsing stopped; from 1.
        column: usize,
    },
    /// JSON, but not an object.
    #[error("the body is not a JSON object")]
    NotAnObject,
    /// No `messages` in a chat request, or no `prompt` in a completion.
    #[error("the body has no usable {0:?}")]
    NoPrompt(&'static str),
    /// A field of the wrong type.
    #[error("the field {0:?} has the wrong type")]
    WrongType(&'static str),
}

impl RequestError {
    /// A stable name for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NotJson { .. } => "not_json",
            Self::NotAnObject => "not_an_object",
            Self::NoPrompt(_) => "no_prompt",
            Self::WrongType(_) => "wrong_type",
        }
    }
}

/// A request whose prompt can't be told.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PromptError {
    /// The model has no chat template.
    #[error("the model has no chat template, so a chat can't be rendered")]
    NoTemplate,
    /// The template called `raise_exception`: the engine will refuse the request too.
    #[error("the chat template refuses these messages")]
    TemplateRefused,
    /// The template failed otherwise.
    #[error("the chat template failed: {0}")]
    TemplateFailed(&'static str),
    /// A request that brings its own template, which engines refuse unless told otherwise.
    #[error("the request brings its own chat template")]
    RequestTemplate,
    /// Content that isn't rendered here.
    #[error("the request has content that is not supported: {0}")]
    UnsupportedContent(&'static str),
}

impl PromptError {
    /// A stable name for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NoTemplate => "no_template",
            Self::TemplateRefused => "template_refused",
            Self::TemplateFailed(_) => "template_failed",
            Self::RequestTemplate => "request_template",
            Self::UnsupportedContent(_) => "unsupported_content",
        }
    }
}

/// Refuses a tokenizer for something that is not followed exactly.
#[cfg(feature = "preprocess")]
pub(crate) fn refuse<T>(what: impl Into<String>) -> Result<T, ArtefactError> {
    Err(ArtefactError::Tokenizer(what.into()))
}
