//! Requests that are held back where every replica of their zone has as much to prefill as it may.
//!
//! Bounded in number and time, interactive before batch, the first come first. They are asked again
//! from the tick; one that still can't go keeps those behind it waiting, so that a tick decides no
//! more often than requests leave, and once.

use std::collections::VecDeque;

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Waiter<T> {
    pub(super) request: T,
    pub(super) batch: bool,
    /// When it goes all the same, in milliseconds.
    pub(super) until_ms: u64,
}

/// Those of one worker.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    interactive: VecDeque<Waiter<T>>,
    batch: VecDeque<Waiter<T>>,
    most: usize,
}

/// What became of one that was asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Now {
    /// It left, or was gone already.
    Gone,
    /// It still has to wait.
    Waits,
}

impl<T> Waiting<T> {
    pub(super) fn new(most: usize) -> Self {
        Self { interactive: VecDeque::new(), batch: VecDeque::new(), most }
    }

    pub(super) fn len(&self) -> usize {
        self.interactive.len() + self.batch.len()
    }

    pub(super) fn has_room(&self) -> bool {
        self.len() < self.most
    }

    pub(super) fn push(&mut self, waiter: Waiter<T>) {
        let queue = if waiter.batch { &mut self.batch } else { &mut self.interactive };
        queue.push_back(waiter);
    }

    /// Asks them again, in their order; `ask` is told whether one's time is over.
    pub(super) fn again(&mut self, now_ms: u64, mut ask: impl FnMut(&T, bool) -> Now) {
        // Batch requests whose time is over don't wait for interactive ones any longer.
        let mut open = true;
        for queue in [&mut self.interactive, &mut self.batch] {
            while let Some(first) = queue.front() {
                let over = first.until_ms <= now_ms;
                if !open && !over {
                    break;
                }
                if ask(&first.request, over) == Now::Waits && !over {
                    open = false;
                    break;
                }
                queue.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(all: &[(u32, bool, u64)]) -> Waiting<u32> {
        let mut waiting = Waiting::new(8);
        for &(request, batch, until_ms) in all {
            waiting.push(Waiter { request, batch, until_ms });
        }
        waiting
    }

    /// Asks all again where this many may go; what was asked, and whether its time was over.
    fn again(waiting: &mut Waiting<u32>, now_ms: u64, mut room: usize) -> Vec<(u32, bool)> {
        let mut asked = Vec::new();
        waiting.again(now_ms, |request, over| {
            asked.push((*request, over));
            if over {
                return Now::Gone;
            }
            room = match room.checked_sub(1) {
                Some(left) => left,
                None => return Now::Waits,
            };
            Now::Gone
        });
        asked
    }

    #[test]
    fn the_first_come_goes_first_and_interactive_before_batch() {
        let mut all = waiting(&[(1, true, 100), (2, false, 100), (3, false, 100)]);
        assert_eq!(again(&mut all, 0, 1), [(2, false), (3, false)]);
        assert_eq!(again(&mut all, 0, 2), [(3, false), (1, false)]);
        assert_eq!(all.len(), 0);
    }

    #[test]
    fn whose_time_is_over_goes_whatever_waits_before_it() {
        let mut all = waiting(&[(1, false, 100), (2, true, 50), (3, true, 90)]);
        assert_eq!(again(&mut all, 60, 0), [(1, false), (2, true)]);
        assert_eq!(again(&mut all, 95, 0), [(1, false), (3, true)]);
        assert_eq!(again(&mut all, 100, 0), [(1, true)]);
        assert_eq!(all.len(), 0);
    }

    #[test]
    fn no_more_wait_than_have_room() {
        let mut all = Waiting::new(2);
        for request in 0..2 {
            assert!(all.has_room());
            all.push(Waiter { request, batch: request == 1, until_ms: 1 });
        }
        assert!(!all.has_room());
    }
}
