//! JSON as Python's `json.loads` reads it, where that takes more than JSON: integers of any length
//! kept exact, `NaN` and `Infinity`, floats beyond all bounds, and a body in UTF-16 or UTF-32.
//! FastAPI, which vLLM 0.32 stands on, reads bodies so (starlette/requests.py, `Request.json`), and
//! vLLM the arguments of tool calls (vllm/renderers/chat_utils.py, `_postprocess_messages`).
//!
//! It is slower than what is asked first, and comes in only where that fails.

use std::borrow::Cow;

use jiter::{Jiter, JiterError, JiterErrorType, JsonErrorType, Peek};

use crate::json::{Json, Pairs};

/// Values inside of values, as many as `serde_json` takes.
const MOST_DEEP: usize = 128;

/// Why a text is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It is nothing to Python either.
    NotJson,
    /// It is JSON, but not an object.
    NotAnObject,
    /// Python may make something of it: halves of surrogates, what is nested deeply, or a number
    /// that it doesn't take, which is another error to it.
    Beyond,
}

impl From<JiterError> for Unread {
    fn from(error: JiterError) -> Self {
        match error.error_type {
            JiterErrorType::JsonError(
                JsonErrorType::RecursionLimitExceeded
                | JsonErrorType::NumberOutOfRange
                | JsonErrorType::InvalidUnicodeCodePoint
                | JsonErrorType::LoneLeadingSurrogateInHexEscape
                | JsonErrorType::UnexpectedEndOfHexEscape,
            ) => Self::Beyond,
            _ => Self::NotJson,
        }
    }
}

/// The one value of a text.
pub(crate) fn read(text: &[u8]) -> Result<Json<'static>, Unread> {
    let mut reader = Jiter::new(text).with_allow_inf_nan();
    let peek = reader.peek()?;
    let json = value(&mut reader, peek, 0)?;
    reader.finish()?;
    Ok(json)
}

pub(crate) fn value(
    reader: &mut Jiter<'_>,
    peek: Peek,
    depth: usize,
) -> Result<Json<'static>, Unread> {
    if depth >= MOST_DEEP {
        return Err(Unread::Beyond);
    }
    Ok(match peek {
        Peek::Null => {
            reader.known_null()?;
            Json::Null
        }
        Peek::True | Peek::False => Json::Bool(reader.known_bool(peek)?),
        Peek::String => Json::Str(Cow::Owned(reader.known_str()?.to_owned())),
        Peek::Array => {
            let mut items = Vec::new();
            let mut next = reader.known_array()?;
            while let Some(peek) = next {
                items.push(value(reader, peek, depth + 1)?);
                next = reader.array_step()?;
            }
            Json::List(items)
        }
        Peek::Object => {
            let mut pairs = Pairs::default();
            let mut next = reader.known_object()?.map(str::to_owned);
            while let Some(key) = next {
                let peek = reader.peek()?;
                pairs.put(Cow::Owned(key), value(reader, peek, depth + 1)?);
                next = reader.next_key()?.map(str::to_owned);
            }
            Json::Map(pairs.into_inner())
        }
        peek => number(reader.known_number_bytes(peek)?).ok_or(Unread::NotJson)?,
    })
}

fn number(text: &[u8]) -> Option<Json<'static>> {
    let text = str::from_utf8(text).ok()?;
    let is_integer = text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit());
    if !is_integer {
        // Also "NaN", "Infinity" and "-Infinity".
        return text.parse().ok().map(Json::Float);
    }
    Some(match (text.parse(), text.parse()) {
        (Ok(number), _) => Json::Int(number),
        (_, Ok(number)) => Json::Unsigned(number),
        _ => Json::Long(text.into()),
    })
}

/// A body in UTF-8, out of the encoding that Python finds by its first bytes (json/__init__.py,
/// `detect_encoding`).
pub(crate) fn decoded(body: &[u8]) -> Option<Cow<'_, [u8]>> {
    type Units = fn(&[u8], bool) -> Option<String>;
    let (decode, big, skip): (Units, bool, usize) = match *body {
        [0, 0, 0xfe, 0xff, ..] => (utf32, true, 4),
        [0xff, 0xfe, 0, 0, ..] => (utf32, false, 4),
        [0xfe, 0xff, ..] => (utf16, true, 2),
        [0xff, 0xfe, ..] => (utf16, false, 2),
        [0, 0, _, _, ..] => (utf32, true, 0),
        [0, _, _, _, ..] | [0, _] => (utf16, true, 0),
        [_, 0, 0, 0, ..] => (utf32, false, 0),
        [_, 0, _, _, ..] | [_, 0] => (utf16, false, 0),
        _ => return Some(Cow::Borrowed(body)),
    };
    decode(body.get(skip..)?, big).map(|text| Cow::Owned(text.into_bytes()))
}

fn utf16(bytes: &[u8], big: bool) -> Option<String> {
    let (units, []) = bytes.as_chunks::<2>() else { return None };
    let unit = |bytes: &[u8; 2]| {
        if big { u16::from_be_bytes(*bytes) } else { u16::from_le_bytes(*bytes) }
    };
    char::decode_utf16(units.iter().map(unit)).collect::<Result<_, _>>().ok()
}

fn utf32(bytes: &[u8], big: bool) -> Option<String> {
    let (units, []) = bytes.as_chunks::<4>() else { return None };
    let unit = |bytes: &[u8; 4]| {
        char::from_u32(if big { u32::from_be_bytes(*bytes) } else { u32::from_le_bytes(*bytes) })
    };
    units.iter().map(unit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against Python 3.11's `json.loads`.
    #[test]
    fn what_python_reads_is_read() {
        for (text, json) in [
            ("1e20", Json::Float(1e20)),
            ("1E400", Json::Float(f64::INFINITY)),
            ("-Infinity", Json::Float(f64::NEG_INFINITY)),
            ("-0", Json::Int(0)),
            ("18446744073709551615", Json::Unsigned(u64::MAX)),
            ("-9223372036854775809", Json::Long("-9223372036854775809".into())),
            ("12345678901234567890123", Json::Long("12345678901234567890123".into())),
            (" [true, null] ", Json::List(vec![Json::Bool(true), Json::Null])),
        ] {
            assert_eq!(read(text.as_bytes()), Ok(json), "{text}");
        }
        let Ok(Json::Float(nan)) = read(b"NaN") else { panic!() };
        assert!(nan.is_nan());
        for text in
            ["", "-NaN", "+1", "01", "1.", ".5", "nan", "inf", "[1,]", "1 2", "'a'", "\"\n\""]
        {
            assert_eq!(read(text.as_bytes()), Err(Unread::NotJson), "{text}");
        }
        let digits = |count: usize| "1".repeat(count);
        assert!(read(digits(4300).as_bytes()).is_ok());
        for text in [digits(4301), r#""\ud800""#.into(), "[".repeat(2000) + &"]".repeat(2000)] {
            assert_eq!(read(text.as_bytes()), Err(Unread::Beyond));
        }
    }
}
