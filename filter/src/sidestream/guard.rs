//! Order on the side-stream.

use thiserror::Error;

/// Something is missing between two messages, or they belong to different views.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Gap {
    /// The epoch changed within a stream, or is 0.
    #[error("epoch {got:#x} on a stream of epoch {expected:#x}")]
    Epoch {
        /// The stream's.
        expected: u64,
        /// The message's.
        got: u64,
    },
    /// A message is missing.
    #[error("message {got} where {expected} was due")]
    Sequence {
        /// The next in order.
        expected: u64,
        /// The message's.
        got: u64,
    },
}

/// Watches one stream: the first message brings the epoch, sequences go up by one from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Guard {
    epoch: u64,
    next: u64,
}

impl Guard {
    /// Lets a message in if it is the next.
    ///
    /// # Errors
    /// [`Gap`], after which the stream is worth nothing.
    pub(super) fn admit(&mut self, epoch: u64, sequence: u64) -> Result<(), Gap> {
        if self.next == 0 && self.epoch == 0 {
            self.epoch = epoch;
        }
        if epoch != self.epoch || epoch == 0 {
            return Err(Gap::Epoch { expected: self.epoch, got: epoch });
        }
        if sequence != self.next {
            return Err(Gap::Sequence { expected: self.next, got: sequence });
        }
        self.next = self.next.wrapping_add(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_in_order_pass() {
        let mut guard = Guard::default();
        for sequence in 0..5 {
            assert_eq!(guard.admit(9, sequence), Ok(()));
        }
    }

    #[test]
    fn a_missing_or_repeated_message_is_a_gap() {
        let mut guard = Guard::default();
        assert_eq!(guard.admit(9, 1), Err(Gap::Sequence { expected: 0, got: 1 }));
        let mut guard = Guard::default();
        guard.admit(9, 0).unwrap();
        assert_eq!(guard.admit(9, 0), Err(Gap::Sequence { expected: 1, got: 0 }));
        assert_eq!(guard.admit(9, 2), Err(Gap::Sequence { expected: 1, got: 2 }));
    }

    #[test]
    fn an_epoch_belongs_to_a_stream() {
        let mut guard = Guard::default();
        guard.admit(9, 0).unwrap();
        assert_eq!(guard.admit(8, 1), Err(Gap::Epoch { expected: 9, got: 8 }));
        assert_eq!(Guard::default().admit(0, 0), Err(Gap::Epoch { expected: 0, got: 0 }));
    }
}
