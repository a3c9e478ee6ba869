//! What is not followed.

/// What can't be followed, by name.
pub(super) type Unsupported = &'static str;
