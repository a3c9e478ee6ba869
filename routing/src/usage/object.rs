//! The `usage` object, in the shapes of all APIs.

use super::{Reported, Usage};

/// Reads what stands between the object's braces; what comes after it must not be in it.
///
/// Quotes inside of JSON strings are escaped, so that a quoted name of a field in someone's text
/// can't be taken for the field.
pub(super) fn read(usage: &[u8]) -> Usage {
    if let Some(prompt) = field(usage, b"\"prompt_tokens\"").and_then(number) {
        let cached = field(usage, b"\"prompt_tokens_details\"");
        return Usage { prompt: Some(prompt), cached: details(cached) };
    }
    let input = field(usage, b"\"input_tokens\"").and_then(number);
    match field(usage, b"\"input_tokens_details\"") {
        Some(of_responses) => responses(input, of_responses),
        None => messages(usage, input),
    }
}

/// Responses. Where a built-in tool made the engine go on, the counts are sums over all of its
/// prompts, and the lists say which of them was what: the first is the request's own (vLLM 0.32,
/// `entrypoints/openai/responses/context.py`).
fn responses(input: Option<u32>, of: &[u8]) -> Usage {
    let object = object(of);
    let first = |name| field(object, name)?.strip_prefix(b"[").map(<[u8]>::trim_ascii_start);
    let first = |name| first(name).and_then(number);
    Usage {
        prompt: first(b"\"input_tokens_per_turn\"").or(input),
        cached: match first(b"\"cached_tokens_per_turn\"") {
            Some(tokens) => Reported::Tokens(tokens),
            None => details(Some(of)),
        },
    }
}

/// Messages, where `input_tokens` are only those that no cache had to do with (vLLM 0.32,
/// `entrypoints/anthropic/serving.py`, `_build_anthropic_usage`).
fn messages(usage: &[u8], input: Option<u32>) -> Usage {
    let created = field(usage, b"\"cache_creation_input_tokens\"").and_then(number);
    let cached = reported(field(usage, b"\"cache_read_input_tokens\""));
    let read = if let Reported::Tokens(tokens) = cached { tokens } else { 0 };
    let prompt = input.map(|input| input.saturating_add(read).saturating_add(created.unwrap_or(0)));
    Usage { prompt, cached }
}

/// What the object that has `cached_tokens` says.
fn details(of: Option<&[u8]>) -> Reported {
    match of {
        None => Reported::Absent,
        Some(null) if null.starts_with(b"null") => Reported::Null,
        Some(details) => reported(field(object(details), b"\"cached_tokens\"")),
    }
}

fn reported(value: Option<&[u8]>) -> Reported {
    value.map_or(Reported::Absent, |value| number(value).map_or(Reported::Null, Reported::Tokens))
}

/// What follows a field's name.
fn field<'a>(object: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let at = object.windows(name.len()).position(|window| is(window, name))?;
    member(object.get(at + name.len()..)?)
}

/// From an opening brace to the one that closes it, or to the end.
pub(super) fn object(bytes: &[u8]) -> &[u8] {
    let mut depth = 0_i32;
    let end = bytes.iter().position(|byte| {
        depth += i32::from(*byte == b'{') - i32::from(*byte == b'}');
        depth <= 0
    });
    end.and_then(|end| bytes.get(..end)).unwrap_or(bytes)
}

/// What follows a field's name, colon and white space.
pub(super) fn member(rest: &[u8]) -> Option<&[u8]> {
    Some(rest.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start())
}

fn number(bytes: &[u8]) -> Option<u32> {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(bytes.get(..digits)?).ok()?.parse().ok()
}

/// Whether they are the same. To compare all is a call in wasm.
pub(super) fn is(window: &[u8], name: &[u8]) -> bool {
    window.first() == name.first() && window == name
}

#[cfg(test)]
mod tests {
    use super::Reported::{Absent, Null, Tokens};
    use super::*;

    #[test]
    fn every_api_s_usage_is_read() {
        for (text, prompt, cached) in [
            (
                r#"{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":8}"#,
                Some(9),
                Tokens(8),
            ),
            (r#"{"prompt_tokens":9,"prompt_tokens_details":null"#, Some(9), Null),
            (r#"{"prompt_tokens":9,"total_tokens":10"#, Some(9), Absent),
            // Responses.
            (
                r#"{"input_tokens":964,"input_tokens_details":{"cached_tokens":960}"#,
                Some(964),
                Tokens(960),
            ),
            (
                r#"{"input_tokens":964,"input_tokens_details":{"cached_tokens":960,"cache_write_tokens":4,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":1"#,
                Some(964),
                Tokens(960),
            ),
            (r#"{"input_tokens":964,"input_tokens_details":null"#, Some(964), Null),
            (r#"{"input_tokens":964,"input_tokens_details":{}"#, Some(964), Absent),
            // Two prompts, of which the first is the request's own.
            (
                r#"{"input_tokens":300,"input_tokens_details":{"cached_tokens":208,"cache_write_tokens":0,"input_tokens_per_turn":[ 100, 200],"cached_tokens_per_turn":[96,112]}"#,
                Some(100),
                Tokens(96),
            ),
            // Messages.
            (
                r#"{"input_tokens":4,"output_tokens":1,"cache_read_input_tokens":960"#,
                Some(964),
                Tokens(960),
            ),
            (
                r#"{"input_tokens":4,"cache_creation_input_tokens":16,"cache_read_input_tokens":944"#,
                Some(964),
                Tokens(944),
            ),
            (r#"{"input_tokens":964,"cache_read_input_tokens":null"#, Some(964), Null),
            (r#"{"input_tokens":964,"output_tokens":1"#, Some(964), Absent),
            (r#"{"output_tokens":1"#, None, Absent),
            (
                r#"{"input_tokens":4294967295,"cache_read_input_tokens":4294967295"#,
                Some(u32::MAX),
                Tokens(u32::MAX),
            ),
        ] {
            assert_eq!(read(text.as_bytes()), Usage { prompt, cached }, "{text}");
        }
    }
}
