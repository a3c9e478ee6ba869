//! Runs a script over a conversation.

use minijinja::value::ValueKind;

use super::program::{
    At, Block, Constant, Expression, Loop, LoopField, Name, Script, Statement, Target, Text,
};
use super::question::{Asking, Shape, is_question};
use super::value::{Bail, List, Of, Result, Value, is_true};
use crate::json::tree::Tree;
use crate::template::context::Context;
use crate::template::conversation::{Conversation, Part};

/// Statements, expressions and stretches of text per request, after which the engine may go on.
const MAX_STEPS: usize = 500_000;

/// Bytes that a render may write, and build on the way; the engine may write more.
pub(crate) const MAX_BYTES: usize = 16 << 20;

/// Items of lists that are made on the way; more are the engine's.
pub(crate) const MAX_ITEMS: usize = 1 << 16;

/// Macros that may run in each other.
const MAX_CALLS: usize = 3;

/// Fields in namespaces; more are the engine's.
const MAX_FIELDS: usize = 64;

/// Bytes of text that are one more step.
pub(crate) const STEP_BYTES: usize = 64;

/// What comes after a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Next,
    Break,
    Continue,
}

/// A loop that is running.
#[derive(Clone, Copy)]
struct Running {
    list: List,
    index: usize,
}

pub(crate) struct Run<'a> {
    pub(crate) script: &'a Script,
    pub(crate) conversation: &'a Conversation<'a>,
    given: Vec<Value<'a>>,
    locals: Vec<Value<'a>>,
    loops: Vec<Running>,
    /// How many of these are not the macro's that is running, and how many macros are.
    outer_loops: usize,
    calls: usize,
    /// Namespaces' fields: whose, which, what.
    fields: Vec<(usize, Name, Value<'a>)>,
    spaces: usize,
    /// Items of lists that are made on the way.
    pub(crate) items: Vec<Value<'a>>,
    /// Values that are about to be joined.
    pub(crate) open: Vec<Value<'a>>,
    /// Texts that are made on the way.
    pub(crate) built: String,
    pub(crate) out: String,
    /// The message of which the content is the question, if the run is to do without its text.
    pub(crate) question: Option<usize>,
    pub(crate) asking: Asking<'a>,
    steps: usize,
    pub(crate) now_unix: i64,
}

impl Script {
    /// The text, or none where only the engine can tell it, errors among that.
    pub(crate) fn run(
        &self,
        conversation: &Conversation<'_>,
        context: &Context<'_>,
    ) -> Option<String> {
        let mut run = Run::new(self, conversation, context);
        run.all(context).ok()?;
        Some(run.out)
    }

    /// The prompt but for the text of the last message; none where that matters otherwise than by
    /// what a [`Shape`] can tell.
    pub(crate) fn shape(
        &self,
        conversation: &Conversation<'_>,
        context: &Context<'_>,
    ) -> Option<Shape> {
        let last = conversation.len().checked_sub(1)?;
        let question = conversation.text(last).filter(|text| is_question(text))?;
        let mut run = Run::new(self, conversation, context);
        run.question = Some(last);
        run.asking = Asking::of(question);
        run.all(context).ok()?;
        run.asking.shape(run.out)
    }
}

impl<'a> Run<'a> {
    fn new(script: &'a Script, conversation: &'a Conversation<'a>, context: &Context<'_>) -> Self {
        Self {
            script,
            conversation,
            given: Vec::with_capacity(script.given.len()),
            locals: vec![Value::Unset; usize::from(script.locals)],
            loops: Vec::new(),
            outer_loops: 0,
            calls: 0,
            fields: Vec::new(),
            spaces: 0,
            items: Vec::new(),
            open: Vec::new(),
            built: String::new(),
            out: String::with_capacity(conversation.bytes() + 64 * conversation.len() + 256),
            question: None,
            asking: Asking::default(),
            steps: MAX_STEPS,
            now_unix: context.now_unix,
        }
    }

    fn all(&mut self, context: &'a Context<'a>) -> Result<()> {
        if self.conversation.media > 0 {
            return Err(Bail);
        }
        self.give(context)?;
        self.block(self.script.body).map(drop)
    }

    /// Sets the variables of the context; later ones go before.
    fn give(&mut self, context: &'a Context<'a>) -> Result<()> {
        let script = self.script;
        let given = |tree: Option<&'a Tree<'a>>| {
            tree.map_or(Value::None, |tree| Value::of_node(tree.node()))
        };
        for variable in &script.given {
            let value = match &*variable.name {
                "strftime_now" => Value::Opaque,
                "messages" => Value::List(List::new(Of::Messages, 0, self.conversation.len())),
                "tools" => given(context.tools.as_ref()),
                "documents" => given(context.documents.as_ref()),
                "add_generation_prompt" => Value::Bool(context.add_generation_prompt),
                _ if variable.function => Value::Opaque,
                _ => Value::Undefined,
            };
            self.given.push(value);
        }
        for (place, text) in &script.special {
            let text = self.script_text(*text)?;
            self.give_unless_fixed(usize::from(*place), Value::Text(text));
        }
        for (name, value) in &context.variables {
            // The call of this name is compiled as that of the function.
            if name == "namespace" {
                return Err(Bail);
            }
            if let Some(place) = script.given.iter().position(|given| *given.name == **name) {
                self.give_unless_fixed(place, Value::of_engine(value));
            }
        }
        Ok(())
    }

    fn give_unless_fixed(&mut self, place: usize, value: Value<'a>) {
        const FIXED: [&str; 5] =
            ["strftime_now", "messages", "tools", "documents", "add_generation_prompt"];
        if let (Some(given), Some(old)) = (self.script.given.get(place), self.given.get_mut(place))
            && !FIXED.contains(&&*given.name)
        {
            *old = value;
        }
    }

    fn block(&mut self, block: Block) -> Result<Then> {
        let script = self.script;
        let statements = script.statements.get(usize::from(block.start)..usize::from(block.end));
        for statement in statements.ok_or(Bail)? {
            self.step(1)?;
            let then = match *statement {
                Statement::Raw(text) => {
                    let text = self.script_text(text)?;
                    self.out.push_str(text);
                    Then::Next
                }
                Statement::Emit(at) => {
                    self.emit(at)?;
                    Then::Next
                }
                Statement::Set(place, at) => {
                    let value = self.value(at)?;
                    self.set(place, value)?;
                    Then::Next
                }
                Statement::SetAttribute(space, name, at) => {
                    let value = self.value(at)?;
                    let Value::Space(space) = self.value(space)? else { return Err(Bail) };
                    self.set_field(space, name, value)?;
                    Then::Next
                }
                Statement::If(condition, then, otherwise) => {
                    let condition = self.value(condition)?;
                    let is_true = is_true(condition)?;
                    self.block(if is_true { then } else { otherwise })?
                }
                Statement::For(number) => {
                    let looped = script.loops.get(usize::from(number)).ok_or(Bail)?;
                    self.run_loop(looped)?
                }
                Statement::Break => Then::Break,
                Statement::Continue => Then::Continue,
                Statement::Bail => return Err(Bail),
            };
            if then != Then::Next {
                return Ok(then);
            }
        }
        Ok(Then::Next)
    }

    fn run_loop(&mut self, looped: &Loop) -> Result<Then> {
        let over = self.value(looped.over)?;
        let mut list = self.gone_over(over)?;
        if let Some((item, condition)) = looped.filter {
            let mut kept = Vec::new();
            for index in 0..list.len() {
                let value = self.list_item(&list, index);
                self.bind(item, value)?;
                let condition = self.value(condition)?;
                if is_true(condition)? {
                    kept.push(value);
                }
            }
            list = self.collect(&kept)?;
        }
        let depth = self.loops.len();
        self.loops.push(Running { list, index: 0 });
        let mut last = 0;
        for index in 0..list.len() {
            self.step(1)?;
            last = index;
            if let Some(running) = self.loops.get_mut(depth) {
                running.index = index;
            }
            self.clear(looped.locals)?;
            let value = self.list_item(&list, index);
            self.bind(looped.target, value)?;
            if self.block(looped.body)? == Then::Break {
                break;
            }
            last = index + 1;
        }
        self.loops.truncate(depth);
        // The engine takes a loop that was left in its first turn for one that had none.
        if last == 0 { self.block(looped.otherwise) } else { Ok(Then::Next) }
    }

    /// Runs a macro; its output stands in the output from the place that it returns.
    pub(crate) fn call_macro(&mut self, number: u16, arguments: Block) -> Result<usize> {
        let script = self.script;
        let called = script.macros.get(usize::from(number)).ok_or(Bail)?;
        if self.calls >= MAX_CALLS {
            return Err(Bail);
        }
        let base = self.evaluate(arguments)?;
        let values = self.open.split_off(base);
        self.clear(called.locals)?;
        let parameters = usize::from(called.parameters.start)..usize::from(called.parameters.end);
        for (place, mut value) in parameters.step_by(2).zip(values) {
            // What is undefined counts as not given.
            if value.is_undefined() {
                let default = self.listed(place + 1)?;
                value = self.value(default)?;
            }
            let variable = self.listed(place)?;
            self.set(variable, value)?;
        }
        let outer = std::mem::replace(&mut self.outer_loops, self.loops.len());
        self.calls += 1;
        let start = self.out.len();
        self.block(called.body)?;
        self.calls -= 1;
        self.outer_loops = outer;
        Ok(start)
    }

    fn clear(&mut self, locals: Block) -> Result<()> {
        let own = usize::from(locals.start)..usize::from(locals.end);
        self.locals.get_mut(own).ok_or(Bail)?.fill(Value::Unset);
        Ok(())
    }

    fn bind(&mut self, target: Target, value: Value<'a>) -> Result<()> {
        match (target, value) {
            (Target::One(place), value) => self.set(place, value),
            (Target::Two(one, two), Value::Pair(place)) => {
                let key = self.items.get(place).copied().ok_or(Bail)?;
                let value = self.items.get(place + 1).copied().ok_or(Bail)?;
                self.set(one, key)?;
                self.set(two, value)
            }
            (Target::Two(..), _) => Err(Bail),
        }
    }

    fn set(&mut self, place: u16, value: Value<'a>) -> Result<()> {
        *self.locals.get_mut(usize::from(place)).ok_or(Bail)? = value;
        Ok(())
    }

    pub(crate) fn new_space(&mut self, block: Block) -> Result<Value<'a>> {
        let script = self.script;
        let pairs = script.lists.get(usize::from(block.start)..usize::from(block.end));
        let space = self.spaces;
        self.spaces += 1;
        for pair in pairs.ok_or(Bail)?.chunks_exact(2) {
            let [name, at] = *pair else { return Err(Bail) };
            let value = self.value(at)?;
            self.set_field(space, name, value)?;
        }
        Ok(Value::Space(space))
    }

    fn set_field(&mut self, space: usize, name: Name, value: Value<'a>) -> Result<()> {
        let mut fields = self.fields.iter_mut();
        if let Some(field) = fields.find(|field| (field.0, field.1) == (space, name)) {
            field.2 = value;
        } else if self.fields.len() < MAX_FIELDS {
            self.fields.push((space, name, value));
        } else {
            return Err(Bail);
        }
        Ok(())
    }

    pub(crate) fn field(&self, space: usize, name: Name) -> Value<'a> {
        let mut fields = self.fields.iter();
        let field = fields.find(|field| (field.0, field.1) == (space, name));
        field.map_or(Value::Undefined, |field| field.2)
    }

    pub(crate) fn loop_field(&self, depth: u8, field: LoopField) -> Result<Value<'a>> {
        let Running { list, index } =
            *self.loops.get(self.outer_loops + usize::from(depth)).ok_or(Bail)?;
        let number = |number: usize| i64::try_from(number).map(Value::Int).map_err(|_| Bail);
        match field {
            LoopField::Index => number(index + 1),
            LoopField::Index0 => number(index),
            LoopField::First => Ok(Value::Bool(index == 0)),
            LoopField::Last => Ok(Value::Bool(index + 1 >= list.len())),
            LoopField::Length => number(list.len()),
            LoopField::RevIndex => number(list.len().saturating_sub(index)),
            LoopField::RevIndex0 => number(list.len().saturating_sub(index + 1)),
            LoopField::Previous => Ok(match index.checked_sub(1) {
                Some(before) => self.list_item(&list, before),
                None => Value::Undefined,
            }),
            LoopField::Next => Ok(self.list_item(&list, index + 1)),
        }
    }

    /// The item of a list, or undefined.
    pub(crate) fn list_item(&self, list: &List, index: usize) -> Value<'a> {
        let Some(place) = list.place(index) else { return Value::Undefined };
        match list.of() {
            Of::Messages => Value::Message(place),
            Of::Parts(message) => Value::Part(message, place),
            Of::Items => self.items.get(place).copied().unwrap_or(Value::Undefined),
        }
    }

    /// A list of these.
    pub(crate) fn collect(&mut self, items: &[Value<'a>]) -> Result<List> {
        self.step(items.len())?;
        if self.items.len() + items.len() > MAX_ITEMS {
            return Err(Bail);
        }
        let start = self.items.len();
        self.items.extend_from_slice(items);
        Ok(List::new(Of::Items, start, self.items.len()))
    }

    /// What a loop goes over for this value.
    pub(crate) fn gone_over(&mut self, value: Value<'a>) -> Result<List> {
        match value {
            Value::List(list) => Ok(list),
            Value::Undefined | Value::Unset => Ok(List::new(Of::Items, 0, 0)),
            Value::Node(node) if node.kind() == ValueKind::Seq => {
                let items: Vec<_> = (0..node.len().ok_or(Bail)?.min(MAX_ITEMS + 1))
                    .filter_map(|at| node.item(at).map(Value::of_node))
                    .collect();
                self.collect(&items)
            }
            _ => Err(Bail),
        }
    }

    /// The parts of a message's content.
    pub(crate) fn part(&self, message: usize, place: usize) -> Option<&'a Part<'a>> {
        self.conversation.parts(message)?.get(place)
    }

    pub(crate) fn script_text(&self, text: Text) -> Result<&'a str> {
        let script = self.script;
        script.texts.get(text.start as usize..text.end as usize).ok_or(Bail)
    }

    pub(crate) fn name(&self, name: Name) -> Result<&'a str> {
        let text = *self.script.names.get(usize::from(name)).ok_or(Bail)?;
        self.script_text(text)
    }

    pub(crate) fn constant(&self, number: u16) -> Result<Value<'a>> {
        Ok(match *self.script.constants.get(usize::from(number)).ok_or(Bail)? {
            Constant::Undefined => Value::Undefined,
            Constant::None => Value::None,
            Constant::Bool(value) => Value::Bool(value),
            Constant::Int(number) => Value::Int(number),
            Constant::Text(text) => Value::Text(self.script_text(text)?),
            Constant::Opaque => Value::Opaque,
        })
    }

    pub(crate) fn expression(&self, at: At) -> Result<Expression> {
        self.script.expressions.get(usize::from(at)).copied().ok_or(Bail)
    }

    pub(crate) fn listed(&self, place: usize) -> Result<u16> {
        self.script.lists.get(place).copied().ok_or(Bail)
    }

    pub(crate) fn given(&self, place: u16) -> Result<Value<'a>> {
        self.given.get(usize::from(place)).copied().ok_or(Bail)
    }

    pub(crate) fn local(&self, places: Block, given: u16) -> Result<Value<'a>> {
        for place in usize::from(places.start)..usize::from(places.end) {
            let local = usize::from(self.listed(place)?);
            match self.locals.get(local).copied().ok_or(Bail)? {
                Value::Unset => {}
                value => return Ok(value),
            }
        }
        self.given(given)
    }

    pub(crate) fn step(&mut self, steps: usize) -> Result<()> {
        self.steps = self.steps.checked_sub(steps).ok_or(Bail)?;
        Ok(())
    }

    /// Pays for going over a text.
    pub(crate) fn step_text(&mut self, bytes: usize) -> Result<()> {
        self.step(bytes / STEP_BYTES)
    }
}
