//! Going over all of a template's syntax tree.

use minijinja::machinery::ast::{Call, CallArg, Expr, Stmt};

/// A node that somebody may look for.
pub(crate) enum Node<'t> {
    /// A statement.
    Statement(&'t Stmt<'t>),
    /// A call in an expression, or of a statement.
    Call(&'t Call<'t>),
}

/// Shows all nodes below and with `statement`, a parent before its children.
pub(crate) fn visit<'t>(statement: &'t Stmt<'t>, see: &mut impl FnMut(Node<'t>)) {
    see(Node::Statement(statement));
    match statement {
        Stmt::Template(node) => all(&node.children, see),
        Stmt::EmitExpr(node) => expression(&node.expr, see),
        Stmt::ForLoop(node) => {
            expression(&node.iter, see);
            optional(node.filter_expr.as_ref(), see);
            all(&node.body, see);
            all(&node.else_body, see);
        }
        Stmt::IfCond(node) => {
            expression(&node.expr, see);
            all(&node.true_body, see);
            all(&node.false_body, see);
        }
        Stmt::WithBlock(node) => {
            for (_, value) in &node.assignments {
                expression(value, see);
            }
            all(&node.body, see);
        }
        Stmt::Set(node) => expression(&node.expr, see),
        Stmt::SetBlock(node) => {
            optional(node.filter.as_ref(), see);
            all(&node.body, see);
        }
        Stmt::FilterBlock(node) => {
            expression(&node.filter, see);
            all(&node.body, see);
        }
        Stmt::Macro(node) => {
            expressions(&node.defaults, see);
            all(&node.body, see);
        }
        Stmt::CallBlock(node) => {
            call(&node.call, see);
            all(&node.macro_decl.body, see);
        }
        Stmt::Do(node) => call(&node.call, see),
        Stmt::AutoEscape(node) => {
            expression(&node.enabled, see);
            all(&node.body, see);
        }
        Stmt::Block(node) => all(&node.body, see),
        _ => {}
    }
}

fn all<'t>(statements: &'t [Stmt<'t>], see: &mut impl FnMut(Node<'t>)) {
    for statement in statements {
        visit(statement, see);
    }
}

fn expressions<'t>(nodes: &'t [Expr<'t>], see: &mut impl FnMut(Node<'t>)) {
    for node in nodes {
        expression(node, see);
    }
}

fn optional<'t>(node: Option<&'t Expr<'t>>, see: &mut impl FnMut(Node<'t>)) {
    if let Some(node) = node {
        expression(node, see);
    }
}

fn call<'t>(node: &'t Call<'t>, see: &mut impl FnMut(Node<'t>)) {
    see(Node::Call(node));
    expression(&node.expr, see);
    arguments(&node.args, see);
}

fn arguments<'t>(arguments: &'t [CallArg<'t>], see: &mut impl FnMut(Node<'t>)) {
    for argument in arguments {
        match argument {
            CallArg::Pos(value)
            | CallArg::Kwarg(_, value)
            | CallArg::PosSplat(value)
            | CallArg::KwargSplat(value) => expression(value, see),
        }
    }
}

fn expression<'t>(node: &'t Expr<'t>, see: &mut impl FnMut(Node<'t>)) {
    match node {
        Expr::Call(node) => call(node, see),
        Expr::Slice(node) => {
            expression(&node.expr, see);
            for bound in [&node.start, &node.stop, &node.step] {
                optional(bound.as_ref(), see);
            }
        }
        Expr::UnaryOp(node) => expression(&node.expr, see),
        Expr::BinOp(node) => {
            expression(&node.left, see);
            expression(&node.right, see);
        }
        Expr::Compare(node) => {
            expression(&node.expr, see);
            for step in &node.ops {
                expression(&step.expr, see);
            }
        }
        Expr::IfExpr(node) => {
            expression(&node.test_expr, see);
            expression(&node.true_expr, see);
            optional(node.false_expr.as_ref(), see);
        }
        Expr::Filter(node) => {
            optional(node.expr.as_ref(), see);
            arguments(&node.args, see);
        }
        Expr::Test(node) => {
            expression(&node.expr, see);
            arguments(&node.args, see);
        }
        Expr::GetAttr(node) => expression(&node.expr, see),
        Expr::GetItem(node) => {
            expression(&node.expr, see);
            expression(&node.subscript_expr, see);
        }
        Expr::List(node) => expressions(&node.items, see),
        Expr::Tuple(node) => expressions(&node.items, see),
        Expr::Map(node) => {
            expressions(&node.keys, see);
            expressions(&node.values, see);
        }
        _ => {}
    }
}
