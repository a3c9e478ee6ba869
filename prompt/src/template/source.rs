//! A template's source as the engine has it, and its syntax tree.

#[cfg(feature = "preprocess")]
use minijinja::machinery::ast::Stmt;
#[cfg(feature = "preprocess")]
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;

/// Shows the syntax tree of a template as the engine has it; `None` if it can't be parsed.
#[cfg(feature = "preprocess")]
pub(crate) fn parsed<T>(source: &str, see: impl FnOnce(&Stmt<'_>) -> T) -> Option<T> {
    let source = as_the_engine_has_it(source);
    parse(&source, "chat", syntax()).ok().map(|tree| see(&tree))
}

/// As `transformers` sets up Jinja2.
pub(super) fn syntax() -> SyntaxConfig {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    syntax.unwrap_or_default()
}

/// The source with tags as the template engine has them: `{% generation %}`, which marks what the
/// assistant said, for training, renders what is inside; and the line break after `{% raw %}` stays,
/// as in Jinja2 (3.1, lexer.py: `TOKEN_RAW_BEGIN` takes none).
pub(super) fn as_the_engine_has_it(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut raw = false;
    while let Some(at) = rest.find(if raw { "{%" } else { "{" }) {
        let (before, block) = rest.split_at(at);
        out.push_str(before);
        let end = match block.as_bytes().get(1) {
            Some(b'%') => block.find("%}").map(|end| end + 2),
            // What looks like a tag in a comment is none.
            Some(b'#') => block.find("#}").map(|end| end + 2),
            _ => Some(1),
        };
        let Some((tag, after)) = end.and_then(|end| block.split_at_checked(end)) else {
            rest = block;
            break;
        };
        rest = after;
        let Some(inner) = tag.strip_prefix("{%").and_then(|tag| tag.strip_suffix("%}")) else {
            out.push_str(tag);
            continue;
        };
        let (open, inner) = sign(inner, true);
        let (close, inner) = sign(inner, false);
        match inner.trim() {
            "endraw" => {
                raw = false;
                out.push_str(tag);
            }
            _ if raw => {
                // It may begin within what looks like a tag.
                out.push_str("{%");
                rest = block.get(2..).unwrap_or_default();
            }
            "raw" => {
                raw = true;
                let close = if close.is_empty() { "+" } else { close };
                out.extend(["{%", open, " raw ", close, "%}"]);
            }
            "generation" => out.extend(["{%", open, GENERATION, close, "%}"]),
            "endgeneration" => out.extend(["{%", open, " endif ", close, "%}"]),
            _ => out.push_str(tag),
        }
    }
    out.push_str(rest);
    out
}

/// What `generation` becomes; no one writes it so.
pub(super) const GENERATION: &str = " if  true  ";

/// Takes the white space sign off one end of a tag.
fn sign(inner: &str, start: bool) -> (&str, &str) {
    let (sign, rest) = if start {
        match inner.as_bytes().first() {
            Some(b'-' | b'+') => inner.split_at(1),
            _ => ("", inner),
        }
    } else {
        match inner.as_bytes().last() {
            Some(b'-' | b'+') => {
                let (rest, sign) = inner.split_at(inner.len() - 1);
                (sign, rest)
            }
            _ => ("", inner),
        }
    };
    (sign, rest)
}
