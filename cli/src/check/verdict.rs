//! What can be said of a configuration's residency.

use serde_json::json;

use super::finding::{Finding, Severity};
use super::number::number;
use super::residency::Proof;

/// What is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Every way is known, and none leads out of a zone.
    Proved,
    /// No way out is known, but not all is known.
    NotProved,
    /// There is a way out, or nothing that would keep requests in.
    Leaks,
}

/// How many there are of what isn't acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) leaks: usize,
    pub(super) errors: usize,
    pub(super) unproved: usize,
    pub(super) warnings: usize,
    pub(super) acknowledged: usize,
}

impl Counts {
    pub(super) fn of(findings: &[Finding]) -> Self {
        let mut counts = Self::default();
        for finding in findings {
            let count = match finding.severity {
                _ if finding.acknowledged.is_some() => &mut counts.acknowledged,
                Severity::Leak => &mut counts.leaks,
                Severity::Error => &mut counts.errors,
                Severity::Unproved => &mut counts.unproved,
                Severity::Warning => &mut counts.warnings,
            };
            *count += 1;
        }
        counts
    }
}

impl Verdict {
    pub(super) fn of(findings: &[Finding], proofs: &[Proof]) -> Self {
        let counts = Counts::of(findings);
        let unread = || findings.iter().any(|f| matches!(f.rule, "policy" | "no-router"));
        match counts {
            Counts { leaks: 1.., .. } => Self::Leaks,
            Counts { unproved: 1.., .. } => Self::NotProved,
            _ if proofs.is_empty() || unread() => Self::NotProved,
            _ => Self::Proved,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Proved => "proved",
            Self::NotProved => "not proved",
            Self::Leaks => "leaks",
        }
    }

    pub(super) fn json(self, counts: Counts) -> String {
        let Counts { leaks, errors, unproved, warnings, acknowledged } = counts;
        json!({
            "verdict": self.name(),
            "leaks": leaks,
            "errors": errors,
            "unproved": unproved,
            "warnings": warnings,
            "acknowledged": acknowledged,
        })
        .to_string()
    }

    /// The verdict and why, in a line.
    pub(super) fn text(self, counts: Counts) -> String {
        match self {
            Self::Proved if counts.errors > 0 => "verdict: proved, but errors are left".into(),
            Self::Proved if counts.acknowledged > 0 => format!(
                "verdict: proved, but for {} acknowledged",
                number(counts.acknowledged, "exception")
            ),
            Self::Proved => "verdict: proved".into(),
            Self::NotProved if counts.unproved == 1 => {
                "verdict: not proved: 1 thing might lead out".into()
            }
            Self::NotProved if counts.unproved > 0 => {
                format!("verdict: not proved: {} things might lead out", counts.unproved)
            }
            Self::NotProved => {
                "verdict: not proved: there is no policy to check zones against".into()
            }
            Self::Leaks => format!("verdict: leaks: {} out of a zone", number(counts.leaks, "way")),
        }
    }
}
