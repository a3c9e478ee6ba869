//! A prompt as text, as far as it is certain.

use std::borrow::Cow;

use crate::error::PromptError;
use crate::json::Json;
use crate::model::Model;
use crate::template::context::Context;
use crate::template::conversation::{Conversation, MEDIA};

/// Tokens that an image or another medium is taken for: its own number is known to the engine only.
/// Some models take 256 for any image, others a thousand and more for one of a megapixel.
const TOKENS_PER_MEDIUM: usize = 1024;

/// A prompt as text, before it is tokenized.
pub(crate) struct Text<'a> {
    pub(crate) content: Cow<'a, str>,
    /// The ids that the tokenizer puts around a text are added.
    pub(crate) marked: bool,
    /// The text ends where something that isn't text begins.
    pub(crate) media: Option<Media>,
    /// Another text comes after it, which is tokenized by itself.
    pub(crate) continued: Option<String>,
}

/// What comes after the text that is known.
#[derive(Clone, Copy)]
pub(crate) struct Media {
    /// Images and the like.
    pub(crate) count: usize,
    /// Bytes of text between and after them, about.
    pub(crate) bytes: usize,
}

impl Media {
    pub(crate) fn tokens(self) -> usize {
        self.count.saturating_mul(TOKENS_PER_MEDIUM)
    }
}

/// A prompt as far as it is certain, and what comes after that, if it has media.
pub(crate) fn cut_at_media(
    model: &Model,
    number: usize,
    conversation: &Conversation<'_>,
    context: &Context<'_>,
    mut text: String,
) -> Result<(String, Option<Media>), PromptError> {
    let template = &model.template;
    let mut media = None;
    if conversation.media > 0 {
        // What media add is known to the engine only. Text is certain as far as it is the same
        // with the media marked as what they are, and with a text in their place.
        let mut certain = text.find(MEDIA).unwrap_or(0);
        if template.takes_parts(number) {
            let other = template.interpret(number, conversation.to_value(true), context)?;
            let same = text.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
            certain = certain.min(same);
        }
        while !text.is_char_boundary(certain) {
            certain -= 1;
        }
        let written = text.len() - text.matches(MEDIA).count() * MEDIA.len();
        text.truncate(certain);
        let cut = model.tokenizer.last_cut(&text, 0, 0);
        text.truncate(cut.map_or(0, |(cut, _)| cut));
        media = Some(Media {
            count: conversation.media,
            bytes: (written + conversation.beside_media).saturating_sub(text.len()),
        });
    }
    Ok((text, media))
}

/// These, if they are a list of objects.
pub(crate) fn documents_of<'c>(
    documents: Option<&'c Json<'c>>,
) -> Result<Option<&'c Json<'c>>, PromptError> {
    match documents.map(|documents| documents.list()) {
        Some(Some(list)) if list.iter().all(|item| item.map().is_some()) => Ok(documents),
        None => Ok(None),
        Some(_) => Err(PromptError::UnsupportedContent("documents")),
    }
}
