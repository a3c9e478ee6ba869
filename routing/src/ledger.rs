//! What the workers of one Envoy tell each other: requests in flight, and what each has noticed.
//!
//! Every worker writes one ledger of its own, to a place that it has claimed, and reads the others'
//! with each beat. Nobody adds to a shared number, so nothing can be left over: what a worker wrote
//! that has died (its VM trapped, its listener went) no longer counts once its beat is old. Places
//! are few and fixed, as shared data never forgets a key.

use std::collections::BTreeMap;

/// Places to write to: the most workers that can tell each other.
pub const PLACES: u32 = 256;

/// A ledger whose beat is older is void. Longer than a worker can be busy with loading a tokenizer.
pub const EXPIRY_MS: u64 = 5_000;

/// Replicas in one ledger; beyond that a worker keeps what it knows for itself.
pub const MOST_LINES: usize = 4_096;

const FORMAT: u8 = 2;
const HEAD: usize = 24;
const LINE: usize = 24;

/// What is written in a place that is given up.
pub const GIVEN_UP: &[u8] = &[0];

/// What one worker says of one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Requests sent there that have not ended.
    pub in_flight: u32,
    /// Tokens of theirs that have to be computed before the first byte, as far as foreseen.
    pub cold_tokens: u32,
    /// Until when the replica is ejected, in milliseconds since 1970; 0 if it isn't.
    pub ejected_until_ms: u64,
}

impl Line {
    /// Adds what another worker says.
    pub fn add(&mut self, other: &Self) {
        self.in_flight = self.in_flight.saturating_add(other.in_flight);
        self.cold_tokens = self.cold_tokens.saturating_add(other.cold_tokens);
        self.ejected_until_ms = self.ejected_until_ms.max(other.ejected_until_ms);
    }
}

/// Lines by the replica's name ([`crate::view::Replica::name`]).
pub type Lines = BTreeMap<u64, Line>;

/// One worker's ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Names the worker's life.
    pub id: u64,
    /// When it was written, in milliseconds since 1970.
    pub beat_ms: u64,
    /// What it says.
    pub lines: Lines,
}

impl Ledger {
    /// The bytes for shared data. Lines that say nothing are left out.
    pub fn encode(&self) -> Vec<u8> {
        let lines = self.lines.iter().filter(|(_, line)| **line != Line::default());
        let lines: Vec<_> = lines.take(MOST_LINES).collect();
        let mut bytes = Vec::with_capacity(HEAD + lines.len() * LINE);
        bytes.extend([FORMAT, 0, 0, 0]);
        bytes.extend((lines.len() as u32).to_le_bytes());
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.beat_ms.to_le_bytes());
        for (name, line) in lines {
            bytes.extend(name.to_le_bytes());
            bytes.extend(line.in_flight.to_le_bytes());
            bytes.extend(line.cold_tokens.to_le_bytes());
            bytes.extend(line.ejected_until_ms.to_le_bytes());
        }
        bytes
    }

    /// Reads a ledger; `None` if it is none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let (lines, []) = rest.as_chunks::<LINE>() else { return None };
        let count = u32_at(head, 4)? as usize;
        if head.first() != Some(&FORMAT) || count != lines.len() || count > MOST_LINES {
            return None;
        }
        let line = |bytes: &[u8; LINE]| {
            let line = Line {
                in_flight: u32_at(bytes, 8)?,
                cold_tokens: u32_at(bytes, 12)?,
                ejected_until_ms: u64_at(bytes, 16)?,
            };
            Some((u64_at(bytes, 0)?, line))
        };
        Some(Self {
            id: u64_at(head, 8)?,
            beat_ms: u64_at(head, 16)?,
            lines: lines.iter().map(line).collect::<Option<_>>()?,
        })
    }

    fn alive(&self, now_ms: u64) -> bool {
        // A clock that was set back must not keep the dead alive.
        self.beat_ms.abs_diff(now_ms) <= EXPIRY_MS
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Where ledgers are written: shared data, with its compare-and-swap.
pub trait Board {
    /// Why shared data could not be read or written.
    type Error;

    /// What stands at a place, and its version; `None` if nothing was ever written there.
    ///
    /// # Errors
    /// When shared data can't be read (Envoy returned an unexpected status).
    fn read(&self, place: u32) -> Result<Option<(Vec<u8>, u32)>, Self::Error>;

    /// Writes to a place if it still has this version; says whether it did. Version 0 stands for
    /// a place that nothing was written to.
    ///
    /// # Errors
    /// When shared data can't be written, for another reason than that the version is another.
    fn write(&mut self, place: u32, bytes: &[u8], version: u32) -> Result<bool, Self::Error>;
}

/// A worker among the others.
#[derive(Debug)]
pub struct Member {
    id: u64,
    place: Option<u32>,
}

impl Member {
    /// A worker with a random id, so that no two lives are alike.
    pub fn new(id: u64) -> Self {
        Self { id, place: None }
    }

    /// Writes what this worker says, to its place or, if it has none (any more), to the first that
    /// is free. Gives the sum of what the other workers say.
    ///
    /// # Errors
    /// The first of [`Board::read`] and [`Board::write`]; the next beat tries again.
    pub fn beat<B: Board>(
        &mut self,
        board: &mut B,
        now_ms: u64,
        lines: &Lines,
    ) -> Result<Lines, B::Error> {
        let mut others = Lines::new();
        let (mut own, mut free) = (None, None);
        for place in 0..PLACES {
            // Places are taken from the lowest up: after one that was never written none is.
            let Some((bytes, version)) = board.read(place)? else {
                free = free.or(Some((place, 0)));
                break;
            };
            match Ledger::decode(&bytes) {
                Some(ledger) if ledger.id == self.id => own = Some((place, version)),
                Some(ledger) if ledger.alive(now_ms) => {
                    for (name, line) in &ledger.lines {
                        others.entry(*name).or_default().add(line);
                    }
                }
                _ => free = free.or(Some((place, version))),
            }
        }
        // Two that claim a fresh place at once both succeed; the one that was overwritten doesn't
        // find itself with its next beat, and moves on.
        self.place = None;
        if let Some((place, version)) = own.or(free) {
            let ledger = Ledger { id: self.id, beat_ms: now_ms, lines: lines.clone() };
            if board.write(place, &ledger.encode(), version)? {
                self.place = Some(place);
            }
        }
        Ok(others)
    }

    /// Gives the place up.
    ///
    /// # Errors
    /// That of [`Board::read`] or [`Board::write`]: others then wait until the ledger is old.
    pub fn leave<B: Board>(&mut self, board: &mut B) -> Result<(), B::Error> {
        let Some(place) = self.place.take() else { return Ok(()) };
        if let Some((bytes, version)) = board.read(place)?
            && Ledger::decode(&bytes).is_some_and(|ledger| ledger.id == self.id)
        {
            board.write(place, GIVEN_UP, version)?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    /// As Envoy has it: version 0 always overwrites.
    #[derive(Default)]
    pub(crate) struct Shared(BTreeMap<u32, (Vec<u8>, u32)>, u32);

    impl Board for Shared {
        type Error = Infallible;

        fn read(&self, place: u32) -> Result<Option<(Vec<u8>, u32)>, Infallible> {
            Ok(self.0.get(&place).cloned())
        }

        fn write(&mut self, place: u32, bytes: &[u8], version: u32) -> Result<bool, Infallible> {
            if self.0.get(&place).is_some_and(|(_, is)| version != 0 && *is != version) {
                return Ok(false);
            }
            self.1 += 1;
            self.0.insert(place, (bytes.to_vec(), self.1));
            Ok(true)
        }
    }

    fn lines(replica: u64, in_flight: u32) -> Lines {
        [(replica, Line { in_flight, ..Line::default() })].into()
    }

    fn sent(lines: &Lines, replica: u64) -> u32 {
        lines.get(&replica).map_or(0, |line| line.in_flight)
    }

    #[test]
    fn golden_bytes_never_change() {
        let line = Line { in_flight: 2, cold_tokens: 3, ejected_until_ms: 4 };
        let ledger = Ledger { id: 7, beat_ms: 1_000, lines: [(9, line)].into() };
        assert_eq!(
            ledger.encode(),
            b"\x02\0\0\0\x01\0\0\0\x07\0\0\0\0\0\0\0\xe8\x03\0\0\0\0\0\0\
              \x09\0\0\0\0\0\0\0\x02\0\0\0\x03\0\0\0\x04\0\0\0\0\0\0\0"
        );
        assert_eq!(Ledger::decode(&ledger.encode()), Some(ledger));
    }

    #[test]
    fn the_dead_no_longer_count_and_their_places_are_taken() {
        let mut board = Shared::default();
        let (mut a, mut b) = (Member::new(1), Member::new(2));
        a.beat(&mut board, 1_000, &lines(5, 3)).unwrap();
        assert_eq!(sent(&b.beat(&mut board, 1_000, &lines(5, 4)).unwrap(), 5), 3);
        assert_eq!(sent(&a.beat(&mut board, 1_050, &lines(5, 3)).unwrap(), 5), 4);
        // The first worker's VM is loaded again, knowing nothing.
        let mut again = Member::new(3);
        assert_eq!(sent(&again.beat(&mut board, 2_000, &lines(5, 1)).unwrap(), 5), 7);
        assert_eq!(sent(&b.beat(&mut board, 6_051, &lines(5, 4)).unwrap(), 5), 1);
        let mut late = Member::new(4);
        late.beat(&mut board, 6_060, &Lines::new()).unwrap();
        assert_eq!((late.place, board.0.len()), (Some(0), 3), "the dead one's place");
        // A worker that was only slow finds its place taken, and goes elsewhere.
        a.beat(&mut board, 6_070, &lines(5, 3)).unwrap();
        assert_eq!(a.place, Some(3));
        a.leave(&mut board).unwrap();
        assert_eq!(sent(&b.beat(&mut board, 6_080, &lines(5, 4)).unwrap(), 5), 1);
    }

    #[test]
    fn two_that_claim_one_place_part() {
        let mut board = Shared::default();
        let (mut a, mut b) = (Member::new(1), Member::new(2));
        a.beat(&mut board, 1_000, &lines(5, 3)).unwrap();
        // As if it had scanned before the other wrote.
        let ledger = Ledger { id: 2, beat_ms: 1_000, lines: lines(5, 4) };
        assert!(board.write(0, &ledger.encode(), 0).unwrap());
        for now in [1_050, 1_100] {
            a.beat(&mut board, now, &lines(5, 3)).unwrap();
            b.beat(&mut board, now, &lines(5, 4)).unwrap();
        }
        assert_eq!((a.place, b.place), (Some(1), Some(0)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Ledger::decode(&bytes);
        }

        /// Workers that come, send, die and come again in any order: in the end, each living one
        /// hears exactly what the living ones say, and there are no more places than workers were
        /// at once (those that died of late included).
        #[test]
        fn the_sum_is_that_of_the_living(
            steps in proptest::collection::vec((0usize..6, 0u8..8, 0u32..50), 1..120),
        ) {
            let mut board = Shared::default();
            let mut workers: Vec<Option<(Member, u32)>> = (0..6).map(|_| None).collect();
            let mut now = 10_000;
            let mut lives = 0;
            for (at, what, count) in steps {
                now += 20;
                match (what, &mut workers[at]) {
                    (0, place) => *place = None,
                    (1, place) => {
                        if let Some((mut member, _)) = place.take() {
                            member.leave(&mut board).unwrap();
                        }
                    }
                    (_, Some((_, sent))) => *sent = count,
                    (_, place) => {
                        lives += 1;
                        *place = Some((Member::new(lives), count));
                    }
                }
                for (member, count) in workers.iter_mut().flatten() {
                    member.beat(&mut board, now, &lines(1, *count)).unwrap();
                }
            }
            now += EXPIRY_MS + 1;
            for (member, count) in workers.iter_mut().flatten() {
                member.beat(&mut board, now, &lines(1, *count)).unwrap();
            }
            let all: u32 = workers.iter().flatten().map(|(_, count)| *count).sum();
            for (member, count) in workers.iter_mut().flatten() {
                let others = member.beat(&mut board, now, &lines(1, *count)).unwrap();
                prop_assert_eq!(sent(&others, 1) + *count, all);
            }
            prop_assert!(board.0.len() as u64 <= lives.max(1));
        }
    }
}
