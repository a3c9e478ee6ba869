//! Reading a body for the model that it names, and for nothing else.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use warmpath_routing::requested::Requested;

use crate::json::{Json, Text};
use crate::request::body::without_mark;
use crate::request::model_name::{ModelFinder, Search};

/// By a body that is there to its end, of the type that its `content-type` header says. Of a key
/// that comes twice the last one counts, as for engines; a body that is no JSON to its end is
/// asked for the first.
pub fn model_in_body<'a>(content_type: Option<&[u8]>, body: &'a [u8]) -> Requested<'a> {
    let body = without_mark(body);
    match serde_json::from_slice(body) {
        Ok(Named(None | Some(Json::Null))) => Requested::Nothing,
        Ok(Named(Some(Json::Str(name)))) => Requested::by_name(name),
        Ok(Named(Some(_))) => Requested::Unreadable,
        Err(_) => {
            let mut finder = ModelFinder::new(content_type);
            match finder.feed(body) {
                Search::More => finder.end().into(),
                said => said.into(),
            }
        }
    }
}

impl From<Search> for Requested<'_> {
    fn from(said: Search) -> Self {
        match said {
            Search::Found(name) => Requested::Name(name.into()),
            Search::Absent => Self::Nothing,
            Search::More | Search::Unreadable => Self::Unreadable,
        }
    }
}

/// The last `model` of an object; all else is passed over.
struct Named<'a>(Option<Json<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Named<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NamedVisitor)
    }
}

struct NamedVisitor;

impl<'de> Visitor<'de> for NamedVisitor {
    type Value = Named<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut model = None;
        while let Some(Text(key)) = access.next_key()? {
            if key == "model" {
                model = Some(access.next_value()?);
            } else {
                access.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Named(model))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &str) -> Requested<'_> {
        model_in_body(None, body.as_bytes())
    }

    #[test]
    fn what_engines_read_is_read() {
        for (body, name) in [
            (r#"{"model": "a"}"#, "a"),
            (r#"{"model": "a", "x": {"model": "b"}, "model": "c"}"#, "c"),
            (r#"{"model": 1, "\u006dodel": "\u0061b"}"#, "ab"),
            // Cut off, or no JSON at its end.
            (r#"{"model": "a", "messages": ["#, "a"),
            (r#"{"model": "a"} rest"#, "a"),
        ] {
            assert_eq!(of(body), Requested::Name(name.into()), "{body}");
        }
        for body in ["", "{}", r#"{"model": null}"#, r#"{"model": ""}"#, r#"{"x": {"model": "b"}}"#]
        {
            assert_eq!(of(body), Requested::Nothing, "{body}");
        }
        for body in ["[]", "\"model\"", r#"{"model": 1}"#, r#"{"model": ["a"]}"#, "\u{0}x"] {
            assert_eq!(of(body), Requested::Unreadable, "{body}");
        }
    }

    #[test]
    fn forms_are_read_by_their_type() {
        let form =
            b"--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nbeta\r\n--x--\r\n";
        let of = |kind: &[u8]| model_in_body(Some(kind), form);
        assert_eq!(of(b"multipart/form-data; boundary=x"), Requested::Name("beta".into()));
        assert_eq!(of(b"multipart/form-data; boundary=y"), Requested::Unreadable);
        assert_eq!(of(b"application/json"), Requested::Unreadable);
    }
}
