//! Python's `strip`.

use std::ops::Range;

use crate::json::print;

/// What `str.strip()` leaves of a text, at its start or end or both.
pub(crate) fn strip<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    text.get(strip_range(text, chars, start, end)).unwrap_or_default()
}

/// From where to where that is.
pub(crate) fn strip_range(text: &str, chars: Option<&str>, start: bool, end: bool) -> Range<usize> {
    let takes = |char: char| match chars {
        Some(chars) => chars.contains(char),
        None => print::is_space(char),
    };
    let rest = if start { text.trim_start_matches(takes) } else { text };
    let from = text.len() - rest.len();
    from..from + if end { rest.trim_end_matches(takes) } else { rest }.len()
}
