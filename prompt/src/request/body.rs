//! The one way from a body's bytes to the fields of the APIs.

use jiter::{Jiter, Peek};

use crate::error::RequestError;
use crate::json::read::{Unread, decoded, value};
use crate::request::fields::Fields;

/// The fields of a body.
///
/// # Errors
/// [`RequestError`] if the engine, too, could not read it as a JSON object.
pub(crate) fn parse_fields(body: &[u8]) -> Result<Fields<'_>, RequestError> {
    let body = without_mark(body);
    serde_json::from_slice(body).or_else(|error: serde_json::Error| {
        as_python(body).map_err(|unread| match unread {
            Unread::NotAnObject => RequestError::NotAnObject,
            Unread::NotJson | Unread::Beyond => {
                RequestError::NotJson { line: error.line(), column: error.column() }
            }
        })
    })
}

/// A body without the byte order mark before it, which Python takes off.
pub(crate) fn without_mark(body: &[u8]) -> &[u8] {
    body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body)
}

/// The fields of a body as Python reads it, which takes more than JSON.
fn as_python(body: &[u8]) -> Result<Fields<'static>, Unread> {
    let body = decoded(body).ok_or(Unread::NotJson)?;
    let mut reader = Jiter::new(&body).with_allow_inf_nan();
    if reader.peek()? != Peek::Object {
        reader.next_skip()?;
        reader.finish()?;
        return Err(Unread::NotAnObject);
    }
    let mut fields = Fields::default();
    let mut next = reader.known_object()?.map(str::to_owned);
    while let Some(key) = next {
        if Fields::knows(&key) {
            let peek = reader.peek()?;
            let json = value(&mut reader, peek, 1)?;
            fields.set(&key, json);
        } else {
            reader.next_skip()?;
        }
        next = reader.next_key()?.map(str::to_owned);
    }
    reader.finish()?;
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Json;

    #[test]
    fn bodies_are_read_in_the_encodings_that_python_tells() {
        let text = r#"{"model":"é🙂","prompt":"x"}"#;
        let utf16 = |mark: &str, big: bool| {
            let units = mark.encode_utf16().chain(text.encode_utf16());
            let bytes = |unit: u16| if big { unit.to_be_bytes() } else { unit.to_le_bytes() };
            units.flat_map(bytes).collect::<Vec<u8>>()
        };
        let utf32 = |mark: &str, big: bool| {
            let units = mark.chars().chain(text.chars()).map(u32::from);
            let bytes = |unit: u32| if big { unit.to_be_bytes() } else { unit.to_le_bytes() };
            units.flat_map(bytes).collect::<Vec<u8>>()
        };
        for mark in ["", "\u{feff}"] {
            for big in [false, true] {
                for body in [utf16(mark, big), utf32(mark, big)] {
                    let model = as_python(&body).unwrap().model;
                    assert_eq!(model, Some(Json::Str("é🙂".into())));
                    assert!(as_python(&body[..body.len() - 1]).is_err());
                }
            }
        }
    }
}
