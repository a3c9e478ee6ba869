//! Expressions of a template → those of a script.

use minijinja::machinery::ast;
use minijinja::value::{Value, ValueKind};

use super::compile::Compiler;
use super::program::{At, Block, Constant, Expression, Function, LoopField, Operator, Test, Text};

impl Compiler<'_> {
    /// Compiles an expression; what scripts don't know becomes [`Expression::Bail`].
    pub(crate) fn expression(&mut self, node: &ast::Expr<'_>) -> Option<At> {
        let Some(known) = self.deeper(|compiler| compiler.known(node)) else {
            return self.push(Expression::Bail);
        };
        match known? {
            Known::At(at) => Some(at),
            Known::Expression(expression) => self.push(expression),
        }
    }

    /// What a loop goes over, or what something is sought in: there, tuples are as good as lists.
    pub(crate) fn sequence(&mut self, node: &ast::Expr<'_>) -> Option<At> {
        match node {
            ast::Expr::Tuple(tuple) => self.items(&tuple.items),
            node => self.expression(node),
        }
    }

    fn items(&mut self, nodes: &[ast::Expr<'_>]) -> Option<At> {
        let items = self.expressions(nodes)?;
        let items = self.list(&items)?;
        self.push(Expression::List(items))
    }

    fn expressions(&mut self, nodes: &[ast::Expr<'_>]) -> Option<Vec<At>> {
        nodes.iter().map(|node| self.expression(node)).collect()
    }

    fn known(&mut self, node: &ast::Expr<'_>) -> Option<Known> {
        let expression = match node {
            ast::Expr::Var(variable) => return self.variable(variable.id).map(Known::At),
            ast::Expr::Const(constant) => return self.value(&constant.value).map(Known::At),
            ast::Expr::Slice(slice) => self.slice(slice)?,
            ast::Expr::UnaryOp(operation) => {
                let at = self.expression(&operation.expr)?;
                match operation.op {
                    ast::UnaryOpKind::Not => Expression::Not(at),
                    ast::UnaryOpKind::Neg => Expression::Negative(at),
                }
            }
            ast::Expr::BinOp(operation) => return self.binary(operation),
            ast::Expr::Compare(compare) => self.comparison(compare)?,
            ast::Expr::IfExpr(choice) => {
                let condition = self.expression(&choice.test_expr)?;
                let then = self.expression(&choice.true_expr)?;
                let otherwise = match &choice.false_expr {
                    Some(node) => self.expression(node)?,
                    None => self.constant(Constant::Undefined)?,
                };
                Expression::Choice(condition, then, otherwise)
            }
            ast::Expr::Filter(filter) => self.filter(filter)?,
            ast::Expr::Test(test) => self.test(test)?,
            ast::Expr::GetAttr(attribute) => {
                return self.attribute(&attribute.expr, attribute.name).map(Known::At);
            }
            ast::Expr::GetItem(item) => return self.item(item).map(Known::At),
            ast::Expr::Call(call) => self.call(call)?,
            ast::Expr::List(list) => return self.items(&list.items).map(Known::At),
            ast::Expr::Tuple(_) | ast::Expr::Map(_) => Expression::Bail,
        };
        Some(Known::Expression(expression))
    }

    fn value(&mut self, value: &Value) -> Option<At> {
        let constant = if let Some(text) = value.as_str() {
            Constant::Text(self.text(text)?)
        } else {
            match value.kind() {
                ValueKind::None => Constant::None,
                ValueKind::Bool => Constant::Bool(value.is_true()),
                ValueKind::Number if value.is_integer() => match value.as_i64() {
                    Some(number) => Constant::Int(number),
                    None => return self.push(Expression::Bail),
                },
                _ => return self.push(Expression::Bail),
            }
        };
        self.constant(constant)
    }

    fn slice(&mut self, slice: &ast::Slice<'_>) -> Option<Expression> {
        let of = self.expression(&slice.expr)?;
        match slice.step.as_ref().map(ast::Expr::as_const) {
            None => {}
            Some(Some(step)) if step.as_i64() == Some(1) && step.is_integer() => {}
            Some(Some(step)) if step.as_i64() == Some(-1) && step.is_integer() => {
                return Some(match (&slice.start, &slice.stop) {
                    (None, None) => Expression::Reversed(of),
                    _ => Expression::Bail,
                });
            }
            Some(_) => return Some(Expression::Bail),
        }
        let mut bound = |node: &Option<ast::Expr<'_>>| match node {
            Some(node) => self.expression(node),
            None => self.constant(Constant::None),
        };
        Some(Expression::Slice(of, bound(&slice.start)?, bound(&slice.stop)?))
    }

    fn binary(&mut self, operation: &ast::BinOp<'_>) -> Option<Known> {
        use ast::BinOpKind as Kind;
        let operator = match operation.op {
            Kind::Add | Kind::Concat => return self.joined(operation),
            Kind::ScAnd | Kind::ScOr => {
                let left = self.expression(&operation.left)?;
                let right = self.expression(&operation.right)?;
                return Some(Known::Expression(match operation.op {
                    Kind::ScAnd => Expression::And(left, right),
                    _ => Expression::Or(left, right),
                }));
            }
            Kind::Div | Kind::Pow => return Some(Known::Expression(Expression::Bail)),
            Kind::Eq => Operator::Equal,
            Kind::Ne => Operator::NotEqual,
            Kind::Lt => Operator::Less,
            Kind::Lte => Operator::LessOrEqual,
            Kind::Gt => Operator::Greater,
            Kind::Gte => Operator::GreaterOrEqual,
            Kind::Sub => Operator::Subtract,
            Kind::Mul => Operator::Multiply,
            Kind::FloorDiv => Operator::FloorDivide,
            Kind::Rem => Operator::Remainder,
            Kind::In => Operator::In,
        };
        let left = self.expression(&operation.left)?;
        let right = self.operand(operator, &operation.right)?;
        Some(Known::Expression(Expression::Binary(operator, left, right)))
    }

    fn operand(&mut self, operator: Operator, node: &ast::Expr<'_>) -> Option<At> {
        if operator == Operator::In { self.sequence(node) } else { self.expression(node) }
    }

    /// `a + b + c` and `a ~ b ~ c`, each as one.
    fn joined(&mut self, operation: &ast::BinOp<'_>) -> Option<Known> {
        let mut parts = Vec::new();
        let mut open = vec![&operation.right, &operation.left];
        while let Some(node) = open.pop() {
            match node {
                ast::Expr::BinOp(inner)
                    if std::mem::discriminant(&inner.op)
                        == std::mem::discriminant(&operation.op) =>
                {
                    open.extend([&inner.right, &inner.left]);
                }
                node => parts.push(self.expression(node)?),
            }
        }
        let mut merged: Vec<At> = Vec::with_capacity(parts.len());
        for at in parts {
            if let Some(last) = merged.last_mut()
                && let (Some(one), Some(two)) = (self.constant_text(*last), self.constant_text(at))
                && one.end == two.start
            {
                *last = self.constant(Constant::Text(Text { start: one.start, end: two.end }))?;
            } else {
                merged.push(at);
            }
        }
        if let [only] = merged.as_slice() {
            return Some(Known::At(*only));
        }
        let parts = self.list(&merged)?;
        Some(Known::Expression(match operation.op {
            ast::BinOpKind::Add => Expression::Add(parts),
            _ => Expression::Concat(parts),
        }))
    }

    /// `a < b < c` is `a < b and b < c`.
    fn comparison(&mut self, compare: &ast::Compare<'_>) -> Option<Expression> {
        use ast::CompareOpKind as Kind;
        let mut left = &compare.expr;
        let mut all = None;
        for step in &compare.ops {
            let operator = match step.op {
                Kind::Eq => Operator::Equal,
                Kind::Ne => Operator::NotEqual,
                Kind::Lt => Operator::Less,
                Kind::Lte => Operator::LessOrEqual,
                Kind::Gt => Operator::Greater,
                Kind::Gte => Operator::GreaterOrEqual,
                Kind::In | Kind::NotIn => Operator::In,
            };
            let (one, two) = (self.expression(left)?, self.operand(operator, &step.expr)?);
            let mut this = Expression::Binary(operator, one, two);
            if matches!(step.op, Kind::NotIn) {
                this = Expression::Not(self.push(this)?);
            }
            all = Some(match all {
                None => this,
                Some(before) => Expression::And(self.push(before)?, self.push(this)?),
            });
            left = &step.expr;
        }
        Some(all.unwrap_or(Expression::Bail))
    }

    fn attribute(&mut self, of: &ast::Expr<'_>, name: &str) -> Option<At> {
        if let ast::Expr::Var(variable) = of
            && variable.id == "loop"
            && let Some(depth) = self.loops().checked_sub(1)
        {
            let field = match name {
                "index" => LoopField::Index,
                "index0" => LoopField::Index0,
                "first" => LoopField::First,
                "last" => LoopField::Last,
                "length" => LoopField::Length,
                "revindex" => LoopField::RevIndex,
                "revindex0" => LoopField::RevIndex0,
                "previtem" => LoopField::Previous,
                "nextitem" => LoopField::Next,
                _ => return self.push(Expression::Bail),
            };
            return self.push(Expression::Loop(u8::try_from(depth).ok()?, field));
        }
        let of = self.expression(of)?;
        let name = self.name(name)?;
        self.push(Expression::Attribute(of, name))
    }

    fn item(&mut self, item: &ast::GetItem<'_>) -> Option<At> {
        let key = item.subscript_expr.as_const();
        if let Some(name) = key.as_ref().and_then(Value::as_str) {
            return self.attribute(&item.expr, name);
        }
        let of = self.expression(&item.expr)?;
        if let Some(Expression::Call(Function::Split, text, list)) =
            self.script.expressions.get(usize::from(of)).copied()
        {
            // One end of a split text.
            match key.filter(Value::is_integer).and_then(|key| key.as_i64()) {
                Some(0) => return self.push(Expression::Call(Function::SplitFirst, text, list)),
                Some(-1) => return self.push(Expression::Call(Function::SplitLast, text, list)),
                _ => {}
            }
        }
        let key = self.expression(&item.subscript_expr)?;
        self.push(Expression::Item(of, key))
    }

    fn arguments(&mut self, nodes: &[&ast::Expr<'_>]) -> Option<Block> {
        let arguments: Option<Vec<At>> = nodes.iter().map(|node| self.expression(node)).collect();
        self.list(&arguments?)
    }

    fn filter(&mut self, filter: &ast::Filter<'_>) -> Option<Expression> {
        let Some(of) = &filter.expr else { return Some(Expression::Bail) };
        let of = self.expression(of)?;
        if matches!(filter.name, "selectattr" | "rejectattr") {
            return self.select(of, filter.name == "selectattr", &filter.args);
        }
        if filter.name == "tojson" {
            return self.json_filter(of, &filter.args);
        }
        let Some(arguments) = positional(&filter.args) else { return Some(Expression::Bail) };
        let function = match (filter.name, arguments.len()) {
            ("trim", 0 | 1) => Function::Trim,
            ("length" | "count", 0) => Function::Length,
            ("list", 0) => Function::List,
            ("first", 0) => Function::First,
            ("last", 0) => Function::Last,
            ("string", 0) => Function::String,
            ("items", 0) => Function::Items,
            ("upper", 0) => Function::Upper,
            ("lower", 0) => Function::Lower,
            ("replace", 2) => Function::Replace,
            ("default" | "d", 0..=2) => Function::Default,
            _ => return Some(Expression::Bail),
        };
        Some(Expression::Call(function, of, self.arguments(&arguments)?))
    }

    /// `tojson`, with what it is mostly called with: `indent` and `ensure_ascii`.
    fn json_filter(&mut self, of: At, arguments: &[ast::CallArg<'_>]) -> Option<Expression> {
        let (mut indent, mut ascii) = (Constant::Undefined, Constant::Bool(false));
        for argument in arguments {
            let ast::CallArg::Kwarg(name, node) = argument else { return Some(Expression::Bail) };
            match (*name, node.as_const()) {
                ("indent", Some(value)) if value.is_integer() => {
                    indent = value.as_i64().map_or(Constant::Opaque, Constant::Int);
                }
                ("ensure_ascii", Some(value)) if value.kind() == ValueKind::Bool => {
                    ascii = Constant::Bool(value.is_true());
                }
                _ => return Some(Expression::Bail),
            }
        }
        let list = [self.constant(indent)?, self.constant(ascii)?];
        Some(Expression::Call(Function::ToJson, of, self.list(&list)?))
    }

    fn select(&mut self, of: At, keep: bool, arguments: &[ast::CallArg<'_>]) -> Option<Expression> {
        let Some(nodes) = positional(arguments) else { return Some(Expression::Bail) };
        let text = |node: Option<&&ast::Expr<'_>>| node.and_then(|node| node.as_const());
        let Some(name) = text(nodes.first()) else { return Some(Expression::Bail) };
        // A name may be a path of names and places.
        let Some(name) =
            name.as_str().filter(|name| !name.contains('.') && name.parse::<usize>().is_err())
        else {
            return Some(Expression::Bail);
        };
        let test = match nodes.get(1) {
            None => Some(Test::Truthy),
            node => text(node)
                .and_then(|test| test.as_str().and_then(|name| named_test(name, nodes.len() - 2))),
        };
        let Some(test) = test else { return Some(Expression::Bail) };
        let argument = match nodes.get(2) {
            Some(node) => self.sequence(node)?,
            None => self.constant(Constant::Undefined)?,
        };
        let name = self.name(name)?;
        let list = self.list(&[u16::from(keep), name, test as u16, argument])?;
        Some(Expression::Select(of, list.start))
    }

    fn test(&mut self, test: &ast::Test<'_>) -> Option<Expression> {
        let of = self.expression(&test.expr)?;
        let Some(kind) = named_test(test.name, test.args.len()) else {
            return Some(Expression::Bail);
        };
        let argument = match test.args.as_slice() {
            [] => self.constant(Constant::Undefined)?,
            [ast::CallArg::Pos(node)] => match kind {
                Test::In => self.sequence(node)?,
                _ => self.expression(node)?,
            },
            _ => return Some(Expression::Bail),
        };
        Some(Expression::Test(kind, of, argument))
    }

    fn call(&mut self, call: &ast::Call<'_>) -> Option<Expression> {
        match call.identify_call() {
            ast::CallType::Method(of, name) => {
                let of = self.expression(of)?;
                let Some(arguments) = positional(&call.args) else { return Some(Expression::Bail) };
                let function = match (name, arguments.len()) {
                    ("strip", 0 | 1) => Function::Strip,
                    ("lstrip", 0 | 1) => Function::StripStart,
                    ("rstrip", 0 | 1) => Function::StripEnd,
                    ("startswith", 1) => Function::StartsWith,
                    ("endswith", 1) => Function::EndsWith,
                    ("split", 1) => Function::Split,
                    ("replace", 2) => Function::Replace,
                    ("upper", 0) => Function::Upper,
                    ("lower", 0) => Function::Lower,
                    ("get", 1 | 2) => Function::Get,
                    ("items", 0) => Function::Items,
                    _ => return Some(Expression::Bail),
                };
                Some(Expression::Call(function, of, self.arguments(&arguments)?))
            }
            ast::CallType::Function(name) if self.macro_named(name).is_some() => {
                self.macro_call(name, &call.args)
            }
            ast::CallType::Function(name) if !self.is_declared(name) => match name {
                "namespace" => self.namespace(&call.args),
                "strftime_now" => match call.args.as_slice() {
                    [ast::CallArg::Pos(format)] => {
                        Some(Expression::Strftime(self.expression(format)?))
                    }
                    _ => Some(Expression::Bail),
                },
                _ => Some(Expression::Bail),
            },
            _ => Some(Expression::Bail),
        }
    }

    /// The place of the macro that a call of this name calls.
    fn macro_named(&self, name: &str) -> Option<usize> {
        if self.is_in_macro() && self.is_declared(name) {
            return None;
        }
        self.macros.iter().position(|known| known.name == name)
    }

    fn macro_call(&mut self, name: &str, arguments: &[ast::CallArg<'_>]) -> Option<Expression> {
        let place = self.macro_named(name)?;
        let callable = self.macros.get(place)?;
        let (number, names) = (callable.number, callable.parameters.clone());
        let mut given: Vec<Option<At>> = vec![None; names.len()];
        for (position, argument) in arguments.iter().enumerate() {
            let (parameter, node) = match argument {
                ast::CallArg::Pos(node) => (Some(position), node),
                ast::CallArg::Kwarg(name, node) => {
                    (names.iter().position(|known| known == name), node)
                }
                _ => return Some(Expression::Bail),
            };
            let at = self.expression(node)?;
            match parameter.and_then(|parameter| given.get_mut(parameter)) {
                Some(free @ None) => *free = Some(at),
                _ => return Some(Expression::Bail),
            }
        }
        let mut list = Vec::with_capacity(given.len());
        for at in given {
            list.push(match at {
                Some(at) => at,
                None => self.constant(Constant::Undefined)?,
            });
        }
        Some(Expression::Macro(number, self.list(&list)?))
    }

    fn namespace(&mut self, arguments: &[ast::CallArg<'_>]) -> Option<Expression> {
        let mut list = Vec::new();
        for argument in arguments {
            let ast::CallArg::Kwarg(name, node) = argument else {
                return Some(Expression::Bail);
            };
            list.push(self.name(name)?);
            list.push(self.expression(node)?);
        }
        Some(Expression::Namespace(self.list(&list)?))
    }
}

/// The arguments, if none has a name.
fn positional<'n, 'a>(arguments: &'n [ast::CallArg<'a>]) -> Option<Vec<&'n ast::Expr<'a>>> {
    let node = |argument: &'n ast::CallArg<'a>| match argument {
        ast::CallArg::Pos(node) => Some(node),
        _ => None,
    };
    arguments.iter().map(node).collect()
}

/// An expression that has a place already, or has none yet.
enum Known {
    At(At),
    Expression(Expression),
}

fn named_test(name: &str, arguments: usize) -> Option<Test> {
    Some(match (name, arguments) {
        ("defined", 0) => Test::Defined,
        ("undefined", 0) => Test::Undefined,
        ("none", 0) => Test::None,
        ("string", 0) => Test::String,
        ("boolean", 0) => Test::Boolean,
        ("true", 0) => Test::True,
        ("false", 0) => Test::False,
        ("number", 0) => Test::Number,
        ("integer" | "int", 0) => Test::Integer,
        ("mapping", 0) => Test::Mapping,
        ("iterable", 0) => Test::Iterable,
        ("sequence", 0) => Test::Sequence,
        ("eq" | "equalto" | "==", 1) => Test::Equal,
        ("ne" | "!=", 1) => Test::NotEqual,
        ("in", 1) => Test::In,
        _ => return None,
    })
}
