//! The clock that an engine's chat templates see: `strftime_now` writes local time (transformers
//! 5.19, utils/chat_template_utils.py), which is that of the engine's `TZ`.

use std::sync::Arc;

/// A time zone's offsets from UTC; UTC by default. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock(Arc<[Offset]>);

/// What holds from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// Seconds since 1970.
    pub from_unix: u64,
    /// Seconds east of UTC; less than a day either way.
    pub seconds: i32,
}

/// Offsets are less than this, which makes them positive in an artefact.
pub(crate) const DAY: i32 = 86_400;

impl Clock {
    /// Of the offsets of a time zone, in the order of time; before the first one that holds, after
    /// the last one the last. Those that can't be are left out.
    pub fn new(offsets: impl IntoIterator<Item = Offset>) -> Self {
        let possible = offsets.into_iter().filter(|offset| offset.seconds.abs() < DAY);
        let mut offsets: Vec<_> = possible.collect();
        offsets.sort_by_key(|offset| offset.from_unix);
        if offsets.iter().all(|offset| offset.seconds == 0) {
            offsets.clear();
        }
        Self(offsets.into())
    }

    /// All of them, in the order of time.
    #[cfg(feature = "preprocess")]
    pub(crate) fn offsets(&self) -> &[Offset] {
        &self.0
    }

    /// The seconds since 1970 at which UTC's clocks show what this one shows at `unix`.
    pub fn local(&self, unix: i64) -> i64 {
        let past = |offset: &Offset| i64::try_from(offset.from_unix).is_ok_and(|from| from <= unix);
        let after = self.0.partition_point(past);
        let here = self.0.get(after.saturating_sub(1));
        unix.saturating_add(here.map_or(0, |offset| i64::from(offset.seconds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_is_that_of_the_moment() {
        let offset = |from_unix, seconds| Offset { from_unix, seconds };
        let clock = Clock::new([offset(100, -7), offset(0, -8), offset(200, 5), offset(9, DAY)]);
        for (unix, local) in [(-1, -9), (0, -8), (99, 91), (100, 93), (200, 205), (900, 905)] {
            assert_eq!(clock.local(unix), local, "{unix}");
        }
        assert_eq!(Clock::default().local(7), 7);
        assert_eq!(Clock::new([offset(0, 0)]), Clock::default());
        let _ = clock.local(i64::MAX);
        let _ = clock.local(i64::MIN);
    }
}
