//! Chat templates without the template engine, where that is possible.
//!
//! A template is compiled to a small program (`compile`), which is run over the conversation as
//! it is (`run`): values are borrowed, and only the output is written. What the program can't do
//! exactly as the engine does it ends the run, and the engine renders instead. So a template may
//! hold anything; what counts is where a request leads through it.

mod compile;
mod evaluate;
mod expression;
mod functions;
#[cfg(all(test, feature = "preprocess"))]
mod known;
mod names;
mod operators;
mod program;
mod question;
#[cfg(all(test, feature = "preprocess"))]
mod random;
#[cfg(all(test, feature = "preprocess"))]
mod random_template;
mod run;
#[cfg(all(test, feature = "preprocess"))]
mod tests;
mod value;
mod write;

pub(crate) use compile::compile;
pub(crate) use program::Script;
pub(crate) use question::Shape;
