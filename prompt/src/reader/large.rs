//! A body that is too large to be looked into: only its model is found, as its bytes arrive.

use warmpath_routing::requested::Requested;

use crate::request::model_name::{ModelFinder, Search};

/// Bytes that are copied out of the host at a time.
const PIECE: usize = 1 << 18;

/// What is kept of such a body.
#[derive(Debug)]
pub struct Large {
    finder: ModelFinder,
    said: Search,
    /// Bytes that came so far, and those of them that were looked at.
    bytes: usize,
    fed: usize,
}

impl Large {
    /// Of a body of this type.
    pub fn new(content_type: Option<&[u8]>) -> Self {
        Self { finder: ModelFinder::new(content_type), said: Search::More, bytes: 0, fed: 0 }
    }

    /// So many bytes are there, and it doesn't matter which model they are for.
    pub fn pass(&mut self, bytes: usize) {
        self.bytes = bytes;
    }

    /// So many bytes are there, and `end`: no more will come. Looks at those that are new, by
    /// `part(start, most)`. Says whether the model is found, or can't be.
    ///
    /// # Errors
    /// That of `part`, as it is.
    pub fn feed<E>(
        &mut self,
        bytes: usize,
        end: bool,
        part: impl Fn(usize, usize) -> Result<Vec<u8>, E>,
    ) -> Result<bool, E> {
        self.bytes = bytes;
        while self.said == Search::More && self.fed < bytes {
            let piece = part(self.fed, PIECE.min(bytes - self.fed))?;
            if piece.is_empty() {
                break;
            }
            self.fed += piece.len();
            self.said = self.finder.feed(&piece);
        }
        if end && self.said == Search::More {
            self.said = self.finder.end();
        }
        Ok(self.said != Search::More)
    }

    /// What it says of its model, as far as it was looked at.
    pub fn requested(&self) -> Requested<'static> {
        self.said.clone().into()
    }

    /// Bytes that came so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(large: &mut Large, body: &[u8], seen: usize, end: bool) -> bool {
        let part = |start: usize, most: usize| Ok::<_, ()>(body[start..start + most].to_vec());
        large.feed(seen, end, part).unwrap()
    }

    #[test]
    fn the_model_is_found_wherever_it_stands() {
        let text = "x".repeat(3 * PIECE);
        let body = format!("{{\"messages\": [\"{text}\"], \"model\": \"beta\"}}").into_bytes();
        let mut large = Large::new(None);
        for seen in [10, PIECE, PIECE + 1, body.len() - 9] {
            assert!(!feed(&mut large, &body, seen, false), "{seen}");
        }
        assert!(feed(&mut large, &body, body.len(), false));
        assert_eq!(large.requested(), Requested::Name("beta".into()));
        assert_eq!(large.bytes(), body.len());

        let mut early = Large::new(None);
        let body = format!("{{\"model\": \"beta\", \"messages\": [\"{text}").into_bytes();
        assert!(feed(&mut early, &body, PIECE, false), "nothing of the rest is waited for");
    }

    #[test]
    fn what_ends_without_a_model_says_so() {
        let end = |body: &[u8]| {
            let mut large = Large::new(None);
            assert!(feed(&mut large, body, body.len(), true));
            large.requested()
        };
        assert_eq!(end(b"{\"messages\": []}"), Requested::Nothing);
        assert_eq!(end(b"{\"messages\": [\"cut off"), Requested::Unreadable);
        assert_eq!(end(b"[]"), Requested::Unreadable);
    }
}
