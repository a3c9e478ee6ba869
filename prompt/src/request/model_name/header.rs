//! A header's value with its parameters, such as `form-data; name="model"`.

use std::borrow::Cow;

/// Parameters by lower-case name.
pub(crate) type Parameters<'a> = Vec<(Vec<u8>, Cow<'a, [u8]>)>;

/// Takes a value apart, as python-multipart's `parse_options_header` does.
pub(crate) fn options(value: &[u8]) -> (&[u8], Parameters<'_>) {
    let mut segments = Segments(Some(value));
    let first = segments.next().unwrap_or_default();
    let parameters = segments.map(|segment| {
        let at = memchr::memchr(b'=', segment);
        let (name, value) = segment.split_at(at.unwrap_or(segment.len()));
        (trim(name).to_ascii_lowercase(), unquote(trim(value.get(1..).unwrap_or_default())))
    });
    (trim(first), parameters.collect())
}

/// The value of a parameter: of several, the last one's.
pub(crate) fn parameter<'p>(parameters: &'p Parameters<'_>, name: &[u8]) -> Option<&'p [u8]> {
    let named = parameters.iter().rev().find(|(other, _)| other == name);
    named.map(|(_, value)| value.as_ref())
}

/// What stands between the semicolons that are not in quotes.
struct Segments<'a>(Option<&'a [u8]>);

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.0?;
        let mut quoted = false;
        let mut last = 0;
        let end = rest.iter().position(|byte| {
            // A backslash makes the next quote a plain one, whatever is before it.
            quoted ^= *byte == b'"' && last != b'\\';
            last = *byte;
            *byte == b';' && !quoted
        });
        let (segment, rest) = rest.split_at(end.unwrap_or(rest.len()));
        self.0 = rest.get(1..);
        Some(segment)
    }
}

fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

fn unquote(value: &[u8]) -> Cow<'_, [u8]> {
    let [b'"', inner @ .., b'"'] = value else { return Cow::Borrowed(value) };
    if !inner.contains(&b'\\') {
        return Cow::Borrowed(inner);
    }
    let once = replace(inner, b'\\', b'\\');
    Cow::Owned(replace(&once, b'\\', b'"'))
}

/// Takes `first` away where `second` follows.
fn replace(text: &[u8], first: u8, second: u8) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [byte, tail @ ..] = rest {
        rest = match tail {
            [next, tail @ ..] if (*byte, *next) == (first, second) => {
                out.push(second);
                tail
            }
            _ => {
                out.push(*byte);
                tail
            }
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_told_apart() {
        type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);
        let cases: [Case<'_>; 9] = [
            ("", "", &[]),
            ("form-data", "form-data", &[]),
            (" a/b ;", "a/b", &[("", "")]),
            ("a; B=c", "a", &[("b", "c")]),
            ("a;b = \"c d\" ; e", "a", &[("b", "c d"), ("e", "")]),
            ("a; b=\"c;d\"; e=f", "a", &[("b", "c;d"), ("e", "f")]),
            (r#"a; b="c\";d"; e=f"#, "a", &[("b", "c\";d"), ("e", "f")]),
            // Not by the book, but as engines have it: the second quote counts as escaped.
            (r#"a; b="c\\"; e=f""#, "a", &[("b", "c\"; e=f")]),
            ("a; b=\"c", "a", &[("b", "\"c")]),
        ];
        for (value, first, parameters) in cases {
            let (kind, found) = options(value.as_bytes());
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let found: Vec<(String, String)> =
                found.iter().map(|(name, value)| (text(name), text(value))).collect();
            let parameters: Vec<(String, String)> =
                parameters.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
            assert_eq!((text(kind), found), (first.to_owned(), parameters), "{value}");
        }
    }

    #[test]
    fn the_last_of_two_counts() {
        let (_, parameters) = options(b"form-data; name=a; NAME=\"model\"");
        assert_eq!(parameter(&parameters, b"name"), Some(&b"model"[..]));
        assert_eq!(parameter(&parameters, b"filename"), None);
    }
}
