//! What a run writes, and the texts that it builds on the way.

use std::fmt::Write;

use super::program::{At, Block, Expression};
use super::run::{MAX_BYTES, Run, STEP_BYTES};
use super::value::{Bail, Result, Value, is_true, text_of};
use crate::json::print::Dumps;
use crate::json::tree::Node;
use crate::template::strftime::strftime;

impl<'a> Run<'a> {
    pub(crate) fn emit(&mut self, at: At) -> Result<()> {
        let script = self.script;
        if let Some(Expression::Add(parts)) = script.expressions.get(usize::from(at)).copied() {
            let parts = script.lists.get(usize::from(parts.start)..usize::from(parts.end));
            let parts = parts.ok_or(Bail)?;
            let mut first = true;
            for part in parts {
                let value = self.value(*part)?;
                if let Some(text) = text_of(&self.built, value) {
                    self.out.push_str(text);
                } else if let Value::Question(_) | Value::Around(..) = value {
                    self.write(value)?;
                } else if first {
                    // A sum.
                    let value = self.value(at)?;
                    return self.write(value);
                } else {
                    return Err(Bail);
                }
                first = false;
            }
            return self.check_bytes();
        }
        if let Some(Expression::Macro(number, arguments)) =
            script.expressions.get(usize::from(at)).copied()
        {
            return self.call_macro(number, arguments).map(|_| ());
        }
        let value = self.value(at)?;
        self.write(value)
    }

    /// What was written from here on, as a text in place of output.
    pub(crate) fn take_written(&mut self, start: usize) -> Result<Value<'a>> {
        // What is built has no place for the question.
        if self.asking.written.last().is_some_and(|(at, _)| *at >= start) {
            return Err(Bail);
        }
        let from = self.built.len();
        self.built.push_str(self.out.get(start..).ok_or(Bail)?);
        self.out.truncate(start);
        self.check_bytes()?;
        self.step_text(self.built.len() - from)?;
        Ok(Value::Built(from, self.built.len()))
    }

    /// Writes a value as Python does.
    fn write(&mut self, value: Value<'a>) -> Result<()> {
        match value {
            Value::Undefined | Value::Unset => {}
            Value::None => self.out.push_str("None"),
            Value::Bool(value) => self.out.push_str(if value { "True" } else { "False" }),
            Value::Int(number) => push_int(&mut self.out, number),
            Value::Question(ends) => self.asking.written.push((self.out.len(), ends)),
            Value::Around(start, end, (at, ends)) => {
                self.out.push_str(self.built.get(start..at).ok_or(Bail)?);
                self.asking.written.push((self.out.len(), ends));
                self.out.push_str(self.built.get(at..end).ok_or(Bail)?);
            }
            value => self.out.push_str(text_of(&self.built, value).ok_or(Bail)?),
        }
        self.check_bytes()
    }

    fn check_bytes(&self) -> Result<()> {
        if self.out.len() + self.built.len() > MAX_BYTES { Err(Bail) } else { Ok(()) }
    }

    /// `a + b + …`
    pub(crate) fn add(&mut self, parts: Block) -> Result<Value<'a>> {
        let base = self.evaluate(parts)?;
        let values = self.open.get(base..).ok_or(Bail)?;
        if let Some(Value::Int(_)) = values.first() {
            let mut sum = 0i64;
            for value in values {
                let Value::Int(number) = value else { return Err(Bail) };
                sum = sum.checked_add(*number).ok_or(Bail)?;
            }
            self.open.truncate(base);
            return Ok(Value::Int(sum));
        }
        self.join(base, false)
    }

    /// `a ~ b ~ …`
    pub(crate) fn concat(&mut self, parts: Block) -> Result<Value<'a>> {
        let base = self.evaluate(parts)?;
        self.join(base, true)
    }

    /// Evaluates expressions; their values are open from the place that it returns.
    pub(crate) fn evaluate(&mut self, parts: Block) -> Result<usize> {
        let script = self.script;
        let parts = script.lists.get(usize::from(parts.start)..usize::from(parts.end));
        let base = self.open.len();
        for part in parts.ok_or(Bail)? {
            let value = self.value(*part)?;
            self.open.push(value);
        }
        Ok(base)
    }

    /// Evaluates expressions to a list.
    pub(crate) fn evaluate_list(&mut self, parts: Block) -> Result<Value<'a>> {
        let base = self.evaluate(parts)?;
        let items = self.open.split_off(base);
        self.collect(&items).map(Value::List)
    }

    /// One text of the open values.
    fn join(&mut self, base: usize, numbers: bool) -> Result<Value<'a>> {
        let mut start = self.built.len();
        let mut question = None;
        for index in base..self.open.len() {
            match *self.open.get(index).ok_or(Bail)? {
                // What was built last is built on: nothing that names it sees more of it.
                Value::Built(from, to) if index == base && to == self.built.len() => start = from,
                Value::Built(from, to) => self.built.extend_from_within(from..to),
                Value::Text(text) => self.built.push_str(text),
                Value::Int(number) if numbers => push_int(&mut self.built, number),
                Value::Question(ends) if question.is_none() => {
                    question = Some((self.built.len(), ends));
                }
                Value::Around(from, to, (at, ends)) if question.is_none() => {
                    self.built.extend_from_within(from..at);
                    question = Some((self.built.len(), ends));
                    self.built.extend_from_within(at..to);
                }
                _ => return Err(Bail),
            }
            self.check_bytes()?;
        }
        self.open.truncate(base);
        let end = self.built.len();
        self.step((end - start) / STEP_BYTES)?;
        Ok(match question {
            Some(question) => Value::Around(start, end, question),
            None => Value::Built(start, end),
        })
    }

    pub(crate) fn strftime(&mut self, format: Value<'a>) -> Result<Value<'a>> {
        let format = text_of(&self.built, format).ok_or(Bail)?;
        let text = strftime(format, self.now_unix);
        if self.question.is_some() && !self.asking.told_time(format, &text, self.now_unix) {
            return Err(Bail);
        }
        self.build(&text)
    }

    pub(crate) fn build(&mut self, text: &str) -> Result<Value<'a>> {
        let start = self.built.len();
        self.built.push_str(text);
        self.check_bytes()?;
        Ok(Value::Built(start, self.built.len()))
    }

    /// `tojson`
    pub(crate) fn dump(
        &mut self,
        node: Node<'a>,
        indent: Value<'a>,
        ascii: Value<'a>,
    ) -> Result<Value<'a>> {
        let mut dumps = Dumps { ensure_ascii: is_true(ascii)?, ..Dumps::default() };
        match indent {
            Value::Undefined => {}
            Value::Int(indent) => {
                let indent = usize::try_from(indent).map_err(|_| Bail)?;
                dumps.indent = Some(" ".repeat(indent.min(64)));
                dumps.item_separator = ",".into();
            }
            _ => return Err(Bail),
        }
        let start = self.built.len();
        node.dump(&dumps, 0, &mut self.built).map_err(|_| Bail)?;
        self.check_bytes()?;
        self.step_text(self.built.len() - start)?;
        Ok(Value::Built(start, self.built.len()))
    }

    /// The same for a text.
    pub(crate) fn dump_text(&mut self, text: Value<'a>, ascii: Value<'a>) -> Result<Value<'a>> {
        let mut out = String::new();
        let dumps = Dumps { ensure_ascii: is_true(ascii)?, ..Dumps::default() };
        dumps.string(text_of(&self.built, text).ok_or(Bail)?, &mut out);
        self.step_text(out.len())?;
        self.build(&out)
    }
}

fn push_int(out: &mut String, number: i64) {
    let _ = write!(out, "{number}");
}
