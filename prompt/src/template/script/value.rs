//! Values of a script: borrowed or small, so that they are copied and nothing is freed.

use minijinja::Value as EngineValue;
use minijinja::value::ValueKind;

use super::question::Ends;
use crate::json::Json;
use crate::json::tree::Node;

/// The script doesn't know, or may not go on.
#[derive(Debug)]
pub(crate) struct Bail;

pub(crate) type Result<T> = std::result::Result<T, Bail>;

/// A value. What the engine has beyond these isn't worked with: the render is given up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    /// In a variable: nothing was put there.
    Unset,
    Undefined,
    None,
    Bool(bool),
    Int(i64),
    Text(&'a str),
    /// A text that the render built: from where to where.
    Built(usize, usize),
    /// The last message's text in a run that isn't to look into it, so much of it trimmed.
    Question(Ends),
    /// A text that the render built around the question: from where to where, and where it goes.
    Around(usize, usize, (usize, Ends)),
    /// A message, by its place.
    Message(usize),
    /// A part of a message's content: the message and the part's place.
    Part(usize, usize),
    List(List),
    /// A key with its value, as a tuple: the places of both among the items, one after the other.
    Pair(usize),
    /// A namespace, by its number.
    Space(usize),
    /// A list, a map or another number in the request's JSON.
    Node(Node<'a>),
    /// A value of the request that is none of these, neither undefined nor none.
    Other(&'a EngineValue),
    /// Something that is defined, and of which nothing else is known here.
    Opaque,
}

/// A part of a sequence, forwards or backwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    of: Of,
    start: usize,
    end: usize,
    reversed: bool,
    /// What is cut out of a list is an iterable to the engine, not a sequence.
    pub(crate) is_sequence: bool,
}

/// What a list is of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Of {
    Messages,
    /// The parts of this message's content.
    Parts(usize),
    /// Items that the render collected.
    Items,
}

impl List {
    pub(crate) fn new(of: Of, start: usize, end: usize) -> Self {
        Self { of, start, end, reversed: false, is_sequence: true }
    }

    pub(crate) fn of(&self) -> Of {
        self.of
    }

    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Where the item of this index is, in what the list is of.
    pub(crate) fn place(&self, index: usize) -> Option<usize> {
        if index >= self.len() {
            return None;
        }
        Some(if self.reversed { self.end - 1 - index } else { self.start + index })
    }

    /// As a sequence of its own.
    pub(crate) fn collected(self) -> Self {
        Self { is_sequence: true, ..self }
    }

    pub(crate) fn backwards(self) -> Self {
        Self { reversed: !self.reversed, is_sequence: false, ..self }
    }

    /// `[start:stop]`
    pub(crate) fn slice(self, start: Option<i64>, stop: Option<i64>) -> Self {
        let (from, to) = bounds(self.len(), start, stop);
        let (start, end) = if self.reversed {
            (self.end - to, self.end - from)
        } else {
            (self.start + from, self.start + to)
        };
        Self { start, end, is_sequence: false, ..self }
    }
}

/// From where to where `[start:stop]` goes in something of this length.
pub(crate) fn bounds(length: usize, start: Option<i64>, stop: Option<i64>) -> (usize, usize) {
    let place = |index: i64| {
        let far = usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX);
        if index < 0 { length.saturating_sub(far) } else { far.min(length) }
    };
    let from = start.map_or(0, place);
    let to = stop.map_or(length, place);
    (from, to.max(from))
}

impl<'a> Value<'a> {
    /// What a value of the engine is here.
    pub(crate) fn of_engine(value: &'a EngineValue) -> Self {
        if let Some(text) = value.as_str() {
            return Self::Text(text);
        }
        match value.kind() {
            ValueKind::Undefined => Self::Undefined,
            ValueKind::None => Self::None,
            ValueKind::Bool => Self::Bool(value.is_true()),
            ValueKind::Number if value.is_integer() => {
                value.as_i64().map_or(Self::Other(value), Self::Int)
            }
            _ => Self::Other(value),
        }
    }

    /// What a place in the request's JSON is here.
    pub(crate) fn of_node(node: Node<'a>) -> Self {
        match node {
            Node::Json(Json::Null) => Self::None,
            Node::Json(Json::Bool(value)) => Self::Bool(*value),
            Node::Json(Json::Int(number)) => Self::Int(*number),
            Node::Json(Json::Str(text)) => Self::Text(text),
            node => Self::Node(node),
        }
    }

    pub(crate) fn is_undefined(self) -> bool {
        matches!(self, Self::Undefined | Self::Unset)
    }
}

/// Whether a condition of this value holds.
pub(crate) fn is_true(value: Value<'_>) -> Result<bool> {
    match value {
        Value::Unset | Value::Undefined | Value::None => Ok(false),
        Value::Bool(value) => Ok(value),
        Value::Int(number) => Ok(number != 0),
        Value::Text(text) => Ok(!text.is_empty()),
        Value::Built(start, end) => Ok(start < end),
        // No question is empty, not even a trimmed one.
        Value::Question(_)
        | Value::Around(..)
        | Value::Message(_)
        | Value::Part(..)
        | Value::Node(Node::Json(Json::Unsigned(_) | Json::Long(_))) => Ok(true),
        Value::List(list) => Ok(list.len() > 0),
        Value::Node(Node::Json(Json::Float(number))) => Ok(*number != 0.0),
        Value::Node(node) => node.len().map(|length| length > 0).ok_or(Bail),
        Value::Other(value) => Ok(value.is_true()),
        Value::Pair(_) | Value::Space(_) | Value::Opaque => Err(Bail),
    }
}

/// The text of a value that is one.
pub(crate) fn text_of<'t>(built: &'t str, value: Value<'t>) -> Option<&'t str> {
    match value {
        Value::Text(text) => Some(text),
        Value::Built(start, end) => built.get(start..end),
        _ => None,
    }
}
