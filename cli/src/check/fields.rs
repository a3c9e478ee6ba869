//! Fields of Envoy's messages of which it is known what they lead to.
//!
//! A field that isn't here is not known: a new version of Envoy can say in it whatever it likes.
//! Source: envoy/api as of 1.40.

mod cluster;
mod field;
mod http;
mod server;

pub(super) use field::Field;

use super::node::same;

/// What is known of a message's field, in either spelling.
pub(super) fn field(message: &str, key: &str) -> Option<Field> {
    let mut messages = [server::MESSAGES, http::MESSAGES, cluster::MESSAGES].into_iter().flatten();
    let (_, fields) = messages.find(|(name, _)| *name == message)?;
    let named = |(_, names): &&(Field, &[&str])| names.iter().any(|name| same(key, name));
    fields.iter().find(named).map(|(field, _)| *field)
}
