//! Numbers of things in words.

/// A number of things, with their noun in singular or plural.
pub(super) fn number(count: usize, of: &str) -> String {
    if count == 1 { format!("1 {of}") } else { format!("{count} {of}s") }
}
