//! Waits that are spread out.

use std::time::Duration;

/// Between 3/4 and 5/4 of it, so that many don't act in step.
pub(crate) fn jittered(wait: Duration) -> Duration {
    let share = f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX);
    wait.mul_f64(0.75 + share / 2.0)
}
