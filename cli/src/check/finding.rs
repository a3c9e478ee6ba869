//! What is wrong, where, what comes of it, and how to mend it.

use std::fmt::Write as _;

use serde_json::json;

use super::node::{At, Place};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// A request can leave its zone, or nothing keeps it there.
    Leak,
    /// Requests fail, or the configuration does.
    Error,
    /// Of this it isn't known that it leads no request out and copies none.
    Unproved,
    /// It works, but slower, or fails when something else does.
    Warning,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Self::Leak => "leak",
            Self::Error => "error",
            Self::Unproved => "unproved",
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
    /// Why an operator answers for it all the same.
    pub(super) acknowledged: Option<String>,
}

/// All that is wrong.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    /// A way out of a zone.
    pub(super) fn leak(
        &mut self,
        rule: &'static str,
        at: &At<'_>,
        what: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.add(rule, Severity::Leak, at, what.into(), mend.into());
    }

    /// What isn't known to be harmless.
    pub(super) fn unproved(
        &mut self,
        rule: &'static str,
        at: &At<'_>,
        what: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.add(rule, Severity::Unproved, at, what.into(), mend.into());
    }

    /// Whether this very thing is told of already, as something that binds.
    pub(super) fn tells_of(&self, at: &At<'_>) -> bool {
        self.0.iter().any(|f| {
            f.severity != Severity::Warning && f.path == at.path && f.place == at.node.place
        })
    }

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
        // What an alias repeats is said once; what can be acknowledged is said of each path, since
        // it is acknowledged by its path.
        let known = |f: &Finding| {
            f.rule == rule
                && f.place == place
                && f.mend == mend
                && (severity != Severity::Unproved || (f.path == path && f.what == what))
        };
        if !self.0.iter().any(known) {
            self.0.push(Finding { rule, severity, place, path, what, mend, acknowledged: None });
        }
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Finding> {
        self.0.iter_mut()
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
        let (kind, last) = match &self.acknowledged {
            Some(reason) => ("acknowledged", format!("reason: {reason}")),
            None => (self.severity.name(), format!("mend: {}", self.mend)),
        };
        let _ = writeln!(
            text,
            "{}:{}: {kind}[{}]{path}\n    {}\n    {last}",
            self.file(files),
            self.place.line,
            self.rule,
            self.what,
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
            "acknowledged": self.acknowledged,
        })
        .to_string()
    }

    fn file<'a>(&self, files: &'a [String]) -> &'a str {
        files.get(self.place.file).map_or("?", String::as_str)
    }
}
