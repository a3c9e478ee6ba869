//! What a template is compiled to: nodes that name each other by number, in few and small vectors.

/// The place of an expression.
pub(crate) type At = u16;

/// The number of an attribute's name.
pub(crate) type Name = u16;

/// A template, compiled.
#[derive(Debug, Default)]
pub(crate) struct Script {
    /// All texts of the template, one after the other.
    pub(crate) texts: String,
    pub(crate) constants: Vec<Constant>,
    pub(crate) expressions: Vec<Expression>,
    /// Lists that expressions have: of expressions, variables, names.
    pub(crate) lists: Vec<u16>,
    pub(crate) statements: Vec<Statement>,
    pub(crate) loops: Vec<Loop>,
    pub(crate) macros: Vec<Macro>,
    pub(crate) body: Block,
    /// Names of attributes.
    pub(crate) names: Vec<Text>,
    /// Variables of the context that are read.
    pub(crate) given: Vec<Given>,
    /// How many variables the template sets.
    pub(crate) locals: u16,
    /// Special tokens that are read.
    pub(crate) special: Vec<(u16, Text)>,
}

#[cfg(all(test, feature = "preprocess"))]
impl Script {
    /// Bytes that a run may read.
    pub(crate) fn size(&self) -> usize {
        self.texts.len()
            + size_of_val(self.constants.as_slice())
            + size_of_val(self.expressions.as_slice())
            + size_of_val(self.lists.as_slice())
            + size_of_val(self.statements.as_slice())
            + size_of_val(self.loops.as_slice())
    }
}

/// From where to where in the texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// From where to where in the lists, or in the statements.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Block {
    pub(crate) start: u16,
    pub(crate) end: u16,
}

/// A variable that may be given with a request.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) name: Box<str>,
    /// A function has this name, if nothing else is given.
    pub(crate) function: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Constant {
    Undefined,
    None,
    Bool(bool),
    Int(i64),
    Text(Text),
    Opaque,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Statement {
    Raw(Text),
    Emit(At),
    /// Puts a value into a local variable.
    Set(u16, At),
    /// Puts a value (the last) into a namespace (the first).
    SetAttribute(At, Name, At),
    If(At, Block, Block),
    /// By its number in the loops.
    For(u16),
    Break,
    Continue,
    /// Something that only the engine can do.
    Bail,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Loop {
    pub(crate) over: At,
    /// What items must be like: the variable that they are in then, and the condition.
    pub(crate) filter: Option<(Target, At)>,
    /// The variable that the item is in.
    pub(crate) target: Target,
    /// The local variables that are the loop's own: they begin anew with each item.
    pub(crate) locals: Block,
    pub(crate) body: Block,
    pub(crate) otherwise: Block,
}

/// A macro that can be called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Macro {
    /// For each parameter its local variable, and what it is if nothing is given.
    pub(crate) parameters: Block,
    /// The local variables that are its own.
    pub(crate) locals: Block,
    pub(crate) body: Block,
}

/// Local variables that an item goes to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    One(u16),
    /// The item is a pair.
    Two(u16, u16),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Expression {
    /// Something that only the engine can do.
    Bail,
    Constant(u16),
    /// A variable that only the context may have.
    Given(u16),
    /// The first of these local variables that is set, or what is given.
    Local(Block, u16),
    Attribute(At, Name),
    Item(At, At),
    /// An attribute of the loop that is so many loops deep.
    Loop(u8, LoopField),
    /// Of the first, from the second to the third.
    Slice(At, At, At),
    Reversed(At),
    Not(At),
    Negative(At),
    And(At, At),
    Or(At, At),
    /// The second if the first is true, else the third.
    Choice(At, At, At),
    Binary(Operator, At, At),
    /// Texts one after the other, or a sum of integers.
    Add(Block),
    /// Texts or integers, written one after the other.
    Concat(Block),
    Test(Test, At, At),
    Call(Function, At, Block),
    /// What it is of, and a list: whether such are kept, the attribute's name, a test, its argument.
    Select(At, u16),
    List(Block),
    /// Names and expressions in turn.
    Namespace(Block),
    Strftime(At),
    /// The macro of this number, with an argument for each parameter.
    Macro(u16, Block),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoopField {
    Index,
    Index0,
    First,
    Last,
    Length,
    RevIndex,
    RevIndex0,
    Previous,
    Next,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Subtract,
    Multiply,
    FloorDivide,
    Remainder,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Test {
    Defined,
    Undefined,
    None,
    String,
    Boolean,
    True,
    False,
    Number,
    Integer,
    Mapping,
    Iterable,
    Sequence,
    Equal,
    NotEqual,
    In,
    /// Whether it is true in a condition: for what is selected without a test.
    Truthy,
}

impl Test {
    const ALL: [Self; 16] = [
        Self::Defined,
        Self::Undefined,
        Self::None,
        Self::String,
        Self::Boolean,
        Self::True,
        Self::False,
        Self::Number,
        Self::Integer,
        Self::Mapping,
        Self::Iterable,
        Self::Sequence,
        Self::Equal,
        Self::NotEqual,
        Self::In,
        Self::Truthy,
    ];

    /// The test of this number, as in a list.
    pub(crate) fn of_number(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// A filter or a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    /// The filter, which takes also what isn't text.
    Trim,
    Strip,
    StripStart,
    StripEnd,
    StartsWith,
    EndsWith,
    Split,
    /// `split(…)[0]`
    SplitFirst,
    /// `split(…)[-1]`
    SplitLast,
    Replace,
    Upper,
    Lower,
    Get,
    Length,
    List,
    First,
    Last,
    String,
    Default,
    ToJson,
    Items,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_small_and_tests_have_their_numbers() {
        assert_eq!(size_of::<Expression>(), 8);
        assert!(size_of::<Statement>() <= 12);
        for (number, test) in Test::ALL.into_iter().enumerate() {
            assert_eq!(test as usize, number);
        }
    }
}
