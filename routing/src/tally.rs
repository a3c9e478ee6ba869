//! When the prefix map last changed for each slot: what tells, after an answer that was not as
//! foreseen, whether its replica's events came meanwhile.

use std::collections::BTreeMap;

const FORMAT: u8 = 1;
const HEAD: usize = 4;
const ROW: usize = 20;

/// Milliseconds since 1970, by this host's clock; 0 for never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// When a block last came into the map.
    pub held_ms: u64,
    /// When one last left it.
    pub lost_ms: u64,
}

/// Those of all slots that mean something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tallies {
    all: BTreeMap<u16, Tally>,
}

impl Tallies {
    /// Blocks of a slot were withdrawn, or announced, or both.
    pub fn changed(&mut self, slot: u16, lost: bool, held: bool, now_ms: u64) {
        let tally = self.all.entry(slot).or_default();
        if lost {
            tally.lost_ms = now_ms;
        }
        if held {
            tally.held_ms = now_ms;
        }
    }

    /// Nothing is known any more.
    pub fn clear(&mut self) {
        self.all.clear();
    }

    /// Forgets slots that mean nothing any more.
    pub fn retain(&mut self, is_live: impl Fn(u16) -> bool) {
        self.all.retain(|slot, _| is_live(*slot));
    }

    /// That of a slot.
    pub fn of(&self, slot: u16) -> Tally {
        self.all.get(&slot).copied().unwrap_or_default()
    }

    /// The bytes for shared data.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + self.all.len() * ROW);
        bytes.extend([FORMAT, 0, 0, 0]);
        for (slot, tally) in &self.all {
            bytes.extend(u32::from(*slot).to_le_bytes());
            bytes.extend(tally.held_ms.to_le_bytes());
            bytes.extend(tally.lost_ms.to_le_bytes());
        }
        bytes
    }

    /// Reads them; none where there are none.
    pub fn decode(bytes: &[u8]) -> Self {
        let Some((&[FORMAT, ..], rest)) = bytes.split_first_chunk::<HEAD>() else {
            return Self::default();
        };
        let (rows, _) = rest.as_chunks::<ROW>();
        let row = |row: &[u8; ROW]| {
            let number = |at: usize| row.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b));
            let slot = row.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))?;
            Some((u16::try_from(slot).ok()?, Tally { held_ms: number(4)?, lost_ms: number(12)? }))
        };
        Self { all: rows.iter().filter_map(row).collect() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_changed_when_comes_back_from_its_bytes() {
        let mut tallies = Tallies::default();
        tallies.changed(7, true, false, 5);
        tallies.changed(7, false, true, 6);
        tallies.changed(9, true, true, 8);
        tallies.changed(65_535, false, false, 9);
        let again = Tallies::decode(&tallies.encode());
        assert_eq!(again, tallies);
        assert_eq!(again.of(7), Tally { held_ms: 6, lost_ms: 5 });
        assert_eq!(again.of(8), Tally::default());
        tallies.retain(|slot| slot == 9);
        assert_eq!(tallies.of(7), Tally::default());
        assert_eq!(tallies.of(9), Tally { held_ms: 8, lost_ms: 8 });
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Tallies::decode(&bytes);
            let _ = Tallies::decode(&[&[FORMAT, 0, 0, 0], &bytes[..]].concat());
        }
    }
}
