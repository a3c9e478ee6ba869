//! What a template is given beside the messages.

use minijinja::Value;

use crate::json::tree::Tree;

/// What a template is given beside the messages.
#[derive(Debug, Default)]
pub(crate) struct Context<'a> {
    pub(crate) tools: Option<Tree<'a>>,
    pub(crate) documents: Option<Tree<'a>>,
    pub(crate) add_generation_prompt: bool,
    /// Further variables by name; they go before the special tokens.
    pub(crate) variables: Vec<(String, Value)>,
    /// What `strftime_now` calls now, in seconds since 1970.
    pub(crate) now_unix: i64,
}
