//! Request body → conversation → prompt text → token ids → fingerprints, exactly the engine's.
//!
//! A model's files are prepared once ([`preprocess`], native only) into an [`Artefact`], which
//! the workers load ([`Model::load`]). A [`Prompter`] then tells the prefix of each [`Request`].
//!
//! | Folder | What lives there |
//! | --- | --- |
//! | `request` | the bodies of all APIs, read as engines read them |
//! | `json` | JSON values as Python reads, holds and prints them |
//! | `template` | a conversation → its text, by the model's chat template |
//! | `sglang` | how SGLang's prompts differ from vLLM's |
//! | `tokenizer` | text → token ids |
//! | `prepare` | a model's files → its artefact; native only |
//! | `reader` | what one worker remembers, and the way from a body to its prefix |
#![forbid(unsafe_code)]

mod artefact;
mod clock;
mod dialect;
mod error;
mod json;
mod model;
#[cfg(feature = "preprocess")]
mod prepare;
mod reader;
mod request;
mod sglang;
mod template;
mod tokenizer;

pub use artefact::Artefact;
pub use clock::{Clock, Offset};
pub use dialect::{ContentFormat, Engine, Serving, UnknownEngine};
pub use error::{ArtefactError, PromptError, RequestError};
pub use model::Model;
#[cfg(feature = "preprocess")]
pub use prepare::files::ModelFiles;
#[cfg(feature = "preprocess")]
pub use prepare::{preprocess, preprocess_for};
pub use reader::beginnings::{Beginnings, Found};
pub use reader::prefix::{End, Prefix, Reach, Tokens};
pub use reader::prompter::Prompter;
pub use reader::{Body, KnownModel, Large, Read, Reader, Unread};
pub use request::Request;
pub use request::api::Api;
pub use request::cache_use::CacheUse;
pub use request::model_name::{ModelFinder, Search};
pub use request::requested::model_in_body;
pub use request::target::{Target, model_in_path};
