//! One cost along one quantity, and whether it grows faster than that.

use serde::Serialize;

/// An exponent above this is superlinear: a cost that is linear, measured on a machine that others
/// use too, comes out a little to either side of 1.
const MOST_EXPONENT: f64 = 1.15;

/// One cost along one quantity.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Series {
    /// What is measured, and in what.
    pub(super) name: String,
    pub(super) unit: &'static str,
    /// What grows.
    pub(super) along: &'static str,
    /// How much of it, and what that costs.
    pub(super) points: Vec<(f64, f64)>,
}

impl Series {
    /// The power of the quantity that the cost grows with, between any two points at least four
    /// times apart: the largest.
    pub(super) fn exponent(&self) -> Option<f64> {
        let pairs = self
            .points
            .iter()
            .enumerate()
            .flat_map(|(at, a)| self.points.iter().skip(at + 1).map(move |b| (a, b)));
        pairs
            .filter(|((a, _), (b, _))| b / a >= 4.0)
            .map(|((a, x), (b, y))| (y / x).ln() / (b / a).ln())
            .max_by(f64::total_cmp)
    }

    pub(super) fn is_superlinear(&self) -> bool {
        self.exponent().is_some_and(|exponent| exponent > MOST_EXPONENT)
    }
}
