//! What lies in Envoy's shared data, and under which keys.
//!
//! Keys can't be removed there, so all of them come from a fixed set, and a reused one is told
//! apart by what its value says (generations, ids).

use warmpath_routing::ledger::Board;
use warmpath_routing::prefix_map::Store;

use crate::host::{self, HostError};

/// The `State` record, which says what all the rest is worth.
pub const STATE: &[u8] = b"wp/s";
/// `warmpath.sidestream.v1.Replicas`.
pub const REPLICAS: &[u8] = b"wp/r";
/// `warmpath.sidestream.v1.Loads`, all that are known.
pub const LOADS: &[u8] = b"wp/l";
/// `warmpath.sidestream.v1.Models`.
pub const MODELS: &[u8] = b"wp/m";
/// [`Artefacts`].
pub const ARTEFACTS: &[u8] = b"wp/x";
/// `warmpath_routing::poison::Table`; the number is its format's.
pub const POISON: &[u8] = b"wp/p1";

/// Most artefacts that lie in shared data at a time.
pub const ARTEFACT_PLACES: u32 = 16;

/// Where one artefact lies.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ArtefactAt {
    /// BLAKE3 of the bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub id: Vec<u8>,
    /// Place, below [`ARTEFACT_PLACES`].
    #[prost(uint32, tag = "2")]
    pub place: u32,
}

/// The artefacts that are there, whole.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Artefacts {
    /// One per artefact.
    #[prost(message, repeated, tag = "1")]
    pub at: Vec<ArtefactAt>,
}

/// Key of the artefact at a place.
pub fn artefact_key(place: u32) -> [u8; 6] {
    let [high, low] = hex(place as u8);
    [b'w', b'p', b'/', b'a', high, low]
}

/// Key of the place where a worker writes its ledger.
pub fn ledger_key(place: u32) -> [u8; 6] {
    let [high, low] = hex(place as u8);
    [b'w', b'p', b'/', b'w', high, low]
}

/// Key of a bucket of the prefix map.
pub fn bucket_key(bucket: u32) -> [u8; 12] {
    let mut key = *b"wp/b00000000";
    let digits = bucket.to_be_bytes().map(hex);
    for (place, digit) in key.iter_mut().skip(4).zip(digits.as_flattened()) {
        *place = *digit;
    }
    key
}

/// A byte as two hexadecimal digits.
pub(crate) fn hex(byte: u8) -> [u8; 2] {
    [byte >> 4, byte & 15].map(|digit| if digit < 10 { b'0' + digit } else { b'a' + digit - 10 })
}

/// Envoy's shared data, or something that stands in for it.
pub trait Data {
    /// A value; `None` if it was never set, or is empty.
    ///
    /// # Errors
    /// The host's.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, HostError>;

    /// Replaces a value.
    ///
    /// # Errors
    /// The host's.
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), HostError>;

    /// A value and its version, which is never 0; `None` if it was never set.
    ///
    /// # Errors
    /// The host's.
    fn get_versioned(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u32)>, HostError>;

    /// Replaces a value if it still has this version; says whether it did. Version 0 replaces
    /// whatever is there.
    ///
    /// # Errors
    /// The host's.
    fn set_if(&mut self, key: &[u8], value: &[u8], version: u32) -> Result<bool, HostError>;
}

/// Envoy's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Envoy;

impl Data for Envoy {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, HostError> {
        host::shared(key)
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), HostError> {
        host::set_shared(key, value)
    }

    fn get_versioned(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u32)>, HostError> {
        host::shared_versioned(key)
    }

    fn set_if(&mut self, key: &[u8], value: &[u8], version: u32) -> Result<bool, HostError> {
        host::set_shared_if(key, value, version)
    }
}

/// The workers' ledgers in it.
#[derive(Debug)]
pub struct Ledgers<'a, D>(pub &'a mut D);

impl<D: Data> Board for Ledgers<'_, D> {
    type Error = HostError;

    fn read(&self, place: u32) -> Result<Option<(Vec<u8>, u32)>, HostError> {
        self.0.get_versioned(&ledger_key(place))
    }

    fn write(&mut self, place: u32, bytes: &[u8], version: u32) -> Result<bool, HostError> {
        self.0.set_if(&ledger_key(place), bytes, version)
    }
}

/// The prefix map in it.
#[derive(Debug)]
pub struct Map<D>(pub D);

impl<D: Data> Store for Map<D> {
    type Error = HostError;

    fn get(&self, bucket: u32) -> Result<Option<Vec<u8>>, HostError> {
        self.0.get(&bucket_key(bucket))
    }

    fn set(&mut self, bucket: u32, value: &[u8]) -> Result<(), HostError> {
        self.0.set(&bucket_key(bucket), value)
    }
}

impl<D: Data> Data for &mut D {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, HostError> {
        (**self).get(key)
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), HostError> {
        (**self).set(key, value)
    }

    fn get_versioned(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u32)>, HostError> {
        (**self).get_versioned(key)
    }

    fn set_if(&mut self, key: &[u8], value: &[u8], version: u32) -> Result<bool, HostError> {
        (**self).set_if(key, value, version)
    }
}

/// Shared data for tests.
#[cfg(test)]
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(pub(crate) std::collections::BTreeMap<Vec<u8>, Vec<u8>>);

#[cfg(test)]
impl Data for Memory {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, HostError> {
        Ok(self.0.get(key).filter(|value| !value.is_empty()).cloned())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), HostError> {
        self.0.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    // Tests have one thread, so that nothing comes between reading and writing.
    fn get_versioned(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u32)>, HostError> {
        Ok(self.0.get(key).map(|value| (value.clone(), 1)))
    }

    fn set_if(&mut self, key: &[u8], value: &[u8], _: u32) -> Result<bool, HostError> {
        self.set(key, value).map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_short_and_differ() {
        assert_eq!(&bucket_key(0x0001_23ef), b"wp/b000123ef");
        assert_eq!(&artefact_key(0x1a), b"wp/a1a");
        assert_eq!(&ledger_key(0xff), b"wp/wff");
    }
}
