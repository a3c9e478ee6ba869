//! How often a worker looks at shared data: with each tick while it has something to do, and now and
//! then while it has not. Envoy's main thread has a router too, which never gets a request.

/// Ticks in a row without anything to do after which they come less often.
const QUIET_TICKS: u32 = 20;

/// Milliseconds between those.
const QUIET_MS: u32 = 500;

/// How often, now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// As configured.
    tick_ms: u32,
    /// Ticks in a row that had nothing to do.
    quiet: u32,
    /// What Envoy has been told.
    told_ms: u32,
    /// Nothing was looked at yet.
    new: bool,
}

impl Pace {
    /// Of ticks that are so many milliseconds apart, as Envoy has been told.
    pub(super) fn new(tick_ms: u32) -> Self {
        Self { tick_ms, quiet: 0, told_ms: tick_ms, new: true }
    }

    /// A tick has gone by; `busy` if there is more to do soon.
    pub(super) fn tick(&mut self, busy: bool) {
        self.new = false;
        self.quiet = if busy { 0 } else { self.quiet.saturating_add(1) };
    }

    /// A request has come. Says whether what is known may be older than a tick.
    pub(super) fn wake(&mut self) -> bool {
        let slept = self.is_slow();
        self.quiet = 0;
        std::mem::take(&mut self.new) || slept
    }

    /// There is something to do from now on, though no request to be decided yet.
    pub(super) fn stir(&mut self) {
        self.new |= self.is_slow();
        self.quiet = 0;
    }

    fn is_slow(&self) -> bool {
        self.quiet >= QUIET_TICKS && self.tick_ms < QUIET_MS
    }

    /// The milliseconds between ticks, if Envoy has to be told.
    pub(super) fn news(&mut self) -> Option<u32> {
        let ms = if self.is_slow() { QUIET_MS } else { self.tick_ms };
        (std::mem::replace(&mut self.told_ms, ms) != ms).then_some(ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_nothing_to_do_looks_less_often_until_there_is_something() {
        let mut pace = Pace::new(50);
        assert!(pace.wake() && !pace.wake(), "a request before the first tick");
        let quiet = |pace: &mut Pace, ticks| {
            let told = (0..ticks).filter_map(|_| {
                pace.tick(false);
                pace.news()
            });
            told.collect::<Vec<_>>()
        };
        assert_eq!(quiet(&mut pace, QUIET_TICKS - 1), [0; 0]);
        assert!(!pace.wake());
        assert_eq!(quiet(&mut pace, QUIET_TICKS - 1), [0; 0], "they are counted in a row");
        assert_eq!(quiet(&mut pace, 100), [QUIET_MS], "Envoy is told once");
        assert!(pace.wake());
        assert_eq!((pace.news(), pace.news(), pace.wake()), (Some(50), None, false));

        assert_eq!(quiet(&mut pace, QUIET_TICKS), [QUIET_MS]);
        pace.tick(true);
        assert_eq!((pace.news(), pace.wake()), (Some(50), false));
    }

    #[test]
    fn slow_ticks_are_not_made_faster() {
        let mut pace = Pace::new(1_000);
        (0..100).for_each(|_| pace.tick(false));
        assert_eq!((pace.news(), pace.wake()), (None, false));
    }
}
