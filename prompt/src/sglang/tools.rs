//! Tools as a template gets them from SGLang (protocol.py, `Tool` and `Function`).

use super::text::text;
use crate::error::PromptError;
use crate::json::Json;
use crate::json::lenient;
use crate::json::tree::Tree;
use crate::request::chat::{Chat, ToolChoice};

const REFUSED: PromptError = PromptError::UnsupportedContent("tools");

/// Those that a request may call; none where it may call none.
pub(crate) fn tools<'a>(chat: &'a Chat<'_>) -> Result<Option<Tree<'a>>, PromptError> {
    let Some(list) = &chat.tools else { return Ok(None) };
    let mut values = Vec::new();
    for tool in list.list().ok_or(REFUSED)? {
        let function = tool.get("function").filter(|json| json.map().is_some()).ok_or(REFUSED)?;
        let name = text(function, "name")?.ok_or(REFUSED)?;
        let value = dumped(tool, function)?;
        match &chat.tool_choice {
            ToolChoice::None => {}
            ToolChoice::Named(named) if named != name => {}
            ToolChoice::Any | ToolChoice::Named(_) => values.push(value),
        }
    }
    // It isn't among them, which the engine refuses.
    if matches!(chat.tool_choice, ToolChoice::Named(_)) && values.is_empty() {
        return Err(REFUSED);
    }
    Ok((!values.is_empty()).then_some(Tree::List(values)))
}

/// In the order in which the fields came, and then those that didn't, of the tool's own the last.
fn dumped<'a>(tool: &'a Json<'a>, function: &'a Json<'a>) -> Result<Tree<'a>, PromptError> {
    let flag = |json: &Json<'_>| lenient::bool(json).map(Json::Bool).map(Tree::Own).ok_or(REFUSED);
    let own = |json: Option<&'a Json<'a>>| json.map_or(Tree::Own(Json::Null), Tree::Json);
    let deferred = tool.get("defer_loading").map(flag).transpose()?;
    let inner_deferred = match function.get("defer_loading") {
        Some(json) => Some(flag(json)?),
        None => deferred.clone(),
    };
    text(function, "description")?;
    let parameters = function.get("parameters");
    if parameters.is_some_and(|schema| !has_plain_types(schema)) {
        return Err(PromptError::UnsupportedContent("a type that SGLang renames"));
    }
    let mut fields = Vec::with_capacity(5);
    let given = function.map().unwrap_or_default().iter().map(|(name, _)| name.as_ref());
    for name in given.chain(["description", "name", "parameters", "strict", "defer_loading"]) {
        if fields.iter().any(|(known, _)| *known == name) {
            continue;
        }
        let field = match name {
            "description" | "name" | "parameters" => Some(own(function.get(name))),
            "strict" => function.get("strict").map(flag).transpose()?,
            "defer_loading" => inner_deferred.clone(),
            _ => None,
        };
        fields.extend(field.map(|field| (name, field)));
    }
    let kind = text(tool, "type")?.unwrap_or("function");
    Ok(Tree::Map(vec![
        ("type", Tree::Own(Json::Str(kind.into()))),
        ("function", Tree::Map(fields)),
        ("defer_loading", deferred.unwrap_or(Tree::Own(Json::Null))),
    ]))
}

/// Whether all types in a schema are JSON Schema's, which no alias stands for (function_call/utils.py,
/// `normalize_json_schema_types`). It is looked for in more places than SGLang looks in.
fn has_plain_types(schema: &Json<'_>) -> bool {
    const PLAIN: [&str; 7] = ["string", "number", "integer", "boolean", "object", "array", "null"];
    let is_plain = |kind: &Json<'_>| kind.str().is_none_or(|kind| PLAIN.contains(&kind));
    match schema {
        Json::Map(pairs) => pairs.iter().all(|(name, value)| match (name.as_ref(), value) {
            ("type", Json::Str(_)) => is_plain(value),
            ("type", Json::List(kinds)) => kinds.iter().all(is_plain),
            // These are values, not schemas.
            ("enum" | "const" | "default" | "examples" | "required", _) => true,
            (_, value) => has_plain_types(value),
        }),
        Json::List(items) => items.iter().all(has_plain_types),
        _ => true,
    }
}

/// The functions alone.
pub(crate) fn flat(tools: Tree<'_>) -> Tree<'_> {
    let Tree::List(tools) = tools else { return tools };
    let function = |tool| match tool {
        Tree::Map(pairs) => {
            let mut inner = pairs.iter().filter(|(name, _)| *name == "function");
            inner.next().map_or(Tree::Own(Json::Null), |(_, inner)| inner.clone())
        }
        other => other,
    };
    Tree::List(tools.into_iter().map(function).collect())
}
