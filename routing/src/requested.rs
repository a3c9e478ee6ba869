//! What a request says of its model.

use std::borrow::Cow;

/// What a request says of its model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Requested<'a> {
    /// A name.
    Name(Cow<'a, str>),
    /// It was read, and names none.
    #[default]
    Nothing,
    /// It could not be read, so it may name any.
    Unreadable,
}

impl<'a> Requested<'a> {
    /// By the name that an API's `model` field has; an empty one is none, as for engines.
    pub fn by_name(name: impl Into<Cow<'a, str>>) -> Self {
        let name = name.into();
        if name.is_empty() { Self::Nothing } else { Self::Name(name) }
    }

    /// The same, on its own.
    pub fn into_owned(self) -> Requested<'static> {
        match self {
            Self::Name(name) => Requested::Name(name.into_owned().into()),
            Self::Nothing => Requested::Nothing,
            Self::Unreadable => Requested::Unreadable,
        }
    }
}
