//! Statements of a template → a script. The syntax tree is the engine's own.

use minijinja::machinery::ast;

use super::names::SetNames;
use super::program::{
    At, Block, Constant, Expression, Given, Loop, Macro, Name, Script, Statement, Target, Text,
};

/// How deep statements and expressions may stand in each other; what is deeper is the engine's.
const MAX_DEPTH: usize = 100;

/// Names that a script may have of each kind: they are looked for one after the other.
const MAX_NAMES: usize = 256;

/// Compiles a template. `functions` are the names of the engine's global functions, `special` the
/// variables that are given with each request.
///
/// None if the template is too large, or does something that no script may come close to.
pub(crate) fn compile(
    template: &ast::Stmt<'_>,
    functions: &[&str],
    special: &[(String, String)],
) -> Option<Script> {
    let ast::Stmt::Template(template) = template else { return None };
    let mut compiler = Compiler {
        script: Script::default(),
        frames: vec![Frame::default()],
        functions,
        names: SetNames::of(&template.children),
        macros: Vec::new(),
        in_macro: false,
        depth: 0,
    };
    let body = compiler.block(&template.children)?;
    let mut script = compiler.script;
    script.body = body;
    for (name, value) in special {
        // Calls of it would be calls of this.
        if functions.contains(&name.as_str()) {
            return None;
        }
        if let Some(place) = script.given.iter().position(|given| *given.name == **name) {
            let text = push_text(&mut script.texts, value)?;
            script.special.push((u16::try_from(place).ok()?, text));
        }
    }
    script.shrink();
    Some(script)
}

impl Script {
    fn shrink(&mut self) {
        self.texts.shrink_to_fit();
        self.constants.shrink_to_fit();
        self.expressions.shrink_to_fit();
        self.lists.shrink_to_fit();
        self.statements.shrink_to_fit();
    }
}

fn push_text(texts: &mut String, text: &str) -> Option<Text> {
    let start = u32::try_from(texts.len()).ok()?;
    texts.push_str(text);
    Some(Text { start, end: u32::try_from(texts.len()).ok()? })
}

/// What is set where a statement stands: the variables of a loop's body, or of a `with`.
#[derive(Default)]
struct Frame {
    variables: Vec<(Box<str>, u16)>,
    kind: FrameKind,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum FrameKind {
    Loop,
    #[default]
    Other,
}

/// A macro that can be called.
pub(crate) struct Callable<'f> {
    pub(crate) name: &'f str,
    pub(crate) parameters: Vec<&'f str>,
    pub(crate) number: u16,
}

fn variable_name<'a>(node: &ast::Expr<'a>) -> Option<&'a str> {
    match node {
        ast::Expr::Var(variable) => Some(variable.id),
        _ => None,
    }
}

pub(crate) struct Compiler<'f> {
    pub(crate) script: Script,
    frames: Vec<Frame>,
    functions: &'f [&'f str],
    names: SetNames<'f>,
    /// Macros that can be called from here on.
    pub(crate) macros: Vec<Callable<'f>>,
    in_macro: bool,
    depth: usize,
}

impl<'f> Compiler<'f> {
    fn block(&mut self, nodes: &[ast::Stmt<'f>]) -> Option<Block> {
        let mut statements = Vec::new();
        self.statements(nodes, &mut statements)?;
        let start = u16::try_from(self.script.statements.len()).ok()?;
        self.script.statements.append(&mut statements);
        Some(Block { start, end: u16::try_from(self.script.statements.len()).ok()? })
    }

    fn statements(&mut self, nodes: &[ast::Stmt<'f>], out: &mut Vec<Statement>) -> Option<()> {
        if self.depth >= MAX_DEPTH {
            out.push(Statement::Bail);
            return Some(());
        }
        self.depth += 1;
        for node in nodes {
            self.statement(node, out)?;
            if let Some(Statement::Bail) = out.last() {
                break; // What comes then is never reached.
            }
        }
        self.depth -= 1;
        Some(())
    }

    fn statement(&mut self, node: &ast::Stmt<'f>, out: &mut Vec<Statement>) -> Option<()> {
        let statement = match node {
            ast::Stmt::EmitRaw(raw) => return self.raw(raw.raw, out),
            ast::Stmt::EmitExpr(emit) => {
                let at = self.expression(&emit.expr)?;
                if let Some(text) = self.constant_text(at) {
                    Statement::Raw(text)
                } else {
                    Statement::Emit(at)
                }
            }
            ast::Stmt::Set(set) => {
                let at = self.expression(&set.expr)?;
                self.assign(&set.target, at)?
            }
            ast::Stmt::IfCond(branch) => {
                let condition = self.expression(&branch.expr)?;
                let then = self.block(&branch.true_body)?;
                Statement::If(condition, then, self.block(&branch.false_body)?)
            }
            ast::Stmt::ForLoop(node) => self.for_loop(node)?,
            ast::Stmt::WithBlock(with) => {
                self.frames.push(Frame::default());
                for (target, value) in &with.assignments {
                    let at = self.expression(value)?;
                    let statement = self.assign(target, at)?;
                    out.push(statement);
                }
                self.statements(&with.body, out)?;
                self.frames.pop();
                return Some(());
            }
            ast::Stmt::Macro(declared) => self.declare_macro(declared)?,
            // The engine leaves a frame of `with` open when a loop goes on from within.
            ast::Stmt::Break(_) if self.is_in_loop() => Statement::Break,
            ast::Stmt::Continue(_) if self.is_in_loop() => Statement::Continue,
            _ => Statement::Bail,
        };
        out.push(statement);
        Some(())
    }

    fn is_in_loop(&self) -> bool {
        self.frames.last().is_some_and(|frame| frame.kind == FrameKind::Loop)
    }

    fn raw(&mut self, text: &str, out: &mut Vec<Statement>) -> Option<()> {
        let text = self.text(text)?;
        if let Some(Statement::Raw(last)) = out.last_mut()
            && last.end == text.start
        {
            last.end = text.end;
        } else {
            out.push(Statement::Raw(text));
        }
        Some(())
    }

    fn for_loop(&mut self, node: &ast::ForLoop<'f>) -> Option<Statement> {
        let names = match &node.target {
            ast::Expr::Var(variable) => vec![variable.id],
            ast::Expr::List(list) => list.items.iter().filter_map(variable_name).collect(),
            _ => Vec::new(),
        };
        let count = match &node.target {
            ast::Expr::List(list) => list.items.len(),
            _ => 1,
        };
        if node.recursive || names.len() != count || !matches!(count, 1 | 2) {
            return Some(Statement::Bail);
        }
        let over = self.sequence(&node.iter)?;
        let filter = match &node.filter_expr {
            None => None,
            Some(condition) => {
                self.frames.push(Frame::default());
                let item = self.target(&names)?;
                let condition = self.expression(condition)?;
                self.frames.pop();
                Some((item, condition))
            }
        };
        let first = self.script.locals;
        self.frames.push(Frame { kind: FrameKind::Loop, ..Frame::default() });
        let target = self.target(&names)?;
        let body = self.block(&node.body)?;
        self.frames.pop();
        let locals = Block { start: first, end: self.script.locals };
        let otherwise = self.block(&node.else_body)?;
        let number = u16::try_from(self.script.loops.len()).ok()?;
        self.script.loops.push(Loop { over, filter, target, locals, body, otherwise });
        Some(Statement::For(number))
    }

    fn assign(&mut self, target: &ast::Expr<'_>, at: At) -> Option<Statement> {
        Some(match target {
            ast::Expr::Var(variable) => Statement::Set(self.declare(variable.id)?, at),
            ast::Expr::GetAttr(attribute) => {
                let space = self.expression(&attribute.expr)?;
                Statement::SetAttribute(space, self.name(attribute.name)?, at)
            }
            _ => Statement::Bail,
        })
    }

    /// A macro is a value of which nothing is known, and may be called if it stands by itself: at the
    /// top of the template, and the only one to have its name.
    fn declare_macro(&mut self, declared: &ast::Macro<'f>) -> Option<Statement> {
        let at_top = self.depth == 1 && self.frames.len() == 1 && !self.in_macro;
        let names: Vec<&'f str> = declared.args.iter().filter_map(variable_name).collect();
        let constant = |node: &ast::Expr<'_>| node.as_const().is_some();
        if at_top
            && self.names.is_only_macro(declared.name)
            && names.len() == declared.args.len()
            && declared.defaults.iter().all(constant)
        {
            let frames = std::mem::replace(&mut self.frames, vec![Frame::default()]);
            self.in_macro = true;
            let number = self.macro_body(declared, &names)?;
            self.in_macro = false;
            self.frames = frames;
            self.macros.push(Callable { name: declared.name, parameters: names, number });
        }
        let at = self.constant(Constant::Opaque)?;
        Some(Statement::Set(self.declare(declared.name)?, at))
    }

    fn macro_body(&mut self, declared: &ast::Macro<'f>, names: &[&'f str]) -> Option<u16> {
        let first = self.script.locals;
        let needed = names.len().checked_sub(declared.defaults.len())?;
        let mut parameters = Vec::new();
        for (place, name) in names.iter().enumerate() {
            parameters.push(self.declare(name)?);
            let default = place.checked_sub(needed).and_then(|at| declared.defaults.get(at));
            parameters.push(match default {
                Some(node) => self.expression(node)?,
                None => self.constant(Constant::Undefined)?,
            });
        }
        let parameters = self.list(&parameters)?;
        let body = self.block(&declared.body)?;
        let locals = Block { start: first, end: self.script.locals };
        let number = u16::try_from(self.script.macros.len()).ok()?;
        self.script.macros.push(Macro { parameters, locals, body });
        Some(number)
    }

    fn target(&mut self, names: &[&str]) -> Option<Target> {
        match names {
            [one] => self.declare(one).map(Target::One),
            [one, two] => Some(Target::Two(self.declare(one)?, self.declare(two)?)),
            _ => None,
        }
    }

    /// The variable of this name where statements stand now.
    fn declare(&mut self, name: &str) -> Option<u16> {
        if name == "loop" {
            return None;
        }
        let number = self.script.locals;
        let frame = self.frames.last_mut()?;
        if let Some((_, known)) = frame.variables.iter().find(|(known, _)| **known == *name) {
            return Some(*known);
        }
        if frame.variables.len() >= MAX_NAMES {
            return None;
        }
        frame.variables.push((name.into(), number));
        self.script.locals = number.checked_add(1)?;
        Some(number)
    }

    /// Whether a macro's body is being compiled.
    pub(crate) fn is_in_macro(&self) -> bool {
        self.in_macro
    }

    /// Whether the template sets a variable of this name that may be seen here.
    pub(crate) fn is_declared(&self, name: &str) -> bool {
        let mut variables = self.frames.iter().flat_map(|frame| &frame.variables);
        variables.any(|(known, _)| **known == *name)
    }

    /// Reads a variable: the innermost that is set, then what is given.
    ///
    /// Only what was declared before can be set: what runs again, a loop's body, begins anew.
    pub(crate) fn variable(&mut self, name: &str) -> Option<At> {
        if name == "loop" && self.loops() > 0 {
            return self.constant(Constant::Opaque);
        }
        let mut places = Vec::new();
        for frame in self.frames.iter().rev() {
            let known = frame.variables.iter().find(|(known, _)| **known == *name);
            places.extend(known.map(|(_, place)| *place));
        }
        let given = match self.script.given.iter().position(|given| *given.name == *name) {
            Some(place) => place,
            None if self.script.given.len() >= MAX_NAMES => return None,
            None => {
                let function = self.functions.contains(&name);
                self.script.given.push(Given { name: name.into(), function });
                self.script.given.len() - 1
            }
        };
        let given = u16::try_from(given).ok()?;
        if places.is_empty() {
            // A macro sees what was set where it stands, then or later.
            if self.in_macro && self.names.has(name) {
                return self.push(Expression::Bail);
            }
            return self.push(Expression::Given(given));
        }
        let places = self.list(&places)?;
        self.push(Expression::Local(places, given))
    }

    /// How many loops are open here.
    pub(crate) fn loops(&self) -> usize {
        self.frames.iter().filter(|frame| frame.kind == FrameKind::Loop).count()
    }

    /// One level deeper; none if that is too deep.
    pub(crate) fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.depth >= MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let done = work(self);
        self.depth -= 1;
        Some(done)
    }

    pub(crate) fn push(&mut self, expression: Expression) -> Option<At> {
        let at = u16::try_from(self.script.expressions.len()).ok()?;
        self.script.expressions.push(expression);
        Some(at)
    }

    pub(crate) fn constant(&mut self, constant: Constant) -> Option<At> {
        let number = u16::try_from(self.script.constants.len()).ok()?;
        self.script.constants.push(constant);
        self.push(Expression::Constant(number))
    }

    /// The text of an expression that is a constant text.
    pub(crate) fn constant_text(&self, at: At) -> Option<Text> {
        let Expression::Constant(number) = self.script.expressions.get(usize::from(at))? else {
            return None;
        };
        match self.script.constants.get(usize::from(*number))? {
            Constant::Text(text) => Some(*text),
            _ => None,
        }
    }

    pub(crate) fn text(&mut self, text: &str) -> Option<Text> {
        push_text(&mut self.script.texts, text)
    }

    pub(crate) fn list(&mut self, items: &[u16]) -> Option<Block> {
        let start = u16::try_from(self.script.lists.len()).ok()?;
        self.script.lists.extend_from_slice(items);
        Some(Block { start, end: u16::try_from(self.script.lists.len()).ok()? })
    }

    pub(crate) fn name(&mut self, name: &str) -> Option<Name> {
        let texts = &self.script.texts;
        let is_it = |text: &Text| texts.get(text.start as usize..text.end as usize) == Some(name);
        let place = match self.script.names.iter().position(is_it) {
            Some(place) => place,
            None if self.script.names.len() >= MAX_NAMES => return None,
            None => {
                let text = self.text(name)?;
                self.script.names.push(text);
                self.script.names.len() - 1
            }
        };
        u16::try_from(place).ok()
    }
}
