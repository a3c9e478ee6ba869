//! Headers as the ABI hands them out: count, sizes of names and values, then zero-ended names and
//! values. `encode_map` writes the same.

use std::borrow::Cow;

/// A message's headers, as they were when they were read.
#[derive(Clone, Debug, Default)]
pub struct HeaderList(pub(super) Vec<u8>);

impl HeaderList {
    /// Names and values, in the host's order; none of those that the bytes don't hold whole.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let number = |at: usize| {
            let bytes = self.0.get(at..)?.first_chunk::<4>()?;
            usize::try_from(u32::from_le_bytes(*bytes)).ok()
        };
        let count = number(0).unwrap_or(0);
        let mut at = count.checked_mul(8).and_then(|sizes| sizes.checked_add(4));
        (0..count).map_while(move |header| {
            let mut part = |size_at: usize| {
                let size = number(size_at)?;
                let start = at?;
                let end = start.checked_add(size)?;
                at = end.checked_add(1);
                self.0.get(start..end)
            };
            Some((part(4 + 8 * header)?, part(8 + 8 * header)?))
        })
    }

    /// A header's value, whatever the case of its name. Several of one name come joined by commas,
    /// which no single one of them can be mistaken for. `None` for none, and for an empty one.
    pub fn get(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let mut found = self.iter().filter(|(at, _)| at.eq_ignore_ascii_case(name.as_bytes()));
        let (_, first) = found.next()?;
        let mut value = Cow::Borrowed(first);
        for (_, more) in found {
            let all = value.to_mut();
            all.push(b',');
            all.extend_from_slice(more);
        }
        Some(value).filter(|value| !value.is_empty())
    }

    /// A header's value as text; what is no UTF-8 is replaced.
    pub fn text(&self, name: &str) -> Option<String> {
        self.get(name).map(|value| String::from_utf8_lossy(&value).into_owned())
    }
}

/// Bytes as text; what is no UTF-8 is replaced.
pub fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::encode_map;
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let pairs = [("a", "1"), ("x-zone", "eu"), ("empty", ""), ("X-Zone", "us")];
        let list = HeaderList(encode_map(&pairs));
        let read: Vec<_> = list.iter().collect();
        assert_eq!(read, pairs.map(|(name, value)| (name.as_bytes(), value.as_bytes())));
        assert_eq!(list.text("A").as_deref(), Some("1"));
        assert_eq!(list.text("x-zone").as_deref(), Some("eu,us"), "neither zone");
        assert_eq!((list.text("empty"), list.text("b")), (None, None));
        assert_eq!(HeaderList::default().iter().count(), 0);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..80), count in 0u8..9) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = count;
            }
            let list = HeaderList(bytes);
            prop_assert!(list.iter().count() <= list.0.len());
        }
    }
}
