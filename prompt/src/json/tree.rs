//! JSON of a request as a template gets it: in another order than in the body, or with parts of
//! its own; what is as it was is borrowed.

use minijinja::value::{Value, ValueKind};

use crate::json::Json;
use crate::json::print::{self, Dumps, NotSerializable, written};

/// A value with others in it.
#[derive(Clone, Debug)]
pub(crate) enum Tree<'a> {
    Json(&'a Json<'a>),
    Own(Json<'a>),
    List(Vec<Tree<'a>>),
    Map(Vec<(&'a str, Tree<'a>)>),
}

impl<'a> Tree<'a> {
    pub(crate) fn node(&'a self) -> Node<'a> {
        match self {
            Self::Json(json) => Node::Json(json),
            Self::Own(json) => Node::Json(json),
            Self::List(_) | Self::Map(_) => Node::Tree(self),
        }
    }

    pub(crate) fn to_value(&self) -> Value {
        match self {
            Self::Json(json) => json.to_value(),
            Self::Own(json) => json.to_value(),
            Self::List(items) => written(items.iter().map(Self::to_value).collect()),
            Self::Map(pairs) => written(Value::from_pairs(
                pairs.iter().map(|(key, value)| (*key, value.to_value())),
            )),
        }
    }
}

/// A place in a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Node<'a> {
    Json(&'a Json<'a>),
    /// A list or a map.
    Tree(&'a Tree<'a>),
}

impl<'a> Node<'a> {
    /// What kind of value it is to the template engine.
    pub(crate) fn kind(self) -> ValueKind {
        match self {
            Self::Json(Json::Null) => ValueKind::None,
            Self::Json(Json::Bool(_)) => ValueKind::Bool,
            Self::Json(Json::Int(_) | Json::Unsigned(_) | Json::Float(_) | Json::Long(_)) => {
                ValueKind::Number
            }
            Self::Json(Json::Str(_)) => ValueKind::String,
            Self::Json(Json::List(_)) | Self::Tree(Tree::List(_)) => ValueKind::Seq,
            Self::Json(Json::Map(_)) | Self::Tree(_) => ValueKind::Map,
        }
    }

    /// How many items or pairs a list or a map has.
    pub(crate) fn len(self) -> Option<usize> {
        match self {
            Self::Json(Json::List(items)) => Some(items.len()),
            Self::Json(Json::Map(pairs)) => Some(pairs.len()),
            Self::Tree(Tree::List(items)) => Some(items.len()),
            Self::Tree(Tree::Map(pairs)) => Some(pairs.len()),
            _ => None,
        }
    }

    /// The value of a map's key, also one that is null.
    pub(crate) fn get(self, key: &str) -> Option<Self> {
        match self {
            Self::Json(Json::Map(pairs)) => {
                pairs.iter().find(|(name, _)| name == key).map(|(_, value)| Self::Json(value))
            }
            Self::Tree(Tree::Map(pairs)) => {
                pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| value.node())
            }
            _ => None,
        }
    }

    /// A list's item.
    pub(crate) fn item(self, at: usize) -> Option<Self> {
        match self {
            Self::Json(Json::List(items)) => items.get(at).map(Self::Json),
            Self::Tree(Tree::List(items)) => items.get(at).map(Tree::node),
            _ => None,
        }
    }

    /// A map's pair.
    pub(crate) fn pair(self, at: usize) -> Option<(&'a str, Self)> {
        match self {
            Self::Json(Json::Map(pairs)) => {
                pairs.get(at).map(|(name, value)| (name.as_ref(), Self::Json(value)))
            }
            Self::Tree(Tree::Map(pairs)) => {
                pairs.get(at).map(|(name, value)| (*name, value.node()))
            }
            _ => None,
        }
    }

    /// Appends what `json.dumps` makes of it, as [`Dumps::write`] does with the engine's value.
    ///
    /// # Errors
    /// None: the type is that of what it goes through.
    pub(crate) fn dump(
        self,
        dumps: &Dumps,
        depth: usize,
        out: &mut String,
    ) -> Result<(), NotSerializable> {
        let count = self.len().unwrap_or_default();
        match self {
            Self::Json(Json::Null) => out.push_str("null"),
            Self::Json(Json::Bool(value)) => out.push_str(if *value { "true" } else { "false" }),
            Self::Json(Json::Int(number)) => out.push_str(&number.to_string()),
            Self::Json(Json::Unsigned(number)) => out.push_str(&number.to_string()),
            Self::Json(Json::Float(number)) => out.push_str(&print::json_float(*number)),
            Self::Json(Json::Long(digits)) => out.push_str(digits),
            Self::Json(Json::Str(text)) => dumps.string(text, out),
            Self::Json(Json::List(_)) | Self::Tree(Tree::List(_)) => {
                dumps.block(count, '[', ']', depth, out, |at, out| match self.item(at) {
                    Some(item) => item.dump(dumps, depth + 1, out),
                    None => Ok(()),
                })?;
            }
            Self::Json(Json::Map(_)) | Self::Tree(_) => {
                dumps.block(count, '{', '}', depth, out, |at, out| {
                    let Some((key, value)) = self.pair(at) else { return Ok(()) };
                    dumps.string(key, out);
                    out.push_str(&dumps.key_separator);
                    value.dump(dumps, depth + 1, out)
                })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_dumped_as_the_engines_value_is() {
        let text = r#"{"a":[1,-2.50,1e20,18446744073709551615,null,true,NaN,-Infinity,12345678901234567890123,-1234567890123456789012345678901234567890],"b":{},"c":[],"\"\u0001é":{"d":[[]]}}"#;
        let json = crate::json::read::read(text.as_bytes()).unwrap();
        let tree = Tree::Map(vec![
            ("function", Tree::Json(&json)),
            ("list", Tree::List(vec![Tree::Own(Json::Str("x".into())), Tree::List(Vec::new())])),
        ]);
        for indent in [None, Some(String::from("  "))] {
            let dumps = Dumps { indent, ..Dumps::default() };
            let mut out = String::new();
            tree.node().dump(&dumps, 0, &mut out).unwrap();
            assert_eq!(Ok(out), dumps.write(&tree.to_value()));
        }
    }
}
