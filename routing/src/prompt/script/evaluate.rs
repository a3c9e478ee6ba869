//! Expressions of a script: exactly what the engine makes of them, or the end of the run.

use minijinja::value::ValueKind;

use super::super::json::Json;
use super::super::message::{Field, KNOWN_PART_FIELDS, Part};
use super::super::template::strip_range;
use super::super::tree::Node;
use super::program::{At, Block, Expression, Function, Name, Operator, Test};
use super::run::{Bail, MAX_BYTES, MAX_ITEMS, Result, Run, text_of};
use super::value::{List, Of, Value, bounds};

impl<'a> Run<'a> {
    pub(super) fn value(&mut self, at: At) -> Result<Value<'a>> {
        self.step(1)?;
        match self.expression(at)? {
            Expression::Bail => Err(Bail),
            Expression::Constant(number) => self.constant(number),
            Expression::Given(place) => self.given(place),
            Expression::Local(places, given) => self.local(places, given),
            Expression::Attribute(of, name) => {
                let of = self.value(of)?;
                self.attribute(of, name)
            }
            Expression::Item(of, key) => {
                let of = self.value(of)?;
                let key = self.value(key)?;
                self.item(of, key)
            }
            Expression::Loop(depth, field) => self.loop_field(depth, field),
            Expression::Slice(of, start, stop) => {
                let of = self.value(of)?;
                let start = bound(self.value(start)?)?;
                let stop = bound(self.value(stop)?)?;
                self.slice(of, start, stop)
            }
            Expression::Reversed(of) => match self.value(of)? {
                Value::List(list) => Ok(Value::List(list.backwards())),
                _ => Err(Bail),
            },
            Expression::Not(at) => {
                let value = self.value(at)?;
                Ok(Value::Bool(!is_true(value)?))
            }
            Expression::Negative(at) => match self.value(at)? {
                Value::Int(number) => number.checked_neg().map(Value::Int).ok_or(Bail),
                _ => Err(Bail),
            },
            Expression::And(left, right) => {
                let left = self.value(left)?;
                if is_true(left)? { self.value(right) } else { Ok(left) }
            }
            Expression::Or(left, right) => {
                let left = self.value(left)?;
                if is_true(left)? { Ok(left) } else { self.value(right) }
            }
            Expression::Choice(condition, then, otherwise) => {
                let condition = self.value(condition)?;
                let is_true = is_true(condition)?;
                self.value(if is_true { then } else { otherwise })
            }
            Expression::Binary(operator, left, right) => {
                let left = self.value(left)?;
                let right = self.value(right)?;
                self.binary(operator, left, right)
            }
            Expression::Add(parts) => self.add(parts),
            Expression::Concat(parts) => self.concat(parts),
            Expression::Test(test, of, argument) => {
                let of = self.value(of)?;
                let argument = self.value(argument)?;
                self.test(test, of, argument).map(Value::Bool)
            }
            Expression::Call(function, of, arguments) => {
                let of = self.value(of)?;
                self.call(function, of, arguments)
            }
            Expression::Select(of, list) => {
                let of = self.value(of)?;
                self.select(of, usize::from(list))
            }
            Expression::List(items) => self.evaluate_list(items),
            Expression::Namespace(pairs) => self.new_space(pairs),
            Expression::Strftime(format) => {
                let format = self.value(format)?;
                self.strftime(format)
            }
        }
    }

    fn attribute(&mut self, of: Value<'a>, name: Name) -> Result<Value<'a>> {
        match of {
            Value::None | Value::Bool(_) | Value::Int(_) | Value::Text(_) | Value::Built(..) => {
                Ok(Value::Undefined)
            }
            Value::Message(message) => {
                let name = self.name(name)?;
                Ok(self.message_field(message, name).unwrap_or(Value::Undefined))
            }
            Value::Part(message, place) => {
                let Some(Part::Text(text, extra)) = self.part(message, place) else {
                    return Err(Bail);
                };
                match self.name(name)? {
                    "type" => Ok(Value::Text("text")),
                    "text" => Ok(Value::Text(text)),
                    name if KNOWN_PART_FIELDS.contains(&name) => Ok(Value::Undefined),
                    name => {
                        self.step(extra.len())?;
                        let field = extra.iter().find(|(field, _)| field == name);
                        Ok(field
                            .map_or(Value::Undefined, |(_, json)| Value::of_node(Node::Json(json))))
                    }
                }
            }
            Value::Node(node) if node.kind() == ValueKind::Map => {
                self.step(node.len().unwrap_or_default() / 8)?;
                Ok(node.get(self.name(name)?).map_or(Value::Undefined, Value::of_node))
            }
            Value::Space(space) => Ok(self.field(space, name)),
            _ => Err(Bail),
        }
    }

    fn message_field(&self, message: usize, name: &str) -> Option<Value<'a>> {
        Some(match self.conversation.field(message, name)? {
            Field::Text(text) => Value::Text(text),
            Field::Other(tree) => Value::of_node(tree.node()),
            Field::Parts(parts) => Value::List(List::new(Of::Parts(message), 0, parts.len())),
        })
    }

    fn item(&self, of: Value<'a>, key: Value<'a>) -> Result<Value<'a>> {
        match (of, key) {
            (Value::Node(node), Value::Int(index)) if node.kind() == ValueKind::Seq => {
                let far = usize::try_from(index.unsigned_abs()).map_err(|_| Bail)?;
                let length = node.len().ok_or(Bail)?;
                let index = if index < 0 { length.checked_sub(far) } else { Some(far) };
                let item = index.and_then(|index| node.item(index));
                Ok(item.map_or(Value::Undefined, Value::of_node))
            }
            (Value::Node(node), Value::Text(_) | Value::Built(..))
                if node.kind() == ValueKind::Map =>
            {
                let name = text_of(&self.built, key).ok_or(Bail)?;
                Ok(node.get(name).map_or(Value::Undefined, Value::of_node))
            }
            (Value::List(list), Value::Int(index)) => {
                let far = usize::try_from(index.unsigned_abs()).map_err(|_| Bail)?;
                let index = if index < 0 { list.len().checked_sub(far) } else { Some(far) };
                Ok(index.map_or(Value::Undefined, |index| self.list_item(&list, index)))
            }
            (Value::Message(message), Value::Text(_) | Value::Built(..)) => {
                let name = text_of(&self.built, key).ok_or(Bail)?;
                Ok(self.message_field(message, name).unwrap_or(Value::Undefined))
            }
            _ => Err(Bail),
        }
    }

    fn slice(&mut self, of: Value<'a>, start: Option<i64>, stop: Option<i64>) -> Result<Value<'a>> {
        match of {
            Value::List(list) => Ok(Value::List(list.slice(start, stop))),
            Value::Text(_) | Value::Built(..) => {
                let text = text_of(&self.built, of).ok_or(Bail)?;
                let (from, to) = bounds(text.chars().count(), start, stop);
                let mut places = text.char_indices().map(|(place, _)| place).chain([text.len()]);
                let from_byte = places.nth(from).ok_or(Bail)?;
                let to_byte = match (to - from).checked_sub(1) {
                    Some(more) => places.nth(more).ok_or(Bail)?,
                    None => from_byte,
                };
                let bytes = text.len();
                self.step_text(bytes)?;
                cut(of, from_byte, to_byte)
            }
            _ => Err(Bail),
        }
    }

    fn binary(
        &mut self,
        operator: Operator,
        left: Value<'a>,
        right: Value<'a>,
    ) -> Result<Value<'a>> {
        let number = |number: Option<i64>| number.map(Value::Int).ok_or(Bail);
        match operator {
            Operator::Equal => self.are_equal(left, right).map(Value::Bool),
            Operator::NotEqual => self.are_equal(left, right).map(|equal| Value::Bool(!equal)),
            Operator::In => self.contains(right, left).map(Value::Bool),
            Operator::Less
            | Operator::LessOrEqual
            | Operator::Greater
            | Operator::GreaterOrEqual => {
                let order = if let (Value::Int(left), Value::Int(right)) = (left, right) {
                    left.cmp(&right)
                } else {
                    let left = text_of(&self.built, left).ok_or(Bail)?;
                    left.cmp(text_of(&self.built, right).ok_or(Bail)?)
                };
                Ok(Value::Bool(match operator {
                    Operator::Less => order.is_lt(),
                    Operator::LessOrEqual => order.is_le(),
                    Operator::Greater => order.is_gt(),
                    _ => order.is_ge(),
                }))
            }
            Operator::Subtract
            | Operator::Multiply
            | Operator::FloorDivide
            | Operator::Remainder => {
                let (Value::Int(left), Value::Int(right)) = (left, right) else {
                    return Err(Bail);
                };
                // A quotient is rounded down, and a remainder has the sign of what is divided by.
                let inexact = |rest: i64| i64::from(rest != 0 && (rest < 0) != (right < 0));
                number(match operator {
                    Operator::Subtract => left.checked_sub(right),
                    Operator::Multiply => left.checked_mul(right),
                    Operator::FloorDivide => {
                        let rest = left.checked_rem(right).ok_or(Bail)?;
                        left.checked_div(right).map(|quotient| quotient - inexact(rest))
                    }
                    _ => left.checked_rem(right).map(|rest| rest + inexact(rest) * right),
                })
            }
        }
    }

    fn are_equal(&self, left: Value<'a>, right: Value<'a>) -> Result<bool> {
        if let (Some(left), Some(right)) = (text_of(&self.built, left), text_of(&self.built, right))
        {
            return Ok(left == right);
        }
        match (left, right) {
            (Value::Message(left), Value::Message(right)) if left == right => Ok(true),
            (Value::Node(_) | Value::Space(_) | Value::Other(_) | Value::Opaque, _)
            | (_, Value::Node(_) | Value::Space(_) | Value::Other(_) | Value::Opaque)
            | (
                Value::Message(_) | Value::Part(..) | Value::List(_),
                Value::Message(_) | Value::Part(..) | Value::List(_),
            ) => Err(Bail),
            (Value::Undefined | Value::Unset, right) => Ok(right.is_undefined()),
            (Value::None, Value::None) => Ok(true),
            // True is one, and false is none.
            (left, right) => Ok(match (integer(left), integer(right)) {
                (Some(left), Some(right)) => left == right,
                _ => false,
            }),
        }
    }

    fn contains(&mut self, container: Value<'a>, value: Value<'a>) -> Result<bool> {
        match container {
            Value::Undefined | Value::Unset => Ok(false),
            Value::Text(_) | Value::Built(..) => {
                let text = text_of(&self.built, container).ok_or(Bail)?;
                let found = text.contains(text_of(&self.built, value).ok_or(Bail)?);
                let bytes = text.len();
                self.step_text(bytes)?;
                Ok(found)
            }
            Value::List(list) => {
                self.step(list.len())?;
                for index in 0..list.len() {
                    if self.are_equal(self.list_item(&list, index), value)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Value::Node(node) if node.kind() == ValueKind::Map => {
                self.step(node.len().unwrap_or_default() / 8)?;
                Ok(node.get(text_of(&self.built, value).ok_or(Bail)?).is_some())
            }
            Value::Node(node) if node.kind() == ValueKind::Seq => {
                for at in 0..node.len().unwrap_or_default() {
                    self.step(1)?;
                    let item = node.item(at).map(Value::of_node).ok_or(Bail)?;
                    if self.are_equal(item, value)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Value::Message(message) => {
                let name = text_of(&self.built, value).ok_or(Bail)?;
                Ok(self.conversation.field(message, name).is_some())
            }
            _ => Err(Bail),
        }
    }

    fn test(&mut self, test: Test, of: Value<'a>, argument: Value<'a>) -> Result<bool> {
        let kind = kind(of);
        match test {
            Test::Defined => return Ok(!of.is_undefined()),
            Test::Undefined => return Ok(of.is_undefined()),
            Test::None => return Ok(matches!(of, Value::None)),
            Test::Equal => return self.are_equal(of, argument),
            Test::NotEqual => return self.are_equal(of, argument).map(|equal| !equal),
            Test::In => return self.contains(argument, of),
            Test::Truthy => return is_true(of),
            _ => {}
        }
        let kind = kind.ok_or(Bail)?;
        Ok(match test {
            Test::String => kind == ValueKind::String,
            Test::Boolean => kind == ValueKind::Bool,
            Test::True => matches!(of, Value::Bool(true)),
            Test::False => matches!(of, Value::Bool(false)),
            Test::Number => matches!(kind, ValueKind::Number | ValueKind::Bool),
            Test::Integer => match of {
                Value::Int(_) => true,
                Value::Other(value) => value.is_integer(),
                Value::Node(node) => matches!(node, Node::Json(Json::Unsigned(_))),
                _ => false,
            },
            Test::Mapping => kind == ValueKind::Map,
            Test::Iterable => matches!(
                kind,
                ValueKind::Undefined
                    | ValueKind::String
                    | ValueKind::Seq
                    | ValueKind::Map
                    | ValueKind::Iterable
            ),
            Test::Sequence => matches!(
                kind,
                ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map
            ),
            _ => return Err(Bail),
        })
    }

    fn call(&mut self, function: Function, of: Value<'a>, list: Block) -> Result<Value<'a>> {
        let mut arguments = [Value::Unset; 2];
        let places = usize::from(list.start)..usize::from(list.end);
        for (place, argument) in places.zip(&mut arguments) {
            let at = self.listed(place)?;
            *argument = self.value(at)?;
        }
        let [one, two] = arguments;
        match function {
            Function::Default => {
                let other = if matches!(one, Value::Unset) { Value::Text("") } else { one };
                let is_missing = of.is_undefined() || (is_true(two)? && !is_true(of)?);
                return Ok(if is_missing { other } else { of });
            }
            Function::Get => {
                let Value::Message(message) = of else { return Err(Bail) };
                let name = text_of(&self.built, one).ok_or(Bail)?;
                let other = if matches!(two, Value::Unset) { Value::None } else { two };
                return Ok(self.message_field(message, name).unwrap_or(other));
            }
            Function::Length if of.is_undefined() => return Ok(Value::Int(0)),
            Function::First | Function::Last if of.is_undefined() => return Ok(Value::Undefined),
            Function::List if of.is_undefined() => {
                return Ok(Value::List(List::new(Of::Items, 0, 0)));
            }
            _ => {}
        }
        if let Value::Node(node) = of {
            return match (function, node.len()) {
                (Function::ToJson, _) => self.dump(node),
                (Function::Length, Some(length)) => {
                    i64::try_from(length).map(Value::Int).map_err(|_| Bail)
                }
                _ => Err(Bail),
            };
        }
        if let Value::List(list) = of {
            return Ok(match function {
                Function::Length => Value::Int(i64::try_from(list.len()).map_err(|_| Bail)?),
                Function::List => Value::List(list.collected()),
                Function::First => self.list_item(&list, 0),
                Function::Last => match list.len().checked_sub(1) {
                    Some(last) => self.list_item(&list, last),
                    None => Value::Undefined,
                },
                _ => return Err(Bail),
            });
        }
        self.text_call(function, of, one, two)
    }

    /// A function of a text.
    fn text_call(
        &mut self,
        function: Function,
        of: Value<'a>,
        one: Value<'a>,
        two: Value<'a>,
    ) -> Result<Value<'a>> {
        let text = text_of(&self.built, of).ok_or(Bail)?;
        let bytes = text.len();
        let argument = |value: Value<'a>| match value {
            Value::Unset => Ok(None),
            value => text_of(&self.built, value).map(Some).ok_or(Bail),
        };
        let first = argument(one)?;
        let value = match function {
            Function::String => of,
            Function::Trim | Function::Strip | Function::StripStart | Function::StripEnd => {
                let range = strip_range(
                    text,
                    first,
                    function != Function::StripEnd,
                    function != Function::StripStart,
                );
                cut(of, range.start, range.end)?
            }
            Function::StartsWith => Value::Bool(text.starts_with(first.ok_or(Bail)?)),
            Function::EndsWith => Value::Bool(text.ends_with(first.ok_or(Bail)?)),
            Function::Length => Value::Int(i64::try_from(text.chars().count()).map_err(|_| Bail)?),
            Function::Split | Function::SplitFirst | Function::SplitLast => {
                let separator = first.filter(|separator| !separator.is_empty()).ok_or(Bail)?;
                let mut pieces = Vec::new();
                let mut start = 0;
                for (at, _) in text.match_indices(separator) {
                    if pieces.len() >= MAX_ITEMS {
                        return Err(Bail);
                    }
                    match function {
                        Function::SplitFirst => return cut(of, 0, at),
                        Function::Split => pieces.push(cut(of, start, at)?),
                        _ => {}
                    }
                    start = at + separator.len();
                }
                let rest = cut(of, start, text.len())?;
                if function != Function::Split {
                    self.step_text(bytes)?;
                    return Ok(rest);
                }
                pieces.push(rest);
                Value::List(self.collect(&pieces)?)
            }
            Function::Replace => {
                let (from, to) = (first.ok_or(Bail)?, argument(two)?.ok_or(Bail)?);
                // Between all characters, or very much of it, is for the engine to count.
                let most = text.len().checked_div(from.len()).ok_or(Bail)?;
                if most.saturating_mul(to.len()) > MAX_BYTES {
                    return Err(Bail);
                }
                let text = text.replace(from, to);
                self.build(&text)?
            }
            Function::Upper => {
                let text = text.to_uppercase();
                self.build(&text)?
            }
            Function::Lower => {
                let text = text.to_lowercase();
                self.build(&text)?
            }
            Function::ToJson => return self.dump_text(of),
            Function::Get
            | Function::List
            | Function::First
            | Function::Last
            | Function::Default => {
                return Err(Bail);
            }
        };
        self.step_text(bytes)?;
        Ok(value)
    }

    /// `selectattr` and `rejectattr`
    fn select(&mut self, of: Value<'a>, list: usize) -> Result<Value<'a>> {
        let keep = self.listed(list)? == 1;
        let name = self.listed(list + 1)?;
        let test = Test::of_number(self.listed(list + 2)?).ok_or(Bail)?;
        let argument = self.listed(list + 3)?;
        let argument = self.value(argument)?;
        let from = self.gone_over(of)?;
        let mut kept = Vec::new();
        for index in 0..from.len() {
            self.step(1)?;
            let item = self.list_item(&from, index);
            let value = self.attribute(item, name)?;
            if self.test(test, value, argument)? == keep {
                kept.push(item);
            }
        }
        self.collect(&kept).map(Value::List)
    }
}

/// Whether a condition of this value holds.
pub(super) fn is_true(value: Value<'_>) -> Result<bool> {
    match value {
        Value::Unset | Value::Undefined | Value::None => Ok(false),
        Value::Bool(value) => Ok(value),
        Value::Int(number) => Ok(number != 0),
        Value::Text(text) => Ok(!text.is_empty()),
        Value::Built(start, end) => Ok(start < end),
        Value::Message(_) | Value::Part(..) => Ok(true),
        Value::List(list) => Ok(list.len() > 0),
        Value::Node(Node::Json(Json::Unsigned(_))) => Ok(true),
        Value::Node(Node::Json(Json::Float(number))) => Ok(*number != 0.0),
        Value::Node(node) => node.len().map(|length| length > 0).ok_or(Bail),
        Value::Other(value) => Ok(value.is_true()),
        Value::Space(_) | Value::Opaque => Err(Bail),
    }
}

/// What kind of value the engine has; none if that isn't known here.
fn kind(value: Value<'_>) -> Option<ValueKind> {
    Some(match value {
        Value::Unset | Value::Undefined => ValueKind::Undefined,
        Value::None => ValueKind::None,
        Value::Bool(_) => ValueKind::Bool,
        Value::Int(_) => ValueKind::Number,
        Value::Text(_) | Value::Built(..) => ValueKind::String,
        Value::Message(_) | Value::Part(..) => ValueKind::Map,
        Value::List(list) if list.is_sequence => ValueKind::Seq,
        Value::List(_) => ValueKind::Iterable,
        Value::Node(node) => node.kind(),
        Value::Other(value) => value.kind(),
        Value::Space(_) | Value::Opaque => return None,
    })
}

fn integer(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Bool(value) => Some(i64::from(value)),
        Value::Int(number) => Some(number),
        _ => None,
    }
}

/// An end of a slice.
fn bound(value: Value<'_>) -> Result<Option<i64>> {
    match value {
        Value::None => Ok(None),
        Value::Int(number) => Ok(Some(number)),
        _ => Err(Bail),
    }
}

/// A part of a text.
fn cut(value: Value<'_>, start: usize, end: usize) -> Result<Value<'_>> {
    match value {
        Value::Text(text) => text.get(start..end).map(Value::Text).ok_or(Bail),
        Value::Built(from, _) => Ok(Value::Built(from + start, from + end)),
        _ => Err(Bail),
    }
}
