//! Envoy's format strings.

/// A substitution operator, `%NAME(arguments)%`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Operator<'t> {
    pub(super) name: &'t str,
    pub(super) arguments: &'t str,
}

impl Operator<'_> {
    /// The request headers that this reads, in lower case; none if it reads something else.
    pub(super) fn headers(&self) -> Vec<String> {
        if self.name != "REQ" {
            return Vec::new();
        }
        let names = self.arguments.split('?').filter(|name| !name.is_empty());
        names.map(str::to_ascii_lowercase).collect()
    }
}

/// All operators in a format string. What is no operator that can be read is one without a name.
pub(super) fn operators(text: &str) -> Vec<Operator<'_>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('%') {
        if let Some(escaped) = after.strip_prefix('%') {
            rest = escaped;
            continue;
        }
        let end = after.find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
        let (name, tail) = after.split_at(end.unwrap_or(after.len()));
        let (arguments, tail) = match tail.strip_prefix('(').and_then(|tail| tail.split_once(')')) {
            Some(parts) => parts,
            None => ("", tail),
        };
        found.push(Operator { name, arguments });
        rest = tail.split_once('%').map_or("", |(_, rest)| rest);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_found_in_formats() {
        let found = |text| -> Vec<(String, String)> {
            let all = operators(text).into_iter();
            all.map(|o| (o.name.to_owned(), o.arguments.to_owned())).collect()
        };
        let one = |name: &str, arguments: &str| (name.to_owned(), arguments.to_owned());
        assert_eq!(found("eu"), []);
        assert_eq!(found("100%% sure"), []);
        assert_eq!(found("a%REQ(x?y):10%b%PATH%"), [one("REQ", "x?y"), one("PATH", "")]);
        assert_eq!(found("%broken"), [one("", "")]);
        assert_eq!(
            operators("%REQ(X-A?x-b)%").first().map(Operator::headers),
            Some(vec!["x-a".to_owned(), "x-b".to_owned()])
        );
    }
}
