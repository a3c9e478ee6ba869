//! A port, as configurations name it.

/// A port: its number, or its name in the EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(untagged)]
pub enum Port {
    /// Its number.
    Number(u16),
    /// Its name.
    Name(String),
}
