//! In which ways map and engine drift apart.

/// In which way it goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Expected cached, was not, and nothing says why.
    Missing,
    /// Not expected, was, and no event came of it later on.
    Surprise,
    /// Computed, and no event came of it.
    Unannounced,
    /// Expected cached and gone when the engine began, as its events said meanwhile: the map was
    /// right, and the cache is short.
    Evicted,
}

impl Kind {
    /// All, for those who count them, in the order of their places.
    pub const ALL: [Self; 4] = [Self::Missing, Self::Surprise, Self::Unannounced, Self::Evicted];

    /// The name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Surprise => "surprise",
            Self::Unannounced => "unannounced",
            Self::Evicted => "evicted",
        }
    }

    /// Whether the map is wrong, and not just the cache short.
    pub fn is_fault(self) -> bool {
        self != Self::Evicted
    }

    /// What is usual: in a burst many are cached before their event has come, and promises are
    /// broken by what no event tells in time.
    pub(super) fn usual(self) -> f32 {
        match self {
            Self::Missing | Self::Evicted => 0.1,
            Self::Surprise => 0.2,
            Self::Unannounced => 0.0,
        }
    }
}
