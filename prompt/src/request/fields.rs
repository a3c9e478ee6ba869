//! The fields of a request body, of whatever API.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::json::lenient;
use crate::json::{Json, Text};

/// The fields of all APIs; null is as good as nothing.
#[derive(Default)]
pub(crate) struct Fields<'a> {
    pub(crate) model: Option<Json<'a>>,
    pub(crate) messages: Option<Json<'a>>,
    pub(crate) prompt: Option<PromptField<'a>>,
    pub(crate) prompt_embeds: bool,
    pub(crate) kv_transfer_params: Option<Json<'a>>,
    pub(crate) tools: Option<Json<'a>>,
    pub(crate) tool_choice: Option<Json<'a>>,
    pub(crate) documents: Option<Json<'a>>,
    pub(crate) chat_template: Option<Json<'a>>,
    pub(crate) chat_template_kwargs: Option<Json<'a>>,
    pub(crate) reasoning_effort: Option<Json<'a>>,
    pub(crate) add_generation_prompt: Option<Json<'a>>,
    pub(crate) continue_final_message: Option<Json<'a>>,
    pub(crate) add_special_tokens: Option<Json<'a>>,
    pub(crate) truncate_prompt_tokens: Option<Json<'a>>,
    pub(crate) cache_salt: Option<Json<'a>>,
    pub(crate) stream: Option<Json<'a>>,
    pub(crate) max_tokens: Option<Json<'a>>,
    pub(crate) max_completion_tokens: Option<Json<'a>>,
    pub(crate) n: Option<Json<'a>>,
    pub(crate) echo: Option<Json<'a>>,
    pub(crate) logprobs: Option<Json<'a>>,
    /// It is there, and null: in chats that is not as good as nothing.
    pub(crate) null_top_logprobs: bool,
    pub(crate) prompt_logprobs: Option<Json<'a>>,
    pub(crate) use_beam_search: Option<Json<'a>>,
    pub(crate) input: Option<Json<'a>>,
    pub(crate) instructions: Option<Json<'a>>,
    pub(crate) previous_response_id: Option<Json<'a>>,
    pub(crate) store: Option<Json<'a>>,
    pub(crate) previous_input_messages: Option<Json<'a>>,
    pub(crate) reasoning: Option<Json<'a>>,
    pub(crate) max_output_tokens: Option<Json<'a>>,
    pub(crate) system: Option<Json<'a>>,
    pub(crate) thinking: Option<Json<'a>>,
    pub(crate) output_config: Option<Json<'a>>,
    /// SGLang's.
    pub(crate) extra_key: Option<Json<'a>>,
    pub(crate) session_params: Option<Json<'a>>,
    pub(crate) lora_path: Option<Json<'a>>,
    pub(crate) input_ids: Option<Json<'a>>,
}

impl Fields<'_> {
    /// JSON values in the fields that a prompt is made of.
    pub(crate) fn values(&self) -> usize {
        [
            &self.messages,
            &self.tools,
            &self.documents,
            &self.chat_template_kwargs,
            &self.input,
            &self.instructions,
            &self.system,
        ]
        .into_iter()
        .flatten()
        .map(Json::values)
        .sum()
    }
}

impl<'a> Fields<'a> {
    /// Whether a field of this name bears on anything here.
    pub(crate) fn knows(name: &str) -> bool {
        matches!(name, "prompt" | "prompt_embeds" | "top_logprobs")
            || Fields::default().place(name).is_some()
    }

    /// Sets a field that is known.
    pub(crate) fn set(&mut self, name: &str, value: Json<'a>) {
        let value = (!value.is_null()).then_some(value);
        match name {
            "prompt" => self.prompt = value.map(PromptField::of),
            "prompt_embeds" => self.prompt_embeds = value.is_some(),
            "top_logprobs" => self.null_top_logprobs = value.is_none(),
            name => {
                if let Some(place) = self.place(name) {
                    *place = value;
                }
            }
        }
    }

    fn place(&mut self, name: &str) -> Option<&mut Option<Json<'a>>> {
        Some(match name {
            "model" => &mut self.model,
            "messages" => &mut self.messages,
            "tools" => &mut self.tools,
            "tool_choice" => &mut self.tool_choice,
            "documents" => &mut self.documents,
            "chat_template" => &mut self.chat_template,
            "chat_template_kwargs" => &mut self.chat_template_kwargs,
            "reasoning_effort" => &mut self.reasoning_effort,
            "add_generation_prompt" => &mut self.add_generation_prompt,
            "continue_final_message" => &mut self.continue_final_message,
            "add_special_tokens" => &mut self.add_special_tokens,
            "truncate_prompt_tokens" => &mut self.truncate_prompt_tokens,
            "cache_salt" => &mut self.cache_salt,
            "stream" => &mut self.stream,
            "max_tokens" => &mut self.max_tokens,
            "max_completion_tokens" => &mut self.max_completion_tokens,
            "n" => &mut self.n,
            "echo" => &mut self.echo,
            "logprobs" => &mut self.logprobs,
            "prompt_logprobs" => &mut self.prompt_logprobs,
            "use_beam_search" => &mut self.use_beam_search,
            "input" => &mut self.input,
            "instructions" => &mut self.instructions,
            "previous_response_id" => &mut self.previous_response_id,
            "store" => &mut self.store,
            "previous_input_messages" => &mut self.previous_input_messages,
            "reasoning" => &mut self.reasoning,
            "max_output_tokens" => &mut self.max_output_tokens,
            "system" => &mut self.system,
            "thinking" => &mut self.thinking,
            "output_config" => &mut self.output_config,
            "kv_transfer_params" => &mut self.kv_transfer_params,
            "extra_key" => &mut self.extra_key,
            "session_params" => &mut self.session_params,
            "lora_path" => &mut self.lora_path,
            "input_ids" => &mut self.input_ids,
            _ => return None,
        })
    }
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
            match key.as_ref() {
                "prompt" => {
                    fields.prompt = access.next_value::<Option<PromptField<'de>>>()?;
                }
                "top_logprobs" => {
                    let value = access.next_value::<Option<IgnoredAny>>()?;
                    fields.null_top_logprobs = value.is_none();
                }
                "prompt_embeds" => {
                    fields.prompt_embeds = access.next_value::<Option<IgnoredAny>>()?.is_some();
                }
                key => match fields.place(key) {
                    Some(place) => {
                        // The last of equal keys wins, as in Python; null is as good as nothing.
                        let value: Json<'de> = access.next_value()?;
                        *place = (!value.is_null()).then_some(value);
                    }
                    None => {
                        access.next_value::<IgnoredAny>()?;
                    }
                },
            }
        }
        Ok(fields)
    }
}

/// `prompt`: of several prompts the first, which routing follows.
#[derive(Debug)]
pub(crate) enum PromptField<'a> {
    /// The first of a list, and how many come after it.
    Several(Box<PromptField<'a>>, usize),
    Text(Cow<'a, str>),
    Ids(Vec<u32>),
    Wrong,
}

impl<'a> PromptField<'a> {
    fn of(json: Json<'a>) -> Self {
        let items = match json {
            Json::Str(text) => return Self::Text(text),
            Json::List(items) => items,
            _ => return Self::Wrong,
        };
        let others = items.len().saturating_sub(1);
        match items.first() {
            Some(Json::Str(_) | Json::List(_)) => match items.into_iter().next().map(Self::of) {
                Some(first @ (Self::Text(_) | Self::Ids(_))) => {
                    Self::Several(Box::new(first), others)
                }
                _ => Self::Wrong,
            },
            Some(_) => match items.iter().map(lenient::int).collect::<Option<_>>() {
                Some(ids) => Self::Ids(ids),
                None => Self::Wrong,
            },
            None => Self::Wrong,
        }
    }
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
                let mut others = 0;
                while access.next_element::<IgnoredAny>()?.is_some() {
                    others += 1;
                }
                PromptField::Several(Box::new(prompt), others)
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
            fn visit_f64<E>(self, id: f64) -> Result<Self::Value, E> {
                Ok(lenient::float(id).map_or(Element::Wrong, Element::Id))
            }
            fn visit_bool<E>(self, id: bool) -> Result<Self::Value, E> {
                Ok(Element::Id(u32::from(id)))
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
                    match lenient::int(&id) {
                        Some(id) => ids.push(id),
                        None => wrong = true,
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
