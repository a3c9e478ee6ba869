//! What one worker remembers of prompts, and the way from a request to its prefix.

pub(crate) mod beginnings;
pub(crate) mod memo;
pub(crate) mod prompter;
