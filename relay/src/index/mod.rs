//! Which replica holds which prefix: engine block hashes in, fingerprints out.

mod changes;
mod forest;
mod node;
mod slots;
#[cfg(test)]
mod tests;
mod view;

pub use changes::Changes;
pub use slots::Slots;
pub use view::{Duplicates, Limits, ModelScope, Seen, View};
