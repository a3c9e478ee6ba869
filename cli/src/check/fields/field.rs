//! What a field of a message holds.

use crate::check::known::Category;

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::check) enum Field {
    /// Nothing that leads anywhere, but for types in it.
    Plain,
    /// Free data, or what another part of the check follows.
    Skipped,
    /// A message, a list or a map of it.
    Message(&'static str),
    /// An extension, or a list of them.
    Extension(Category),
    /// Extensions' settings by the extensions' names.
    Settings(Category),
}

/// Fields of one message, by what they hold.
pub(super) type Fields = &'static [(Field, &'static [&'static str])];
