//! Bodies as vLLM 0.32.0 reads and writes them, field by field in its order.

use serde::{Deserialize, Serialize};

/// The fields of a completions or chat request that matter here; the others are ignored.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Request {
    pub(super) model: Option<String>,
    /// Completions only.
    pub(super) prompt: Option<Prompts>,
    pub(super) messages: Option<serde::de::IgnoredAny>,
    /// Responses only.
    pub(super) input: Option<serde::de::IgnoredAny>,
    pub(super) max_output_tokens: Option<u64>,
    pub(super) stream: Option<bool>,
    pub(super) stream_options: Option<StreamOptions>,
    pub(super) max_tokens: Option<u64>,
    pub(super) max_completion_tokens: Option<u64>,
    pub(super) min_tokens: Option<u64>,
    pub(super) ignore_eos: Option<bool>,
    pub(super) n: Option<u64>,
    /// The prompt is to be in the answer, which it isn't here; with log probabilities it is computed
    /// whole for that, which it is.
    pub(super) echo: Option<bool>,
    pub(super) logprobs: Option<serde_json::Value>,
    #[serde(default = "no_top_logprobs")]
    pub(super) top_logprobs: Option<u64>,
    pub(super) prompt_logprobs: Option<i64>,
    pub(super) return_token_ids: Option<bool>,
    pub(super) cache_salt: Option<String>,
    /// For prompts that are text.
    pub(super) add_special_tokens: Option<bool>,
    pub(super) vllm_xargs: Option<Extra>,
}

// vLLM's default; null is something else.
#[allow(clippy::unnecessary_wraps, reason = "as the field's type")]
fn no_top_logprobs() -> Option<u64> {
    Some(0)
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct StreamOptions {
    pub(super) include_usage: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Extra {
    pub(super) kv_cache_report_mode: Option<String>,
}

/// `prompt` of a completions request: one or several, as text or as token ids.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Prompts {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    IdLists(Vec<Vec<u32>>),
}

/// The answer to an audio file.
#[derive(Debug, Serialize)]
pub(super) struct Transcription {
    pub(super) text: String,
    pub(super) usage: TranscriptionUsage,
}

#[derive(Debug, Serialize)]
pub(super) struct TranscriptionUsage {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) seconds: usize,
}

/// What both APIs' answers begin with.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Head {
    pub(super) id: String,
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: String,
}

#[derive(Debug, Serialize)]
pub(super) struct ChatResponse {
    #[serde(flatten)]
    pub(super) head: Head,
    pub(super) choices: Vec<ChatChoice>,
    pub(super) service_tier: (),
    pub(super) system_fingerprint: &'static str,
    pub(super) usage: Usage,
    pub(super) prompt_logprobs: (),
    pub(super) prompt_token_ids: Option<Vec<u32>>,
    pub(super) prompt_text: (),
    pub(super) kv_transfer_params: (),
    pub(super) ec_transfer_params: (),
    pub(super) metrics: (),
}

#[derive(Debug, Serialize)]
pub(super) struct ChatChoice {
    pub(super) index: usize,
    pub(super) message: ChatMessage,
    pub(super) logprobs: (),
    pub(super) finish_reason: &'static str,
    pub(super) stop_reason: (),
    pub(super) token_ids: Option<Vec<u32>>,
    pub(super) routed_experts: (),
}

#[derive(Debug, Serialize)]
pub(super) struct ChatMessage {
    pub(super) role: &'static str,
    pub(super) content: String,
    pub(super) refusal: (),
    pub(super) annotations: (),
    pub(super) audio: (),
    pub(super) function_call: (),
    pub(super) reasoning: (),
}

#[derive(Debug, Serialize)]
pub(super) struct TextResponse {
    #[serde(flatten)]
    pub(super) head: Head,
    pub(super) choices: Vec<TextChoice>,
    pub(super) service_tier: (),
    pub(super) system_fingerprint: &'static str,
    pub(super) usage: Usage,
    pub(super) kv_transfer_params: (),
    pub(super) ec_transfer_params: (),
    pub(super) metrics: (),
}

#[derive(Debug, Serialize)]
pub(super) struct TextChoice {
    pub(super) index: usize,
    pub(super) text: String,
    pub(super) logprobs: (),
    pub(super) finish_reason: &'static str,
    pub(super) stop_reason: (),
    pub(super) token_ids: Option<Vec<u32>>,
    pub(super) prompt_logprobs: (),
    pub(super) prompt_token_ids: Option<Vec<u32>>,
    pub(super) routed_experts: (),
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Usage {
    pub(super) prompt_tokens: usize,
    pub(super) total_tokens: usize,
    pub(super) completion_tokens: usize,
    /// Null, not zero, when nothing was cached.
    pub(super) prompt_tokens_details: Option<PromptDetails>,
    pub(super) completion_tokens_details: (),
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct PromptDetails {
    pub(super) cached_tokens: usize,
}

impl Usage {
    pub(super) fn add(&mut self, prompt: usize, completion: usize) {
        self.prompt_tokens += prompt;
        self.completion_tokens += completion;
        self.total_tokens += prompt + completion;
    }

    /// Says how much was cached. That is one prompt's word, where there were several.
    pub(super) fn set_cached(&mut self, cached: usize) {
        let details = PromptDetails { cached_tokens: cached };
        self.prompt_tokens_details = (cached > 0).then_some(details);
    }
}

/// One `data:` line of a stream. vLLM leaves unset fields out there.
#[derive(Debug, Serialize)]
pub(super) struct Chunk<'a> {
    #[serde(flatten)]
    pub(super) head: &'a Head,
    pub(super) choices: Vec<ChunkChoice>,
    pub(super) system_fingerprint: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<StreamUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Serialize)]
pub(super) struct ChunkChoice {
    pub(super) index: usize,
    #[serde(flatten)]
    pub(super) content: ChunkContent,
    pub(super) logprobs: (),
    pub(super) finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token_ids: Option<Vec<u32>>,
    /// Completions put them here, chat beside the choices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ChunkContent {
    Delta {
        #[serde(skip_serializing_if = "Option::is_none")]
        role: Option<&'static str>,
        content: String,
    },
    Text(String),
}

/// The usage at the end of a stream: fields without a value are left out.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct StreamUsage {
    pub(super) prompt_tokens: usize,
    pub(super) total_tokens: usize,
    pub(super) completion_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_tokens_details: Option<PromptDetails>,
}

impl From<Usage> for StreamUsage {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            total_tokens: usage.total_tokens,
            completion_tokens: usage.completion_tokens,
            prompt_tokens_details: usage.prompt_tokens_details,
        }
    }
}

/// `/tokenize`: a chat body, or a `prompt`.
#[derive(Debug, Deserialize)]
pub(super) struct TokenizeRequest {
    pub(super) model: Option<String>,
    pub(super) prompt: Option<String>,
    pub(super) add_special_tokens: Option<bool>,
    pub(super) messages: Option<serde::de::IgnoredAny>,
}

#[derive(Debug, Serialize)]
pub(super) struct TokenizeResponse {
    pub(super) count: usize,
    pub(super) max_model_len: usize,
    pub(super) tokens: Vec<u32>,
    pub(super) token_strs: (),
}

#[derive(Debug, Serialize)]
pub(super) struct ModelList {
    pub(super) object: &'static str,
    pub(super) data: Vec<ModelCard>,
}

#[derive(Debug, Serialize)]
pub(super) struct ModelCard {
    pub(super) id: String,
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) owned_by: &'static str,
    pub(super) root: String,
    pub(super) parent: Option<String>,
    pub(super) max_model_len: Option<usize>,
}

#[derive(Debug, Serialize)]
pub(super) struct ErrorBody {
    pub(super) error: ErrorInfo,
}

#[derive(Debug, Serialize)]
pub(super) struct ErrorInfo {
    pub(super) message: String,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) param: Option<&'static str>,
    pub(super) code: u16,
}

#[derive(Debug, Serialize)]
pub(super) struct AnthropicErrorBody {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) error: AnthropicErrorInfo,
}

#[derive(Debug, Serialize)]
pub(super) struct AnthropicErrorInfo {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) message: String,
}
