//! How often an engine is polled, and how long an answer may take.

use std::time::Duration;

/// How often and how patiently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polling {
    /// Between two polls.
    pub interval: Duration,
    /// For one answer.
    pub timeout: Duration,
    /// Between two looks at `/health` of an engine whose `/metrics` answers, jittered by a quarter:
    /// SGLang generates a token for each.
    pub health: Duration,
    /// Between two looks at which models and adapters it serves, jittered by a quarter.
    pub models: Duration,
    /// Time with running requests but without events after which an engine is suspect; none for
    /// never.
    pub silence: Option<Duration>,
    /// Between two measurements of the network's round trip, jittered by a quarter; none for never.
    pub round_trips: Option<Duration>,
}
