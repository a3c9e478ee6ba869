//! Responses that engines keep: what shared data says of where they are, and what an answer adds to it.

use warmpath_routing::stored::{Bucket, IdScan, Name, TOUCH_S};

use crate::host::{self, HostError};
use crate::shared::{self, Data};

/// How often a change is tried while other workers write as well; then it is left.
const TRIES: usize = 8;

/// The name of the replica that holds a response.
///
/// # Errors
/// Where shared data can't be read or written: the status that Envoy gave.
pub(super) fn find(data: &mut impl Data, name: Name, now_s: u32) -> Result<Option<u64>, HostError> {
    let bucket = data.get(&shared::stored_key(name.bucket()))?.unwrap_or_default();
    let Some((replica, used_s)) = Bucket::decode(&bucket).get(name) else { return Ok(None) };
    if now_s.abs_diff(used_s) > TOUCH_S {
        remember(data, name, replica, now_s)?;
    }
    Ok(Some(replica))
}

/// Writes that a replica holds a response. Says whether it could; where so many others write at once
/// that it couldn't, the response is sought when it is asked for.
///
/// # Errors
/// Where shared data can't be read or written: the status that Envoy gave.
pub(super) fn remember(
    data: &mut impl Data,
    name: Name,
    replica: u64,
    now_s: u32,
) -> Result<bool, HostError> {
    let key = shared::stored_key(name.bucket());
    for _ in 0..TRIES {
        let (before, version) = data.get_versioned(&key)?.unwrap_or((Vec::new(), shared::ABSENT));
        let mut bucket = Bucket::decode(&before);
        bucket.put(name, replica, now_s);
        if data.set_if(&key, &bucket.encode(), version)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What a request has to do with stored responses.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Stored {
    /// One that it refers to, of which nobody here knows where it is: whoever answers has it.
    pub(super) sought: Option<String>,
    /// Its own response is stored, under an id that the answer tells.
    pub(super) keeps: bool,
    scan: Option<IdScan>,
    /// The replica that answers.
    holder: Option<u64>,
}

impl Stored {
    /// Of a request that refers to one that is not known, or whose own is kept.
    pub(super) fn new(sought: Option<String>, keeps: bool) -> Self {
        Self { sought, keeps, ..Self::default() }
    }

    /// Whether it matters who answers.
    pub(super) fn matters(&self) -> bool {
        self.keeps || self.sought.is_some()
    }

    /// A replica answers with 200. Gives the id that was sought, which it has.
    pub(super) fn answered(&mut self, holder: u64, stream: bool) -> Option<String> {
        self.holder = Some(holder);
        self.scan = self.keeps.then(|| IdScan::new(stream));
        self.sought.take()
    }

    /// So many bytes of its body are there. Gives its id and the replica that holds it, once.
    ///
    /// # Errors
    /// Where the body's bytes can't be read.
    pub(super) fn piece(
        &mut self,
        size: usize,
        part: impl Fn(usize, usize) -> host::Result<Vec<u8>>,
    ) -> host::Result<Option<(String, u64)>> {
        /// Bytes that are copied at a time: an id stands at the start of its answer.
        const STEP: usize = 256;
        let (Some(scan), Some(holder)) = (&mut self.scan, self.holder) else { return Ok(None) };
        let mut found = None;
        let mut at = 0;
        while at < size && scan.wants() > 0 && found.is_none() {
            let bytes = part(at, STEP.min(size - at))?;
            if bytes.is_empty() {
                break;
            }
            at += bytes.len();
            found = scan.push(&bytes).map(|id| (id, holder));
        }
        if scan.wants() == 0 {
            self.scan = None;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Memory;

    fn name(id: &str) -> Name {
        Name::new("eu", id).unwrap()
    }

    #[test]
    fn what_one_worker_writes_another_one_finds() {
        let mut data = Memory::default();
        assert_eq!(find(&mut data, name("resp_1"), 100).unwrap(), None);
        assert!(remember(&mut data, name("resp_1"), 7, 100).unwrap());
        assert!(remember(&mut data, name("resp_2"), 8, 100).unwrap());
        let found = |data: &mut Memory, id| find(data, name(id), 110).unwrap();
        assert_eq!([found(&mut data, "resp_1"), found(&mut data, "resp_2")], [Some(7), Some(8)]);
        // What is used is written as used, though not each time.
        let key = shared::stored_key(name("resp_1").bucket());
        let before = data.0[key.as_slice()].clone();
        find(&mut data, name("resp_1"), 100 + TOUCH_S).unwrap();
        assert_eq!(data.0[key.as_slice()], before);
        find(&mut data, name("resp_1"), 101 + TOUCH_S).unwrap();
        let touched = Bucket::decode(&data.0[key.as_slice()]).get(name("resp_1"));
        assert_eq!(touched, Some((7, 101 + TOUCH_S)));
    }

    #[test]
    fn an_id_is_read_as_its_answer_passes_and_no_more_than_that() {
        let body = br#"{"id":"resp_1","output":[]}"#.to_vec();
        let long = [body.clone(), vec![b' '; 10_000]].concat();
        let copied = std::cell::Cell::new(0);
        let part = |start: usize, most: usize| {
            copied.set(copied.get() + most);
            Ok(long[start..start + most].to_vec())
        };
        let mut stored = Stored::new(None, true);
        assert_eq!(stored.piece(100, part).unwrap(), None, "nobody has answered");
        assert_eq!(stored.answered(7, false), None);
        assert_eq!(stored.piece(5, part).unwrap(), None);
        copied.set(0);
        let mut stored = Stored::new(None, true);
        stored.answered(7, false);
        assert_eq!(stored.piece(long.len(), part).unwrap(), Some(("resp_1".into(), 7)));
        assert_eq!(copied.get(), 256);
        assert_eq!(stored.piece(long.len(), part).unwrap(), None, "once");
        assert_eq!(copied.get(), 256);

        let mut sought = Stored::new(Some("resp_0".into()), false);
        assert!(sought.matters());
        assert_eq!(sought.answered(7, false).as_deref(), Some("resp_0"));
        assert_eq!(sought.piece(long.len(), part).unwrap(), None);
        assert!(!Stored::default().matters());
    }
}
