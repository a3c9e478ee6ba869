//! Loop controls that the template engine can't take.

use minijinja::machinery::ast::Stmt;

/// Whether a `break` or `continue` leaves a block within its loop that the engine would have to
/// close: minijinja 3.1 panics at the loop's end after a `with`, and mistakes its output after a
/// block that captures.
pub(crate) fn leave_a_block(statement: &Stmt<'_>) -> bool {
    any_in(std::slice::from_ref(statement), false, 0)
}

/// How deep blocks may stand in each other; the parser has a bound of its own.
const MAX_DEPTH: usize = 500;

fn any_in(statements: &[Stmt<'_>], in_block: bool, depth: usize) -> bool {
    depth > MAX_DEPTH
        || statements.iter().any(|statement| {
            let within = |body: &[Stmt<'_>], in_block| any_in(body, in_block, depth + 1);
            match statement {
                Stmt::Break(_) | Stmt::Continue(_) => in_block,
                Stmt::Template(template) => within(&template.children, false),
                Stmt::ForLoop(node) => {
                    within(&node.body, false) || within(&node.else_body, in_block)
                }
                Stmt::IfCond(node) => {
                    within(&node.true_body, in_block) || within(&node.false_body, in_block)
                }
                Stmt::WithBlock(node) => within(&node.body, true),
                Stmt::SetBlock(node) => within(&node.body, true),
                Stmt::AutoEscape(node) => within(&node.body, true),
                Stmt::FilterBlock(node) => within(&node.body, true),
                Stmt::Block(node) => within(&node.body, true),
                Stmt::Macro(node) => within(&node.body, false),
                Stmt::CallBlock(node) => within(&node.macro_decl.body, false),
                Stmt::EmitExpr(_)
                | Stmt::EmitRaw(_)
                | Stmt::Set(_)
                | Stmt::Import(_)
                | Stmt::FromImport(_)
                | Stmt::Extends(_)
                | Stmt::Include(_)
                | Stmt::Do(_) => false,
            }
        })
}
