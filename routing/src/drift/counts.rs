//! Prompts' tokens by our count and by the engine's: whether they differ, and in which way.

use super::bytes::{Reader, put_f32};
use super::evidence::{count, keep};
use super::observation::{Asked, Observation};

/// Share of late counts that differ above which it is not by chance.
const MISCOUNTED: f32 = 0.25;
/// Weight of the newest.
const NEWEST: f32 = 0.15;
/// Any tokenizer makes the same of a text that is shorter, in tokens.
const LONG: u32 = 64;
/// So many chats that differ by as much are no chance.
const SURE: u8 = 5;
/// By so many tokens a message a template may differ from another one.
const A_MESSAGE: u32 = 2;

/// The last chat of so many messages.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Mark {
    turns: u8,
    ours: u32,
    /// Theirs, less ours.
    more: i32,
}

/// What counts have shown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    /// Share of late answers of which they differ.
    miscounted: f32,
    /// Answers that had both.
    counted: u8,
    /// Chats of as many messages, but other lengths, that differ by as much, and that don't.
    constant: u8,
    varied: u8,
    /// The same of texts: no template is in play.
    texts_right: u8,
    texts_wrong: u8,
    marks: [Mark; 4],
    /// The last difference was a few tokens.
    small: bool,
}

impl Counts {
    pub(super) const BYTES: usize = 4 + 5 + 4 * 9 + 1;

    pub(super) fn take(&mut self, seen: &Observation) {
        let (Some(ours), Some(theirs)) = (seen.our_prompt, seen.their_prompt) else { return };
        if seen.asked == Asked::Ids {
            return;
        }
        let differ = ours != theirs;
        // The first few count alike: they may be all there is.
        self.counted = self.counted.saturating_add(1);
        keep(&mut self.miscounted, NEWEST.max(1.0 / f32::from(self.counted)), differ);
        if seen.asked == Asked::Text {
            count(&mut self.texts_wrong, differ);
            count(&mut self.texts_right, !differ && ours >= LONG);
            return;
        }
        if differ {
            let most = A_MESSAGE.saturating_mul(u32::from(seen.turns).max(4));
            self.small = ours.abs_diff(theirs) <= most;
        }
        let more = i32::try_from(i64::from(theirs) - i64::from(ours)).unwrap_or(i32::MAX);
        let now = Mark { turns: seen.turns, ours, more };
        let Some(mark) = self.marks.get_mut(usize::from(seen.turns) % 4) else { return };
        let before = std::mem::replace(mark, now);
        // The same text differs by as much whatever the cause.
        if before.ours > 0 && before.turns == now.turns && before.ours != ours {
            let same = before.more == more;
            count(&mut self.constant, same && differ);
            count(&mut self.varied, !same);
        }
    }

    /// Whether more of them would tell more.
    pub(super) fn are_few(&self) -> bool {
        let undecided = self.differ()
            && !self.small
            && [self.varied, self.texts_right, self.texts_wrong] == [0; 3]
            && self.constant < SURE;
        self.counted < 2 || undecided
    }

    /// With what chats and texts at other replicas of the same model have shown: all are read with
    /// one tokenizer and one template.
    pub(super) fn with(&self, other: &Self) -> Self {
        Self {
            constant: self.constant.saturating_add(other.constant),
            varied: self.varied.saturating_add(other.varied),
            texts_right: self.texts_right.saturating_add(other.texts_right),
            texts_wrong: self.texts_wrong.saturating_add(other.texts_wrong),
            ..*self
        }
    }

    pub(super) fn differ(&self) -> bool {
        self.miscounted > MISCOUNTED
    }

    /// Whether they differ as two templates do: by as much for as many messages, whatever is in them.
    pub(super) fn differ_by_template(&self) -> bool {
        if self.texts_wrong > 0 {
            return false;
        }
        match (self.constant, self.varied) {
            _ if self.texts_right > 1 => true,
            (0, 0) => self.small,
            // By chance a tokenizer makes as much more of two texts, too; a template always does, but
            // for what stands beside the messages.
            (constant, varied) => {
                constant > varied.saturating_mul(3) && (self.small || constant >= SURE)
            }
        }
    }

    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        put_f32(bytes, self.miscounted);
        bytes.extend([self.counted, self.constant, self.varied]);
        bytes.extend([self.texts_right, self.texts_wrong]);
        for mark in &self.marks {
            bytes.push(mark.turns);
            bytes.extend(mark.ours.to_le_bytes());
            bytes.extend(mark.more.to_le_bytes());
        }
        bytes.push(u8::from(self.small));
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Option<Self> {
        let mut counts = Self {
            miscounted: from.f32(1.0)?,
            counted: from.u8()?,
            constant: from.u8()?,
            varied: from.u8()?,
            texts_right: from.u8()?,
            texts_wrong: from.u8()?,
            ..Self::default()
        };
        for mark in &mut counts.marks {
            *mark = Mark { turns: from.u8()?, ours: from.u32()?, more: from.u32()?.cast_signed() };
        }
        counts.small = from.u8()? != 0;
        Some(counts)
    }
}
