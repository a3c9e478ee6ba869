//! Putting an artefact together.

use thiserror::Error;
use warmpath_proto::v1::ArtefactChunk;

/// Most bytes of one artefact: a VM's memory grows by it and never shrinks.
pub(super) const MOST_BYTES: u64 = 64 << 20;

/// Why a piece was refused. What was collected of its artefact is dropped with it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ChunkError {
    /// The id is no hash.
    #[error("an artefact's id has {0} bytes; it must have 32")]
    Id(usize),
    /// The artefact is larger than this service takes.
    #[error("an artefact of {0} bytes is over the limit of {MOST_BYTES}")]
    Large(u64),
    /// The piece doesn't go on where the last one ended, or goes over the total.
    #[error("a piece for offset {got} where {expected} was due")]
    Order {
        /// Bytes collected.
        expected: u64,
        /// The piece's.
        got: u64,
    },
    /// All bytes are there and they aren't those that the id names.
    #[error("an artefact's bytes don't hash to its id")]
    Hash,
}

/// An artefact's id and bytes.
pub(super) type Whole = ([u8; 32], Vec<u8>);

/// One artefact, piece by piece. A piece of another one drops what was collected.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    id: Vec<u8>,
    bytes: Vec<u8>,
}

impl Chunks {
    /// Takes a piece; returns the artefact's id and bytes when it is whole.
    ///
    /// # Errors
    /// [`ChunkError`]
    pub(super) fn take(&mut self, piece: &ArtefactChunk) -> Result<Option<Whole>, ChunkError> {
        let result = self.add(piece);
        if !matches!(result, Ok(None)) {
            self.clear();
        }
        result
    }

    /// Forgets what was collected.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn add(&mut self, piece: &ArtefactChunk) -> Result<Option<Whole>, ChunkError> {
        let id: [u8; 32] =
            piece.id.as_slice().try_into().map_err(|_| ChunkError::Id(piece.id.len()))?;
        if piece.total > MOST_BYTES {
            return Err(ChunkError::Large(piece.total));
        }
        if piece.offset == 0 || self.id != piece.id {
            self.bytes.clear();
            self.id.clone_from(&piece.id);
        }
        let have = self.bytes.len() as u64;
        if piece.offset != have || have + piece.data.len() as u64 > piece.total {
            return Err(ChunkError::Order { expected: have, got: piece.offset });
        }
        self.bytes.extend_from_slice(&piece.data);
        if (self.bytes.len() as u64) < piece.total {
            return Ok(None);
        }
        if *blake3::hash(&self.bytes).as_bytes() != id {
            return Err(ChunkError::Hash);
        }
        Ok(Some((id, std::mem::take(&mut self.bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(whole: &[u8], from: usize, to: usize) -> ArtefactChunk {
        ArtefactChunk {
            id: blake3::hash(whole).as_bytes().to_vec(),
            offset: from as u64,
            total: whole.len() as u64,
            data: whole[from..to].to_vec(),
        }
    }

    #[test]
    fn pieces_in_order_make_the_whole() {
        let whole: Vec<u8> = (0..1_000u32).map(|i| i as u8).collect();
        let mut chunks = Chunks::default();
        assert_eq!(chunks.take(&piece(&whole, 0, 400)), Ok(None));
        assert_eq!(chunks.take(&piece(&whole, 400, 999)), Ok(None));
        let (id, bytes) = chunks.take(&piece(&whole, 999, 1_000)).unwrap().unwrap();
        assert_eq!(bytes, whole);
        assert_eq!(id, *blake3::hash(&whole).as_bytes());
        assert!(chunks.bytes.capacity() == 0, "what was handed over is not kept");
    }

    #[test]
    fn what_does_not_fit_is_refused_and_dropped() {
        let whole = [7; 100];
        let mut chunks = Chunks::default();
        chunks.take(&piece(&whole, 0, 40)).unwrap();
        assert_eq!(
            chunks.take(&piece(&whole, 50, 100)),
            Err(ChunkError::Order { expected: 40, got: 50 })
        );
        assert!(chunks.take(&piece(&whole, 40, 100)).is_err(), "the first piece is gone");
        let mut long = piece(&whole, 0, 100);
        long.total = 99;
        assert!(chunks.take(&long).is_err());
        let mut damaged = piece(&whole, 0, 100);
        damaged.data[5] ^= 1;
        assert_eq!(chunks.take(&damaged), Err(ChunkError::Hash));
        let mut huge = piece(&whole, 0, 1);
        huge.total = u64::MAX;
        assert_eq!(chunks.take(&huge), Err(ChunkError::Large(u64::MAX)));
        let mut unnamed = piece(&whole, 0, 1);
        unnamed.id.pop();
        assert_eq!(chunks.take(&unnamed), Err(ChunkError::Id(31)));
    }

    #[test]
    fn another_artefact_takes_the_place_of_a_half_one() {
        let (a, b) = ([1; 10], [2; 10]);
        let mut chunks = Chunks::default();
        chunks.take(&piece(&a, 0, 5)).unwrap();
        assert!(chunks.take(&piece(&b, 0, 10)).unwrap().is_some());
    }
}
