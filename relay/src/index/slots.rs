//! Slots: the numbers under which the side-stream speaks of replicas.

/// Slots that the side-stream can name.
const SLOTS: u32 = 65_536;

/// Gives out each slot once: a slot belongs to one replica's one life.
#[derive(Debug, Default)]
pub struct Slots {
    next: u32,
}

impl Slots {
    /// A slot that no replica had; none after the last one. Then every stream has to begin again,
    /// with [`Slots::restart`] and a slot for each replica, because slots mean something within one
    /// epoch only.
    pub fn take(&mut self) -> Option<u32> {
        let slot = self.next;
        (slot < SLOTS).then(|| {
            self.next += 1;
            slot
        })
    }

    /// Begins with 0 again.
    pub fn restart(&mut self) {
        self.next = 0;
    }
}
