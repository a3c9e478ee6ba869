//! JSON in which no object has a key twice.
//!
//! Parsers take one of the two in silence, and a policy whose second `eu` says something else than
//! its first binds nobody to what is read there first.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Checks a JSON text.
///
/// # Errors
/// When it is no JSON, or an object in it has a key twice; with line and column.
pub fn check(text: &[u8]) -> Result<(), serde_json::Error> {
    serde_json::from_slice::<Unique>(text).map(|_| ())
}

struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Unique;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_str<E>(self, _: &str) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Unique, A::Error> {
        while items.next_element::<Unique>()?.is_some() {}
        Ok(Unique)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Unique, A::Error> {
        let mut keys = BTreeSet::new();
        while let Some(key) = fields.next_key::<String>()? {
            if keys.contains(&key) {
                return Err(A::Error::custom(format_args!("{key:?} is there twice")));
            }
            fields.next_value::<Unique>()?;
            keys.insert(key);
        }
        Ok(Unique)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_come_again_elsewhere_but_not_in_the_same_object() {
        assert!(check(br#"{"a":{"a":1,"b":[{"a":null},{"a":true}]},"b":-1.5}"#).is_ok());
        let error = check(b"{\"zones\":{\"eu\":{},\n\"eu\":{}}}").unwrap_err().to_string();
        assert!(error.starts_with("\"eu\" is there twice at line 2"), "{error}");
        assert!(check(br#"{"a":[{"b":1,"\u0062":2}]}"#).is_err(), "however it is written");
        assert!(check(b"{").is_err());
    }
}
