//! What a gateway knows by itself, beside what the relay says.

use std::collections::BTreeMap;

use crate::cost::CostModel;
use crate::recent;

/// What a gateway has seen of its own requests. The default is to know nothing.
#[derive(Clone, Copy, Debug)]
pub struct Local<'a> {
    /// Replicas that fail here, by their place in [`crate::view::World::replicas`]; those beyond
    /// the end don't.
    pub ejected: &'a [bool],
    /// Tokens in prefill by this gateway's own count, in the same order.
    pub cold_tokens: &'a [u32],
    /// Learned prices, by pool.
    pub prices: &'a BTreeMap<String, CostModel>,
    /// Choices made a moment ago.
    pub recent: Option<recent::At<'a>>,
    /// The request can wait for others.
    pub batch: bool,
}

const CONFIGURED: &BTreeMap<String, CostModel> = &BTreeMap::new();

impl Default for Local<'_> {
    fn default() -> Self {
        Self { ejected: &[], cold_tokens: &[], prices: CONFIGURED, recent: None, batch: false }
    }
}

impl Local<'_> {
    pub(super) fn is_ejected(&self, replica: usize) -> bool {
        self.ejected.get(replica).copied().unwrap_or(false)
    }

    pub(super) fn cold_tokens(&self, replica: usize) -> u32 {
        self.cold_tokens.get(replica).copied().unwrap_or(0)
    }
}
