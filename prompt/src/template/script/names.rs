//! The names that a template sets, collected before its macros are compiled.

use minijinja::machinery::ast;

/// Names that are set outside of macros, and those of macros.
#[derive(Default)]
pub(crate) struct SetNames<'a> {
    set: Vec<&'a str>,
    macros: Vec<&'a str>,
}

impl<'a> SetNames<'a> {
    pub(crate) fn of(nodes: &[ast::Stmt<'a>]) -> Self {
        let mut names = Self::default();
        names.statements(nodes);
        names
    }

    /// Whether a macro or something else has this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.set.contains(&name) || self.macros.contains(&name)
    }

    /// Whether one macro has this name, and nothing else.
    pub(crate) fn is_only_macro(&self, name: &str) -> bool {
        let count = self.macros.iter().filter(|known| **known == name).count();
        count == 1 && !self.set.contains(&name) && name != "super"
    }

    fn statements(&mut self, nodes: &[ast::Stmt<'a>]) {
        for node in nodes {
            self.statement(node);
        }
    }

    fn statement(&mut self, node: &ast::Stmt<'a>) {
        match node {
            ast::Stmt::ForLoop(node) => {
                self.target(&node.target);
                self.statements(&node.body);
                self.statements(&node.else_body);
            }
            ast::Stmt::IfCond(node) => {
                self.statements(&node.true_body);
                self.statements(&node.false_body);
            }
            ast::Stmt::WithBlock(node) => {
                for (target, _) in &node.assignments {
                    self.target(target);
                }
                self.statements(&node.body);
            }
            ast::Stmt::Set(node) => self.target(&node.target),
            ast::Stmt::Macro(node) => self.macros.push(node.name),
            // What else might set something ends a run.
            _ => {}
        }
    }

    fn target(&mut self, target: &ast::Expr<'a>) {
        match target {
            ast::Expr::Var(variable) => self.set.push(variable.id),
            ast::Expr::List(list) => list.items.iter().for_each(|item| self.target(item)),
            _ => {}
        }
    }
}
