//! Filters and methods: exactly the engine's, or the end of the run.

use minijinja::value::ValueKind;

use super::program::{Block, Function, Test};
use super::question::{Ask, Ends};
use super::run::{MAX_BYTES, MAX_ITEMS, Run};
use super::value::{Bail, List, Of, Result, Value, is_true, text_of};
use crate::json::tree::Node;
use crate::template::strip::strip_range;

impl<'a> Run<'a> {
    pub(crate) fn call(
        &mut self,
        function: Function,
        of: Value<'a>,
        list: Block,
    ) -> Result<Value<'a>> {
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
            Function::ToJson => match of {
                Value::None => return self.build("null"),
                Value::Bool(value) => return self.build(if value { "true" } else { "false" }),
                Value::Int(number) => return self.build(&number.to_string()),
                Value::Text(_) | Value::Built(..) => return self.dump_text(of, two),
                _ => {}
            },
            _ => {}
        }
        if let Value::Question(ends) = of {
            return self.question_call(function, ends, one);
        }
        if let Value::Node(node) = of {
            return match (function, node.len()) {
                (Function::ToJson, _) => self.dump(node, one, two),
                // A list has no items, not even an empty one.
                (Function::Items, Some(_)) if node.kind() == ValueKind::Map => self.pairs(node),
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

    /// `items`: each key with its value.
    fn pairs(&mut self, node: Node<'a>) -> Result<Value<'a>> {
        let mut pairs = Vec::new();
        for at in 0..node.len().unwrap_or_default() {
            let (key, value) = node.pair(at).ok_or(Bail)?;
            let place = self.items.len();
            self.collect(&[Value::Text(key), Value::of_node(value)])?;
            pairs.push(Value::Pair(place));
        }
        let pairs = self.collect(&pairs)?;
        Ok(Value::List(pairs.slice(None, None)))
    }

    /// A function of the question.
    fn question_call(
        &mut self,
        function: Function,
        ends: Ends,
        argument: Value<'a>,
    ) -> Result<Value<'a>> {
        let trim = |start, end| match argument {
            Value::Unset => Ok(Value::Question(ends.and(start, end))),
            _ => Err(Bail),
        };
        let ask = match function {
            Function::String => return Ok(Value::Question(ends)),
            Function::Trim | Function::Strip => return trim(true, true),
            Function::StripStart => return trim(true, false),
            Function::StripEnd => return trim(false, true),
            Function::StartsWith => Ask::StartsWith,
            Function::EndsWith => Ask::EndsWith,
            _ => return Err(Bail),
        };
        self.ask(ask, ends, argument).map(Value::Bool)
    }

    /// Asks something of the question.
    pub(crate) fn ask(&mut self, ask: Ask, ends: Ends, what: Value<'a>) -> Result<bool> {
        let what = text_of(&self.built, what).ok_or(Bail)?;
        let bytes = what.len() + self.asking.bytes();
        let answer = self.asking.ask(ask, ends, what).ok_or(Bail)?;
        self.step_text(bytes)?;
        Ok(answer)
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
            Function::Get
            | Function::Items
            | Function::ToJson
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
    pub(crate) fn select(&mut self, of: Value<'a>, list: usize) -> Result<Value<'a>> {
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

/// A part of a text.
pub(crate) fn cut(value: Value<'_>, start: usize, end: usize) -> Result<Value<'_>> {
    match value {
        Value::Text(text) => text.get(start..end).map(Value::Text).ok_or(Bail),
        Value::Built(from, _) => Ok(Value::Built(from + start, from + end)),
        _ => Err(Bail),
    }
}
