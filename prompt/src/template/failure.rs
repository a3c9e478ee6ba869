//! Why a template gives no prompt.

use std::fmt;

use minijinja::{Error, ErrorKind};

use crate::error::PromptError;

/// An error of `raise_exception`.
#[derive(Debug)]
pub(super) struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("raise_exception")
    }
}

impl std::error::Error for Refused {}

pub(super) fn prompt_error(error: &Error) -> PromptError {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(inner) = source {
        if inner.is::<Refused>() {
            return PromptError::TemplateRefused;
        }
        source = inner.source();
    }
    // The message may hold parts of the prompt; the kind doesn't.
    PromptError::TemplateFailed(match error.kind() {
        ErrorKind::UndefinedError => "a value that is undefined",
        ErrorKind::UnknownFilter => "an unknown filter",
        ErrorKind::UnknownTest => "an unknown test",
        ErrorKind::UnknownFunction => "an unknown function",
        ErrorKind::UnknownMethod => "an unknown method",
        ErrorKind::MissingArgument | ErrorKind::TooManyArguments => "wrong arguments",
        ErrorKind::OutOfFuel => "too many steps",
        ErrorKind::InvalidOperation => "an operation on the wrong type",
        _ => "an error",
    })
}

pub(super) fn describe(error: &Error) -> String {
    match error.line() {
        Some(line) => format!("line {line}: {error}"),
        None => error.to_string(),
    }
}
