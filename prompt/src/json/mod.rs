//! JSON as the engine sees it: order kept, the last of equal keys wins, strings borrowed.

pub(crate) mod lenient;
pub(crate) mod print;
pub(crate) mod read;
pub(crate) mod tree;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use minijinja::Value;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::json::print::{LongInt, float_value, written};

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Unsigned(u64),
    Float(f64),
    /// The digits of an integer that is beyond 64 bits.
    Long(Box<str>),
    Str(Cow<'a, str>),
    List(Vec<Json<'a>>),
    Map(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl<'a> Json<'a> {
    pub(crate) fn str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    pub(crate) fn map(&self) -> Option<&[(Cow<'a, str>, Json<'a>)]> {
        match self {
            Self::Map(pairs) => Some(pairs),
            _ => None,
        }
    }

    pub(crate) fn list(&self) -> Option<&[Json<'a>]> {
        match self {
            Self::List(items) => Some(items),
            _ => None,
        }
    }

    /// The value of a key; none also when it is null.
    pub(crate) fn get(&self, key: &str) -> Option<&Json<'a>> {
        self.map()?
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value)
            .filter(|v| !v.is_null())
    }

    /// An object of these.
    pub(crate) fn object(pairs: impl IntoIterator<Item = (&'static str, Json<'a>)>) -> Json<'a> {
        Self::Map(pairs.into_iter().map(|(key, value)| (Cow::Borrowed(key), value)).collect())
    }

    /// Takes the value of a key out; none also when it is null.
    pub(crate) fn take(&mut self, key: &str) -> Option<Json<'a>> {
        let Self::Map(pairs) = self else { return None };
        let place = pairs.iter_mut().find(|(name, _)| name == key).map(|(_, value)| value)?;
        Some(std::mem::replace(place, Self::Null)).filter(|value| !value.is_null())
    }

    /// Its text, if it is one.
    pub(crate) fn into_text(self) -> Option<Cow<'a, str>> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    /// How many values are in it, itself among them.
    pub(crate) fn values(&self) -> usize {
        match self {
            Self::List(items) => 1 + items.iter().map(Self::values).sum::<usize>(),
            Self::Map(pairs) => 1 + pairs.iter().map(|(_, value)| value.values()).sum::<usize>(),
            _ => 1,
        }
    }

    pub(crate) fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::from(()),
            Self::Long(digits) => LongInt::value(digits),
            Self::Bool(value) => Value::from(*value),
            Self::Int(number) => Value::from(*number),
            Self::Unsigned(number) => Value::from(*number),
            Self::Float(number) => float_value(*number),
            Self::Str(text) => Value::from(text.as_ref()),
            Self::List(items) => written(items.iter().map(Self::to_value).collect()),
            Self::Map(pairs) => written(Value::from_pairs(
                pairs.iter().map(|(key, value)| (key.as_ref(), value.to_value())),
            )),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Json<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Json::Int(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(i64::try_from(number).map_or(Json::Unsigned(number), Json::Int))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Self::Value, E> {
        // It may have been an integer that is too long, or -0: the other reader tells.
        if number.abs() >= 9.2e18 || (number == 0.0 && number.is_sign_negative()) {
            return Err(E::custom("a number that may be an integer"));
        }
        Ok(Json::Float(number))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Json::Str(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Json::Str(Cow::Owned(text.to_owned())))
    }

    fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
        Ok(Json::Str(Cow::Owned(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Json::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Pairs::default();
        while let Some(Text(key)) = access.next_key()? {
            pairs.put(key, access.next_value()?);
        }
        Ok(Json::Map(pairs.into_inner()))
    }
}

const MANY_KEYS: usize = 16;

/// The pairs of an object: the last of equal keys wins, in the place of the first.
#[derive(Default)]
pub(crate) struct Pairs<'a> {
    pairs: Vec<(Cow<'a, str>, Json<'a>)>,
    places: HashMap<Cow<'a, str>, usize>,
}

impl<'a> Pairs<'a> {
    pub(crate) fn put(&mut self, key: Cow<'a, str>, value: Json<'a>) {
        let Self { pairs, places } = self;
        // A map of many keys must not take quadratic time.
        if pairs.len() == MANY_KEYS {
            *places = pairs.iter().enumerate().map(|(at, (key, _))| (key.clone(), at)).collect();
        }
        let known = if pairs.len() < MANY_KEYS {
            pairs.iter().position(|(name, _)| *name == key)
        } else {
            places.get(&key).copied()
        };
        if let Some(pair) = known.and_then(|at| pairs.get_mut(at)) {
            pair.1 = value;
        } else {
            if pairs.len() >= MANY_KEYS {
                places.insert(key.clone(), pairs.len());
            }
            pairs.push((key, value));
        }
    }

    pub(crate) fn into_inner(self) -> Vec<(Cow<'a, str>, Json<'a>)> {
        self.pairs
    }
}

/// A string that borrows where it can.
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_equal_keys_wins_in_the_place_of_the_first() {
        for extra in [0, 40] {
            let fill: Vec<_> = (0..extra).map(|i| format!(r#""k{i}":0,"#)).collect();
            let fill = fill.concat();
            let text = format!(r#"{{"a":1,{fill}"b":2,"a":3,"b":4}}"#);
            let json: Json<'_> = serde_json::from_str(&text).unwrap();
            let pairs = json.map().unwrap();
            assert_eq!(pairs.len(), extra + 2);
            assert_eq!(pairs[0], ("a".into(), Json::Int(3)));
            assert_eq!(pairs[extra + 1], ("b".into(), Json::Int(4)));
        }
    }

    #[test]
    fn numbers_that_may_be_long_integers_are_left_to_the_other_reader() {
        assert!(serde_json::from_str::<Json<'_>>("[18446744073709551615, 1e5, 0.0]").is_ok());
        for text in ["[{\"a\": 18446744073709551616}]", "1e20", "-0"] {
            assert!(serde_json::from_str::<Json<'_>>(text).is_err(), "{text}");
        }
    }
}
