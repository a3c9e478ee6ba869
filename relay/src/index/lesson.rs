//! What gateways tell of answers: which prefixes an engine had cached that no event told of.

use warmpath_proto::v1;
use warmpath_routing::fingerprint::{KEY_BYTES, Key};

/// Lessons that are taken from one message.
const MOST_LESSONS: usize = 1024;
/// Keys of one lesson, as many as the longest prompt has that filters read.
const MOST_KEYS: usize = 8192;

/// What one answer says; see `Lesson` in `sidestream.proto`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lesson {
    /// The replica's slot.
    pub slot: u32,
    /// The last block that was foreseen and cached.
    pub after: Option<Key>,
    /// Blocks up to that one.
    pub blocks: u32,
    /// Blocks behind it that are held now.
    pub keys: Vec<Key>,
    /// The last block that was foreseen and not cached.
    pub missing: Option<Key>,
}

/// Those of a message that make sense; the rest is left out.
pub fn lessons(told: &v1::Lessons) -> Vec<Lesson> {
    told.lessons.iter().take(MOST_LESSONS).filter_map(lesson).collect()
}

fn lesson(told: &v1::Lesson) -> Option<Lesson> {
    let (keys, rest) = told.keys.as_chunks::<KEY_BYTES>();
    let (after, missing) = (optional(&told.after).ok()?, optional(&told.missing).ok()?);
    if !rest.is_empty() || keys.len() > MOST_KEYS || after.is_some() != (told.blocks > 0) {
        return None;
    }
    Some(Lesson {
        slot: told.slot,
        after,
        blocks: told.blocks,
        keys: keys.iter().copied().map(Key).collect(),
        missing,
    })
}

/// A key, or none of no bytes; anything else is an error.
fn optional(bytes: &[u8]) -> Result<Option<Key>, std::array::TryFromSliceError> {
    if bytes.is_empty() { Ok(None) } else { bytes.try_into().map(|key| Some(Key(key))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_left_out() {
        let key = vec![7; KEY_BYTES];
        let good = v1::Lesson {
            epoch: 1,
            slot: 3,
            after: key.clone(),
            blocks: 2,
            keys: [key.clone(), vec![8; KEY_BYTES]].concat(),
            missing: key.clone(),
        };
        let bad = [
            v1::Lesson { after: vec![7; 15], ..good.clone() },
            v1::Lesson { after: Vec::new(), ..good.clone() },
            v1::Lesson { blocks: 0, ..good.clone() },
            v1::Lesson { keys: vec![7; 17], ..good.clone() },
            v1::Lesson { keys: vec![7; (MOST_KEYS + 1) * KEY_BYTES], ..good.clone() },
            v1::Lesson { missing: vec![7; 17], ..good.clone() },
        ];
        for lesson in bad {
            assert_eq!(lessons(&v1::Lessons { lessons: vec![lesson] }), []);
        }
        let key = |byte| Key([byte; KEY_BYTES]);
        let expected = Lesson {
            slot: 3,
            after: Some(key(7)),
            blocks: 2,
            keys: vec![key(7), key(8)],
            missing: Some(key(7)),
        };
        assert_eq!(lessons(&v1::Lessons { lessons: vec![good.clone()] }), [expected]);
        let many = v1::Lessons { lessons: vec![good; MOST_LESSONS + 1] };
        assert_eq!(lessons(&many).len(), MOST_LESSONS);
    }
}
