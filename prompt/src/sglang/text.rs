//! Fields that are a text or null.

use crate::error::PromptError;
use crate::json::Json;

/// A field that is a text, if it is there.
pub(super) fn text<'j>(json: &'j Json<'_>, name: &str) -> Result<Option<&'j str>, PromptError> {
    match json.get(name) {
        None => Ok(None),
        Some(Json::Str(text)) => Ok(Some(text)),
        Some(_) => Err(PromptError::UnsupportedContent("a field that is no text")),
    }
}
