//! The small record that says what the rest of shared data is worth.
//!
//! The service writes it; each worker reads it with every tick. It is fixed-size, so that reading
//! it costs one hostcall and no parsing.

/// Bytes of an encoded [`State`].
pub const STATE_BYTES: usize = 40;

const FORMAT: u8 = 1;

/// What the service last knew, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The relay's epoch; 0 before the first connection.
    pub epoch: u64,
    /// Buckets of another generation are void. Grows with each snapshot.
    pub map_generation: u32,
    /// The snapshot is complete and no gap was seen since.
    pub synced: bool,
    /// When the relay was last heard, in milliseconds since 1970 by this host's clock.
    pub heard_ms: u64,
    /// Grows whenever the replica table is written.
    pub replicas: u32,
    /// Grows whenever the loads are written.
    pub loads: u32,
    /// Grows whenever the model table or an artefact is written.
    pub models: u32,
}

impl State {
    /// The record as it lies in shared data.
    pub fn encode(&self) -> [u8; STATE_BYTES] {
        let mut bytes = [0; STATE_BYTES];
        let fields = [FORMAT, u8::from(self.synced), 0, 0]
            .into_iter()
            .chain(self.map_generation.to_le_bytes())
            .chain(self.epoch.to_le_bytes())
            .chain(self.heard_ms.to_le_bytes())
            .chain(self.replicas.to_le_bytes())
            .chain(self.loads.to_le_bytes())
            .chain(self.models.to_le_bytes());
        for (place, byte) in bytes.iter_mut().zip(fields) {
            *place = byte;
        }
        bytes
    }

    /// Reads a record; `None` if it is of another format or length.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; STATE_BYTES] = bytes.try_into().ok()?;
        let [FORMAT, synced, ..] = *bytes else { return None };
        let u32_at = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let u64_at = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        Some(Self {
            synced: synced == 1,
            map_generation: u32_at(4)?,
            epoch: u64_at(8)?,
            heard_ms: u64_at(16)?,
            replicas: u32_at(24)?,
            loads: u32_at(28)?,
            models: u32_at(32)?,
        })
    }

    /// Whether the prefix map can be believed at `now_ms`, the relay having to be heard every
    /// `limit_ms`.
    pub fn fresh(&self, now_ms: u64, limit_ms: u64) -> bool {
        self.synced && now_ms.saturating_sub(self.heard_ms) <= limit_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes_never_change() {
        let state = State {
            epoch: 0x0102_0304_0506_0708,
            map_generation: 9,
            synced: true,
            heard_ms: 1_000,
            replicas: 2,
            loads: 3,
            models: 4,
        };
        assert_eq!(
            state.encode(),
            *b"\x01\x01\0\0\x09\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01\xe8\x03\0\0\0\0\0\0\
               \x02\0\0\0\x03\0\0\0\x04\0\0\0\0\0\0\0"
        );
    }

    #[test]
    fn silence_and_a_missing_snapshot_are_stale() {
        let state = State { synced: true, heard_ms: 10_000, ..State::default() };
        assert!(state.fresh(12_000, 3_000));
        assert!(!state.fresh(13_001, 3_000));
        assert!(!State { synced: false, ..state }.fresh(10_000, 3_000));
        assert!(state.fresh(9_000, 3_000), "a clock that steps back is no silence");
    }

    proptest! {
        #[test]
        fn any_record_comes_back(
            numbers in any::<(u64, u32, bool, u64)>(), gens in any::<(u32, u32, u32)>(),
        ) {
            let state = State {
                epoch: numbers.0, map_generation: numbers.1, synced: numbers.2,
                heard_ms: numbers.3, replicas: gens.0, loads: gens.1, models: gens.2,
            };
            prop_assert_eq!(State::decode(&state.encode()), Some(state));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = State::decode(&bytes);
        }
    }
}
