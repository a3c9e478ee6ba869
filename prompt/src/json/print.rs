//! Values written as Python writes them: `str()`, `repr()`, `json.dumps()`.

use std::fmt::{self, Write};
use std::sync::Arc;

use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, Value, ValueKind};

/// An integer beyond the template engine's, which are of 128 bits. It can be written only.
pub(crate) struct LongInt(Box<str>);

impl fmt::Debug for LongInt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl LongInt {
    /// What these digits are to the engine.
    pub(crate) fn value(digits: &str) -> Value {
        match digits.parse::<i128>() {
            Ok(number) => Value::from(number),
            Err(_) => Value::from_object(Self(digits.into())),
        }
    }

    pub(crate) fn is(value: &Value) -> bool {
        value.kind() == ValueKind::Plain && value.downcast_object_ref::<Self>().is_some()
    }
}

impl Object for LongInt {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A float that Python writes with an exponent, or as `nan`, which the engine doesn't. It can be
/// written only.
#[derive(Clone, Copy)]
pub(crate) struct FarFloat(f64);

/// What a float is to the engine.
pub(crate) fn float_value(number: f64) -> Value {
    let is_far = number.is_nan()
        || number.is_finite() && number != 0.0 && {
            let size = number.abs();
            !(1e-4..1e16).contains(&size)
        };
    if is_far { Value::from_object(FarFloat(number)) } else { Value::from(number) }
}

impl FarFloat {
    fn of(value: &Value) -> Option<f64> {
        value.downcast_object_ref::<Self>().map(|float| float.0)
    }

    pub(crate) fn is(value: &Value) -> bool {
        value.kind() == ValueKind::Plain && Self::of(value).is_some()
    }
}

impl fmt::Debug for FarFloat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&float(self.0))
    }
}

impl Object for FarFloat {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A list or a map of a request, which is written as Python writes it, wherever it becomes a text.
struct Written(Value);

/// A list or a map that is written so.
pub(crate) fn written(value: Value) -> Value {
    if value.as_object().is_some() { Value::from_object(Written(value)) } else { value }
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        repr(&self.0, &mut out);
        f.write_str(&out)
    }
}

impl Object for Written {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        self.0.as_object().map_or(ObjectRepr::Plain, DynObject::repr)
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.as_object()?.get_value(key)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.0.as_object()?.get_value_by_str(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.0.as_object().map_or(Enumerator::NonEnumerable, DynObject::enumerate)
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.0.as_object()?.enumerator_len()
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How `json.dumps` is called.
#[derive(Clone, Debug)]
pub(crate) struct Dumps {
    pub(crate) indent: Option<String>,
    pub(crate) item_separator: String,
    pub(crate) key_separator: String,
    pub(crate) sort_keys: bool,
    pub(crate) ensure_ascii: bool,
}

impl Default for Dumps {
    fn default() -> Self {
        Self {
            indent: None,
            item_separator: ", ".into(),
            key_separator: ": ".into(),
            sort_keys: false,
            ensure_ascii: false,
        }
    }
}

/// A value that Python's json can't write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotSerializable;

impl Dumps {
    pub(crate) fn write(&self, value: &Value) -> Result<String, NotSerializable> {
        let mut out = String::new();
        self.value(value, 0, &mut out)?;
        Ok(out)
    }

    fn value(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), NotSerializable> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value, json_float)),
            ValueKind::Plain if LongInt::is(value) => out.push_str(&value.to_string()),
            ValueKind::Plain => match FarFloat::of(value) {
                Some(number) => out.push_str(&json_float(number)),
                None => return Err(NotSerializable),
            },
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<_> = value.try_iter().map_err(|_| NotSerializable)?.collect();
                self.block(items.len(), '[', ']', depth, out, |at, out| match items.get(at) {
                    Some(item) => self.value(item, depth + 1, out),
                    None => Ok(()),
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<_> = value.try_iter().map_err(|_| NotSerializable)?.collect();
                if self.sort_keys {
                    keys.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
                }
                self.block(keys.len(), '{', '}', depth, out, |at, out| {
                    let key = keys.get(at).ok_or(NotSerializable)?;
                    match key.kind() {
                        ValueKind::String => self.string(key.as_str().unwrap_or_default(), out),
                        ValueKind::Number => self.string(&number(key, json_float), out),
                        ValueKind::Bool => {
                            self.string(if key.is_true() { "true" } else { "false" }, out);
                        }
                        ValueKind::None => self.string("null", out),
                        _ => return Err(NotSerializable),
                    }
                    out.push_str(&self.key_separator);
                    let item = value.get_item(key).map_err(|_| NotSerializable)?;
                    self.value(&item, depth + 1, out)
                })?;
            }
            _ => return Err(NotSerializable),
        }
        Ok(())
    }

    /// Appends so many items in brackets, each in its line if there is an indent.
    pub(crate) fn block(
        &self,
        count: usize,
        open: char,
        close: char,
        depth: usize,
        out: &mut String,
        mut item: impl FnMut(usize, &mut String) -> Result<(), NotSerializable>,
    ) -> Result<(), NotSerializable> {
        out.push(open);
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                for _ in 0..depth {
                    out.push_str(indent);
                }
            }
        };
        for at in 0..count {
            if at > 0 {
                out.push_str(&self.item_separator);
            }
            line(depth + 1, out);
            item(at, out)?;
        }
        if count > 0 {
            line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    /// Appends a text in its quotes.
    pub(crate) fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for char in text.chars() {
            match char {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                char if char < ' ' || (self.ensure_ascii && char > '~') => {
                    let mut units = [0; 2];
                    for unit in char.encode_utf16(&mut units) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                char => out.push(char),
            }
        }
        out.push('"');
    }
}

/// `str(value)`.
pub(crate) fn str(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        ValueKind::Undefined => String::new(),
        _ => {
            let mut out = String::new();
            repr(value, &mut out);
            out
        }
    }
}

/// Appends `repr(value)`.
pub(crate) fn repr(value: &Value, out: &mut String) {
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value, float)),
        ValueKind::String => repr_str(value.as_str().unwrap_or_default(), out),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Map => {
            out.push('{');
            if let Ok(keys) = value.try_iter() {
                for (at, key) in keys.enumerate() {
                    if at > 0 {
                        out.push_str(", ");
                    }
                    repr(&key, out);
                    out.push_str(": ");
                    repr(&value.get_item(&key).unwrap_or_default(), out);
                }
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut count = 0;
            if let Ok(items) = value.try_iter() {
                for item in items {
                    if count > 0 {
                        out.push_str(", ");
                    }
                    repr(&item, out);
                    count += 1;
                }
            }
            if count == 1 && open == '(' {
                out.push(',');
            }
            out.push(close);
        }
        _ => out.push_str(&value.to_string()),
    }
}

fn repr_str(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            char if char == quote => {
                out.push('\\');
                out.push(char);
            }
            char if !is_printable(char) => {
                let _ = match char as u32 {
                    code @ ..=0xff => write!(out, "\\x{code:02x}"),
                    code @ ..=0xffff => write!(out, "\\u{code:04x}"),
                    code => write!(out, "\\U{code:08x}"),
                };
            }
            char => out.push(char),
        }
    }
    out.push(quote);
}

/// `str.isprintable()` of a character, but for those that one Unicode knows and the other doesn't.
fn is_printable(char: char) -> bool {
    if char.is_ascii() {
        return !char.is_ascii_control();
    }
    // Behind another one, so that what combines isn't escaped.
    let mut text = ['a', char].into_iter().collect::<String>();
    text = text.escape_debug().skip(1).take(1).collect();
    text != "\\"
}

fn number(value: &Value, float: fn(f64) -> String) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
}

/// A float as `json.dumps` writes it.
pub(crate) fn json_float(number: f64) -> String {
    if number.is_finite() {
        return float(number);
    }
    let name = if number.is_nan() { "NaN" } else { "Infinity" };
    if number < 0.0 { format!("-{name}") } else { name.into() }
}

/// `repr` of a float: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
pub(crate) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.into();
    }
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let text = number.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

/// What `str.strip()` takes: Python counts the information separators as white space.
pub(crate) fn is_space(char: char) -> bool {
    char.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&char)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_pythons() {
        for (number, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e5, "100000.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.000_012_5, "1.25e-05"),
            (f64::NAN, "nan"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float(number), text);
        }
    }

    #[test]
    fn strings_are_quoted_as_repr_does() {
        for (text, expected) in [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("it's \"x\"", "'it\\'s \"x\"'"),
            ("a\n\u{1}é\u{a0}", "'a\\n\\x01é\\xa0'"),
            (
                "a\u{301}\u{200b}\u{3000}漢\u{e000}🙂\u{e0001}",
                "'a\u{301}\\u200b\\u3000漢\\ue000🙂\\U000e0001'",
            ),
        ] {
            let mut out = String::new();
            repr_str(text, &mut out);
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn dumps_is_pythons() {
        let value = Value::from_pairs([
            ("b", Value::from(vec![Value::from(1), Value::from(2.0), Value::from(())])),
            ("a", Value::from("<é\u{7f}\u{1f642}\"")),
        ]);
        assert_eq!(
            Dumps::default().write(&value).unwrap(),
            "{\"b\": [1, 2.0, null], \"a\": \"<é\u{7f}\u{1f642}\\\"\"}"
        );
        let dumps = Dumps {
            indent: Some("  ".into()),
            item_separator: ",".into(),
            sort_keys: true,
            ensure_ascii: true,
            ..Dumps::default()
        };
        assert_eq!(
            dumps.write(&value).unwrap(),
            "{\n  \"a\": \"<\\u00e9\\u007f\\ud83d\\ude42\\\"\",\n  \"b\": [\n    1,\n    2.0,\n    null\n  ]\n}"
        );
    }
}
