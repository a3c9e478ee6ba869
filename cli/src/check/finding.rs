//! What is wrong, where, what comes of it, and how to mend it.

use std::fmt::Write as _;

use serde_json::json;

use super::node::{At, Place};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// A request could leave its zone, residency can't be proved, or requests fail.
    Error,
    /// It works, but slower, or fails when something else does.
    Warning,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    /// A short name that stays.
    pub(super) rule: &'static str,
    pub(super) severity: Severity,
    pub(super) place: Place,
    pub(super) path: String,
    /// What happens.
    pub(super) what: String,
    pub(super) mend: String,
}

/// All that is wrong.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn error(
        &mut self,
        rule: &'static str,
        at: &At<'_>,
        what: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.add(rule, Severity::Error, at, what.into(), mend.into());
    }

    pub(super) fn warning(
        &mut self,
        rule: &'static str,
        at: &At<'_>,
        what: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.add(rule, Severity::Warning, at, what.into(), mend.into());
    }

    fn add(
        &mut self,
        rule: &'static str,
        severity: Severity,
        at: &At<'_>,
        what: String,
        mend: String,
    ) {
        let (place, path) = (at.node.place, at.path.clone());
        // What an alias repeats is said once.
        let known = |f: &Finding| f.rule == rule && f.place == place && f.mend == mend;
        if !self.0.iter().any(known) {
            self.0.push(Finding { rule, severity, place, path, what, mend });
        }
    }

    /// In the order of the files' lines.
    pub(super) fn sorted(mut self) -> Vec<Finding> {
        self.0.sort_by(|a, b| a.place.cmp(&b.place).then(a.severity.cmp(&b.severity)));
        self.0
    }
}

impl Finding {
    pub(super) fn text(&self, files: &[String]) -> String {
        let mut text = String::new();
        let path = if self.path.is_empty() { String::new() } else { format!(" {}", self.path) };
        let _ = writeln!(
            text,
            "{}:{}: {}[{}]{path}\n    {}\n    mend: {}",
            self.file(files),
            self.place.line,
            self.severity.name(),
            self.rule,
            self.what,
            self.mend
        );
        text
    }

    pub(super) fn json(&self, files: &[String]) -> String {
        json!({
            "file": self.file(files),
            "line": self.place.line,
            "path": self.path,
            "severity": self.severity.name(),
            "rule": self.rule,
            "what": self.what,
            "mend": self.mend,
        })
        .to_string()
    }

    fn file<'a>(&self, files: &'a [String]) -> &'a str {
        files.get(self.place.file).map_or("?", String::as_str)
    }
}
