//! What answers show, beside how much of them went wrong.

use super::bytes::{Reader, put_f32};
use super::observation::{Asked, Observation};

/// Weight of the newest answer where shares are kept.
const NEWEST: f32 = 0.15;
/// Engines' blocks are seldom longer, in tokens.
const BLOCK: u32 = 256;

/// What wrong answers have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Evidence {
    /// Share of wrong ones that differ by less than a block.
    pub(super) within_block: f32,
    /// Share of surprises after which the replica announced blocks, but not those.
    pub(super) renamed: f32,
    /// Surprises that are followed in this.
    surprises: u8,
    /// Whether anything was ever cached.
    pub(super) hit: bool,
    /// Answers of which nothing was cached though their like was computed there before.
    pub(super) repeated: u8,
    /// Forecasts of something cached that held.
    pub(super) agreed: u8,
    /// Blocks that were announced under other names, or not at all: of ids and of texts.
    pub(super) unnamed_ids: u8,
    pub(super) unnamed_texts: u8,
}

impl Evidence {
    pub(super) const BYTES: usize = 4 + 4 + 6;

    pub(super) fn take(&mut self, seen: &Observation) {
        let Observation { expected, actual, after, .. } = *seen;
        let wrong = expected.abs_diff(actual);
        self.hit |= actual > 0;
        count(&mut self.repeated, actual == 0 && seen.sent_before > 0);
        count(&mut self.agreed, expected > 0 && wrong == 0);
        if wrong == 0 || after.came == Some(true) {
            return;
        }
        if expected > actual {
            // A forecast that is broken for another reason than a short cache.
            if !after.removed {
                self.agreed = 0;
            }
        } else {
            self.agreed = 0;
            self.surprises = self.surprises.saturating_add(1);
            // The first few count alike: they may be all there is.
            let weight = NEWEST.max(1.0 / f32::from(self.surprises));
            keep(&mut self.renamed, weight, after.announced);
            count(&mut self.unnamed_ids, seen.asked == Asked::Ids);
            count(&mut self.unnamed_texts, seen.asked == Asked::Text);
        }
        // Of a block that was looked up it is known that it isn't the last one alone.
        let within = wrong < BLOCK && expected.min(actual) > 0 && after.came.is_none();
        keep(&mut self.within_block, NEWEST, within);
    }

    /// What stays when all is well.
    pub(super) fn calm(&self) -> Self {
        Self { agreed: self.agreed, hit: self.hit, ..Self::default() }
    }

    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        put_f32(bytes, self.within_block);
        put_f32(bytes, self.renamed);
        bytes.extend([self.surprises, u8::from(self.hit), self.repeated, self.agreed]);
        bytes.extend([self.unnamed_ids, self.unnamed_texts]);
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            within_block: from.f32(1.0)?,
            renamed: from.f32(1.0)?,
            surprises: from.u8()?,
            hit: from.u8()? != 0,
            repeated: from.u8()?,
            agreed: from.u8()?,
            unnamed_ids: from.u8()?,
            unnamed_texts: from.u8()?,
        })
    }
}

pub(super) fn keep(share: &mut f32, weight: f32, is: bool) {
    *share += weight * (f32::from(u8::from(is)) - *share);
}

pub(super) fn count(sum: &mut u8, is: bool) {
    *sum = sum.saturating_add(u8::from(is));
}
