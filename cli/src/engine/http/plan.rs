//! A request body → what is to be done, or why it can't be.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::HeaderMap;
use serde::de::DeserializeOwned;

use super::app::{App, choose_rank};
use super::error::ApiError;
use super::wire::{Prompts, Request};
use crate::engine::cache::Prompt;
use crate::engine::filler::Answer;
use crate::engine::hash::Keys;
use crate::engine::rank::Rank;
use crate::engine::tokens::{TokenError, Tokenizer};

/// Most prompts in one completions request.
const PROMPTS: usize = 1024;
/// vLLM's `max_tokens` of a completions request that sets none.
const COMPLETION_TOKENS: u64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    Chat,
    Completions,
    Responses,
    Messages,
}

/// A request, checked.
#[allow(clippy::struct_excessive_bools, reason = "they are the request's own switches")]
pub(super) struct Plan {
    pub(super) api: Api,
    pub(super) rank: Arc<Rank>,
    pub(super) model: String,
    pub(super) jobs: Vec<Job>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) return_token_ids: bool,
    /// Report stored blocks that were hits too.
    pub(super) repeat: bool,
}

/// One prompt and what will be answered to it.
pub(super) struct Job {
    pub(super) prompt: Prompt,
    pub(super) answer: Answer,
    /// The most tokens that it could have.
    pub(super) most: usize,
    /// The engine doesn't live through it.
    pub(super) deadly: bool,
}

/// Reads a JSON body.
pub(super) fn read_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::unreadable(format!("JSON decode error: {error}")))
}

/// Tokenizes off the event loop.
pub(super) async fn tokens(
    app: &Arc<App>,
    make: impl FnOnce(&Tokenizer) -> Result<Vec<u32>, TokenError> + Send + 'static,
) -> Result<Vec<u32>, ApiError> {
    let app = Arc::clone(app);
    tokio::task::spawn_blocking(move || make(&app.tokenizer))
        .await
        .map_err(|error| ApiError::internal(format!("tokenizing failed: {error}")))?
        .map_err(|error| ApiError::bad(Some("prompt"), error.to_string()))
}

impl Plan {
    pub(super) async fn new(
        app: &Arc<App>,
        api: Api,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Self, ApiError> {
        let mut request: Request = read_json(&body)?;
        let deadly = app.faults.is_deadly(&body);
        let lora = app.adapter(request.model.as_deref())?;
        let rank = Arc::clone(choose_rank(app, headers)?);
        if request.n.is_some_and(|n| n != 1) {
            let message = "the simulated engine answers n = 1 only".to_owned();
            return Err(ApiError::bad(Some("n"), message));
        }
        if request.cache_salt.as_deref() == Some("") {
            let message = "Parameter 'cache_salt' must be a non-empty string if provided.";
            return Err(ApiError::bad(Some("cache_salt"), message.to_owned()));
        }
        let keys = Keys { lora, salt: request.cache_salt.as_deref().map(Arc::from) };
        let reads_cache = reads_cache(api, &request);
        let prompts = match api {
            Api::Completions => {
                let Some(prompts) = request.prompt.take() else { return Err(required("prompt")) };
                let special = request.add_special_tokens.unwrap_or(true);
                prompt_ids(app, prompts, special).await?
            }
            Api::Chat | Api::Messages if request.messages.is_none() => {
                return Err(required("messages"));
            }
            Api::Responses if request.input.is_none() => return Err(required("input")),
            Api::Messages if request.max_tokens.is_none() => return Err(required("max_tokens")),
            Api::Chat => vec![tokens(app, move |t| t.chat(&body)).await?],
            Api::Responses => vec![tokens(app, move |t| t.responses(&body)).await?],
            Api::Messages => vec![tokens(app, move |t| t.messages(&body)).await?],
        };
        let jobs = prompts
            .into_iter()
            .map(|ids| {
                let mut job = Job::new(app, api, &request, ids, keys.clone())?;
                if !reads_cache {
                    job.prompt = job.prompt.read_anew();
                }
                Ok(Job { deadly, ..job })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let extra = request.vllm_xargs.unwrap_or_default();
        let options = request.stream_options.unwrap_or_default();
        Ok(Self {
            api,
            rank,
            model: request.model.unwrap_or_else(|| app.base_name().to_owned()),
            jobs,
            stream: request.stream.unwrap_or(false),
            include_usage: options.include_usage.unwrap_or(false),
            return_token_ids: request.return_token_ids.unwrap_or(false),
            repeat: extra.kv_cache_report_mode.as_deref() == Some("full"),
        })
    }
}

fn required(field: &str) -> ApiError {
    ApiError::unreadable(format!("Field required: {field}"))
}

/// vLLM's `skip_reading_prefix_cache`, the other way round.
fn reads_cache(api: Api, request: &Request) -> bool {
    let of_answer = match api {
        Api::Chat => request.top_logprobs.is_some(),
        Api::Completions => request.logprobs.is_some(),
        Api::Responses | Api::Messages => return true,
    };
    request.prompt_logprobs.is_none() && !(request.echo == Some(true) && of_answer)
}

async fn prompt_ids(
    app: &Arc<App>,
    prompts: Prompts,
    special: bool,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let texts = match prompts {
        Prompts::Ids(ids) => return Ok(vec![ids]),
        Prompts::IdLists(lists) if lists.len() <= PROMPTS => return Ok(lists),
        Prompts::Text(text) => vec![text],
        Prompts::Texts(texts) if texts.len() <= PROMPTS => texts,
        Prompts::IdLists(_) | Prompts::Texts(_) => {
            let message = format!("more than {PROMPTS} prompts in one request");
            return Err(ApiError::bad(Some("prompt"), message));
        }
    };
    let mut all = Vec::with_capacity(texts.len());
    for text in texts {
        all.push(tokens(app, move |tokenizer| tokenizer.text(&text, special)).await?);
    }
    Ok(all)
}

impl Job {
    fn new(
        app: &App,
        api: Api,
        request: &Request,
        ids: Vec<u32>,
        keys: Keys,
    ) -> Result<Self, ApiError> {
        if ids.is_empty() {
            return Err(ApiError::bad(Some("prompt"), "The prompt is empty.".to_owned()));
        }
        let (len, limit) = (ids.len(), app.max_model_len);
        let default = (api == Api::Completions).then_some(COMPLETION_TOKENS);
        let asked = match api {
            Api::Responses => request.max_output_tokens,
            Api::Messages => request.max_tokens,
            Api::Chat | Api::Completions => request.max_completion_tokens.or(request.max_tokens),
        };
        if asked == Some(0) {
            let message = "max_tokens must be at least 1, got 0.".to_owned();
            return Err(ApiError::bad(Some("max_tokens"), message));
        }
        let least = usize::try_from(asked.unwrap_or(1)).unwrap_or(usize::MAX);
        if len.saturating_add(least) > limit {
            return Err(ApiError::bad(
                Some("input_tokens"),
                format!(
                    "This model's maximum context length is {limit} tokens. However, you \
                     requested {least} output tokens and your prompt contains {len} input tokens, \
                     for a total of {} tokens. Please reduce the length of the input prompt or \
                     the number of requested output tokens.",
                    len.saturating_add(least)
                ),
            ));
        }
        let most = asked.or(default).map_or(limit, |most| usize::try_from(most).unwrap_or(limit));
        let natural = if request.ignore_eos == Some(true) {
            usize::MAX
        } else {
            let least = request.min_tokens.unwrap_or(0);
            app.output_tokens.max(usize::try_from(least).unwrap_or(usize::MAX))
        };
        let seed = ids.iter().fold(0u64, |seed, id| seed.wrapping_mul(31) + u64::from(*id));
        let most = most.min(limit - len);
        let answer = app.filler.answer(seed, natural, most);
        Ok(Self { prompt: Prompt::new(ids, keys, app.block_size), answer, most, deadly: false })
    }
}
