//! A template written anew with its sums as calls of a filter of ours.
//!
//! The engine's `+` can't be changed, and differs from Jinja2's where a text is marked as safe, which
//! escapes the other one (markupsafe 3, `Markup.__add__`). And it doesn't count what lists cost that
//! grow item by item, each sum copying all of them: a chat's tool calls with very many arguments took
//! seconds so. Only templates that do either are written anew, as it makes all sums slower.

use std::fmt::Write;

use minijinja::machinery::ast::{BinOpKind, Call, CallArg, CompareOpKind, Expr, Stmt, UnaryOpKind};
use minijinja::value::{Value, ValueKind};

/// The filter that stands for a sum.
pub(crate) const SUM: &str = "_sum";

/// Filters that mark a text as safe.
const MARKING: [&str; 3] = ["safe", "e", "escape"];

/// The template with its sums as calls of [`SUM`]; none if they may stay as they are, or if it holds
/// what this doesn't write.
pub(crate) fn with_own_sums(tree: &Stmt<'_>) -> Option<String> {
    let mut writer = Writer::default();
    writer.statement(tree)?;
    (writer.sums && (writer.marks || writer.lists)).then_some(writer.out)
}

#[derive(Default)]
struct Writer {
    out: String,
    sums: bool,
    /// A text is marked as safe somewhere.
    marks: bool,
    /// A list is written out in a sum.
    lists: bool,
}

impl Writer {
    fn text(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn body(&mut self, statements: &[Stmt<'_>]) -> Option<()> {
        statements.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &Stmt<'_>) -> Option<()> {
        match statement {
            Stmt::Template(node) => return self.body(&node.children),
            Stmt::EmitRaw(node) => {
                self.text("{{ ");
                self.quoted(node.raw);
                self.text(" }}");
            }
            Stmt::EmitExpr(node) => {
                self.text("{{ ");
                self.expression(&node.expr)?;
                self.text(" }}");
            }
            Stmt::ForLoop(node) => {
                self.text("{% for ");
                self.target(&node.target)?;
                self.text(" in ");
                self.expression(&node.iter)?;
                if let Some(filter) = &node.filter_expr {
                    self.text(" if ");
                    self.expression(filter)?;
                }
                self.text(if node.recursive { " recursive %}" } else { " %}" });
                self.body(&node.body)?;
                self.otherwise(&node.else_body)?;
                self.text("{% endfor %}");
            }
            Stmt::IfCond(node) => {
                self.text("{% if ");
                let mut node = node;
                loop {
                    self.expression(&node.expr)?;
                    self.text(" %}");
                    self.body(&node.true_body)?;
                    let [Stmt::IfCond(next)] = node.false_body.as_slice() else { break };
                    self.text("{% elif ");
                    node = next;
                }
                self.otherwise(&node.false_body)?;
                self.text("{% endif %}");
            }
            Stmt::WithBlock(node) => {
                self.text("{% with ");
                for (at, (target, value)) in node.assignments.iter().enumerate() {
                    self.text(if at > 0 { ", " } else { "" });
                    self.target(target)?;
                    self.text(" = ");
                    self.expression(value)?;
                }
                self.text(" %}");
                self.body(&node.body)?;
                self.text("{% endwith %}");
            }
            Stmt::Set(node) => {
                self.text("{% set ");
                self.target(&node.target)?;
                self.text(" = ");
                self.expression(&node.expr)?;
                self.text(" %}");
            }
            Stmt::SetBlock(node) => {
                self.text("{% set ");
                self.target(&node.target)?;
                if let Some(filter) = &node.filter {
                    self.text(" | ");
                    self.filters(filter)?;
                }
                self.text(" %}");
                self.body(&node.body)?;
                self.text("{% endset %}");
            }
            Stmt::FilterBlock(node) => {
                self.text("{% filter ");
                self.filters(&node.filter)?;
                self.text(" %}");
                self.body(&node.body)?;
                self.text("{% endfilter %}");
            }
            Stmt::Macro(node) => {
                let _ = write!(self.out, "{{% macro {}", node.name);
                self.parameters(&node.args, &node.defaults)?;
                self.text(" %}");
                self.body(&node.body)?;
                self.text("{% endmacro %}");
            }
            Stmt::CallBlock(node) => {
                self.text("{% call");
                self.parameters(&node.macro_decl.args, &node.macro_decl.defaults)?;
                self.text(" ");
                self.call(&node.call)?;
                self.text(" %}");
                self.body(&node.macro_decl.body)?;
                self.text("{% endcall %}");
            }
            Stmt::Do(node) => {
                self.text("{% do ");
                self.call(&node.call)?;
                self.text(" %}");
            }
            Stmt::Continue(_) => self.text("{% continue %}"),
            Stmt::Break(_) => self.text("{% break %}"),
            Stmt::AutoEscape(_)
            | Stmt::Block(_)
            | Stmt::Import(_)
            | Stmt::FromImport(_)
            | Stmt::Extends(_)
            | Stmt::Include(_) => return None,
        }
        Some(())
    }

    fn otherwise(&mut self, body: &[Stmt<'_>]) -> Option<()> {
        if !body.is_empty() {
            self.text("{% else %}");
            self.body(body)?;
        }
        Some(())
    }

    fn parameters(&mut self, names: &[Expr<'_>], defaults: &[Expr<'_>]) -> Option<()> {
        let needed = names.len().checked_sub(defaults.len())?;
        self.text("(");
        for (at, name) in names.iter().enumerate() {
            self.text(if at > 0 { ", " } else { "" });
            self.target(name)?;
            if let Some(value) = at.checked_sub(needed).and_then(|at| defaults.get(at)) {
                self.text("=");
                self.expression(value)?;
            }
        }
        self.text(")");
        Some(())
    }

    /// What is assigned to.
    fn target(&mut self, node: &Expr<'_>) -> Option<()> {
        match node {
            Expr::Var(node) => self.text(node.id),
            Expr::GetAttr(node) => {
                self.target(&node.expr)?;
                let _ = write!(self.out, ".{}", node.name);
            }
            Expr::List(node) => {
                self.text("(");
                for item in &node.items {
                    self.target(item)?;
                    self.text(", ");
                }
                self.text(")");
            }
            _ => return None,
        }
        Some(())
    }

    /// A chain of filters with nothing before it.
    fn filters(&mut self, node: &Expr<'_>) -> Option<()> {
        let Expr::Filter(node) = node else { return None };
        if let Some(before) = &node.expr {
            self.filters(before)?;
            self.text(" | ");
        }
        self.marks |= MARKING.contains(&node.name);
        self.text(node.name);
        self.arguments(&node.args)
    }

    fn arguments(&mut self, arguments: &[CallArg<'_>]) -> Option<()> {
        self.text("(");
        for (at, argument) in arguments.iter().enumerate() {
            self.text(if at > 0 { ", " } else { "" });
            let value = match argument {
                CallArg::Pos(value) => value,
                CallArg::Kwarg(name, value) => {
                    let _ = write!(self.out, "{name}=");
                    value
                }
                CallArg::PosSplat(value) => {
                    self.text("*");
                    value
                }
                CallArg::KwargSplat(value) => {
                    self.text("**");
                    value
                }
            };
            self.expression(value)?;
        }
        self.text(")");
        Some(())
    }

    fn call(&mut self, node: &Call<'_>) -> Option<()> {
        self.expression(&node.expr)?;
        self.arguments(&node.args)
    }

    fn items(&mut self, items: &[Expr<'_>]) -> Option<()> {
        for item in items {
            self.expression(item)?;
            self.text(", ");
        }
        Some(())
    }

    /// Appends an expression that stands by itself, whatever is around it.
    fn expression(&mut self, node: &Expr<'_>) -> Option<()> {
        match node {
            Expr::Var(node) => self.text(node.id),
            Expr::Const(node) => return self.constant(&node.value),
            Expr::List(node) => {
                self.text("[");
                self.items(&node.items)?;
                self.text("]");
            }
            Expr::Map(node) => {
                self.text("{");
                for (key, value) in node.keys.iter().zip(&node.values) {
                    self.expression(key)?;
                    self.text(": ");
                    self.expression(value)?;
                    self.text(", ");
                }
                self.text("}");
            }
            Expr::Call(node) => return self.call(node),
            Expr::GetAttr(node) => {
                self.expression(&node.expr)?;
                let _ = write!(self.out, ".{}", node.name);
            }
            Expr::GetItem(node) => {
                self.expression(&node.expr)?;
                self.text("[");
                self.expression(&node.subscript_expr)?;
                self.text("]");
            }
            Expr::Slice(node) => {
                self.expression(&node.expr)?;
                self.text("[");
                for (at, bound) in [&node.start, &node.stop, &node.step].into_iter().enumerate() {
                    self.text(if at > 0 { ":" } else { "" });
                    if let Some(bound) = bound {
                        self.expression(bound)?;
                    }
                }
                self.text("]");
            }
            node => {
                self.text("(");
                self.composed(node)?;
                self.text(")");
            }
        }
        Some(())
    }

    /// Appends an expression that needs something around it.
    fn composed(&mut self, node: &Expr<'_>) -> Option<()> {
        match node {
            Expr::Tuple(node) => return self.items(&node.items),
            Expr::UnaryOp(node) => {
                self.text(match node.op {
                    UnaryOpKind::Not => "not ",
                    UnaryOpKind::Neg => "-",
                });
                return self.expression(&node.expr);
            }
            Expr::BinOp(node) => {
                let list = |node: &Expr<'_>| match node {
                    Expr::List(_) => true,
                    Expr::Filter(filter) => filter.name == "list",
                    _ => false,
                };
                self.expression(&node.left)?;
                if matches!(node.op, BinOpKind::Add) {
                    self.sums = true;
                    self.lists |= list(&node.left) || list(&node.right);
                    let _ = write!(self.out, "|{SUM}(");
                    self.expression(&node.right)?;
                    self.text(")");
                    return Some(());
                }
                self.text(operator(node.op)?);
                return self.expression(&node.right);
            }
            Expr::Compare(node) => {
                self.expression(&node.expr)?;
                for step in &node.ops {
                    self.text(match step.op {
                        CompareOpKind::Eq => " == ",
                        CompareOpKind::Ne => " != ",
                        CompareOpKind::Lt => " < ",
                        CompareOpKind::Lte => " <= ",
                        CompareOpKind::Gt => " > ",
                        CompareOpKind::Gte => " >= ",
                        CompareOpKind::In => " in ",
                        CompareOpKind::NotIn => " not in ",
                    });
                    self.expression(&step.expr)?;
                }
            }
            Expr::IfExpr(node) => {
                self.expression(&node.true_expr)?;
                self.text(" if ");
                self.expression(&node.test_expr)?;
                if let Some(otherwise) = &node.false_expr {
                    self.text(" else ");
                    self.expression(otherwise)?;
                }
            }
            Expr::Filter(node) => {
                self.expression(node.expr.as_ref()?)?;
                self.marks |= MARKING.contains(&node.name);
                let _ = write!(self.out, "|{}", node.name);
                return self.arguments(&node.args);
            }
            Expr::Test(node) => {
                self.expression(&node.expr)?;
                let _ = write!(self.out, " is {}", node.name);
                if !node.args.is_empty() {
                    return self.arguments(&node.args);
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn constant(&mut self, value: &Value) -> Option<()> {
        match value.kind() {
            ValueKind::String => self.quoted(value.as_str()?),
            ValueKind::None => self.text("none"),
            ValueKind::Bool => self.text(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => {
                let _ = write!(self.out, "{value}");
            }
            ValueKind::Number => {
                let text = f64::try_from(value.clone()).ok()?.to_string();
                self.text(&text);
                self.text(if text.contains('.') { "" } else { ".0" });
            }
            _ => return None,
        }
        Some(())
    }

    fn quoted(&mut self, text: &str) {
        self.out.push('"');
        for char in text.chars() {
            match char {
                '"' | '\\' => self.out.extend(['\\', char]),
                '\n' => self.text("\\n"),
                char if char < ' ' => {
                    let _ = write!(self.out, "\\u{:04x}", char as u32);
                }
                char => self.out.push(char),
            }
        }
        self.out.push('"');
    }
}

fn operator(kind: BinOpKind) -> Option<&'static str> {
    Some(match kind {
        BinOpKind::Eq => " == ",
        BinOpKind::Ne => " != ",
        BinOpKind::Lt => " < ",
        BinOpKind::Lte => " <= ",
        BinOpKind::Gt => " > ",
        BinOpKind::Gte => " >= ",
        BinOpKind::ScAnd => " and ",
        BinOpKind::ScOr => " or ",
        BinOpKind::Sub => " - ",
        BinOpKind::Mul => " * ",
        BinOpKind::Div => " / ",
        BinOpKind::FloorDiv => " // ",
        BinOpKind::Rem => " % ",
        BinOpKind::Pow => " ** ",
        BinOpKind::Concat => " ~ ",
        BinOpKind::In => " in ",
        BinOpKind::Add => return None,
    })
}
