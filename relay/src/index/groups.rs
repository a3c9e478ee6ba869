//! The KV cache groups of an engine, and what a hit needs of each.
//!
//! vLLM 0.32.0 (`v1/core/kv_cache_coordinator.py`, `find_longest_cache_hit`; `v1/core/
//! single_type_kv_cache_manager.py`): a hit is the longest length that all groups allow, a multiple
//! of all their block sizes. Full attention needs every block from the start; a sliding window of W
//! tokens the last ⌈(W − 1) / block⌉ blocks, or all from the start; a state (Mamba, linear attention)
//! the one block that ends there. A block's hash names the prompt up to its end, alike in all groups.
//!
//! Engines that speculate by hidden states (EAGLE, MTP) drop a block behind the hit, which must be held
//! nevertheless: full attention's, and where windows drop theirs, too, a block more of these. A state
//! is needed at the hit's end as ever.

use super::rules::BlockDrop;
use crate::events::{Kind, Medium, Stored};

/// KV cache groups that a view tells apart: one bit each.
const MAX_GROUPS: usize = 64;

/// One group, as its stores tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// The engine's number of it.
    pub(super) number: u32,
    pub(super) kind: Kind,
    pub(super) window: Option<u32>,
    /// Tokens of one block.
    pub(super) block: u32,
    /// It was seen to keep less than the blocks that were computed.
    pub(super) sparse: bool,
}

/// What groups with like needs ask of the blocks before a hit's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    /// The groups, as bits.
    pub(super) groups: u64,
    /// So many in a row, unless all from the start are there.
    pub(super) blocks: u32,
    /// Only every so manieth block of the main group counts.
    pub(super) stride: u32,
    /// They are needed before the hit's end, and not before that of what is dropped behind it.
    pub(super) at_hit: bool,
    /// A prompt's first blocks suffice, however few.
    pub(super) from_start: bool,
}

/// A KV cache group, for those who look.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct GroupSummary {
    /// The engine's number of it.
    pub group: u32,
    /// In plain words.
    pub what: String,
    /// Tokens of one block.
    pub block_tokens: u32,
    /// Whether hits are told with it: it is known what they need of it.
    pub counted: bool,
}

/// The role of the group that an event is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The group whose blocks are announced: full attention's first.
    Main,
    /// The group of this place, of which a hit needs some blocks.
    Further(usize),
    /// None: what a hit needs of it isn't known.
    Nowhere,
}

/// The groups seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Groups {
    all: Vec<Group>,
    main: Option<usize>,
    needs: Vec<Need>,
    /// A hit's length is a multiple of so many blocks of the main group.
    every: u32,
    drop: BlockDrop,
    /// Blocks of the main group that are dropped behind a hit.
    dropped: u32,
}

impl Groups {
    /// None seen yet, of an engine that drops blocks so.
    pub(super) fn dropping(drop: BlockDrop) -> Self {
        Self { drop, dropped: u32::from(drop != BlockDrop::None), ..Self::default() }
    }

    pub(super) fn drop(&self) -> BlockDrop {
        self.drop
    }

    /// Blocks of the main group behind a hit that must be held, and are dropped.
    pub(super) fn dropped(&self) -> u32 {
        self.dropped
    }

    /// Whether hits depend on other groups than the main one.
    pub(super) fn hybrid(&self) -> bool {
        !self.needs.is_empty()
    }

    /// Whether there are other groups than the main one, whatever hits need of them.
    pub(super) fn several(&self) -> bool {
        self.all.len() > 1
    }

    pub(super) fn needs(&self) -> &[Need] {
        &self.needs
    }

    /// A hit's length is a multiple of so many blocks of the main group.
    pub(super) fn every(&self) -> u32 {
        self.every.max(1)
    }

    /// Whether hits are known to need a group, and how it is counted.
    pub(super) fn counted(&self, at: usize) -> bool {
        self.main == Some(at) || self.needs.iter().any(|need| need.groups & bit(at) != 0)
    }

    /// Blocks of its own that a group needs at a hit's end.
    pub(super) fn own_need(&self, at: usize) -> usize {
        self.all.get(at).map_or(usize::MAX, |group| own_need(group) as usize)
    }

    pub(super) fn is_sparse(&self, at: usize) -> bool {
        self.all.get(at).is_some_and(|group| group.sparse)
    }

    /// The role of the group that an event is of. `others`: groups beside the main one count, too.
    pub(super) fn place(&self, event: &Stored, others: bool) -> Role {
        let Some(number) = event.group else {
            return if is_full(event) { Role::Main } else { Role::Nowhere };
        };
        let Some(at) = self.at(number) else { return Role::Nowhere };
        match self.main {
            Some(main) if main == at && self.is_part(at, event) => Role::Nowhere,
            Some(main) if main == at => Role::Main,
            _ if others && self.all.get(at).is_some_and(is_known) => Role::Further(at),
            _ => Role::Nowhere,
        }
    }

    /// Whether a store is of less than a block. vLLM 0.32.0 (`v1/core/single_type_kv_cache_manager.py`,
    /// `_cache_partial_tail_block`) keeps the end of a prompt so where it drops blocks and the sizes
    /// of the groups differ; a hit comes of it only with states that are kept as finely.
    fn is_part(&self, at: usize, event: &Stored) -> bool {
        let less = self.all.get(at).is_some_and(|group| event.block_size < group.block);
        less && self.drop != BlockDrop::None
            && self.all.iter().all(|group| group.kind != Kind::State)
    }

    /// The place of a group whose blocks leave.
    pub(super) fn place_of(&self, number: Option<u32>) -> Role {
        let Some(number) = number else { return Role::Main };
        match self.at(number) {
            Some(at) if self.main == Some(at) => Role::Main,
            Some(at) if self.all.get(at).is_some_and(is_known) => Role::Further(at),
            None if number == 0 || self.all.is_empty() => Role::Main,
            Some(_) | None => Role::Nowhere,
        }
    }

    /// The groups with what a store tells of its own; none where that is nothing new.
    pub(super) fn with(&self, event: &Stored) -> Option<Self> {
        let number = event.group?;
        let at = self.at(number);
        // A copy into another tier may not say what it is of.
        if event.medium != Medium::Gpu && event.kind == Kind::Unsaid {
            return None;
        }
        let told = Group {
            number,
            kind: event.kind,
            window: event.window,
            block: event.block_size,
            sparse: event.sparse,
        };
        let known = at.and_then(|at| self.all.get(at));
        let group = match known {
            Some(known) if known.kind == Kind::Unsaid => told,
            Some(known) => Group {
                sparse: known.sparse || told.sparse,
                // Part of a block may be stored on its own (`cache_partial_block`).
                block: known.block.max(told.block),
                ..*known
            },
            None if self.all.len() < MAX_GROUPS => told,
            None => return None,
        };
        if known == Some(&group) {
            return None;
        }
        let mut groups = self.clone();
        match at.and_then(|at| groups.all.get_mut(at)) {
            Some(known) => *known = group,
            None => groups.all.push(group),
        }
        if groups.main.is_none() && is_full(event) {
            groups.main = groups.at(number);
        }
        groups.ask();
        Some(groups)
    }

    pub(super) fn summary(&self) -> Vec<GroupSummary> {
        let of = |(at, group): (usize, &Group)| GroupSummary {
            group: group.number,
            what: match (group.kind, group.window) {
                (Kind::Full, _) => "full attention".to_owned(),
                (Kind::Window, Some(window)) => format!("sliding window of {window} tokens"),
                (Kind::Window, None) => "sliding window of unknown length".to_owned(),
                (Kind::State, _) => "state (Mamba, linear attention)".to_owned(),
                (Kind::Other, _) => "of a kind whose hits aren't known".to_owned(),
                (Kind::Unsaid, _) => "of a kind that isn't told".to_owned(),
            },
            block_tokens: group.block,
            counted: self.counted(at),
        };
        self.all.iter().enumerate().map(of).collect()
    }

    /// Whether hits are told otherwise than by `other`.
    pub(super) fn asks_otherwise(&self, other: &Self) -> bool {
        let asks = |of: &Self| (of.every, of.dropped, of.main);
        self.needs != other.needs || asks(self) != asks(other)
    }

    fn at(&self, number: u32) -> Option<usize> {
        self.all.iter().position(|group| group.number == number)
    }

    fn ask(&mut self) {
        self.needs.clear();
        self.every = 1;
        self.dropped = u32::from(self.drop != BlockDrop::None);
        let Some(main) = self.main.and_then(|at| self.all.get(at)).map(|group| group.block.max(1))
        else {
            return;
        };
        let counts = |(at, group): &(usize, &Group)| {
            Some(*at) != self.main && is_known(group) && group.block > 0
        };
        // What a hit's length is a multiple of, and the longest block that a group drops, in tokens.
        let (mut align, mut dropped) = (u64::from(main), u64::from(main));
        for (_, group) in self.all.iter().enumerate().filter(counts) {
            let step = lcm(main, group.block);
            align = lcm_wide(align, step);
            if self.drops_own(group) && step == u64::from(group.block) {
                dropped = dropped.max(step);
            }
        }
        let mut needs: Vec<Need> = Vec::new();
        for (at, group) in self.all.iter().enumerate().filter(counts) {
            let step = lcm(main, group.block);
            let drops = self.drops_own(group);
            let at_hit = self.drop != BlockDrop::None && group.kind != Kind::Full && !drops;
            // A window's block behind the hit may end amidst one of the main group, where nothing
            // tells of it: then the next is asked for, and of a sparse window little is claimed.
            let behind = if drops { dropped.div_ceil(step) } else { 0 };
            // Of blocks smaller than the main group's, those at its ends stand for the others: a
            // block's neighbours before it leave after it.
            let tokens = own_need(group) * u64::from(group.block);
            let blocks = (tokens.div_ceil(step) + behind).clamp(1, u64::from(u32::MAX)) as u32;
            let stride = u32::try_from(step / u64::from(main)).unwrap_or(u32::MAX);
            // vLLM 0.32.0 (`SlidingWindowManager.find_longest_cache_hit`) takes one length more off a
            // prompt's beginning where a block alone is no length of a hit.
            let from_start = !drops || u64::from(group.block) == align;
            let need = Need { groups: bit(at), blocks, stride, at_hit, from_start };
            match needs.iter_mut().find(|like| Need { groups: bit(at), ..**like } == need) {
                Some(like) => like.groups |= bit(at),
                None => needs.push(need),
            }
        }
        self.needs = needs;
        self.every = u32::try_from(align / u64::from(main)).unwrap_or(u32::MAX);
        if self.drop != BlockDrop::None {
            self.dropped = u32::try_from(dropped.div_ceil(u64::from(main))).unwrap_or(u32::MAX);
        }
    }

    /// Whether a group beside the main one drops a block of its own, too.
    fn drops_own(&self, group: &Group) -> bool {
        self.drop == BlockDrop::All && group.kind == Kind::Window
    }
}

/// The bit of the group at a place.
pub(super) fn bit(at: usize) -> u64 {
    1 << (at % MAX_GROUPS)
}

/// Before engines said so: the first group, or the only one.
fn is_full(event: &Stored) -> bool {
    match event.kind {
        Kind::Full => true,
        Kind::Window | Kind::State | Kind::Other => false,
        Kind::Unsaid => event.group.unwrap_or(0) == 0,
    }
}

/// Whether it is known what a hit needs of a group beside the main one.
fn is_known(group: &Group) -> bool {
    match group.kind {
        Kind::Full | Kind::State => true,
        Kind::Window => group.window.is_some(),
        Kind::Other | Kind::Unsaid => false,
    }
}

fn own_need(group: &Group) -> u64 {
    match (group.kind, group.window) {
        (Kind::Window, Some(window)) => {
            u64::from(window - 1).div_ceil(u64::from(group.block.max(1))).max(1)
        }
        (Kind::State, _) => 1,
        _ => u64::from(u32::MAX),
    }
}

fn lcm(a: u32, b: u32) -> u64 {
    lcm_wide(u64::from(a), u64::from(b))
}

/// Never 0; the largest there is where it would be larger.
fn lcm_wide(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a.max(1), b.max(1));
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a.max(1) / x).saturating_mul(b.max(1))
}
