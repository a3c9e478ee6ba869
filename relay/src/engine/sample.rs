//! One sample of Prometheus' text format: name, labels, value.

use std::borrow::Cow;

/// Labels of one sample that are read; vLLM's `vllm:cache_config_info` has some 40.
const MAX_LABELS: usize = 256;

/// A line that is neither empty nor a comment.
#[derive(Debug, PartialEq)]
pub(super) struct Sample<'a> {
    pub(super) name: &'a str,
    labels: Vec<(&'a str, Cow<'a, str>)>,
    pub(super) value: f64,
}

impl<'a> Sample<'a> {
    /// The name alone, which is cheap; that the line can be read isn't certain.
    pub(super) fn name_of(line: &'a str) -> &'a str {
        line.split(['{', ' ', '\t']).next().unwrap_or_default()
    }

    /// Reads a line; none where it is no sample. A timestamp after the value is passed over.
    pub(super) fn parse(line: &'a str) -> Option<Self> {
        let name = Self::name_of(line);
        let mut rest = line.get(name.len()..)?.trim_start();
        let mut labels = Vec::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside.trim_start();
            loop {
                if let Some(after) = rest.strip_prefix('}') {
                    rest = after;
                    break;
                }
                let (label, after) = label(rest)?;
                if labels.len() == MAX_LABELS {
                    return None;
                }
                labels.push(label);
                rest = match after.strip_prefix(',') {
                    Some(next) => next.trim_start(),
                    None if after.starts_with('}') => after,
                    None => return None,
                };
            }
        }
        let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
        let of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':';
        let named = !name.is_empty() && name.bytes().all(of_name);
        named.then_some(Self { name, labels, value })
    }

    /// The value of a label.
    pub(super) fn label(&self, name: &str) -> Option<&str> {
        let label = self.labels.iter().find(|(of, _)| *of == name)?;
        Some(&label.1)
    }
}

/// `name="value"`, and what follows it.
fn label(text: &str) -> Option<((&str, Cow<'_, str>), &str)> {
    let (name, rest) = text.split_once('=')?;
    let (name, rest) = (name.trim_end(), rest.trim_start().strip_prefix('"')?);
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return None;
    }
    let mut escaped = false;
    let end = rest.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })?;
    let (value, rest) = rest.split_at_checked(end)?;
    Some(((name, unescaped(value)), rest.strip_prefix('"')?.trim_start()))
}

/// `\\`, `\"` and `\n` are escapes; another backslash is itself.
fn unescaped(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return Cow::Borrowed(value);
    }
    let mut text = String::with_capacity(value.len());
    let mut all = value.chars();
    while let Some(char) = all.next() {
        if char != '\\' {
            text.push(char);
            continue;
        }
        match all.next() {
            Some('n') => text.push('\n'),
            Some(escaped @ ('\\' | '"')) => text.push(escaped),
            other => {
                text.push('\\');
                text.extend(other);
            }
        }
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_may_hold_anything() {
        for (line, model) in [
            (r#"m{engine="0",model_name="a, b"} 3.0"#, "a, b"),
            (r#"m{model_name="a,engine=\"7\"",engine="0"} 3"#, r#"a,engine="7""#),
            (r#"m{model_name="C:\\models\\",engine="0"} 3"#, r"C:\models\"),
            (r#"m{model_name="} 9 {",engine="0"} 3 1700000000"#, "} 9 {"),
            (r#"m{model_name="a\nb",engine="0",} 3"#, "a\nb"),
            (r#"m { model_name = "\u" , engine = "0" } 3"#, r"\u"),
            (r#"m{model_name="größe",engine="0"}3"#, "größe"),
            (r#"m{model_name="",engine="0"} 3"#, ""),
        ] {
            let sample = Sample::parse(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!((sample.name, sample.value), ("m", 3.0), "{line}");
            assert_eq!(sample.label("model_name"), Some(model), "{line}");
            assert_eq!(sample.label("engine"), Some("0"), "{line}");
            assert_eq!(sample.label("rank"), None, "{line}");
        }
        assert_eq!(Sample::parse("m 3").unwrap().label("engine"), None);
        let plain = Sample { name: "m", labels: Vec::new(), value: -5.0 };
        assert_eq!(Sample::parse("m{} -0.5e1"), Some(plain));
    }

    #[test]
    fn what_is_no_sample_is_refused() {
        for line in [
            "",
            "m",
            "m{",
            "m{ -1",
            "m} 1",
            "m{a} 1",
            "m{a=1} 1",
            r#"m{a="1} 1"#,
            r#"m{a="1\"} 1"#,
            r#"m{a="1"b="2"} 1"#,
            r#"m{a="1",,b="2"} 1"#,
            r#"m{="1"} 1"#,
            r#"m{a="1"}"#,
            r#"m{a="1"} x"#,
            r#"{a="1"} 1"#,
        ] {
            assert_eq!(Sample::parse(line), None, "{line}");
        }
        let many: Vec<_> = (0..=MAX_LABELS).map(|i| format!("l{i}=\"\"")).collect();
        assert_eq!(Sample::parse(&format!("m{{{}}} 1", many.join(","))), None);
        assert!(Sample::parse(&format!("m{{{}}} 1", many[1..].join(","))).is_some());
    }
}
