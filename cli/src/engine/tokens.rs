//! The tokenizer behind the engine: the only place that knows the prompt crate.

use std::path::Path;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use warmpath_prompt::{
    Api, End, Model, ModelFiles, PromptError, Prompter, Request, RequestError, Serving,
    preprocess_for,
};

use super::lock::lock;

/// Why a prompt has no token ids.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    /// The body can't be read.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The template or the tokenizer can't follow it.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// Something in it is not text.
    #[error("the simulated engine can't follow this prompt to its end ({0})")]
    Cut(&'static str),
}

/// Makes token ids as the model's own tokenizer and chat template do.
pub(crate) struct Tokenizer {
    prompter: Mutex<Prompter>,
}

/// A prompt as a completions body.
#[derive(Serialize)]
struct Text<'a> {
    prompt: &'a str,
    add_special_tokens: bool,
}

impl Tokenizer {
    /// Reads a model directory, for an engine that is started so.
    ///
    /// # Errors
    /// Where the directory's files are missing or damaged, or its tokenizer or chat template isn't
    /// supported.
    pub(crate) fn load(directory: &Path, serving: &Serving) -> anyhow::Result<Self> {
        let artefact = preprocess_for(&ModelFiles::read_dir(directory)?, serving)?;
        let prompter = Prompter::new(Model::load(artefact.bytes)?, 0);
        Ok(Self { prompter: Mutex::new(prompter) })
    }

    /// The prompt of a chat completions body.
    pub(crate) fn chat(&self, body: &[u8]) -> Result<Vec<u32>, TokenError> {
        self.tokens(Api::Chat, body)
    }

    /// The prompt of a Responses body.
    pub(crate) fn responses(&self, body: &[u8]) -> Result<Vec<u32>, TokenError> {
        self.tokens(Api::Responses, body)
    }

    /// The prompt of a body for Anthropic's Messages.
    pub(crate) fn messages(&self, body: &[u8]) -> Result<Vec<u32>, TokenError> {
        self.tokens(Api::Messages, body)
    }

    /// A plain prompt; `special`: with the tokens that the tokenizer puts around a text.
    pub(crate) fn text(&self, text: &str, special: bool) -> Result<Vec<u32>, TokenError> {
        let body = Text { prompt: text, add_special_tokens: special };
        // A string and a flag are always JSON.
        self.tokens(Api::Completions, &serde_json::to_vec(&body).unwrap_or_default())
    }

    fn tokens(&self, api: Api, body: &[u8]) -> Result<Vec<u32>, TokenError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let request = Request::parse(api, body)?;
        let tokens = lock(&self.prompter).tokens(&request, None, now)?;
        match tokens.end {
            End::Complete => Ok(tokens.ids),
            end => Err(TokenError::Cut(end.as_str())),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The project's own small tokenizer.
    pub(crate) fn tokenizer() -> Tokenizer {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/models/demo");
        Tokenizer::load(Path::new(directory), &Serving::default()).unwrap()
    }
}
