//! An OpenAI request body: what of it decides the prompt.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::error::RequestError;
use super::json::{Json, Text};

/// The API that a request speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
}

impl Api {
    /// The API of a request path; a query string and slashes at the end don't matter.
    pub fn of_path(path: &str) -> Option<Self> {
        let path = path.split(['?', '#']).next().unwrap_or(path);
        match path.trim_end_matches('/') {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/completions" => Some(Self::Completions),
            _ => None,
        }
    }

    /// The API that a body is for, by its shape: `messages` or `prompt`.
    ///
    /// # Errors
    /// [`RequestError`] if the body is no JSON object or has neither.
    pub fn of_body(body: &[u8]) -> Result<Self, RequestError> {
        let fields = parse_fields(body)?;
        match (fields.messages, fields.prompt) {
            (Some(_), _) => Ok(Self::Chat),
            (None, Some(_)) => Ok(Self::Completions),
            (None, None) => Err(RequestError::NoPrompt("messages")),
        }
    }
}

/// A parsed request, borrowing from its body.
#[derive(Debug)]
pub struct Request<'a> {
    model: Cow<'a, str>,
    cache_salt: Cow<'a, str>,
    stream: bool,
    max_tokens: Option<u32>,
    pub(super) prompt: Prompt<'a>,
    /// A field that changes the prompt in a way that is not followed.
    pub(super) unsupported: Option<&'static str>,
}

/// Where the prompt comes from.
#[derive(Debug)]
pub(super) enum Prompt<'a> {
    Chat(Chat<'a>),
    Text { text: Cow<'a, str>, add_special_tokens: bool },
    Ids(Vec<u32>),
}

/// The fields of a chat request that a template sees.
#[allow(clippy::struct_excessive_bools)] // As in the API.
#[derive(Debug)]
pub(super) struct Chat<'a> {
    pub(super) messages: Vec<Json<'a>>,
    pub(super) tools: Option<Json<'a>>,
    pub(super) documents: Option<Json<'a>>,
    pub(super) kwargs: Option<Json<'a>>,
    pub(super) reasoning_effort: Option<Json<'a>>,
    pub(super) add_generation_prompt: bool,
    pub(super) continue_final_message: bool,
    pub(super) add_special_tokens: bool,
    pub(super) own_template: bool,
}

impl<'a> Request<'a> {
    /// Parses a body. Fields that don't bear on the prompt are skipped, whatever is in them.
    ///
    /// # Errors
    /// [`RequestError`] for a body that is no JSON object, or that has no usable prompt.
    pub fn parse(api: Api, body: &'a [u8]) -> Result<Self, RequestError> {
        let fields = parse_fields(body)?;
        let max_tokens = match (fields.max_completion_tokens, fields.max_tokens) {
            (Some(Json::Int(number)), _) if api == Api::Chat => u32::try_from(number).ok(),
            (_, Some(Json::Int(number))) => u32::try_from(number).ok(),
            _ => None,
        };
        let mut unsupported = fields.truncate_prompt_tokens.map(|_| "truncate_prompt_tokens");
        let flag = |value: &Option<Json<'_>>, name, default| match value {
            None => Ok(default),
            Some(value) => value.bool().ok_or(RequestError::WrongType(name)),
        };
        let prompt = match api {
            Api::Chat => {
                let Some(messages) = fields.messages else {
                    return Err(RequestError::NoPrompt("messages"));
                };
                let Json::List(messages) = messages else {
                    return Err(RequestError::WrongType("messages"));
                };
                if messages.is_empty() {
                    return Err(RequestError::NoPrompt("messages"));
                }
                Prompt::Chat(Chat {
                    messages,
                    add_generation_prompt: flag(
                        &fields.add_generation_prompt,
                        "add_generation_prompt",
                        true,
                    )?,
                    continue_final_message: flag(
                        &fields.continue_final_message,
                        "continue_final_message",
                        false,
                    )?,
                    add_special_tokens: flag(
                        &fields.add_special_tokens,
                        "add_special_tokens",
                        false,
                    )?,
                    tools: fields.tools,
                    documents: fields.documents,
                    kwargs: fields.chat_template_kwargs,
                    reasoning_effort: fields.reasoning_effort,
                    own_template: fields.chat_template.is_some(),
                })
            }
            Api::Completions => {
                if fields.prompt_embeds {
                    unsupported = Some("prompt_embeds");
                }
                match fields.prompt {
                    None => return Err(RequestError::NoPrompt("prompt")),
                    Some(PromptField::Wrong) => return Err(RequestError::WrongType("prompt")),
                    Some(PromptField::Ids(ids)) => Prompt::Ids(ids),
                    Some(PromptField::Text(text)) => Prompt::Text {
                        text,
                        add_special_tokens: flag(
                            &fields.add_special_tokens,
                            "add_special_tokens",
                            true,
                        )?,
                    },
                }
            }
        };
        let text = |value: Option<Json<'a>>, name| match value {
            None => Ok(Cow::Borrowed("")),
            Some(Json::Str(text)) => Ok(text),
            Some(_) => Err(RequestError::WrongType(name)),
        };
        Ok(Self {
            model: text(fields.model, "model")?,
            cache_salt: text(fields.cache_salt, "cache_salt")?,
            stream: flag(&fields.stream, "stream", false)?,
            max_tokens,
            prompt,
            unsupported,
        })
    }

    /// The model's name, which may be an adapter's; empty if the request names none.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// `cache_salt`; empty for none.
    pub fn cache_salt(&self) -> &str {
        &self.cache_salt
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

fn parse_fields(body: &[u8]) -> Result<Fields<'_>, RequestError> {
    serde_json::from_slice(body).map_err(|error| match error.classify() {
        serde_json::error::Category::Data if error.line() <= 1 && error.column() == 0 => {
            RequestError::NotAnObject
        }
        serde_json::error::Category::Data => RequestError::NotAnObject,
        _ => RequestError::NotJson { line: error.line(), column: error.column() },
    })
}

#[derive(Default)]
struct Fields<'a> {
    model: Option<Json<'a>>,
    messages: Option<Json<'a>>,
    prompt: Option<PromptField<'a>>,
    prompt_embeds: bool,
    tools: Option<Json<'a>>,
    documents: Option<Json<'a>>,
    chat_template: Option<Json<'a>>,
    chat_template_kwargs: Option<Json<'a>>,
    reasoning_effort: Option<Json<'a>>,
    add_generation_prompt: Option<Json<'a>>,
    continue_final_message: Option<Json<'a>>,
    add_special_tokens: Option<Json<'a>>,
    truncate_prompt_tokens: Option<Json<'a>>,
    cache_salt: Option<Json<'a>>,
    stream: Option<Json<'a>>,
    max_tokens: Option<Json<'a>>,
    max_completion_tokens: Option<Json<'a>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut fields = Fields::default();
        while let Some(Text(key)) = access.next_key()? {
            let place = match key.as_ref() {
                "model" => &mut fields.model,
                "messages" => &mut fields.messages,
                "tools" => &mut fields.tools,
                "documents" => &mut fields.documents,
                "chat_template" => &mut fields.chat_template,
                "chat_template_kwargs" => &mut fields.chat_template_kwargs,
                "reasoning_effort" => &mut fields.reasoning_effort,
                "add_generation_prompt" => &mut fields.add_generation_prompt,
                "continue_final_message" => &mut fields.continue_final_message,
                "add_special_tokens" => &mut fields.add_special_tokens,
                "truncate_prompt_tokens" => &mut fields.truncate_prompt_tokens,
                "cache_salt" => &mut fields.cache_salt,
                "stream" => &mut fields.stream,
                "max_tokens" => &mut fields.max_tokens,
                "max_completion_tokens" => &mut fields.max_completion_tokens,
                "prompt" => {
                    fields.prompt = access.next_value::<Option<PromptField<'de>>>()?;
                    continue;
                }
                "prompt_embeds" => {
                    fields.prompt_embeds = access.next_value::<Option<IgnoredAny>>()?.is_some();
                    continue;
                }
                _ => {
                    access.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            // The last of equal keys wins, as in Python; null is as good as nothing.
            let value: Json<'de> = access.next_value()?;
            *place = (!value.is_null()).then_some(value);
        }
        Ok(fields)
    }
}

/// `prompt`: of several prompts the first, which routing follows.
#[derive(Debug)]
enum PromptField<'a> {
    Text(Cow<'a, str>),
    Ids(Vec<u32>),
    Wrong,
}

impl<'de: 'a, 'a> Deserialize<'de> for PromptField<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptVisitor)
    }
}

struct PromptVisitor;

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = PromptField<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a prompt")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(PromptField::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(PromptField::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(PromptField::Wrong)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(PromptField::Wrong)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(PromptField::Wrong)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(PromptField::Wrong)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        while access.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(PromptField::Wrong)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let prompt = match access.next_element::<Element<'de>>()? {
            Some(Element::Prompt(prompt)) => {
                while access.next_element::<IgnoredAny>()?.is_some() {}
                prompt
            }
            Some(Element::Id(first)) => {
                let mut ids = vec![first];
                let mut wrong = false;
                while let Some(element) = access.next_element::<Element<'de>>()? {
                    match element {
                        Element::Id(id) => ids.push(id),
                        _ => wrong = true,
                    }
                }
                if wrong { PromptField::Wrong } else { PromptField::Ids(ids) }
            }
            Some(Element::Wrong) | None => {
                while access.next_element::<IgnoredAny>()?.is_some() {}
                PromptField::Wrong
            }
        };
        Ok(prompt)
    }
}

enum Element<'a> {
    Id(u32),
    Prompt(PromptField<'a>),
    Wrong,
}

impl<'de: 'a, 'a> Deserialize<'de> for Element<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ElementVisitor;
        impl<'de> Visitor<'de> for ElementVisitor {
            type Value = Element<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a prompt or a token id")
            }
            fn visit_u64<E>(self, id: u64) -> Result<Self::Value, E> {
                Ok(u32::try_from(id).map_or(Element::Wrong, Element::Id))
            }
            fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
                Ok(Element::Wrong)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
                Ok(Element::Wrong)
            }
            fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
                Ok(Element::Wrong)
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Element::Wrong)
            }
            fn visit_borrowed_str<E: serde::de::Error>(
                self,
                text: &'de str,
            ) -> Result<Self::Value, E> {
                PromptVisitor.visit_borrowed_str(text).map(Element::Prompt)
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                PromptVisitor.visit_str(text).map(Element::Prompt)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
                let mut ids = Vec::new();
                let mut wrong = false;
                while let Some(id) = access.next_element::<Json<'de>>()? {
                    match id {
                        Json::Int(id) => match u32::try_from(id) {
                            Ok(id) => ids.push(id),
                            Err(_) => wrong = true,
                        },
                        _ => wrong = true,
                    }
                }
                Ok(if wrong || ids.is_empty() {
                    Element::Wrong
                } else {
                    Element::Prompt(PromptField::Ids(ids))
                })
            }
            fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
                PromptVisitor.visit_map(access).map(|_| Element::Wrong)
            }
        }
        deserializer.deserialize_any(ElementVisitor)
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
        assert_eq!(Api::of_path("/v1/embeddings"), None);
        assert_eq!(Api::of_path("/v1/chat/completions/render"), None);
    }

    #[test]
    fn a_prompt_has_many_forms() {
        for (prompt, text) in [
            (r#""a\n""#, "a\n"),
            (r#"["a", "b"]"#, "a"),
            ("[1, 2]", "[1, 2]"),
            ("[[3, 4], [5]]", "[3, 4]"),
        ] {
            assert_eq!(completion(&format!("{{\"prompt\": {prompt}}}")).as_deref(), Ok(text));
        }
        for prompt in ["1", "{}", "[]", "[[]]", "[-1]", "[1, \"a\"]", "[4294967296]", "[true]"] {
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

    proptest! {
        #[test]
        fn any_bytes_are_answered(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Request::parse(Api::Chat, &body);
            let _ = Request::parse(Api::Completions, &body);
        }
    }
}
