//! A request's zone, from where the policy says.

use warmpath_routing::zone_source::Request;

use crate::host::{self, HeaderList};

/// What the sources are read from. What the host refuses counts as not said, which ends in the
/// default zone or a refusal.
pub(super) struct Asking<'a>(pub(super) &'a HeaderList);

impl Request for Asking<'_> {
    fn header(&self, name: &str) -> Option<String> {
        self.0.text(name)
    }

    fn property(&self, path: &[String]) -> Option<String> {
        host::property(&path.join("\0"))
            .ok()
            .flatten()
            .filter(|value| !value.is_empty())
            .map(host::text)
    }
}
