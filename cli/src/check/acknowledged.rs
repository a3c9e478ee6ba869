//! Exceptions that an operator has acknowledged, each with its reason, in a file beside the
//! configuration.

use super::finding::{Finding, Findings, Severity};
use super::node::{At, Node, Place};

/// Rules of which it is known that a request can leave, and that an operator can answer for all the
/// same: what tells the hosts apart stands outside of any configuration.
const ANSWERABLE: [&str; 1] = ["zone-by-host"];

/// One exception.
#[derive(Clone, Debug)]
struct Exception {
    node: Node,
    rule: String,
    path: String,
    reason: String,
    /// Files whose findings it can be about; all, if none is named.
    files: Option<Vec<usize>>,
    used: bool,
}

/// All exceptions.
#[derive(Debug, Default)]
pub(super) struct Acknowledged(Vec<Exception>);

/// What is no list of exceptions.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub(super) struct Malformed {
    line: u64,
    what: &'static str,
}

impl Acknowledged {
    /// Takes a document of an exceptions file: a list of `rule`, `path` and `reason`.
    ///
    /// # Errors
    /// [`Malformed`] where the document isn't such a list, or an exception has no reason.
    pub(super) fn add(&mut self, list: &Node, files: Option<&[usize]>) -> Result<(), Malformed> {
        let malformed = |place: Place, what| Malformed { line: place.line, what };
        if list.is_null() {
            return Ok(());
        }
        if !list.is_list() {
            let what = "not a list of exceptions, each with rule, path and reason";
            return Err(malformed(list.place, what));
        }
        for node in list.items() {
            let at = At::root(node);
            let given = at.fields();
            let known = |(key, _): &(&str, At<'_>)| matches!(*key, "rule" | "path" | "reason");
            let field = |name| at.text(name).map(str::trim);
            let (Some(rule), Some(path)) = (field("rule"), field("path")) else {
                return Err(malformed(node.place, "an exception without rule or path"));
            };
            let Some(reason) = field("reason").filter(|reason| !reason.is_empty()) else {
                return Err(malformed(node.place, "an exception without a reason"));
            };
            if !given.iter().all(known) || given.len() != 3 {
                return Err(malformed(node.place, "an exception has rule, path and reason only"));
            }
            self.0.push(Exception {
                node: node.clone(),
                rule: rule.to_owned(),
                path: path.to_owned(),
                reason: reason.to_owned(),
                files: files.map(<[usize]>::to_vec),
                used: false,
            });
        }
        Ok(())
    }

    /// Marks what is acknowledged. An exception that fits nothing is an error, for it would silence
    /// what comes later; so is one for what nobody can answer for.
    pub(super) fn apply(mut self, findings: &mut Findings) {
        for finding in findings.iter_mut() {
            for exception in &mut self.0 {
                let here = exception.files.as_ref();
                let here = here.is_none_or(|files| files.contains(&finding.place.file));
                if here && exception.rule == finding.rule && exception.path == finding.path {
                    exception.used = true;
                    if answerable(finding) {
                        finding.acknowledged = Some(exception.reason.clone());
                    } else {
                        exception.used = false;
                    }
                }
            }
        }
        // Where nothing could be looked at, nothing can be found to fit.
        let blind = findings.iter_mut().any(|f| matches!(f.rule, "policy" | "no-router"));
        for exception in self.0.iter().filter(|exception| !exception.used && !blind) {
            let fits = |f: &&mut Finding| f.rule == exception.rule && f.path == exception.path;
            let what = match findings.iter_mut().find(fits) {
                Some(_) => format!(
                    "{} at {} can't be acknowledged: no reason makes it right.",
                    exception.rule, exception.path
                ),
                None => format!(
                    "This exception matches nothing: there is no {} at {}.",
                    exception.rule, exception.path
                ),
            };
            findings.error("stale-acknowledgement", &At::root(&exception.node), what, "Remove it.");
        }
    }
}

fn answerable(finding: &Finding) -> bool {
    match finding.severity {
        Severity::Unproved => true,
        Severity::Leak => ANSWERABLE.contains(&finding.rule),
        Severity::Error | Severity::Warning => false,
    }
}
