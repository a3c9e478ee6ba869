//! What an engine does with its prefix cache for a request, and what its usage then tells.

use crate::json::Json;
use crate::request::api::Api;
use crate::request::fields::Fields;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheUse {
    /// What is cached of the prompt is read, and usage says how much that was.
    #[default]
    Counted,
    /// Nothing is read: whatever is cached, all is computed.
    Unread,
    /// It is read, but usage speaks of other prompts as well, or not of this one as it was sent.
    Uncounted,
}

impl CacheUse {
    /// Of a request with so many prompts. `vllm_xargs` and the other APIs have nothing of the kind.
    pub(crate) fn of(api: Api, fields: &Fields<'_>, prompts: usize) -> Self {
        if matches!(api, Api::Responses | Api::Messages) {
            return if is_handed_over(fields) { Self::Uncounted } else { Self::Counted };
        }
        // Beam search asks for each beam and token anew, without prompt log probabilities, and says
        // nothing of caches (vLLM 0.32, `entrypoints/generate/beam_search/online.py`).
        let beams = fields.use_beam_search.as_ref().is_some_and(is_on);
        if asks_for_prompt_logprobs(api, fields) && !beams {
            return Self::Unread;
        }
        // Usage sums up all prompts, but has the cached tokens of the first or the last one to answer
        // (vLLM 0.32, `entrypoints/openai/completion/serving.py`), or of all (SGLang 0.5.23,
        // `srt/entrypoints/openai/usage_processor.py`). With several answers it has those of the one
        // that was the last to begin or to end, which finds what the first one stored a moment ago.
        let several = prompts > 1 || fields.n.as_ref().is_some_and(|n| !is_one(n));
        let shortened = fields.truncate_prompt_tokens.is_some();
        if several || beams || shortened || is_handed_over(fields) {
            Self::Uncounted
        } else {
            Self::Counted
        }
    }
}

/// With prompt log probabilities all of the prompt is computed (vLLM 0.32, `sampling_params.py`,
/// `skip_reading_prefix_cache`), 0 of them included. `echo` asks for as many as for the answer
/// (`to_sampling_params` in `entrypoints/openai/{completion,chat_completion}/protocol.py`), which in
/// chats is a number unless it is set to null. SGLang 0.5.23 does the same for completions with `echo`
/// and `logprobs`.
fn asks_for_prompt_logprobs(api: Api, fields: &Fields<'_>) -> bool {
    let of_answer = match api {
        Api::Chat => !fields.null_top_logprobs,
        _ => fields.logprobs.is_some(),
    };
    fields.prompt_logprobs.is_some() || of_answer && fields.echo.as_ref().is_some_and(is_on)
}

/// Another engine has computed the prompt, or is to (vLLM 0.32, `v1/engine/output_processor.py`): what
/// comes from there counts as cached, or what was cached there.
fn is_handed_over(fields: &Fields<'_>) -> bool {
    let params = fields.kv_transfer_params.as_ref();
    params.is_some_and(|params| {
        params.get("do_remote_prefill").is_some_and(is_on)
            || params.get("remote_prefill_cached_tokens").is_some()
    })
}

/// Whether a flag is set, by all that engines take for one.
fn is_on(flag: &Json<'_>) -> bool {
    match flag {
        Json::Bool(on) => *on,
        Json::Int(number) => *number != 0,
        Json::Float(number) => *number != 0.0,
        Json::Str(text) => {
            let off = ["0", "off", "f", "false", "n", "no"];
            !off.iter().any(|off| text.eq_ignore_ascii_case(off))
        }
        _ => true,
    }
}

fn is_one(number: &Json<'_>) -> bool {
    match number {
        Json::Int(number) => *number == 1,
        Json::Float(number) => (*number - 1.0).abs() < f64::EPSILON,
        Json::Str(text) => text.trim() == "1",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::CacheUse::{Counted, Uncounted, Unread};
    use super::*;
    use crate::Request;

    fn of(api: Api, more: &str) -> CacheUse {
        let body = match api {
            Api::Completions => r#""prompt": "a""#,
            Api::Responses => r#""input": "a""#,
            Api::Chat | Api::Messages => r#""messages": [{"role": "user", "content": "a"}]"#,
        };
        let body = format!("{{{body}{more}}}");
        Request::parse(api, body.as_bytes()).unwrap().cache_use()
    }

    #[test]
    fn what_engines_read_and_tell_is_foreseen() {
        for (more, chat, completions) in [
            ("", Counted, Counted),
            (r#", "logprobs": 5"#, Counted, Counted),
            (r#", "logprobs": true, "top_logprobs": 2"#, Counted, Counted),
            (r#", "echo": true"#, Unread, Counted),
            (r#", "echo": "yes""#, Unread, Counted),
            (r#", "echo": false, "logprobs": 1"#, Counted, Counted),
            (r#", "echo": "false", "logprobs": 1"#, Counted, Counted),
            (r#", "echo": true, "logprobs": 0"#, Unread, Unread),
            (r#", "echo": true, "logprobs": null"#, Unread, Counted),
            (r#", "echo": true, "top_logprobs": null"#, Counted, Counted),
            (r#", "prompt_logprobs": 0"#, Unread, Unread),
            (r#", "prompt_logprobs": 3, "n": 2"#, Unread, Unread),
            (r#", "prompt_logprobs": null"#, Counted, Counted),
            (r#", "n": 1"#, Counted, Counted),
            (r#", "n": "1""#, Counted, Counted),
            (r#", "n": 2"#, Uncounted, Uncounted),
            (r#", "n": null, "best_of": 3"#, Counted, Counted),
            (r#", "use_beam_search": true"#, Uncounted, Uncounted),
            (r#", "use_beam_search": true, "prompt_logprobs": 1"#, Uncounted, Uncounted),
            (r#", "use_beam_search": false"#, Counted, Counted),
            (r#", "truncate_prompt_tokens": 100"#, Uncounted, Uncounted),
            (r#", "kv_transfer_params": {"do_remote_prefill": true}"#, Uncounted, Uncounted),
            (r#", "kv_transfer_params": {"do_remote_prefill": false}"#, Counted, Counted),
            (r#", "prompt": ["a"]"#, Counted, Counted),
            (r#", "prompt": ["a", "b"]"#, Uncounted, Uncounted),
            (r#", "prompt": ["a", "b"], "echo": true, "logprobs": 1"#, Unread, Unread),
        ] {
            assert_eq!(of(Api::Completions, more), completions, "{more}");
            if !more.contains("\"prompt\"") {
                assert_eq!(of(Api::Chat, more), chat, "{more}");
            }
        }
        for api in [Api::Responses, Api::Messages] {
            let none =
                r#", "echo": true, "logprobs": 1, "prompt_logprobs": 1, "n": 2, "max_tokens": 9"#;
            assert_eq!(of(api, none), Counted, "{api:?} has none of these");
        }
    }
}
