//! Whose matches are worth knowing to the block.

use std::cell::OnceCell;

use super::candidate::{Candidate, CandidatePool};
use super::order;
use crate::fingerprint::BLOCK_TOKENS;
use crate::policy::Policy;
use crate::prefix_map::{Ends, Match, Matches, Wanted};

/// The candidates, as a search of the prefix map sees them. It matters what those hold that might come
/// first if they held as much as they might: of others any less will do.
pub(super) struct Worth<'a> {
    pub(super) policy: &'a Policy,
    pub(super) pools: &'a [CandidatePool<'a>],
    pub(super) candidates: &'a [Candidate<'a>],
    /// Slots whose entries in the map are believed, sorted, and whose they are.
    pub(super) believed: &'a [(u16, usize)],
    pub(super) batch: bool,
    pub(super) prompt_tokens: u32,
    /// What is on its way to them.
    pub(super) hoped: &'a Matches,
    /// What the first choice costs at most, known once those are found that hold most. None where more
    /// than a candidate's own cost decides: homes by regions' weights, tiers.
    pub(super) limit: OnceCell<Option<f64>>,
}

impl Worth<'_> {
    fn candidate(&self, slot: u16) -> Option<&Candidate<'_>> {
        let at = self.believed.binary_search_by_key(&slot, |(slot, _)| *slot).ok()?;
        self.candidates.get(self.believed.get(at)?.1)
    }

    /// Tokens that a candidate is spared if it holds so many blocks, and its cost then.
    fn cost(&self, candidate: &Candidate<'_>, blocks: u32) -> Option<(u32, f64)> {
        let blocks = blocks.max(self.hoped.blocks(candidate.replica.slot));
        let spared = candidate.tokens(blocks, self.prompt_tokens);
        let pool = self.pools.get(candidate.pool)?;
        Some((spared, candidate.cost_of(pool, self.prompt_tokens, spared).total()))
    }

    fn limit(&self, found: &[Match]) -> Option<f64> {
        let by_cost = self.pools.iter().all(|pool| pool.weight == 0.0)
            && self.candidates.iter().all(|candidate| candidate.replica.tiers.is_empty());
        if !by_cost {
            return None;
        }
        let open = |candidate: &Candidate<'_>, blocks: u32| {
            let (spared, cost) = self.cost(candidate, blocks)?;
            // Who holds more than is known so far has less to compute, and has room all the more.
            let cold = self.prompt_tokens.saturating_sub(spared);
            let has_room = order::admits(self.policy, self.batch, candidate.under_way, cold);
            (has_room && !candidate.full).then_some((spared, cost))
        };
        let tie = self.policy.cost.tie_ms;
        let found = found.iter().filter_map(|m| open(self.candidate(m.slot)?, m.blocks));
        // Less than a block of the engine's own spares nothing.
        let warm = found.filter(|(spared, _)| *spared > 0).map(|(_, cost)| cost);
        let warm = warm.min_by(f64::total_cmp);
        // The cheapest if nobody held anything, and what may be waited for at a home on the ring.
        let (mut least, mut wait) = (None::<f64>, tie);
        for (at, pool) in self.pools.iter().enumerate() {
            let of_pool = self.candidates.iter().filter(|candidate| candidate.pool == at);
            let costs = of_pool.filter_map(|candidate| open(candidate, 0)).map(|(_, cost)| cost);
            if let Some(cost) = costs.min_by(f64::total_cmp) {
                least = Some(least.map_or(cost, |least| least.min(cost)));
                wait = wait
                    .max(pool.prices.prefill(0, self.prompt_tokens) - pool.prices.prefill_base_ms);
            }
        }
        match warm {
            Some(warm) if least.is_none_or(|least| warm <= least + tie) => Some(warm + tie),
            // Nobody worth it is known to hold any: the ring may decide.
            _ => Some(least? + wait),
        }
    }
}

impl Wanted for Worth<'_> {
    fn wants(&self, slot: u16) -> bool {
        self.believed.binary_search_by_key(&slot, |(slot, _)| *slot).is_ok()
    }

    fn matters(&self, slot: u16, blocks: u32, found: &[Match]) -> bool {
        let limit = *self.limit.get_or_init(|| self.limit(found));
        let cost = self.candidate(slot).and_then(|candidate| self.cost(candidate, blocks));
        !matches!((limit, cost), (Some(limit), Some((_, cost))) if cost > limit)
    }

    fn ends(&self, slot: u16) -> Option<Ends> {
        let replica = self.candidate(slot)?.replica;
        let ends = replica.ends.filter(|_| replica.slot == slot)?;
        // The last token is always computed again, be it of a block that is dropped.
        let beyond = replica.dropped_tokens;
        let most = self.prompt_tokens.saturating_sub(u32::from(beyond == 0)) / BLOCK_TOKENS as u32;
        Some(Ends { slot: ends, every: replica.block_tokens, beyond, most })
    }

    fn has_ends(&self) -> bool {
        self.candidates.iter().any(|candidate| candidate.replica.ends.is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use proptest::prelude::*;

    use crate::decision::tests::{ask, keys, policy, world};
    use crate::decision::{Ask, Local, Outcome, Route, decide_with};
    use crate::fingerprint::Key;
    use crate::prefix_map::{Ends, Hint, Layout, Lookup, Matches, Store, Wanted, Writer, find};
    use crate::recent::Recent;
    use crate::view::{Load, Replica};

    const LAYOUT: Layout = Layout { buckets: 64, bucket_bytes: 8 << 10 };

    #[derive(Default)]
    struct Map {
        buckets: BTreeMap<u32, Vec<u8>>,
        hint: u32,
        /// Every match is sought to the block.
        exact: bool,
    }

    impl Store for Map {
        type Error = Infallible;

        fn get(&self, bucket: u32) -> Result<Option<Vec<u8>>, Infallible> {
            Ok(self.buckets.get(&bucket).cloned())
        }

        fn set(&mut self, bucket: u32, value: &[u8]) -> Result<(), Infallible> {
            self.buckets.insert(bucket, value.to_vec());
            Ok(())
        }
    }

    impl Map {
        fn of(keys: &[Key], held: impl Iterator<Item = (u16, usize)>) -> Self {
            let mut map = Self::default();
            let mut writer = Writer::new(LAYOUT, 1);
            for (slot, blocks) in held {
                let bytes: Vec<u8> = keys[..blocks].iter().flat_map(|key| key.0).collect();
                let Ok(()) = writer.change(&map, slot, &[], &bytes);
            }
            let Ok(_) = writer.flush(&mut map);
            map
        }
    }

    /// Everything matters.
    struct Exact<'a>(&'a dyn Wanted);

    impl Wanted for Exact<'_> {
        fn wants(&self, slot: u16) -> bool {
            self.0.wants(slot)
        }

        fn ends(&self, slot: u16) -> Option<Ends> {
            self.0.ends(slot)
        }

        fn has_ends(&self) -> bool {
            self.0.has_ends()
        }
    }

    impl Lookup for Map {
        fn matches(&self, keys: &[Key], wanted: &dyn Wanted) -> Matches {
            let exact = Exact(wanted);
            let wanted = if self.exact { &exact } else { wanted };
            find(self, LAYOUT, 1, keys, Hint::at(self.hint), wanted)
        }
    }

    #[test]
    fn those_that_hold_less_and_are_no_less_busy_cost_few_reads() {
        let (policy, keys) = (policy(), keys(1, 512));
        let mut world = world();
        let replica = |slot: u16| Replica {
            slot,
            endpoint: format!("10.0.0.{slot}:8000"),
            ..world.replicas[0].clone()
        };
        world.replicas = (0..64).map(replica).collect();
        world.loads = vec![Load::default(); 64];
        let held =
            (0..32).map(|slot| (slot, if slot == 9 { 500 } else { 31 + slot as usize * 11 }));
        let mut map = Map::of(&keys, held);
        map.hint = 500;
        let mut decided = [false, true].map(|exact| {
            map.exact = exact;
            match decide_with(&policy, &world, &Local::default(), &ask("eu", &keys), &map) {
                Outcome::Route(route) => (route.probes, route.cached_tokens, route.replicas[0]),
                Outcome::Refuse(refusal) => panic!("{refusal:?}"),
            }
        });
        let [(few, ..), (many, ..)] = decided;
        assert!(few <= 12 && many > 60, "{few} and {many}");
        decided[1].0 = few;
        assert_eq!(decided[0], decided[1]);
        assert_eq!(decided[0].1, 500 * 16);
    }

    #[test]
    fn where_the_ring_decides_what_others_hold_is_sought_to_the_block() {
        let (policy, mut world) = (policy(), world());
        let replica = |slot: u16| Replica {
            slot,
            endpoint: format!("10.0.0.{slot}:8000"),
            ..world.replicas[0].clone()
        };
        world.replicas = (0..4).map(replica).collect();
        // All but one are busy, and hold a system prompt: it may be worth going there all the same.
        world.loads = vec![Load { waiting: 3, ..Load::default() }; 4];
        world.loads[3] = Load::default();
        let mut warm = 0;
        for seed in 0..40 {
            let keys = keys(seed, 128);
            let mut map = Map::of(&keys, [(0, 17), (1, 16), (2, 16)].into_iter());
            map.hint = 17;
            let route =
                match decide_with(&policy, &world, &Local::default(), &ask("eu", &keys), &map) {
                    Outcome::Route(route) => route,
                    Outcome::Refuse(refusal) => panic!("{refusal:?}"),
                };
            let held = [17, 16, 16, 0][route.replicas[0]];
            assert_eq!(route.cached_tokens, held * 16);
            warm += usize::from(held == 16);
        }
        assert!(warm > 0);
    }

    fn first<'a>(route: &Route<'a>) -> impl PartialEq + std::fmt::Debug + use<'a> {
        (
            (route.replicas[0], route.pool, route.reason, route.cost, route.spilled, route.crowded),
            (route.cached_tokens, route.offloaded_tokens, route.hoped_tokens, route.tier),
            (route.holders, route.deepest),
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// What is not sought to the block never changes the first choice, nor what is foretold of it.
        #[test]
        fn the_first_choice_is_that_of_a_search_to_the_block(
            blocks in 1u64..300,
            replicas in proptest::collection::vec(
                (0u32..4, 0u32..4, 0u32..9, 0usize..400, 0u32..4, 0usize..400, 0u32..40), 2..20),
            shared in 0usize..300,
            hint in 0u32..320,
            (zone, weights, tiers, idle) in (any::<bool>(), 0u8..4, 0u8..4, 0u8..2),
            limit in prop_oneof![Just(131_072_u32), 0u32..8_000],
        ) {
            let keys = keys(1, blocks);
            let mut policy = policy();
            policy.admission.cold_tokens = limit;
            if weights == 0 {
                for region in policy.regions.values_mut() {
                    region.weight = 1.0;
                }
            }
            let mut world = world();
            let plain = [world.replicas[0].clone(), world.replicas[2].clone()];
            let mut recent = Recent::default();
            let mut held = Vec::new();
            let mut ends = Vec::new();
            let mut cold_tokens = Vec::new();
            world.replicas.clear();
            world.loads.clear();
            for (at, (waiting, running, in_flight, own, kind, sent, cold)) in replicas.iter().enumerate() {
                let slot = at as u16;
                let mut replica = plain[at % 2].clone();
                replica.slot = slot;
                replica.endpoint = format!("10.0.1.{at}:8000");
                replica.block_tokens = [16, 1, 64, 48][*kind as usize];
                if sent % 5 == 0 {
                    replica.dropped_tokens = replica.block_tokens;
                }
                if tiers == 0 && kind % 2 == 0 {
                    let slot = slot + 100;
                    replica.tiers = vec![crate::view::Tier { medium: crate::view::Medium::Cpu, slot }];
                    held.push((slot, (*own + sent / 2).min(keys.len())));
                }
                if idle == 0 && kind % 4 == 2 {
                    // An engine of several KV cache groups, with ends here and there.
                    replica.ends = Some(slot + 200);
                    let every = |block: &usize| block.is_multiple_of(4) && block % (sent + 3) < 5;
                    ends.extend((1..=keys.len()).filter(every).map(|block| (slot + 200, block)));
                }
                // Some hold what all share, others some of it or more.
                if idle == 0 || waiting + running > 0 {
                    held.push((slot, if *kind == 0 { shared } else { *own }.min(keys.len())));
                }
                if sent % 3 == 0 {
                    recent.sent(&keys[..(*sent).min(keys.len())], 0, slot, 1_000);
                }
                let load = Load { waiting: *waiting, running: *running, in_flight: *in_flight, ..Load::default() };
                world.replicas.push(replica);
                world.loads.push(load);
                cold_tokens.push(*cold * 200);
            }
            let prices = BTreeMap::new();
            let local = Local {
                cold_tokens: &cold_tokens,
                recent: Some(recent.at(1_001)),
                ..Local { prices: &prices, ..Local::default() }
            };
            let mut map = Map::of(&keys, held.into_iter());
            let mut writer = Writer::new(LAYOUT, 1);
            for (slot, block) in ends {
                let Ok(()) = writer.change(&map, slot, &[], &keys[block - 1].0);
            }
            let Ok(_) = writer.flush(&mut map);
            map.hint = hint;
            let ask: Ask<'_> = ask(if zone { "eu" } else { "global" }, &keys);
            let [rough, exact] = [false, true].map(|exact| {
                map.exact = exact;
                match decide_with(&policy, &world, &local, &ask, &map) {
                    Outcome::Route(route) => (route.probes, format!("{:?}", first(&route))),
                    Outcome::Refuse(refusal) => panic!("{refusal:?}"),
                }
            });
            prop_assert_eq!(&rough.1, &exact.1);
            prop_assert!(rough.0 <= exact.0);
        }
    }
}
