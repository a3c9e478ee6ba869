//! YAML as a tree whose nodes know where they stand.
//!
//! Envoy reads its YAML as the JSON form of protobuf messages, in which every field goes by two
//! names, `snake_case` and `camelCase`: both are found.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value as Json;
use serde_saphyr::Spanned;

use super::bad_yaml::BadYaml;
use super::spelling;

/// Where a node stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Number of the file, in the order in which they were given.
    pub(super) file: usize,
    /// From 1.
    pub(super) line: u64,
    /// From 1; 0 for what was made here.
    pub(super) column: u64,
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    /// Null, a boolean, a number or a string.
    Scalar(Json),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// Reads all documents of a file.
///
/// # Errors
/// [`BadYaml`] where the text isn't YAML (the parser's words, with line and column), where aliases
/// would unfold beyond the parser's budget, where a field stands in both spellings, and where Envoy
/// would read something else.
pub(super) fn read(text: &str, file: usize) -> Result<Vec<Node>, BadYaml> {
    // A dump of a large Envoy has more nodes than the parser allows by default. Only aliases could
    // make more of them than there are bytes, and those stay bounded.
    let most = 250_000 + text.len() / 2;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: most, max_events: 4 * most },
    };
    let documents: Vec<Spanned<Raw>> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| BadYaml::new(error.to_string()))?;
    let documents: Vec<Node> =
        documents.into_iter().map(|document| place(document, file)).collect();
    documents.iter().try_for_each(once)?;
    spelling::check(text)?;
    Ok(documents)
}

/// Refuses a field that is there in both spellings: which of them Envoy takes isn't for us to guess.
fn once(node: &Node) -> Result<(), BadYaml> {
    if let Value::Map(fields) = &node.value {
        let mut names = BTreeSet::new();
        for (key, field) in fields {
            if !names.insert(camel(key)) {
                let line = field.place.line;
                return Err(BadYaml::new(format!("line {line}: the field {key} is there twice")));
            }
        }
    }
    let below: Box<dyn Iterator<Item = &Node>> = match &node.value {
        Value::Scalar(_) => Box::new(std::iter::empty()),
        Value::List(items) => Box::new(items.iter()),
        Value::Map(fields) => Box::new(fields.iter().map(|(_, field)| field)),
    };
    below.into_iter().try_for_each(once)
}

impl Node {
    pub(super) fn scalar(place: Place, value: impl Into<Json>) -> Self {
        Self { place, value: Value::Scalar(value.into()) }
    }

    pub(super) fn list(place: Place, items: Vec<Self>) -> Self {
        Self { place, value: Value::List(items) }
    }

    pub(super) fn map<const N: usize>(place: Place, fields: [(&str, Self); N]) -> Self {
        let fields = fields.into_iter().map(|(name, node)| (name.to_owned(), node)).collect();
        Self { place, value: Value::Map(fields) }
    }

    /// The same JSON, all of it standing at one place.
    pub(super) fn from_json(place: Place, json: &Json) -> Self {
        let value = match json {
            Json::Array(items) => {
                Value::List(items.iter().map(|item| Self::from_json(place, item)).collect())
            }
            Json::Object(fields) => Value::Map(
                fields.iter().map(|(k, v)| (k.clone(), Self::from_json(place, v))).collect(),
            ),
            scalar => Value::Scalar(scalar.clone()),
        };
        Self { place, value }
    }

    pub(super) fn to_json(&self) -> Json {
        match &self.value {
            Value::Scalar(scalar) => scalar.clone(),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(fields) => {
                fields.iter().map(|(name, node)| (name.clone(), node.to_json())).collect()
            }
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        let Value::Map(fields) = &self.value else { return None };
        fields.iter().find(|(key, _)| same(key, name)).map(|(_, node)| node)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Self> {
        let Value::Map(fields) = &mut self.value else { return None };
        fields.iter_mut().find(|(key, _)| same(key, name)).map(|(_, node)| node)
    }

    /// The field, made if it is missing; `None` where this is no map.
    pub(super) fn get_or_insert(
        &mut self,
        name: &str,
        new: impl FnOnce() -> Self,
    ) -> Option<&mut Self> {
        let Value::Map(fields) = &mut self.value else { return None };
        let at = fields.iter().position(|(key, _)| same(key, name)).unwrap_or_else(|| {
            fields.push((name.to_owned(), new()));
            fields.len() - 1
        });
        fields.get_mut(at).map(|(_, node)| node)
    }

    pub(super) fn remove(&mut self, name: &str) {
        if let Value::Map(fields) = &mut self.value {
            fields.retain(|(key, _)| !same(key, name));
        }
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self.value, Value::Scalar(Json::Null))
    }

    pub(super) fn is_list(&self) -> bool {
        matches!(self.value, Value::List(_))
    }

    pub(super) fn items(&self) -> &[Self] {
        if let Value::List(items) = &self.value { items } else { &[] }
    }

    pub(super) fn items_mut(&mut self) -> Option<&mut Vec<Self>> {
        if let Value::List(items) = &mut self.value { Some(items) } else { None }
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let Value::Scalar(Json::String(text)) = &self.value { Some(text) } else { None }
    }
}

/// A node and the way to it from the document's root.
#[derive(Clone, Debug)]
pub(super) struct At<'a> {
    pub(super) node: &'a Node,
    pub(super) path: String,
}

impl<'a> At<'a> {
    pub(super) fn root(node: &'a Node) -> Self {
        Self { node, path: String::new() }
    }

    /// A field, by names with dots between them.
    pub(super) fn get(&self, names: &str) -> Option<Self> {
        let mut at = self.clone();
        for name in names.split('.') {
            at = at.field(name)?;
        }
        Some(at)
    }

    /// A field whose name may have dots in it.
    pub(super) fn field(&self, name: &str) -> Option<Self> {
        let Value::Map(fields) = &self.node.value else { return None };
        let (key, node) = fields.iter().find(|(key, _)| same(key, name))?;
        let dot = if self.path.is_empty() { "" } else { "." };
        // As it is spelled there, so that one thing has one path.
        Some(Self { node, path: format!("{}{dot}{key}", self.path) })
    }

    /// The items of a list; none where there is no such list.
    pub(super) fn items(&self, names: &str) -> Vec<Self> {
        let Some(list) = self.get(names) else { return Vec::new() };
        list.each()
    }

    /// The items of this list, or this itself. Each has a path of its own: by its name where no
    /// other item has it, else by its number.
    pub(super) fn each(&self) -> Vec<Self> {
        let Value::List(items) = &self.node.value else { return vec![self.clone()] };
        let names: Vec<Option<&str>> =
            items.iter().map(|item| item.get("name").and_then(Node::text)).collect();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for name in names.iter().flatten() {
            *counts.entry(name).or_default() += 1;
        }
        let items = items.iter().zip(names).enumerate();
        items
            .map(|(number, (node, name))| {
                let name = name.filter(|name| counts.get(name) == Some(&1));
                let name = name.map_or_else(|| number.to_string(), str::to_owned);
                Self { node, path: format!("{}[{name}]", self.path) }
            })
            .collect()
    }

    /// The fields of this map, by the names that they have here.
    pub(super) fn fields(&self) -> Vec<(&'a str, Self)> {
        let Value::Map(fields) = &self.node.value else { return Vec::new() };
        let dot = if self.path.is_empty() { "" } else { "." };
        let at = |key: &str, node| Self { node, path: format!("{}{dot}{key}", self.path) };
        fields.iter().map(|(key, node)| (key.as_str(), at(key, node))).collect()
    }

    /// The message that an `Any` holds: its full name and its fields, whether it is written out, or
    /// wrapped as a TypedStruct.
    pub(super) fn message(&self) -> Option<(&'a str, Self)> {
        let own = self.text("@type").map(|url| url.rsplit('/').next().unwrap_or(url));
        let wrapped = own.is_none_or(|own| {
            matches!(own, "xds.type.v3.TypedStruct" | "udpa.type.v1.TypedStruct")
        });
        if wrapped && let Some(url) = self.text("type_url") {
            let inner = self.get("value").unwrap_or_else(|| self.clone());
            return Some((url.rsplit('/').next().unwrap_or(url), inner));
        }
        match own? {
            "google.protobuf.Any" => self.get("value")?.message(),
            own => Some((own, self.clone())),
        }
    }

    /// Each map below, this one too, that has a field of this name.
    pub(super) fn holders(&self, name: &str) -> Vec<Self> {
        let mut found = Vec::new();
        let mut open = vec![self.clone()];
        while let Some(at) = open.pop() {
            if at.get(name).is_some() {
                found.push(at.clone());
            }
            match &at.node.value {
                Value::Scalar(_) => {}
                Value::List(_) => open.extend(at.each()),
                Value::Map(_) => open.extend(at.fields().into_iter().map(|(_, at)| at)),
            }
        }
        found
    }

    pub(super) fn text(&self, names: &str) -> Option<&'a str> {
        self.get(names)?.node.text()
    }

    /// An enumeration's value, which JSON can have as its number too; `?` where it is neither.
    pub(super) fn enumeration(&self, names: &str, values: &[&'static str]) -> Option<&'a str> {
        let at = self.get(names).filter(|at| !at.node.is_null())?;
        let number = || values.get(self.number(names)? as usize).copied();
        Some(at.node.text().or_else(number).unwrap_or("?"))
    }

    pub(super) fn is_true(&self, names: &str) -> bool {
        self.get(names).is_some_and(|at| at.is_set())
    }

    /// Whether this is true.
    pub(super) fn is_set(&self) -> bool {
        match &self.node.value {
            Value::Scalar(Json::Bool(flag)) => *flag,
            Value::Scalar(Json::String(text)) => text == "true",
            _ => false,
        }
    }

    pub(super) fn number(&self, names: &str) -> Option<f64> {
        self.get(names)?.value()
    }

    /// This number.
    pub(super) fn value(&self) -> Option<f64> {
        match &self.node.value {
            Value::Scalar(Json::Number(number)) => number.as_f64(),
            Value::Scalar(Json::String(text)) => text.parse().ok(),
            _ => None,
        }
    }

    /// A duration as protobuf's JSON writes it, in seconds.
    pub(super) fn seconds(&self, names: &str) -> Option<f64> {
        self.text(names)?.strip_suffix('s')?.parse().ok()
    }

    /// An extension's configuration if it is of this message type (the name without its package).
    pub(super) fn typed(&self, kind: &str) -> Option<Self> {
        let config = self.get("typed_config")?;
        let is = |text: Option<&str>| {
            text.is_some_and(|url| url.rsplit(['.', '/']).next().is_some_and(|last| last == kind))
        };
        let of = |at: &Self, name| at.field(name).and_then(|at| at.node.text());
        if is(of(&config, "@type")) {
            return Some(config);
        }
        is(of(&config, "type_url")).then(|| config.get("value")).flatten()
    }

    /// Each text below, this too, with the last field on the way that says what for; `by` is that of
    /// this node.
    pub(super) fn texts<'k>(&self, by: &'k str, each: &mut dyn FnMut(&Self, &'a str, &str))
    where
        'a: 'k,
    {
        match &self.node.value {
            Value::Scalar(Json::String(text)) => each(self, text, by),
            Value::Scalar(_) => {}
            Value::List(_) => self.each().iter().for_each(|item| item.texts(by, each)),
            Value::Map(_) => {
                for (key, below) in self.fields() {
                    // These say which, not what for.
                    let detail = ["name", "header", "header_name"].iter().any(|n| same(key, n));
                    below.texts(if detail { by } else { key }, each);
                }
            }
        }
    }

    /// Each message below whose full name ends so, as an `Any` holds it.
    pub(super) fn messages(&self, end: &str) -> Vec<Self> {
        let holders = self.holders("@type").into_iter().chain(self.holders("type_url"));
        let found = holders.filter_map(|any| any.message());
        found.filter(|(kind, _)| kind.ends_with(end)).map(|(_, message)| message).collect()
    }

    /// Each node below that is a field of one of these names.
    pub(super) fn find_all(&self, names: &[&str]) -> Vec<Self> {
        let mut found = Vec::new();
        self.find_into(names, &mut found);
        found
    }

    fn find_into(&self, names: &[&str], found: &mut Vec<Self>) {
        match &self.node.value {
            Value::Scalar(_) => {}
            Value::List(_) => {
                for item in self.each() {
                    item.find_into(names, found);
                }
            }
            Value::Map(_) => {
                for (key, at) in self.fields() {
                    if names.iter().any(|name| same(key, name)) {
                        found.push(at.clone());
                    }
                    at.find_into(names, found);
                }
            }
        }
    }
}

/// Whether a key is the field of this `snake_case` name, in either spelling.
pub(super) fn same(key: &str, name: &str) -> bool {
    key == name || (name.contains('_') && key == camel(name))
}

/// A field's other spelling.
fn camel(name: &str) -> String {
    let mut camel = String::with_capacity(name.len());
    for (number, word) in name.split('_').enumerate() {
        let mut letters = word.chars();
        match letters.next() {
            Some(first) if number > 0 => camel.push(first.to_ascii_uppercase()),
            Some(first) => camel.push(first),
            None => {}
        }
        camel.push_str(letters.as_str());
    }
    camel
}

fn place(raw: Spanned<Raw>, file: usize) -> Node {
    let here = Place { file, line: raw.defined.line(), column: raw.defined.column() };
    let value = match raw.value {
        Raw::Scalar(scalar) => Value::Scalar(scalar),
        Raw::List(items) => Value::List(items.into_iter().map(|item| place(item, file)).collect()),
        Raw::Map(fields) => {
            Value::Map(fields.into_iter().map(|(name, field)| (name, place(field, file))).collect())
        }
    };
    Node { place: here, value }
}

enum Raw {
    Scalar(Json),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(String, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Scalar(Json::Null))
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Scalar(Json::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Scalar(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut fields = Vec::new();
        while let Some((key, value)) = map.next_entry::<String, Spanned<Raw>>()? {
            fields.push((key, value));
        }
        Ok(Raw::Map(fields))
    }
}

#[cfg(test)]
mod tests;
