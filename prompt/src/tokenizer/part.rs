//! A part of a text: an added token, or what stands between two.

use crate::tokenizer::spaces::Opening;

/// A part of a text: an added token, or text between such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) added: Option<u32>,
    /// What begins with it, if it is text.
    pub(crate) opening: Opening,
}
