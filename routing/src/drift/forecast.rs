//! What a decision expects its replica to have cached, to be compared with the engine's own count.

use crate::decision::{Ask, Route};
use crate::fingerprint::{BLOCK_TOKENS, Key};
use crate::view::World;

/// Tokens of a block, as blocks of the map and of the narrowest engines count them.
const BLOCK: u32 = BLOCK_TOKENS as u32;

/// Tokens, as foreseen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Cached, by the map.
    pub cached: u32,
    /// What may be cached as well, its events being under way.
    pub excused: u32,
    /// Of requests sent before, whether or not a moment ago, beyond what the map says.
    pub sent_before: u32,
    /// What the map doesn't promise.
    pub next: NextBlock,
    /// Nothing but the map spoke for the replica.
    pub certain: bool,
    /// Of the whole prompt; `None` where it was not counted to its end.
    pub prompt: Option<u32>,
}

/// Where the map's promise ends: what an engine has cached beyond it, or computes, shows there first
/// once its events have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextBlock {
    /// The replica's, when it was decided.
    pub slot: u16,
    /// The last of the first engine block that is not promised; `None` where the prompt ends before.
    pub key: Option<Key>,
    /// Tokens up to its end.
    pub tokens: u32,
    /// Of the engine's blocks; the longest that are usual where that isn't known.
    pub block_tokens: u32,
    /// Tokens that its engine drops of what it finds cached.
    pub dropped_tokens: u32,
}

impl NextBlock {
    /// `promised`: tokens that the map says are held, those included that the engine drops.
    fn after(promised: u32, keys: &[Key], slot: u16, block_tokens: u32) -> Self {
        const LONG: u32 = 256;
        let block_tokens = if block_tokens == 0 { LONG } else { block_tokens };
        let end = (promised / block_tokens).saturating_add(1).saturating_mul(block_tokens);
        // A fingerprint belongs to the engine's block in which it ends.
        let blocks = (end / BLOCK).max(promised / BLOCK + 1);
        let key = keys.get(blocks as usize - 1).copied();
        Self { slot, key, tokens: blocks.saturating_mul(BLOCK), block_tokens, dropped_tokens: 0 }
    }
}

impl Forecast {
    /// What a route promises; `None` where it promises nothing, as the map was not asked or the prompt
    /// not read, or no replica is named. `excused`: tokens of requests whose events may still be under
    /// way.
    pub fn of(route: &Route<'_>, ask: &Ask<'_>, world: &World, excused: u32) -> Option<Self> {
        let replica = route.replicas.first().and_then(|at| world.replicas.get(*at))?;
        if route.degrade.is_some() || ask.keys.is_empty() {
            return None;
        }
        // Where a prompt was read to its end, its blocks leave less than one over.
        let whole = ask.left_out.is_none()
            && u32::try_from(ask.keys.len()).ok() == Some(ask.prompt_tokens / BLOCK);
        // What lies beyond all that was looked at may well be cached.
        let looked = (ask.keys.len() as u32).saturating_mul(BLOCK);
        let block = replica.block_tokens.max(BLOCK);
        // Of a hit of nothing nothing was dropped.
        let dropped = if route.cached_tokens == 0 { 0 } else { replica.dropped_tokens };
        let held = route.cached_tokens.saturating_add(dropped);
        let all_held = held.saturating_add(block) > looked;
        let beyond = !whole && ask.left_out.is_none() && all_held;
        let hopes = route.hoped_tokens > route.cached_tokens;
        Some(Self {
            cached: route.cached_tokens,
            excused: if beyond { u32::MAX } else { excused },
            sent_before: if hopes { route.hoped_tokens } else { 0 },
            next: NextBlock {
                dropped_tokens: replica.dropped_tokens,
                ..NextBlock::after(held, ask.keys, replica.slot, replica.block_tokens)
            },
            certain: route.hoped_tokens == route.cached_tokens,
            prompt: whole.then_some(ask.prompt_tokens),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Degrade;
    use crate::decision::tests::{ask, held, keys, policy, route, world};

    #[test]
    fn the_next_block_is_the_engines_first_that_is_not_promised() {
        let keys = keys(1, 20);
        for (promised, block_tokens, tokens) in [
            (0, 16, 16),
            (32, 16, 48),
            (0, 64, 64),
            (64, 64, 128),
            (48, 64, 64),
            (0, 1, 16),
            (0, 0, 256),
        ] {
            let next = NextBlock::after(promised, &keys, 3, block_tokens);
            assert_eq!((next.slot, next.tokens), (3, tokens), "{promised} of {block_tokens}");
            assert_eq!(next.key, Some(keys[tokens as usize / 16 - 1]));
        }
        assert_eq!(NextBlock::after(320, &keys, 3, 16).key, None, "the prompt ends before");
    }

    #[test]
    fn nothing_is_foreseen_where_the_map_was_not_asked() {
        let (policy, world, keys) = (policy(), world(), keys(1, 20));
        let map = held(&[(1, 12)]);
        let foreseen =
            |ask: &Ask<'_>| Forecast::of(&route(&policy, &world, ask, &map), ask, &world, 7);
        let asked = ask("eu", &keys);
        let known = foreseen(&asked).unwrap();
        assert_eq!((known.cached, known.excused, known.prompt), (192, 7, Some(325)));
        assert!(known.certain);
        assert_eq!(foreseen(&ask("eu", &[])), None);
        assert_eq!(foreseen(&Ask { degrade: Some(Degrade::Template), ..asked }), None);
        // Of a prompt that goes on, what lies beyond all that was looked at may be cached as well.
        let longer = Ask { prompt_tokens: 1_000, ..asked };
        assert_eq!(foreseen(&longer).map(|it| (it.excused, it.prompt)), Some((7, None)));
        let map = held(&[(1, 20)]);
        let route = route(&policy, &world, &longer, &map);
        let all = Forecast::of(&route, &longer, &world, 7).unwrap();
        assert_eq!((all.cached, all.excused), (320, u32::MAX));
    }
}
