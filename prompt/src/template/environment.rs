//! The template engine, set up as `transformers` sets up Jinja2, with Python's ways.

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, filters};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::json::print::{self, Dumps, FarFloat, LongInt};
use crate::template::failure::Refused;
use crate::template::markup::{self, marked_as};
use crate::template::rewrite;
use crate::template::source::syntax;
use crate::template::strip::strip;

/// Instructions of the template engine per request: what they take holds up a worker, some 50 to 80
/// ms for a million. A chat with hundreds of tools and turns takes some hundred thousand.
const FUEL: u64 = 2_000_000;

pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax());
    environment.set_fuel(Some(FUEL));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_formatter(|output: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value| {
        let result = match value.as_str() {
            Some(text) => output.write_str(text),
            None => output.write_str(&print::str(value)),
        };
        result.map_err(|_| Error::from(ErrorKind::WriteFailure))
    });
    environment.set_unknown_method_callback(method);
    environment.add_function("raise_exception", |_: Rest<Value>| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "refused").with_source(Refused))
    });
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: Value| match value.kind() {
        ValueKind::String => value,
        _ => Value::from(print::str(&value)),
    });
    environment.add_filter("trim", |text: Value, chars: Option<String>| {
        marked_as(&text, strip(&print::str(&text), chars.as_deref(), true, true).to_owned())
    });
    environment
        .add_filter("upper", |text: Value| marked_as(&text, print::str(&text).to_uppercase()));
    environment
        .add_filter("lower", |text: Value| marked_as(&text, print::str(&text).to_lowercase()));
    environment.add_filter("title", |text: Value| {
        marked_as(&text, filters::title(print::str(&text).into()))
    });
    for name in ["e", "escape"] {
        environment.add_filter(name, markup::escape);
    }
    environment.add_filter("indent", |text: Value, width, first, blank| {
        markup::indent(&text, width, first, blank)
    });
    environment.add_filter(rewrite::SUM, |left: Value, right: Value| markup::sum(&left, &right));
    // It writes on several lines what Python writes on one.
    environment.remove_filter("pprint");
    environment.add_test("iterable", |value: &Value| {
        value.is_undefined()
            || matches!(
                value.kind(),
                ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable
            )
    });
    let is_number = |value: &Value| {
        value.kind() == ValueKind::Number || LongInt::is(value) || FarFloat::is(value)
    };
    environment.add_test("float", |value: &Value| {
        FarFloat::is(value) || value.kind() == ValueKind::Number && !value.is_integer()
    });
    environment.add_test("number", move |value: &Value| {
        is_number(value) || value.kind() == ValueKind::Bool
    });
    environment.add_test("integer", move |value: &Value| value.is_integer() || LongInt::is(value));
    for (name, rest) in [("even", 0), ("odd", 1)] {
        environment.add_test(name, move |value: &Value| match i128::try_from(value.clone()) {
            Ok(number) => Ok(number.rem_euclid(2) == rest),
            Err(_) => Err(Error::from(ErrorKind::InvalidOperation)),
        });
    }
    for (name, lower) in [("lower", true), ("upper", false)] {
        environment.add_test(name, move |value: &Value| {
            let text = print::str(value);
            let (wanted, other) = if lower {
                (text.contains(char::is_lowercase), text.contains(char::is_uppercase))
            } else {
                (text.contains(char::is_uppercase), text.contains(char::is_lowercase))
            };
            wanted && !other
        });
    }
    environment.add_test("sequence", |value: &Value| {
        value.is_undefined()
            || matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
    });
    environment
}

/// Methods of Python's types, where minijinja's own are not exactly Python's.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        let (start, end) = match name {
            "strip" => (true, true),
            "lstrip" => (true, false),
            "rstrip" => (false, true),
            "title" if args.is_empty() => {
                let title = markup::title(text).map(|title| marked_as(value, title));
                return title.ok_or_else(|| Error::from(ErrorKind::UnknownMethod));
            }
            // They escape what they are given.
            "replace" | "join" | "format" if value.is_safe() => {
                return Err(Error::from(ErrorKind::UnknownMethod));
            }
            _ => {
                let made = unknown_method_callback(state, value, name, args)?;
                return Ok(match made.as_str() {
                    Some(text) if value.is_safe() => Value::from_safe_string(text.to_owned()),
                    None if value.is_safe() && made.kind() == ValueKind::Seq => {
                        let safe = |item: Value| Value::from_safe_string(item.to_string());
                        made.try_iter()?.map(safe).collect()
                    }
                    _ => made,
                });
            }
        };
        let (chars,): (Option<&str>,) = minijinja::value::from_args(args)?;
        return Ok(marked_as(value, strip(text, chars, start, end).to_owned()));
    }
    unknown_method_callback(state, value, name, args)
}

#[allow(clippy::needless_pass_by_value)] // What a filter is given.
fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let mut dumps = Dumps::default();
    let mut given = args.0.iter();
    let mut argument = |name: &str| -> Result<Option<Value>, Error> {
        match given.next() {
            Some(value) => Ok(Some(value.clone())),
            None => kwargs.get(name),
        }
    };
    if let Some(ensure_ascii) = argument("ensure_ascii")? {
        dumps.ensure_ascii = ensure_ascii.is_true();
    }
    match argument("indent")? {
        Some(indent) if indent.kind() == ValueKind::String => {
            dumps.indent = indent.as_str().map(str::to_owned);
        }
        Some(indent) if indent.kind() == ValueKind::Number => {
            dumps.indent = Some(" ".repeat(indent.as_usize().unwrap_or(0).min(64)));
        }
        _ => {}
    }
    if dumps.indent.is_some() {
        dumps.item_separator = ",".into();
    }
    if let Some(separators) = argument("separators")?
        && !separators.is_none()
    {
        dumps.item_separator = print::str(&separators.get_item_by_index(0)?);
        dumps.key_separator = print::str(&separators.get_item_by_index(1)?);
    }
    if let Some(sort_keys) = argument("sort_keys")? {
        dumps.sort_keys = sort_keys.is_true();
    }
    kwargs.assert_all_used()?;
    dumps
        .write(value)
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, "a value that JSON can't hold"))
}
