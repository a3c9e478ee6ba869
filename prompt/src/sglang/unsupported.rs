//! Why a request to SGLang is not followed.

/// What can't be followed, by name.
pub(super) type Unsupported = &'static str;
