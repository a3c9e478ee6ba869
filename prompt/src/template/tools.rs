//! Tools and their calls as a template gets them.

use std::borrow::Cow;

use crate::error::PromptError;
use crate::json::Json;
use crate::json::lenient;
use crate::json::read::{self, Unread};
use crate::json::tree::Tree;
use crate::request::limits::MAX_VALUES;

/// Tools as pydantic dumps them: its order, nulls for what is missing, nothing unknown.
pub(crate) fn tools<'a>(tools: &'a Json<'a>) -> Result<Tree<'a>, PromptError> {
    const REFUSED: PromptError = PromptError::UnsupportedContent("tools");
    let list = tools.list().ok_or(REFUSED)?;
    let mut values = Vec::with_capacity(list.len());
    for tool in list {
        if tool.get("type").is_some_and(|kind| kind.str() != Some("function")) {
            return Err(REFUSED);
        }
        let function = tool.get("function").ok_or(REFUSED)?;
        let name = function.get("name").filter(|name| name.str().is_some()).ok_or(REFUSED)?;
        let description = function.get("description");
        if description.is_some_and(|text| text.str().is_none()) {
            return Err(REFUSED);
        }
        let parameters = function.get("parameters");
        if parameters.is_some_and(|parameters| parameters.map().is_none()) {
            return Err(REFUSED);
        }
        let field = |json: Option<&'a Json<'a>>| json.map_or(Tree::Own(Json::Null), Tree::Json);
        let flag =
            |json| lenient::bool(json).map(|flag| Tree::Own(Json::Bool(flag))).ok_or(REFUSED);
        let mut inner = vec![
            ("name", Tree::Json(name)),
            ("description", field(description)),
            ("parameters", field(parameters)),
        ];
        if let Some(strict) = function.get("strict") {
            inner.push(("strict", flag(strict)?));
        }
        let deferred = tool.get("defer_loading");
        if let Some(deferred) = function.get("defer_loading").or(deferred) {
            inner.push(("defer_loading", flag(deferred)?));
        }
        let mut outer =
            vec![("type", Tree::Own(Json::Str("function".into()))), ("function", Tree::Map(inner))];
        if let Some(deferred) = deferred {
            outer.push(("defer_loading", flag(deferred)?));
        }
        values.push(Tree::Map(outer));
    }
    Ok(Tree::List(values))
}

/// Calls with their arguments as an object; none for an empty list, which is dropped. `values_in_texts`
/// counts the JSON values in arguments that are texts.
pub(crate) fn tool_calls<'a>(
    calls: &'a Json<'a>,
    values_in_texts: &mut usize,
) -> Result<Option<Tree<'a>>, PromptError> {
    const REFUSED: PromptError = PromptError::UnsupportedContent("tool_calls");
    let calls = calls.list().ok_or(REFUSED)?;
    if calls.is_empty() {
        return Ok(None);
    }
    let mut values = Vec::with_capacity(calls.len());
    for call in calls {
        let function = call.get("function").and_then(Json::map).ok_or(REFUSED)?;
        if call.get("type").is_some_and(|kind| kind.str() != Some("function")) {
            return Err(REFUSED);
        }
        let empty = || Tree::Map(Vec::new());
        let arguments = match call.get("function").and_then(|function| function.get("arguments")) {
            Some(Json::Str(text)) if !text.is_empty() => match parsed(text) {
                Ok(parsed @ Json::Map(_)) => {
                    *values_in_texts += parsed.values();
                    if *values_in_texts > MAX_VALUES {
                        return Err(PromptError::UnsupportedContent("very many values"));
                    }
                    Tree::Own(parsed)
                }
                Err(Unread::Beyond) => {
                    return Err(PromptError::UnsupportedContent(
                        "arguments that only Python reads",
                    ));
                }
                _ => empty(),
            },
            Some(parsed @ Json::Map(pairs)) if !pairs.is_empty() => Tree::Json(parsed),
            _ => empty(),
        };
        // The order of the API's types, not of the body: pydantic rebuilds the objects, and puts
        // what it doesn't know at the end.
        let mut inner = vec![("arguments", arguments)];
        in_order(function, &["name"], &["arguments"], &mut inner);
        let mut outer = Vec::new();
        let fields = call.map().unwrap_or_default();
        if let Some(id) = call.get("id") {
            outer.push(("id", Tree::Json(id)));
        }
        outer.push(("function", Tree::Map(inner)));
        in_order(fields, &["type"], &["id", "function"], &mut outer);
        values.push(Tree::Map(outer));
    }
    Ok(Some(Tree::List(values)))
}

/// Appends the fields `first`, then all others but those in `but`, in the order of the body.
fn in_order<'j>(
    fields: &'j [(Cow<'j, str>, Json<'j>)],
    first: &[&'static str],
    but: &[&str],
    out: &mut Vec<(&'j str, Tree<'j>)>,
) {
    for name in first {
        if let Some((_, json)) = fields.iter().find(|(known, _)| known == name) {
            out.push((name, Tree::Json(json)));
        }
    }
    for (name, json) in fields {
        if !first.contains(&name.as_ref()) && !but.contains(&name.as_ref()) {
            out.push((name, Tree::Json(json)));
        }
    }
}

/// What Python reads in a text.
fn parsed(text: &str) -> Result<Json<'_>, Unread> {
    serde_json::from_str(text).or_else(|_| read::read(text.as_bytes()))
}
