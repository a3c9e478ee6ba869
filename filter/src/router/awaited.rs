//! Bodies that are awaited: how many bytes of them Envoy holds for one worker, and whose.
//!
//! A body is held until it is there to its end. Clients who never end theirs could so fill the heap,
//! for everybody; beyond a bound those go that came first, as who has waited longest is least likely
//! to be on the point of ending.

use std::collections::BTreeMap;

/// Those of one worker, in the order in which they came.
#[derive(Debug)]
pub(super) struct Awaited<T> {
    all: BTreeMap<u64, (T, usize)>,
    next: u64,
    bytes: usize,
    most: usize,
}

impl<T> Awaited<T> {
    /// At most so many bytes.
    pub(super) fn new(most: usize) -> Self {
        Self { all: BTreeMap::new(), next: 0, bytes: 0, most }
    }

    /// So many bytes are there of one; `place`: what it was given before, if it was.
    pub(super) fn hold(&mut self, place: &mut Option<u64>, bytes: usize, who: impl FnOnce() -> T) {
        let at = *place.get_or_insert_with(|| {
            self.next += 1;
            self.next
        });
        let (_, before) = self.all.entry(at).or_insert_with(|| (who(), 0));
        self.bytes = self.bytes.saturating_sub(*before).saturating_add(bytes);
        *before = bytes;
    }

    /// One is awaited no more.
    pub(super) fn release(&mut self, place: &mut Option<u64>) {
        if let Some((_, bytes)) = place.take().and_then(|at| self.all.remove(&at)) {
            self.bytes = self.bytes.saturating_sub(bytes);
        }
    }

    /// The first of them, taken out, while all together are above the bound.
    pub(super) fn too_many(&mut self) -> Option<T> {
        if self.bytes <= self.most {
            return None;
        }
        let (_, (who, bytes)) = self.all.pop_first()?;
        self.bytes = self.bytes.saturating_sub(bytes);
        Some(who)
    }

    /// Bytes of all.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_bound_the_first_come_go() {
        let mut all = Awaited::new(100);
        let mut places = [None; 4];
        for (who, place) in places.iter_mut().enumerate() {
            all.hold(place, 10, || who);
        }
        all.hold(&mut places[2], 60, || unreachable!());
        assert_eq!((all.bytes(), all.too_many()), (90, None));
        all.release(&mut places[0]);
        all.release(&mut places[0]);
        assert_eq!((all.bytes(), places[0]), (80, None));
        all.hold(&mut places[3], 95, || unreachable!());
        assert_eq!((all.bytes(), all.too_many(), all.too_many()), (165, Some(1), Some(2)));
        assert_eq!((all.bytes(), all.too_many()), (95, None));
        // Who was taken out and goes on all the same is counted anew.
        all.release(&mut places[1]);
        assert_eq!(all.bytes(), 95);
        all.release(&mut places[3]);
        assert_eq!((all.bytes(), all.all.len()), (0, 0), "nothing is kept of who has gone");
    }
}
