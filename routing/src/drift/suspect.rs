//! Why map and engine drift apart: the precondition to look at first.

use super::counts::Counts;
use super::evidence::Evidence;
use super::kind::Kind;

/// The precondition to look at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspect {
    /// Our tokens of a text are not the engine's.
    Tokenizer,
    /// Our text of a chat is not the engine's.
    Template,
    /// One replica names its blocks otherwise than the others of its model.
    Version,
    /// What the engine does to its cache doesn't reach the map.
    Events,
    /// The cache is short of what is in flight.
    Evictions,
    /// The engine keeps no cache.
    PrefixCaching,
    /// Less than a block is in dispute.
    BlockSize,
}

impl Suspect {
    /// All, for those who count them, in the order of their places.
    pub const ALL: [Self; 7] = [
        Self::Tokenizer,
        Self::Template,
        Self::Version,
        Self::Events,
        Self::Evictions,
        Self::PrefixCaching,
        Self::BlockSize,
    ];

    /// The name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokenizer => "tokenizer",
            Self::Template => "template",
            Self::Version => "version",
            Self::Events => "events",
            Self::Evictions => "evictions",
            Self::PrefixCaching => "prefix_caching",
            Self::BlockSize => "block_size",
        }
    }

    /// What to do about it.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Tokenizer => {
                "the engine makes other tokens of a text: compare its tokenizer files, and whether it \
                 adds special tokens, with the directory that the relay reads"
            }
            Self::Template => {
                "the engine makes another text of a chat: compare its chat template, and the options \
                 that it gives it (`--chat-template`, default kwargs), with what the relay reads"
            }
            Self::Version => {
                "this replica names its blocks otherwise than others of its model: compare the \
                 model, revision, tokenizer and template that its engine has loaded, its adapters and \
                 salts (`root` in the relay's /status)"
            }
            Self::Events => {
                "what this engine does to its cache doesn't reach the map: look at its event \
                 endpoint (another engine's, another rank's?), and at gaps, unusable events and late \
                 joins in the relay's log and /status"
            }
            Self::Evictions => {
                "the cache is too short for what is in flight: prefixes leave it between a decision \
                 and the request's turn. The map is right; give the engine more blocks or fewer \
                 requests at once"
            }
            Self::PrefixCaching => {
                "the engine keeps no prefix cache: start it with prefix caching on, or nothing of \
                 it is ever warm"
            }
            Self::BlockSize => {
                "only the last block is in dispute: an engine that speculates (MTP, EAGLE) gives one \
                 back, which the relay must be told (`speculative_config` of its model); else compare \
                 its block size and hybrid cache groups with what its events say"
            }
        }
    }
}

/// What is known of a replica beside its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // Each is a fact of its own.
pub struct Hints {
    /// Its engine says that it keeps no prefix cache.
    pub caches_nothing: bool,
    /// Its events are not heard.
    pub silent: bool,
    /// Its engine has its model from elsewhere than the others of that model.
    pub other_root: bool,
    /// Forecasts hold of others of its model.
    pub others_agree: bool,
}

/// The first that fits, the surest before.
pub(super) fn name(kind: Kind, seen: &Evidence, counts: &Counts, hints: Hints) -> Suspect {
    let differs_alone = hints.other_root || hints.others_agree;
    match kind {
        Kind::Evicted => Suspect::Evictions,
        _ if hints.caches_nothing => Suspect::PrefixCaching,
        Kind::Unannounced if !seen.hit && seen.repeated > 2 => Suspect::PrefixCaching,
        Kind::Missing | Kind::Surprise if counts.differ() => match counts.differ_by_template() {
            _ if differs_alone => Suspect::Version,
            true => Suspect::Template,
            false => Suspect::Tokenizer,
        },
        Kind::Missing | Kind::Surprise if seen.within_block > 0.5 => Suspect::BlockSize,
        Kind::Unannounced | Kind::Missing => Suspect::Events,
        // Blocks come, but never under our names; or no blocks do.
        Kind::Surprise if hints.silent || seen.renamed <= 0.5 => Suspect::Events,
        Kind::Surprise if differs_alone || seen.unnamed_ids > 0 => Suspect::Version,
        Kind::Surprise if seen.unnamed_texts > 0 => Suspect::Tokenizer,
        Kind::Surprise => Suspect::Template,
    }
}
