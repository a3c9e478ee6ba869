//! Request body → prompt text → token ids → fingerprints, exactly the engine's.
//!
//! A model's files are prepared once ([`preprocess`], native only) into an [`Artefact`], which
//! the workers load ([`Model::load`]). A [`Prompter`] then tells the prefix of each [`Request`].

mod added;
mod artefact;
mod beginnings;
mod bpe;
#[cfg(feature = "preprocess")]
mod bpe_json;
mod cache_use;
mod categories;
#[cfg(feature = "preprocess")]
mod chat_templates;
mod clock;
#[cfg(feature = "preprocess")]
mod content_format;
mod dialect;
mod digest;
mod error;
mod fields;
#[cfg(feature = "preprocess")]
mod hub_class;
#[cfg(feature = "preprocess")]
mod hub_config;
#[cfg(feature = "preprocess")]
mod hub_models;
mod json;
#[cfg(feature = "preprocess")]
mod lay_out;
mod lenient;
mod loop_controls;
mod markup;
mod memo;
mod message;
mod messages;
mod model;
mod model_name;
mod pattern;
#[cfg(feature = "preprocess")]
mod preprocess;
mod prompter;
mod python;
mod python_json;
mod render;
mod request;
mod requested;
mod responses;
mod rewrite;
#[cfg(feature = "preprocess")]
mod safe_cuts;
mod script;
mod sglang;
mod spaces;
mod stretch;
mod strftime;
mod target;
mod template;
mod tokenizer;
#[cfg(feature = "preprocess")]
mod tokenizer_json;
mod tools;
mod tree;
mod turn;
mod unicode;
mod vocabulary;
mod words;

pub(crate) use digest::Digest;
pub(crate) use memo::secret;

pub use artefact::Artefact;
pub use beginnings::{Beginnings, Found};
pub use cache_use::CacheUse;
pub use clock::{Clock, Offset};
pub use dialect::{ContentFormat, Engine, Serving, UnknownEngine};
pub use error::{ArtefactError, PromptError, RequestError};
pub use model::Model;
pub use model_name::{ModelFinder, Search};
#[cfg(feature = "preprocess")]
pub use preprocess::{ModelFiles, preprocess, preprocess_for};
pub use prompter::{End, Prefix, Prompter, Reach, Tokens};
pub use request::{Api, Request};
pub use requested::Requested;
pub use target::Target;
