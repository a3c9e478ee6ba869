//! Expressions of a script: exactly what the engine makes of them, or the end of the run.

use minijinja::value::ValueKind;

use super::functions::cut;
use super::program::{At, Expression, Name};
use super::question::Ends;
use super::run::Run;
use super::value::{Bail, List, Of, Result, Value, bounds, is_true, text_of};
use crate::json::tree::Node;
use crate::template::conversation::{Field, KNOWN_PART_FIELDS, Part};

impl<'a> Run<'a> {
    pub(crate) fn value(&mut self, at: At) -> Result<Value<'a>> {
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
            Expression::Macro(number, arguments) => {
                let start = self.call_macro(number, arguments)?;
                self.take_written(start)
            }
            Expression::Namespace(pairs) => self.new_space(pairs),
            Expression::Strftime(format) => {
                let format = self.value(format)?;
                self.strftime(format)
            }
        }
    }

    pub(crate) fn attribute(&mut self, of: Value<'a>, name: Name) -> Result<Value<'a>> {
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
                    "text" if self.question == Some(message) => {
                        Ok(Value::Question(Ends::default()))
                    }
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

    pub(crate) fn message_field(&self, message: usize, name: &str) -> Option<Value<'a>> {
        Some(match self.conversation.field(message, name)? {
            Field::Text(_) if self.question == Some(message) && name == "content" => {
                Value::Question(Ends::default())
            }
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
}

/// An end of a slice.
fn bound(value: Value<'_>) -> Result<Option<i64>> {
    match value {
        Value::None => Ok(None),
        Value::Int(number) => Ok(Some(number)),
        _ => Err(Bail),
    }
}
