//! What changed in the map, in order, as the side-stream carries it.

use warmpath_proto::v1::{BlockChange, Blocks};
use warmpath_routing::fingerprint::{KEY_BYTES, Key};

/// Bytes of keys in one `Blocks` message, about.
const MESSAGE_BYTES: usize = 64 * 1024 / KEY_BYTES * KEY_BYTES;

/// Changes in the order in which they happened.
#[derive(Debug, Default)]
pub struct Changes {
    list: Vec<BlockChange>,
    keys: usize,
}

impl Changes {
    /// The replica in `slot` holds the block from now on.
    pub fn held(&mut self, slot: u32, key: Key) {
        self.keys += 1;
        self.change(slot, true).held.extend_from_slice(&key.0);
    }

    /// The replica in `slot` holds the block no more.
    pub fn lost(&mut self, slot: u32, key: Key) {
        self.keys += 1;
        self.change(slot, false).lost.extend_from_slice(&key.0);
    }

    /// The entry to add to. Within one, what was lost comes first: a loss after a gain needs a new
    /// one.
    fn change(&mut self, slot: u32, held: bool) -> &mut BlockChange {
        let fits = self
            .list
            .last()
            .is_some_and(|last| last.slot == slot && (held || last.held.is_empty()));
        if !fits {
            self.list.push(BlockChange { slot, ..BlockChange::default() });
        }
        let last = self.list.len() - 1;
        // There is one: either it fitted or it was pushed.
        #[allow(clippy::indexing_slicing)]
        &mut self.list[last]
    }

    /// Adds what happened after this.
    pub fn append(&mut self, mut later: Self) {
        self.keys += later.keys;
        self.list.append(&mut later.list);
    }

    /// What a slot lost and then held, again and again.
    pub fn of(&self, slot: u32) -> impl Iterator<Item = (Vec<Key>, Vec<Key>)> + '_ {
        let keys = |bytes: &[u8]| bytes.as_chunks().0.iter().copied().map(Key).collect();
        let changes = self.list.iter().filter(move |change| change.slot == slot);
        changes.map(move |change| (keys(&change.lost), keys(&change.held)))
    }

    /// Keys in all.
    pub fn len(&self) -> usize {
        self.keys
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// Takes what there is, as messages of at most about 64 KiB, and leaves nothing.
    pub fn take(&mut self) -> Vec<Blocks> {
        self.keys = 0;
        let mut messages = Vec::new();
        let mut message = Blocks::default();
        let mut bytes = 0;
        for change in self.list.drain(..) {
            for piece in pieces(change) {
                let size = piece.lost.len() + piece.held.len() + 8;
                if bytes > 0 && bytes + size > MESSAGE_BYTES + 8 {
                    messages.push(std::mem::take(&mut message));
                    bytes = 0;
                }
                bytes += size;
                message.changes.push(piece);
            }
        }
        if !message.changes.is_empty() {
            messages.push(message);
        }
        messages
    }
}

/// Cuts a change that is larger than a message.
fn pieces(change: BlockChange) -> Vec<BlockChange> {
    if change.lost.len() + change.held.len() <= MESSAGE_BYTES {
        return vec![change];
    }
    let slot = change.slot;
    let lost = change.lost.chunks(MESSAGE_BYTES);
    let lost = lost.map(|keys| BlockChange { slot, lost: keys.to_vec(), held: Vec::new() });
    let held = change.held.chunks(MESSAGE_BYTES);
    let held = held.map(|keys| BlockChange { slot, lost: Vec::new(), held: keys.to_vec() });
    lost.chain(held).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(i: u32) -> Key {
        let mut key = [0; KEY_BYTES];
        key[..4].copy_from_slice(&i.to_le_bytes());
        Key(key)
    }

    #[test]
    fn order_survives() {
        let mut changes = Changes::default();
        changes.lost(1, key(1));
        changes.held(1, key(2));
        changes.lost(1, key(2));
        changes.held(2, key(3));
        assert_eq!(changes.len(), 4);
        let messages = changes.take();
        assert!(changes.is_empty());
        assert_eq!(messages.len(), 1);
        let slots: Vec<_> =
            messages[0].changes.iter().map(|c| (c.slot, c.lost.len(), c.held.len())).collect();
        assert_eq!(slots, [(1, 16, 16), (1, 16, 0), (2, 0, 16)]);
    }

    #[test]
    fn a_large_change_is_cut_into_messages_of_a_bounded_size() {
        let mut changes = Changes::default();
        for i in 0..10_000 {
            changes.lost(7, key(i));
        }
        for i in 0..10_000 {
            changes.held(7, key(i));
        }
        let messages = changes.take();
        let mut lost = 0;
        let mut held = 0;
        for message in &messages {
            let bytes: usize = message.changes.iter().map(|c| c.lost.len() + c.held.len()).sum();
            assert!(bytes <= MESSAGE_BYTES, "{bytes}");
            for change in &message.changes {
                assert!(held == 0 || change.lost.is_empty(), "losses come first");
                lost += change.lost.len();
                held += change.held.len();
            }
        }
        assert_eq!((lost, held), (160_000, 160_000));
    }
}
