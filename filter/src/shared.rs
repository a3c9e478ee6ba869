//! What lies in Envoy's shared data, and under which keys.
//!
//! Keys can't be removed there, so all of them come from a fixed set, and a reused one is told
//! apart by what its value says (generations, ids).

use std::collections::BTreeMap;

use prost::Message;
use warmpath_proto::v1;
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

/// `warmpath_routing::drift::Table`; the number is its format's.
pub const DRIFTS: &[u8] = b"wp/d1";
/// `warmpath_routing::tally::Tallies`.
pub const TALLIES: &[u8] = b"wp/t";

/// `warmpath.sidestream.v1.Pools`: those of all routers' policies, for the relay. What a policy no
/// longer has stays until Envoy restarts.
pub const POOLS: &[u8] = b"wp/p";
/// Most bytes of that.
pub const POOLS_BYTES: usize = 64 << 10;
/// Most pools in it.
const MOST_POOLS: usize = 4096;
/// `warmpath.sidestream.v1.Lessons`: what answers taught, for the relay. The service takes it away.
pub const LESSONS: &[u8] = b"wp/n";
/// Most bytes of that.
pub const LESSONS_BYTES: usize = 512 << 10;
/// How often a merge is tried while other routers write, too.
const MERGE_TRIES: usize = 16;
/// A version that no value has, as Envoy counts them up from 1: what is written in its place is
/// written only where nothing is there.
pub const ABSENT: u32 = u32::MAX;

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

/// Key of a bucket of stored responses; the letter stands for its format, too.
pub fn stored_key(bucket: u32) -> [u8; 8] {
    let [high, low] = (bucket as u16).to_be_bytes().map(hex);
    [b'w', b'p', b'/', b'q', high[0], high[1], low[0], low[1]]
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
    /// Where shared data can't be read: the status that Envoy gave.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, HostError>;

    /// Replaces a value.
    ///
    /// # Errors
    /// Where shared data can't be written: the status that Envoy gave.
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), HostError>;

    /// A value and its version, which is never 0; `None` if it was never set.
    ///
    /// # Errors
    /// Where shared data can't be read: the status that Envoy gave.
    fn get_versioned(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u32)>, HostError>;

    /// Replaces a value if it still has this version; says whether it did. Version 0 replaces
    /// whatever is there.
    ///
    /// # Errors
    /// Where shared data can't be written: the status that Envoy gave.
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

/// Adds the pools (name and model) of a router's policy to those that are there. Routers of several
/// listeners do so, on every worker: nothing is written where nothing changes. Beyond the bounds
/// pools are left out, and the value says that it is incomplete. What other writers come between
/// 16 times is given up, for the caller to try again.
///
/// # Errors
/// Where shared data can't be read or written: the status that Envoy gave.
pub fn merge_pools(data: &mut impl Data, pools: &[(&str, &str)]) -> Result<(), HostError> {
    for _ in 0..MERGE_TRIES {
        let (before, version) = data.get_versioned(POOLS)?.unwrap_or((Vec::new(), ABSENT));
        let after = merged(&before, pools);
        if after == before || data.set_if(POOLS, &after, version)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Adds lessons to those that wait there; says whether there was room, and no others came between
/// each time.
///
/// # Errors
/// Where shared data can't be read or written: the status that Envoy gave.
pub fn add_lessons(data: &mut impl Data, lessons: Vec<v1::Lesson>) -> Result<bool, HostError> {
    // Messages that stand one after the other are one with the entries of both.
    let more = v1::Lessons { lessons }.encode_to_vec();
    for _ in 0..MERGE_TRIES {
        let (mut bytes, version) = data.get_versioned(LESSONS)?.unwrap_or((Vec::new(), ABSENT));
        if bytes.len() + more.len() > LESSONS_BYTES {
            return Ok(false);
        }
        bytes.extend_from_slice(&more);
        if data.set_if(LESSONS, &bytes, version)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Takes the lessons that wait there, as they lie there; `None` where there are none.
///
/// # Errors
/// Where shared data can't be read or written: the status that Envoy gave.
pub fn take_lessons(data: &mut impl Data) -> Result<Option<Vec<u8>>, HostError> {
    let Some((bytes, version)) = data.get_versioned(LESSONS)? else { return Ok(None) };
    // Where a worker has just added to them they are taken with the next tick.
    let taken = !bytes.is_empty() && data.set_if(LESSONS, &[], version)?;
    Ok(taken.then_some(bytes))
}

fn merged(before: &[u8], pools: &[(&str, &str)]) -> Vec<u8> {
    // Nothing that was written here is larger.
    let before = Some(before).filter(|before| before.len() <= POOLS_BYTES).unwrap_or_default();
    let v1::Pools { pools: there, mut incomplete } = v1::Pools::decode(before).unwrap_or_default();
    let mut all: BTreeMap<String, v1::PolicyPool> =
        there.into_iter().map(|pool| (pool.name.clone(), pool)).collect();
    // With its tag and its length.
    let row = |pool: &v1::PolicyPool| {
        let bytes = pool.encoded_len();
        1 + prost::length_delimiter_len(bytes) + bytes
    };
    let flag = v1::Pools { pools: Vec::new(), incomplete: true }.encoded_len();
    let mut bytes = flag + all.values().map(row).sum::<usize>();
    for &(name, model) in pools {
        if let Some(old) = all.remove(name) {
            bytes -= row(&old);
        }
        let pool = v1::PolicyPool { name: name.to_owned(), model: model.to_owned() };
        if all.len() < MOST_POOLS && bytes + row(&pool) <= POOLS_BYTES {
            bytes += row(&pool);
            all.insert(name.to_owned(), pool);
        } else {
            incomplete = true;
        }
    }
    v1::Pools { pools: all.into_values().collect(), incomplete }.encode_to_vec()
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
pub(crate) struct Memory(pub(crate) BTreeMap<Vec<u8>, Vec<u8>>);

#[cfg(test)]
impl Data for Memory {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, HostError> {
        Ok(self.0.get(key).filter(|value| !value.is_empty()).cloned())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), HostError> {
        self.0.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    // Tests have one thread, so that nothing comes between reading and writing. Another value has
    // another version.
    fn get_versioned(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u32)>, HostError> {
        let version = |value: &[u8]| {
            let hash = blake3::hash(value);
            hash.as_bytes().first_chunk().map_or(1, |bytes| u32::from_le_bytes(*bytes) | 1)
        };
        Ok(self.0.get(key).map(|value| (value.clone(), version(value))))
    }

    fn set_if(&mut self, key: &[u8], value: &[u8], _: u32) -> Result<bool, HostError> {
        self.set(key, value).map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_things_lie_under_one_key() {
        let keys =
            [STATE, REPLICAS, LOADS, MODELS, ARTEFACTS, POISON, DRIFTS, TALLIES, POOLS, LESSONS];
        let different: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
    }

    #[test]
    fn keys_are_short_and_differ() {
        assert_eq!(&bucket_key(0x0001_23ef), b"wp/b000123ef");
        assert_eq!(&artefact_key(0x1a), b"wp/a1a");
        assert_eq!(&ledger_key(0xff), b"wp/wff");
        assert_eq!(&stored_key(0x03fe), b"wp/q03fe");
    }

    /// Shared data as Envoy's, with another writer who comes between reading and writing so often.
    #[derive(Default)]
    struct Contended {
        value: Option<(Vec<u8>, u32)>,
        versions: u32,
        others: std::cell::RefCell<Vec<Vec<(&'static str, &'static str)>>>,
        writes: u32,
    }

    impl Contended {
        fn put(&mut self, value: &[u8]) {
            self.versions += 1;
            self.writes += 1;
            self.value = Some((value.to_vec(), self.versions));
        }

        fn pools(&self) -> Vec<(String, String)> {
            let (value, _) = self.value.as_ref().unwrap();
            let pools = v1::Pools::decode(value.as_slice()).unwrap().pools;
            pools.into_iter().map(|pool| (pool.name, pool.model)).collect()
        }
    }

    impl Data for Contended {
        fn get(&self, _: &[u8]) -> Result<Option<Vec<u8>>, HostError> {
            Ok(self.value.clone().map(|(value, _)| value))
        }

        fn set(&mut self, _: &[u8], value: &[u8]) -> Result<(), HostError> {
            self.put(value);
            Ok(())
        }

        fn get_versioned(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u32)>, HostError> {
            assert_eq!(key, POOLS);
            Ok(self.value.clone())
        }

        fn set_if(&mut self, _: &[u8], value: &[u8], version: u32) -> Result<bool, HostError> {
            let other = self.others.borrow_mut().pop();
            if let Some(other) = other {
                let before = self.value.clone().unwrap_or_default().0;
                self.put(&merged(&before, &other));
            }
            // Where nothing is there Envoy takes any version.
            if self.value.as_ref().is_some_and(|(_, is)| version != 0 && version != *is) {
                return Ok(false);
            }
            self.put(value);
            Ok(true)
        }
    }

    fn named(pools: &[(&str, &str)]) -> Vec<(String, String)> {
        pools.iter().map(|(name, model)| ((*name).to_owned(), (*model).to_owned())).collect()
    }

    #[test]
    fn pools_of_all_routers_come_together() {
        let mut data = Contended::default();
        merge_pools(&mut data, &[("b", "m"), ("a", "m")]).unwrap();
        merge_pools(&mut data, &[("c", "n"), ("a", "other")]).unwrap();
        assert_eq!(data.pools(), named(&[("a", "other"), ("b", "m"), ("c", "n")]));
        let writes = data.writes;
        merge_pools(&mut data, &[("b", "m"), ("a", "other")]).unwrap();
        merge_pools(&mut data, &[]).unwrap();
        assert_eq!(data.writes, writes, "nothing changes, nothing is written");
        data.put(b"\xff");
        merge_pools(&mut data, &[("a", "m")]).unwrap();
        assert_eq!(data.pools(), named(&[("a", "m")]), "what can't be read is no reason to stop");
    }

    #[test]
    fn pools_of_two_that_write_at_once_are_both_there() {
        let mut data = Contended::default();
        data.others.get_mut().push(vec![("theirs", "m")]);
        merge_pools(&mut data, &[("ours", "m")]).unwrap();
        assert_eq!(data.pools(), named(&[("ours", "m"), ("theirs", "m")]), "also the first time");
        data.others.get_mut().extend([vec![("d", "m")], vec![("c", "m")]]);
        merge_pools(&mut data, &[("e", "m")]).unwrap();
        let all = named(&[("c", "m"), ("d", "m"), ("e", "m"), ("ours", "m"), ("theirs", "m")]);
        assert_eq!(data.pools(), all);
        // One who is never let through ends.
        let names = ["x", "y"].map(|name| vec![(name, "m")]);
        data.others.get_mut().extend(names.iter().cycle().take(1000).cloned());
        let values = [("x", "n"), ("y", "n")];
        for _ in 0..3 {
            merge_pools(&mut data, &values).unwrap();
        }
        assert!(data.others.get_mut().len() >= 1000 - 3 * MERGE_TRIES);
    }

    #[test]
    fn too_many_pools_are_left_out_and_that_is_said() {
        let all = |data: &Contended| {
            let (value, _) = data.value.clone().unwrap();
            assert!(value.len() <= POOLS_BYTES, "{}", value.len());
            v1::Pools::decode(value.as_slice()).unwrap()
        };
        let names: Vec<String> = (0..=MOST_POOLS).map(|i| format!("{i:04}")).collect();
        let pools: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "m")).collect();
        let mut data = Contended::default();
        merge_pools(&mut data, &pools[..MOST_POOLS]).unwrap();
        assert_eq!((all(&data).pools.len(), all(&data).incomplete), (MOST_POOLS, false));
        merge_pools(&mut data, &pools).unwrap();
        assert_eq!((all(&data).pools.len(), all(&data).incomplete), (MOST_POOLS, true));
        let writes = data.writes;
        merge_pools(&mut data, &pools).unwrap();
        assert_eq!(data.writes, writes);

        let long = "l".repeat(1000);
        let names: Vec<String> = (0..100).map(|i| format!("{i}{long}")).collect();
        let pools: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "m")).collect();
        let mut data = Contended::default();
        merge_pools(&mut data, &pools).unwrap();
        assert!(all(&data).incomplete && all(&data).pools.len() >= 60);
        // A pool whose new model finds no place isn't told with the old one.
        let huge = "h".repeat(POOLS_BYTES);
        merge_pools(&mut data, &[(&names[0], &huge)]).unwrap();
        assert!(all(&data).pools.iter().all(|pool| pool.name != names[0]));
    }
}
