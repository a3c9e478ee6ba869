//! Which replica holds which prefix: engine block hashes in, fingerprints out.

mod announce;
mod changes;
mod copies;
mod ends;
mod forest;
mod groups;
mod layer;
pub mod lesson;
mod naming;
mod node;
mod rules;
mod seen;
mod slots;
mod taught;
#[cfg(test)]
mod tests;
mod view;

pub use changes::Changes;
pub use groups::GroupSummary;
pub use rules::{BlockDrop, Duplicates, Limits, ModelScope};
pub use seen::Seen;
pub use slots::Slots;
pub use taught::{Judged, LIFETIME, MOST_KEYS, Taught};
pub use view::View;
