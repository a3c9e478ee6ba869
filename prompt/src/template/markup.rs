//! Texts marked as safe, as markupsafe's `Markup`: what they are added to is escaped.
//!
//! Source: markupsafe 3.0 (`Markup`), Jinja2 3.1.6 (filters.py, without autoescaping).

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use crate::json::print;

/// Text with what means something in HTML escaped.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            char => out.push(char),
        }
    }
    out
}

/// `escape(value)`
#[allow(clippy::needless_pass_by_value)] // What a filter is given.
pub(crate) fn escape(value: Value) -> Value {
    if value.is_safe() {
        return value;
    }
    Value::from_safe_string(escaped(&print::str(&value)))
}

/// A text made of another one, marked as that is.
pub(crate) fn marked_as(value: &Value, text: String) -> Value {
    if value.is_safe() { Value::from_safe_string(text) } else { Value::from(text) }
}

/// `left + right`, of which the engine counts what comes of it, as it does with each filter's.
pub(crate) fn sum(left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(one), Some(two)) = (left.as_str(), right.as_str()) {
        return Ok(match (left.is_safe(), right.is_safe()) {
            (false, false) => Value::from([one, two].concat()),
            (true, true) => Value::from_safe_string([one, two].concat()),
            (true, false) => Value::from_safe_string([one, &escaped(two)].concat()),
            (false, true) => Value::from_safe_string([&escaped(one), two].concat()),
        });
    }
    let is_list = |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) && !value.is_tuple()
    };
    if is_list(left) && is_list(right) {
        return Ok(left.try_iter()?.chain(right.try_iter()?).collect());
    }
    let impossible = || Error::new(ErrorKind::InvalidOperation, "a sum of other things");
    let integer = |value: &Value| match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    };
    if let (Some(one), Some(two)) = (integer(left), integer(right)) {
        return one.checked_add(two).map(Value::from).ok_or_else(impossible);
    }
    let float = |value: &Value| match integer(value) {
        #[allow(clippy::cast_precision_loss)] // As Python does.
        Some(number) => Some(number as f64),
        None if value.kind() == ValueKind::Number => f64::try_from(value.clone()).ok(),
        None => None,
    };
    match (float(left), float(right)) {
        (Some(one), Some(two)) => Ok(print::float_value(one + two)),
        _ => Err(impossible()),
    }
}

/// `do_indent`
pub(crate) fn indent(
    text: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
) -> Result<Value, Error> {
    let indention = match width {
        None => "    ".to_owned(),
        Some(width) => match (width.as_str(), width.as_usize()) {
            (Some(text), _) => text.to_owned(),
            (None, Some(width)) => " ".repeat(width.min(256)),
            (None, None) => return Err(Error::new(ErrorKind::InvalidOperation, "a width")),
        },
    };
    let Some(of) = text.as_str() else {
        return Err(Error::new(ErrorKind::InvalidOperation, "an indent of no text"));
    };
    let mut out = String::with_capacity(of.len() + 64);
    for (at, line) in lines(&format!("{of}\n")).into_iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        let indented =
            if at == 0 { first == Some(true) } else { blank == Some(true) || !line.is_empty() };
        if indented {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    Ok(marked_as(text, out))
}

/// `str.splitlines()`
fn lines(text: &str) -> Vec<&str> {
    let is_end = |char| {
        matches!(
            char,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some(end) = rest.find(is_end) else {
            lines.push(rest);
            break;
        };
        let (line, after) = rest.split_at(end);
        lines.push(line);
        let mut chars = after.chars();
        if chars.next() == Some('\r') && chars.as_str().starts_with('\n') {
            chars.next();
        }
        rest = chars.as_str();
    }
    lines
}

/// `str.title()` of ASCII; none for what has other letters.
pub(crate) fn title(text: &str) -> Option<String> {
    if !text.is_ascii() {
        return None;
    }
    let mut after_letter = false;
    let letter = |char: char| {
        let cased =
            if after_letter { char.to_ascii_lowercase() } else { char.to_ascii_uppercase() };
        after_letter = char.is_ascii_alphabetic();
        cased
    };
    Some(text.chars().map(letter).collect())
}
