//! The models that one VM has loaded.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use warmpath_prompt::Reader;

use super::view::View;
use crate::shared::{self, Data};

thread_local! {
    static OF_THIS_VM: RefCell<Weak<RefCell<Reader>>> = const { RefCell::new(Weak::new()) };
}

/// What loading came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Loaded {
    /// There was nothing left to load.
    Nothing,
    /// A model is ready.
    Ready(String),
    /// A model can't be used, and why.
    Refused(String, String),
}

/// The reader of this VM. A VM has one, however often it is configured.
pub(super) fn of_this_vm() -> Rc<RefCell<Reader>> {
    OF_THIS_VM.with_borrow_mut(|weak| {
        weak.upgrade().unwrap_or_else(|| {
            let fresh = Rc::default();
            *weak = Rc::downgrade(&fresh);
            fresh
        })
    })
}

/// Loads one model that is known, whole and not loaded yet; forgets those that nobody knows any
/// more. At most one at a time: each stops this worker for as long as it takes.
pub(super) fn load_one(
    reader: &mut Reader,
    view: &View,
    data: &impl Data,
    memo_bytes: usize,
) -> Loaded {
    reader.retain(memo_bytes, |id| view.models.iter().any(|known| known.artefact == Some(*id)));
    let wanted = view.models.iter().find_map(|known| {
        let id = known.artefact.filter(|id| !reader.has(id))?;
        Some((id, *view.artefacts.get(&id)?, known.model.name.clone()))
    });
    let Some((id, place, name)) = wanted else { return Loaded::Nothing };
    let bytes = data.get(&shared::artefact_key(place)).ok().flatten().unwrap_or_default();
    // The place may have been given to another artefact since the index was read.
    if *blake3::hash(&bytes).as_bytes() != id {
        return Loaded::Nothing;
    }
    match reader.load(id, bytes, memo_bytes) {
        Ok(()) => Loaded::Ready(name),
        Err(error) => Loaded::Refused(name, error.to_string()),
    }
}
