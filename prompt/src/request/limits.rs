//! Bounds on what one request may make a worker do.

/// JSON values in what a template sees: a worker is not held up by more. A conversation of a
/// thousand turns with tool calls has about ten thousand.
pub(crate) const MAX_VALUES: usize = 32_768;

/// What a request with more is refused for.
pub(crate) const VERY_MANY_VALUES: &str = "very many values";
