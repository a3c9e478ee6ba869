//! Operators and tests: exactly the engine's, or the end of the run.

use minijinja::value::ValueKind;

use super::program::{Operator, Test};
use super::question::Ask;
use super::run::Run;
use super::value::{Bail, Result, Value, is_true, text_of};
use crate::json::Json;
use crate::json::tree::Node;

impl<'a> Run<'a> {
    pub(crate) fn binary(
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
        let asks = |value| matches!(value, Value::Question(_) | Value::Around(..));
        if asks(left) || asks(right) {
            return Err(Bail);
        }
        if let (Some(left), Some(right)) = (text_of(&self.built, left), text_of(&self.built, right))
        {
            return Ok(left == right);
        }
        match (left, right) {
            (Value::Message(left), Value::Message(right)) => {
                if left != right && [left, right].map(Some).contains(&self.question) {
                    return Err(Bail);
                }
                self.conversation.are_equal(left, right).ok_or(Bail)
            }
            (
                Value::Node(_) | Value::Pair(_) | Value::Space(_) | Value::Other(_) | Value::Opaque,
                _,
            )
            | (
                _,
                Value::Node(_) | Value::Pair(_) | Value::Space(_) | Value::Other(_) | Value::Opaque,
            )
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
            Value::Question(ends) => self.ask(Ask::Contains, ends, value),
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

    pub(crate) fn test(&mut self, test: Test, of: Value<'a>, argument: Value<'a>) -> Result<bool> {
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
                Value::Node(node) => matches!(node, Node::Json(Json::Unsigned(_) | Json::Long(_))),
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
}

/// What kind of value the engine has; none if that isn't known here.
fn kind(value: Value<'_>) -> Option<ValueKind> {
    Some(match value {
        Value::Unset | Value::Undefined => ValueKind::Undefined,
        Value::None => ValueKind::None,
        Value::Bool(_) => ValueKind::Bool,
        Value::Int(_) => ValueKind::Number,
        Value::Text(_) | Value::Built(..) | Value::Question(_) | Value::Around(..) => {
            ValueKind::String
        }
        Value::Message(_) | Value::Part(..) => ValueKind::Map,
        Value::List(list) if list.is_sequence => ValueKind::Seq,
        Value::List(_) => ValueKind::Iterable,
        Value::Node(node) => node.kind(),
        // A number that is no number of the engine's.
        Value::Other(value) if value.kind() == ValueKind::Plain => return None,
        Value::Other(value) => value.kind(),
        Value::Pair(_) | Value::Space(_) | Value::Opaque => return None,
    })
}

fn integer(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Bool(value) => Some(i64::from(value)),
        Value::Int(number) => Some(number),
        _ => None,
    }
}
