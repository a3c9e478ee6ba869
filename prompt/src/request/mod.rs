//! A request body: what of it decides the prompt.

pub(crate) mod anthropic;
pub(crate) mod api;
pub(crate) mod body;
pub(crate) mod cache_use;
pub(crate) mod chat;
pub(crate) mod fields;
pub(crate) mod limits;
pub(crate) mod model_name;
pub(crate) mod requested;
pub(crate) mod responses;
pub(crate) mod target;
pub(crate) mod turn;

use crate::request::api::Api;
use crate::request::chat::{Chat, ToolChoice};
use crate::request::limits::{MAX_VALUES, VERY_MANY_VALUES};
use std::borrow::Cow;

use crate::error::RequestError;
use crate::json::Json;
use crate::json::lenient;
use crate::request::body::parse_fields;
use crate::request::cache_use::CacheUse;
use crate::request::fields::{Fields, PromptField};
use warmpath_routing::drift::Asked;
use warmpath_routing::requested::Requested;

/// A parsed request, borrowing from its body.
#[derive(Debug)]
pub struct Request<'a> {
    model: Cow<'a, str>,
    cache_salt: Cow<'a, str>,
    stream: bool,
    max_tokens: Option<u32>,
    pub(crate) prompt: Prompt<'a>,
    prompts: usize,
    cache_use: CacheUse,
    /// The stored response that it goes on from, and whether its own is to be stored.
    previous_response: Option<Cow<'a, str>>,
    stores: bool,
    /// A field that changes the prompt in a way that is not followed, where vLLM serves it.
    pub(crate) unsupported: Option<&'static str>,
    /// The same where SGLang does.
    pub(crate) unsupported_on_sglang: Option<&'static str>,
    pub(crate) api: Api,
    /// Engines that make another chat of other APIs' requests make it of this.
    pub(crate) body: &'a [u8],
}

/// Where the prompt comes from.
#[derive(Debug)]
pub(crate) enum Prompt<'a> {
    Chat(Chat<'a>),
    Text { text: Cow<'a, str>, add_special_tokens: bool },
    Ids(Vec<u32>),
}

impl Prompt<'_> {
    /// A prompt that can't be told.
    fn unsupported(what: &'static str, why: &mut Option<&'static str>) -> Self {
        *why = Some(what);
        Self::Ids(Vec::new())
    }
}

impl<'a> Request<'a> {
    /// Parses a body. Fields that don't bear on the prompt are skipped, whatever is in them.
    ///
    /// # Errors
    /// [`RequestError`] for a body that is no JSON object, or that has no usable prompt.
    pub fn parse(api: Api, body: &'a [u8]) -> Result<Self, RequestError> {
        let mut fields = parse_fields(body)?;
        let text = |value: Option<Json<'a>>, name| match value {
            None => Ok(Cow::Borrowed("")),
            Some(Json::Str(text)) => Ok(text),
            Some(_) => Err(RequestError::WrongType(name)),
        };
        let model = text(fields.model.take(), "model")?;
        let cache_salt = text(fields.cache_salt.take(), "cache_salt")?;
        // This has no bearing on the prompt: what engines refuse they refuse themselves.
        let stream = fields.stream.as_ref().and_then(lenient::bool).unwrap_or(false);
        let most = match api {
            Api::Chat => fields.max_completion_tokens.take().or(fields.max_tokens.take()),
            Api::Completions | Api::Messages => fields.max_tokens.take(),
            Api::Responses => fields.max_output_tokens.take(),
        };
        let max_tokens = most.as_ref().and_then(lenient::int);
        let prompts = match &fields.prompt {
            Some(PromptField::Several(_, others)) => 1 + others,
            _ => 1,
        };
        let cache_use = CacheUse::of(api, &fields, prompts);
        let previous = fields.previous_response_id.as_ref().filter(|_| api == Api::Responses);
        let previous_response = previous.and_then(|id| match id {
            Json::Str(id) => Some(id.clone()),
            _ => None,
        });
        // Engines keep it unless they are told not to, if they keep any.
        let store = fields.store.as_ref().and_then(lenient::bool);
        let stores = api == Api::Responses && store.unwrap_or(true);
        // What SGLang's engines take from elsewhere, or keep apart in their caches.
        let unsupported_on_sglang = [
            (fields.input_ids.is_some() && api == Api::Chat, "input_ids"),
            (fields.session_params.is_some(), "session_params"),
            (fields.lora_path.is_some(), "lora_path"),
            (fields.extra_key.is_some() && api != Api::Messages, "extra_key"),
            (fields.values() > MAX_VALUES, VERY_MANY_VALUES),
        ]
        .into_iter()
        .find_map(|(given, what)| given.then_some(what));
        let mut unsupported = None;
        if matches!(api, Api::Chat | Api::Completions) && fields.truncate_prompt_tokens.is_some() {
            unsupported = Some("truncate_prompt_tokens");
        }
        // A prefill engine's ids, which a decode engine takes in place of the messages.
        let reused = fields.kv_transfer_params.take();
        if reused.is_some_and(|params| params.get("prompt_token_ids").is_some()) {
            unsupported = Some("kv_transfer_params.prompt_token_ids");
        }
        if let Some(PromptField::Several(first, _)) = fields.prompt {
            fields.prompt = Some(*first);
        }
        let prompt = match api {
            _ if fields.values() > MAX_VALUES => {
                Prompt::unsupported(VERY_MANY_VALUES, &mut unsupported)
            }
            Api::Chat => Prompt::Chat(chat(fields)?),
            Api::Responses => match responses::chat(fields)? {
                Ok(chat) => Prompt::Chat(chat),
                Err(what) => Prompt::unsupported(what, &mut unsupported),
            },
            Api::Messages => match anthropic::chat(fields)? {
                Ok(chat) => Prompt::Chat(chat),
                Err(what) => Prompt::unsupported(what, &mut unsupported),
            },
            Api::Completions => {
                if fields.prompt_embeds {
                    unsupported = Some("prompt_embeds");
                }
                completion(fields)?
            }
        };
        Ok(Self {
            model,
            cache_salt,
            stream,
            max_tokens,
            prompt,
            prompts,
            cache_use,
            previous_response,
            stores,
            unsupported,
            unsupported_on_sglang,
            api,
            body,
        })
    }

    /// The model's name, which may be an adapter's; empty if the request names none.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// What it says of its model, as long as the body is there.
    pub fn requested(&self) -> Requested<'a> {
        Requested::by_name(self.model.clone())
    }

    /// `cache_salt`; empty for none.
    pub fn cache_salt(&self) -> &str {
        &self.cache_salt
    }

    /// The last message's text, if it is a user's; and bytes of text in the other messages.
    pub(crate) fn question(&self) -> Option<(&str, usize)> {
        fn content<'m>(message: &'m Json<'_>) -> Option<&'m str> {
            message.get("content").and_then(Json::str)
        }
        let Prompt::Chat(chat) = &self.prompt else { return None };
        // What is unusual of it would have to be known again.
        let followed = self.unsupported.is_none() && self.unsupported_on_sglang.is_none();
        let usual = followed && self.cache_use == CacheUse::Counted;
        let (message, others) = chat.messages.split_last().filter(|_| usual)?;
        let bytes = |message: &Json<'_>| 1 + content(message).map_or(0, str::len);
        let is_user = message.get("role").and_then(Json::str) == Some("user");
        let question = content(message).filter(|_| is_user)?;
        Some((question, others.iter().map(bytes).sum()))
    }

    /// What its prompt is made of, and the messages of a chat, up to 255.
    pub fn asked(&self) -> (Asked, u8) {
        match &self.prompt {
            Prompt::Chat(chat) => {
                (Asked::Chat, u8::try_from(chat.messages.len()).unwrap_or(u8::MAX))
            }
            Prompt::Text { .. } => (Asked::Text, 0),
            Prompt::Ids(_) => (Asked::Ids, 0),
        }
    }

    /// How many prompts it brings; only the first is read, and decides for all.
    pub fn prompts(&self) -> usize {
        self.prompts
    }

    /// What an engine does with its cache for it, and what usage then tells.
    pub fn cache_use(&self) -> CacheUse {
        self.cache_use
    }

    /// The id of the response that it goes on from, which its engine keeps.
    pub fn previous_response(&self) -> Option<&str> {
        self.previous_response.as_deref()
    }

    /// Whether its engine is to keep the response.
    pub fn stores(&self) -> bool {
        self.stores
    }

    /// Whether the answer is to be streamed.
    pub fn stream(&self) -> bool {
        self.stream
    }

    /// The most tokens to answer with, if the request says.
    pub fn max_tokens(&self) -> Option<u32> {
        self.max_tokens
    }
}

fn flag(value: Option<&Json<'_>>, name: &'static str, default: bool) -> Result<bool, RequestError> {
    match value {
        None => Ok(default),
        Some(value) => lenient::bool(value).ok_or(RequestError::WrongType(name)),
    }
}

fn chat(fields: Fields<'_>) -> Result<Chat<'_>, RequestError> {
    let Some(messages) = fields.messages else {
        return Err(RequestError::NoPrompt("messages"));
    };
    let Json::List(messages) = messages else {
        return Err(RequestError::WrongType("messages"));
    };
    if messages.is_empty() {
        return Err(RequestError::NoPrompt("messages"));
    }
    let flag = |value: &Option<Json<'_>>, name, default| flag(value.as_ref(), name, default);
    Ok(Chat {
        messages,
        add_generation_prompt: flag(&fields.add_generation_prompt, "add_generation_prompt", true)?,
        continue_final_message: flag(
            &fields.continue_final_message,
            "continue_final_message",
            false,
        )?,
        add_special_tokens: flag(&fields.add_special_tokens, "add_special_tokens", false)?,
        tools: fields.tools,
        tool_choice: ToolChoice::of(fields.tool_choice),
        documents: fields.documents,
        kwargs: fields.chat_template_kwargs,
        reasoning_effort: fields.reasoning_effort,
        reasoning: fields.reasoning,
        own_template: fields.chat_template.is_some(),
        ..Chat::default()
    })
}

fn completion(fields: Fields<'_>) -> Result<Prompt<'_>, RequestError> {
    match fields.prompt {
        None => Err(RequestError::NoPrompt("prompt")),
        // Taken apart by now.
        Some(PromptField::Wrong | PromptField::Several(..)) => {
            Err(RequestError::WrongType("prompt"))
        }
        Some(PromptField::Ids(ids)) => Ok(Prompt::Ids(ids)),
        Some(PromptField::Text(text)) => {
            let add_special_tokens =
                flag(fields.add_special_tokens.as_ref(), "add_special_tokens", true)?;
            Ok(Prompt::Text { text, add_special_tokens })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn completion(body: &str) -> Result<String, RequestError> {
        Request::parse(Api::Completions, body.as_bytes()).map(|request| match request.prompt {
            Prompt::Text { text, .. } => text.into_owned(),
            Prompt::Ids(ids) => format!("{ids:?}"),
            Prompt::Chat(_) => "chat".into(),
        })
    }

    #[test]
    fn paths_name_apis() {
        assert_eq!(Api::of_path("/v1/chat/completions"), Some(Api::Chat));
        assert_eq!(Api::of_path("/v1/completions/?a=b/c"), Some(Api::Completions));
        for (path, api) in [
            ("/team-a/v1/chat/completions?x=1", Api::Chat),
            ("/a/b/v1/completions", Api::Completions),
            ("/team-a/v1/responses/", Api::Responses),
            ("/x/v1/messages#y", Api::Messages),
        ] {
            assert_eq!(Api::of_path(path), Some(api), "{path}");
        }
        for path in [
            "/v1/embeddings",
            "/v1/chat/completions/render",
            "/team-a/v1/chat/completions/render",
            "/team-av1/completions",
            "/v11/completions",
            "v1/completions",
            "/x?y=/v1/completions",
        ] {
            assert_eq!(Api::of_path(path), None, "{path}");
        }
    }

    #[test]
    fn a_prompt_has_many_forms() {
        for (prompt, text) in [
            (r#""a\n""#, "a\n"),
            (r#"["a", "b"]"#, "a"),
            ("[1, 2]", "[1, 2]"),
            ("[[3, 4], [5]]", "[3, 4]"),
            // As pydantic takes them for ids.
            ("[1.0, true]", "[1, 1]"),
            ("[[3.0, false]]", "[3, 0]"),
        ] {
            assert_eq!(completion(&format!("{{\"prompt\": {prompt}}}")).as_deref(), Ok(text));
        }
        for (prompt, prompts) in
            [(r#""a""#, 1), (r#"["a", "b"]"#, 2), ("[1, 2]", 1), ("[[3], [4], 5]", 3)]
        {
            let body = format!("{{\"prompt\": {prompt}}}");
            let request = Request::parse(Api::Completions, body.as_bytes()).unwrap();
            assert_eq!(request.prompts(), prompts, "{prompt}");
        }
        for prompt in ["1", "{}", "[]", "[[]]", "[-1]", "[1, \"a\"]", "[4294967296]", "[1.5]"] {
            assert_eq!(
                completion(&format!("{{\"prompt\": {prompt}}}")),
                Err(RequestError::WrongType("prompt")),
                "{prompt}"
            );
        }
        assert_eq!(completion("{\"prompt\": null}"), Err(RequestError::NoPrompt("prompt")));
    }

    #[test]
    fn a_body_that_is_not_understood_says_why() {
        assert_eq!(completion("[]").unwrap_err().name(), "not_an_object");
        assert_eq!(completion("{\"a\":").unwrap_err().name(), "not_json");
        let deep = format!("{{\"prompt\": {}", "[".repeat(100_000));
        assert_eq!(completion(&deep).unwrap_err().name(), "not_json");
        assert_eq!(completion(r#"{"prompt":"a","model":3}"#).unwrap_err().name(), "wrong_type");
    }

    #[test]
    fn fields_are_read() {
        let body = br#"{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,
            "max_tokens":3,"max_completion_tokens":5,"cache_salt":"s","seed":{"any":1}}"#;
        let request = Request::parse(Api::Chat, body).unwrap();
        assert_eq!((request.model(), request.cache_salt()), ("m", "s"));
        assert_eq!((request.stream(), request.max_tokens()), (true, Some(5)));
        assert_eq!(Api::of_body(body), Ok(Api::Chat));
    }

    /// vLLM 0.32 takes all of these (vllm/entrypoints/openai/chat_completion/protocol.py).
    #[test]
    fn fields_are_read_as_leniently_as_by_the_engine() {
        let of = |more: &str| {
            let body =
                format!(r#"{{"model":"m","messages":[{{"role":"user","content":"x"}}],{more}}}"#);
            let request = Request::parse(Api::Chat, body.as_bytes()).map(|request| {
                let Prompt::Chat(chat) = &request.prompt else { panic!() };
                let flags = (chat.add_generation_prompt, chat.continue_final_message);
                (request.model().to_owned(), request.stream(), request.max_tokens(), flags)
            });
            request.unwrap_or_else(|error| panic!("{more}: {error}"))
        };
        let m = || String::from("m");
        for (more, stream, most, flags) in [
            (r#""stream":"true""#, true, None, (true, false)),
            (r#""stream":1"#, true, None, (true, false)),
            (r#""stream":{"a":[]}"#, false, None, (true, false)),
            (
                r#""add_generation_prompt":"off","continue_final_message":1.0"#,
                false,
                None,
                (false, true),
            ),
            (
                r#""add_generation_prompt":"true","continue_final_message":0"#,
                false,
                None,
                (true, false),
            ),
            (r#""max_tokens":"7""#, false, Some(7), (true, false)),
            (r#""max_tokens":7.0,"temperature":NaN"#, false, Some(7), (true, false)),
            (r#""max_tokens":"many","seed":1e999,"user":"\ud800""#, false, None, (true, false)),
            (r#""logit_bias":{"1":-Infinity},"stream":"yes""#, true, None, (true, false)),
            (
                r#""metadata":{"n":123456789012345678901234567890},"stream":1"#,
                true,
                None,
                (true, false),
            ),
        ] {
            assert_eq!(of(more), (m(), stream, most, flags), "{more}");
        }
        let marked = "\u{feff}{\"model\":\"m\",\"prompt\":\"a\",\"stream\":true}";
        assert_eq!(completion(marked).as_deref(), Ok("a"));
        assert_eq!(requested::model_in_body(None, marked.as_bytes()), Requested::Name("m".into()));
        let twice = format!("\u{feff}{marked}");
        assert_eq!(completion(&twice).unwrap_err().name(), "not_json");
        // What bears on the prompt is refused where the engine refuses it.
        let wrong = completion(r#"{"prompt":"a","add_special_tokens":"maybe"}"#);
        assert_eq!(wrong, Err(RequestError::WrongType("add_special_tokens")));
    }

    #[test]
    fn more_values_than_a_template_can_be_given_are_unsupported() {
        let body = |count: usize| {
            let message = r#"{"role":"user","content":"x"}"#;
            format!(r#"{{"model":"m","messages":[{}]}}"#, vec![message; count].join(","))
        };
        for (count, unsupported) in [(10_000, None), (11_000, Some("very many values"))] {
            let body = body(count);
            let request = Request::parse(Api::Chat, body.as_bytes()).unwrap();
            assert_eq!((request.model(), request.unsupported), ("m", unsupported));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Request::parse(Api::Chat, &body);
            let _ = Request::parse(Api::Completions, &body);
        }
    }
}
