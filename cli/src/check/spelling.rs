//! Spellings of YAML in which Envoy reads something else than is read here: they are refused, since
//! it isn't for us to guess.
//!
//! Envoy drops each field whose key has the tag `!ignore`, and reads numbers as C++ streams do:
//! `010` is 8, and `1_000` is text. Source: parseYamlNode in source/common/protobuf/yaml_utility.cc.

use granit_parser::{Event, Parser, ScalarStyle, Tag};

use super::bad_yaml::BadYaml;

/// Refuses what can be read in two ways. What is no YAML at all is left for the reader to say.
pub(super) fn check(text: &str) -> Result<(), BadYaml> {
    // Envoy's own dumps are JSON, in which an exponent is nothing odd.
    let json = text.trim_start().starts_with(['{', '[']);
    for event in Parser::new_from_str(text) {
        let Ok((event, span)) = event else { return Ok(()) };
        let line = span.start.line();
        let (tag, plain) = match &event {
            Event::Scalar(text, style, _, tag) => {
                (tag, (*style == ScalarStyle::Plain).then_some(&**text))
            }
            Event::SequenceStart(_, _, tag) | Event::MappingStart(_, _, tag) => (tag, None),
            _ => continue,
        };
        if let Some(tag) = tag.as_deref().filter(|tag| !is_idle(tag, plain)) {
            return Err(BadYaml::new(format!(
                "line {line}: the tag {}{}: Envoy drops fields by tags, or reads what they mark \
                 otherwise; leave it out",
                tag.original_handle(),
                tag.suffix()
            )));
        }
        if let Some(number) = plain.filter(|text| is_odd(text, json)) {
            return Err(BadYaml::new(format!(
                "line {line}: the number {number} is read in several ways: write it in plain \
                 decimals, or in quotes where it is text"
            )));
        }
    }
    Ok(())
}

/// Whether a tag says what is so without it.
fn is_idle(tag: &Tag, plain: Option<&str>) -> bool {
    match tag.core_suffix() {
        Some("map" | "seq") => true,
        // Envoy takes text for a number all the same.
        Some("str") => plain.is_none_or(|text| text.starts_with(|c: char| c.is_ascii_alphabetic())),
        Some("int") => plain.is_some_and(|text| text.parse::<u64>().is_ok()),
        _ => false,
    }
}

/// Whether this looks like a number and is none in plain decimals.
fn is_odd(text: &str, json: bool) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let signed = text.starts_with('+');
    let lower = digits.to_ascii_lowercase();
    if matches!(lower.as_str(), ".inf" | ".nan") {
        return true;
    }
    let of_base = |prefix: &str, base: u32| {
        lower.strip_prefix(prefix).is_some_and(|rest| {
            !rest.is_empty() && rest.chars().all(|c| c == '_' || c.is_digit(base))
        })
    };
    if of_base("0x", 16) || of_base("0o", 8) || of_base("0b", 2) {
        return true;
    }
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return false;
    }
    let number = digits.replace('_', "");
    let Ok(_) = number.parse::<f64>() else { return false };
    let whole = digits.split('.').next().unwrap_or("");
    let leading = whole.len() > 1 && whole.starts_with('0');
    signed || leading || digits.contains('_') || (!json && lower.contains('e'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_refused_wherever_it_stands() {
        for text in [
            "!ignore a: b",
            "x: [{!ignore a: b}]",
            "a: !ignore b",
            "a: !ignore {b: c}",
            "a: !ignore [b]",
            "%TAG !e! tag:example.com,2000:\n---\na: !e!x b",
            "a: !<!ignore> b",
            "? !ignore a\n: b",
            "a: !!str 010",
            "a: !!str yes\n--- \nb: !!binary aGk=",
            "a: ! 12",
        ] {
            let error = check(text).map_err(|error| error.to_string());
            assert!(error.is_err_and(|error| error.contains("tag")), "{text}");
        }
        for text in
            ["a: !!str b", "a: !!map {b: !!seq [c]}", "a: '!ignore'", "a: b # !c", "a: 'x !y'"]
        {
            assert!(check(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_number_is_plain_or_refused() {
        for odd in [
            "043123", "-010", "0x10", "0XfF", "0o17", "0b11", "1_000", "+5", "1e3", "1.5E3", "00",
            "08", ".inf", "-.INF", ".NaN", "01.5",
        ] {
            assert!(check(&format!("x:\n  - port_value: {odd}")).is_err(), "{odd}");
            assert!(check(&format!("{{port_value: '{odd}'}}")).is_ok(), "'{odd}'");
        }
        for plain in [
            "0",
            "5",
            "-3",
            "0.01",
            "1.5",
            "12.",
            "0s",
            "0.01s",
            "10.9.9.9",
            "2024-01-01",
            "0abc",
            "0x",
            "0xzz",
            "1e",
            "e5",
            "_1",
            "::1",
            "00:11",
            "1f00",
            "18446744073709551616",
        ] {
            assert!(check(&format!("x: {plain}")).is_ok(), "{plain}");
        }
        assert!(check("{\"x\": 1e-05}").is_ok());
    }
}
