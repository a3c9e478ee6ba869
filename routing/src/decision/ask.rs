//! What a request says, as far as a decision asks.

use super::outcome::Degrade;
use super::residency::Claim;
use crate::catalogue::Wants;
use crate::fingerprint::Key;
use crate::policy::Ring;

/// What the request says.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The zone, by the configured sources.
    pub zone: Claim<'a>,
    /// The model and the adapter on it.
    pub model: Wants<'a>,
    /// Keys of the prompt's blocks, from its start.
    pub keys: &'a [Key],
    /// Tokens of the whole prompt (estimated where it was not read to its end).
    pub prompt_tokens: u32,
    /// Keeps requests together whose prompt has no key: any hash of what they share.
    pub affinity: u128,
    /// A hash of what comes after the keys, where that was not read, being little and most likely
    /// held by nobody.
    pub left_out: Option<u128>,
    /// Why the prompt is not known, if it is not.
    pub degrade: Option<Degrade>,
}

impl Ask<'_> {
    /// Where the prompt lies on the ring: by the last of the blocks that name a cold prefix.
    pub(super) fn ring_key(&self, ring: &Ring) -> u128 {
        let depth = self.keys.len().min(ring.blocks);
        let last = depth.checked_sub(1).and_then(|at| self.keys.get(at));
        last.map_or(self.affinity, |key| key.number())
    }
}
