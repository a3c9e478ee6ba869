//! Messages as a template gets them: what vLLM and `transformers` make of a request before
//! rendering it (vllm/renderers/chat_utils.py and hf.py 0.32, which takes transformers 5.16 to
//! 5.19: later ones add a `thinking` field, these don't).

use std::borrow::Cow;

use minijinja::Value;

use crate::error::PromptError;
use crate::json::Json;
use crate::json::tree::Tree;
use crate::template::tools::tool_calls;

/// Stands for what isn't text; no one writes it by accident.
pub(crate) const MEDIA: &str = "\u{f8ff}warmpath media\u{f8ff}";

pub(crate) type Fields<'a> = Vec<(&'static str, Field<'a>)>;

/// A value of a message.
#[derive(Clone, Debug)]
pub(crate) enum Field<'a> {
    Text(Cow<'a, str>),
    Other(Tree<'a>),
    Parts(Vec<Part<'a>>),
}

impl Field<'_> {
    fn value(&self, marked: bool) -> Value {
        match self {
            Self::Text(text) => Value::from(text.as_ref()),
            Self::Other(tree) => tree.to_value(),
            Self::Parts(parts) => parts.iter().map(|part| part.to_value(marked)).collect(),
        }
    }
}

/// A conversation, normalised.
#[derive(Debug, Default)]
pub(crate) struct Conversation<'a> {
    pub(crate) messages: Vec<Fields<'a>>,
    /// How many parts of contents aren't text.
    pub(crate) media: usize,
    /// Bytes of text beside them that the messages for the template don't have.
    pub(crate) beside_media: usize,
    /// JSON values in calls' arguments, which are texts in the body.
    pub(crate) values: usize,
}

/// What the template is like, which decides how content is passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// Content is a list of parts.
    pub(crate) parts: bool,
    /// The role `developer` is passed on.
    pub(crate) developer: bool,
}

impl<'a> Conversation<'a> {
    pub(crate) fn new(messages: &'a [Json<'a>], style: Style) -> Result<Self, PromptError> {
        let mut conversation = Self::default();
        for message in messages {
            let fields = conversation.message(message, style)?;
            conversation.messages.push(fields);
        }
        if !style.developer
            && conversation.messages.iter().any(|fields| role(fields) == "developer")
        {
            conversation.developers_to_system();
        }
        Ok(conversation)
    }

    /// The messages for the template; `marked` with media as parts of their own kind, else with
    /// [`MEDIA`] in their place.
    pub(crate) fn to_value(&self, marked: bool) -> Value {
        self.messages
            .iter()
            .map(|fields| {
                Value::from_pairs(fields.iter().map(|(name, field)| (*name, field.value(marked))))
            })
            .collect()
    }

    /// How many messages there are.
    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Bytes of all that is text in contents.
    pub(crate) fn bytes(&self) -> usize {
        let of_part = |part: &Part<'_>| match part {
            Part::Text(text, _) => text.len(),
            Part::Media(_) => MEDIA.len(),
        };
        let of_field = |(_, field): &(&'static str, Field<'_>)| match field {
            Field::Text(text) => text.len(),
            Field::Parts(parts) => parts.iter().map(of_part).sum(),
            Field::Other(_) => 0,
        };
        self.messages.iter().flatten().map(of_field).sum()
    }

    /// A field of a message.
    pub(crate) fn field(&self, message: usize, name: &str) -> Option<&Field<'a>> {
        let mut fields = self.messages.get(message)?.iter();
        fields.find(|(known, _)| *known == name).map(|(_, field)| field)
    }

    /// Whether two messages have the same fields; none if that isn't seen from their texts.
    pub(crate) fn are_equal(&self, left: usize, right: usize) -> Option<bool> {
        if left == right {
            return Some(true);
        }
        let fields = self.messages.get(left)?;
        let mut equal = (fields.len() == self.messages.get(right)?.len()).then_some(true);
        if equal.is_none() {
            return Some(false);
        }
        for (name, field) in fields {
            match (field, self.field(right, name)) {
                (_, None) => return Some(false),
                (Field::Text(one), Some(Field::Text(other))) if one != other => return Some(false),
                (Field::Text(_), Some(Field::Text(_))) => {}
                _ => equal = None,
            }
        }
        equal
    }

    /// The text of a message's content, if it is one alone.
    pub(crate) fn text(&self, message: usize) -> Option<&str> {
        match self.field(message, "content")? {
            Field::Text(text) => Some(text),
            Field::Parts(parts) => match parts.as_slice() {
                [Part::Text(text, [])] => Some(text),
                _ => None,
            },
            Field::Other(_) => None,
        }
    }

    /// The parts of a message's content, if it has such.
    pub(crate) fn parts(&self, message: usize) -> Option<&[Part<'a>]> {
        match self.field(message, "content")? {
            Field::Parts(parts) => Some(parts),
            Field::Text(_) | Field::Other(_) => None,
        }
    }

    /// The text of the last message, or its last part that is text, for `continue_final_message`.
    pub(crate) fn last_text_mut(&mut self) -> Option<&mut Cow<'a, str>> {
        let fields = self.messages.last_mut()?;
        fields.iter_mut().filter(|(name, _)| *name == "content").find_map(
            |(_, field)| match field {
                Field::Text(text) => Some(text),
                Field::Parts(parts) => parts.iter_mut().rev().find_map(|part| match part {
                    Part::Text(text, _) => Some(text),
                    Part::Media(_) => None,
                }),
                Field::Other(_) => None,
            },
        )
    }

    fn message(&mut self, message: &'a Json<'a>, style: Style) -> Result<Fields<'a>, PromptError> {
        let Some(role) = message.get("role").and_then(Json::str) else {
            return Err(PromptError::UnsupportedContent("a message without a role"));
        };
        let mut content = match message.get("content") {
            None => Vec::new(),
            Some(Json::Str(text)) => vec![Part::Text(Cow::Borrowed(text.as_ref()), &[])],
            Some(Json::List(parts)) => parts
                .iter()
                .map(part)
                .collect::<Result<Vec<_>, _>>()?
                .into_iter()
                .flatten()
                .collect(),
            Some(_) => {
                return Err(PromptError::UnsupportedContent("content that is no text or list"));
            }
        };
        if role == "system" {
            strip_billing_header(&mut content);
        }
        if !style.parts {
            // As strings they are joined without the empty ones; as parts they stay, also those of
            // tools, which are joined later.
            content.retain(|part| !matches!(part, Part::Text(text, _) if text.is_empty()));
        }
        let media = content.iter().filter(|part| matches!(part, Part::Media(_))).count();
        self.media += media;
        let content = if style.parts && role != "tool" {
            Field::Parts(content)
        } else if media > 0 {
            let texts = content.iter().map(|part| match part {
                Part::Text(text, _) => text.len(),
                Part::Media(_) => 0,
            });
            self.beside_media += texts.sum::<usize>();
            // The engine puts placeholders in front of the message's text.
            Field::Text(Cow::Borrowed(MEDIA))
        } else {
            Field::Text(joined(content))
        };
        let mut fields = vec![("role", Field::Text(Cow::Borrowed(role))), ("content", content)];
        if role == "assistant" {
            if let Some(calls) = message.get("tool_calls") {
                let calls = tool_calls(calls, &mut self.values)?;
                if let Some(calls) = calls {
                    fields.push(("tool_calls", Field::Other(calls)));
                }
            }
            let reasoning = message.get("reasoning").or_else(|| message.get("reasoning_content"));
            if let Some(reasoning) = reasoning {
                let reasoning = Field::Other(Tree::Json(reasoning));
                fields.push(("reasoning", reasoning.clone()));
                fields.push(("reasoning_content", reasoning));
            }
        }
        if role == "tool"
            && let Some(id) = message.get("tool_call_id")
        {
            fields.push(("tool_call_id", Field::Other(Tree::Json(id))));
        }
        for name in ["name", "task"] {
            if let Some(text) = message.get(name).and_then(Json::str) {
                fields.push((name, Field::Text(Cow::Borrowed(text))));
            }
        }
        if role == "developer" && style.developer && message.get("tools").is_some() {
            return Err(PromptError::UnsupportedContent("a developer's tools"));
        }
        Ok(fields)
    }

    /// For templates that don't know developers: they become the system, in one first message.
    fn developers_to_system(&mut self) {
        for fields in &mut self.messages {
            if role(fields) == "developer" {
                for (name, field) in fields.iter_mut() {
                    if *name == "role" {
                        *field = Field::Text(Cow::Borrowed("system"));
                    }
                }
            }
        }
        let systems = self.messages.iter().filter(|fields| role(fields) == "system").count();
        let first = self.messages.first().is_some_and(|fields| role(fields) == "system");
        if systems == 1 && first {
            return;
        }
        let mut texts = Vec::new();
        for fields in &self.messages {
            if role(fields) == "system"
                && let Some((_, content)) = fields.iter().find(|(name, _)| *name == "content")
            {
                let text = match content {
                    Field::Text(text) => text.to_string(),
                    Field::Parts(parts) => joined(parts.clone()).into_owned(),
                    Field::Other(_) => String::new(),
                };
                if !text.is_empty() {
                    texts.push(text);
                }
            }
        }
        self.messages.retain(|fields| role(fields) != "system");
        self.messages.insert(
            0,
            vec![
                ("role", Field::Text(Cow::Borrowed("system"))),
                ("content", Field::Text(Cow::Owned(texts.join("\n\n")))),
            ],
        );
    }
}

fn role<'f>(fields: &'f Fields<'_>) -> &'f str {
    fields
        .iter()
        .find_map(|(name, field)| match field {
            Field::Text(text) if *name == "role" => Some(text.as_ref()),
            _ => None,
        })
        .unwrap_or_default()
}

/// A part of a message's content.
#[derive(Clone, Debug)]
pub(crate) enum Part<'a> {
    /// A text, and further fields that are passed on beside it.
    Text(Cow<'a, str>, &'a [(Cow<'a, str>, Json<'a>)]),
    /// Something else, by its kind.
    Media(&'static str),
}

impl Part<'_> {
    fn to_value(&self, marked: bool) -> Value {
        let (text, extra): (&str, &[_]) = match self {
            Self::Text(text, extra) => (text, extra),
            Self::Media(kind) if marked => {
                return Value::from_pairs([("type", Value::from(*kind))]);
            }
            Self::Media(_) => (MEDIA, &[]),
        };
        let mut pairs = vec![("type", Value::from("text")), ("text", Value::from(text))];
        for (name, value) in extra {
            if !KNOWN_PART_FIELDS.contains(&name.as_ref()) {
                pairs.push((name, value.to_value()));
            }
        }
        Value::from_pairs(pairs)
    }
}

/// Fields of content parts that vLLM's own types have; others are passed to the template.
pub(crate) const KNOWN_PART_FIELDS: [&str; 18] = [
    "audio_embeds",
    "audio_url",
    "closed",
    "data",
    "file",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_audio",
    "name",
    "prompt_cache_breakpoint",
    "refusal",
    "text",
    "thinking",
    "type",
    "uuid",
    "video_embeds",
    "video_url",
];

fn part<'a>(part: &'a Json<'a>) -> Result<Option<Part<'a>>, PromptError> {
    match part {
        Json::Str(text) => Ok(Some(Part::Text(Cow::Borrowed(text.as_ref()), &[]))),
        Json::Map(pairs) => {
            let kind = part.get("type").and_then(Json::str);
            if part.get("uuid").is_some() {
                return Ok(Some(Part::Media(media_kind(kind))));
            }
            let field = match kind {
                Some("text" | "input_text" | "output_text") => "text",
                Some("refusal") => "refusal",
                Some("thinking") => "thinking",
                Some("tool_reference") => {
                    return Err(PromptError::UnsupportedContent("tool_reference"));
                }
                kind => return Ok(Some(Part::Media(media_kind(kind)))),
            };
            match part.get(field) {
                Some(Json::Str(text)) => Ok(Some(Part::Text(Cow::Borrowed(text.as_ref()), pairs))),
                None if field != "thinking" => Ok(None),
                _ => Err(PromptError::UnsupportedContent("a part without text")),
            }
        }
        _ => Err(PromptError::UnsupportedContent("a part that is no object")),
    }
}

pub(crate) fn media_kind(kind: Option<&str>) -> &'static str {
    match kind {
        Some("audio_url" | "input_audio" | "audio_embeds") => "audio",
        Some("video_url" | "video_embeds") => "video",
        _ => "image",
    }
}

fn joined(parts: Vec<Part<'_>>) -> Cow<'_, str> {
    let mut texts = parts.into_iter().map(|part| match part {
        Part::Text(text, _) => text,
        Part::Media(_) => Cow::Borrowed(MEDIA),
    });
    let Some(first) = texts.next() else { return Cow::Borrowed("") };
    let mut rest = texts.peekable();
    if rest.peek().is_none() {
        return first;
    }
    let mut all = first.into_owned();
    for text in rest {
        all.push('\n');
        all.push_str(&text);
    }
    Cow::Owned(all)
}

/// vLLM drops a line of Claude Code's that is different in every request.
fn strip_billing_header(parts: &mut Vec<Part<'_>>) {
    parts.retain_mut(|part| {
        let Part::Text(text, _) = part else { return true };
        if !text.starts_with("x-anthropic-billing-header") {
            return true;
        }
        match text.split_once('\n') {
            Some((_, rest)) if !rest.is_empty() => {
                *text = Cow::Owned(rest.to_owned());
                true
            }
            _ => false,
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `parse_chat_messages` of vLLM 0.32 (vllm/renderers/chat_utils.py) makes of it; and
    /// transformers 5.19 renders that as it is.
    #[test]
    fn reasoning_is_passed_under_the_engines_names_alone() {
        let body =
            r#"[{"role":"assistant","content":"","reasoning_content":"need tool","thinking":"x"}]"#;
        let messages: Vec<Json<'_>> = serde_json::from_str(body).unwrap();
        let style = Style { parts: false, developer: true };
        let conversation = Conversation::new(&messages, style).unwrap();
        let names: Vec<_> = conversation.messages[0].iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["role", "content", "reasoning", "reasoning_content"]);
    }
}
