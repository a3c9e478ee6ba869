//! Prompts that kill engines: one during which several engines died is refused for a while.
//!
//! Envoy repeats what a dying engine had not begun to answer, and clients repeat the rest. A prompt
//! that its engine can't survive would so take down one engine after the other. What is known of such
//! prompts is one [`Table`] of bounded size, which the workers of an Envoy share.

mod client;
mod naming;
mod table;

use serde::Deserialize;

pub use client::client_of;
pub use naming::{Naming, Prompt, Secret};
pub use table::{Death, MOST_ENGINES, Table, Verdict};

use crate::decision::refusal::Refusal;

/// When a prompt is refused, and for how long.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Poison {
    /// Different engines that died during the same prompt; 0 never refuses one.
    pub engines: usize,
    /// How long it is refused then, in milliseconds; twice as long each time that it kills again
    /// after that, up to an hour.
    pub refuse_ms: u64,
}

impl Default for Poison {
    fn default() -> Self {
        Self { engines: 2, refuse_ms: 300_000 }
    }
}

impl Poison {
    /// The answer to such a prompt. It says nothing of when to try again: clients would do so.
    pub fn refusal() -> Refusal {
        Refusal {
            status: 422,
            kind: "invalid_request_error",
            code: Refusal::PROMPT_KILLS_ENGINES,
            message: "More than one engine failed while it processed this very request, so it is \
                      refused for a while. Don't retry it: change the request, or report it to \
                      the operator of this gateway."
                .into(),
            retry_after: None,
        }
    }
}
