//! A request's zone, from where the policy says.

use warmpath_routing::zone_source::Request;

use super::exchange::text;
use crate::host::{self, Headers};

/// What the sources are read from. What the host refuses counts as not said, which ends in the
/// default zone or a refusal.
pub(super) struct Asking;

impl Request for Asking {
    fn header(&self, name: &str) -> Option<String> {
        Headers::Request.get(name).ok().flatten().map(text)
    }

    fn property(&self, path: &[String]) -> Option<String> {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        host::property(&path).ok().flatten().filter(|value| !value.is_empty()).map(text)
    }
}
