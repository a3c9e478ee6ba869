//! Who chooses: Warmpath, or what it is compared with.

use serde_json::Value;
use warmpath_routing::catalogue::Wants;
use warmpath_routing::decision::{Ask, Outcome, decide_with};
use warmpath_routing::policy::Policy;
use warmpath_routing::prefix_map::Lookup;
use warmpath_routing::residency::Claim;
use warmpath_routing::view::{Load, Replica, ReplicaState, World};

use super::args::Args;
use super::fleet::{Fleet, Served};
use super::gateway::{Choice, Gateway};
use super::map::{Announced, keys};
use super::trace::Request;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Router {
    /// The decision as the filter takes it.
    Warmpath,
    /// Whoever holds most, the first of equals.
    CacheOnly,
    /// One after the other.
    RoundRobin,
}

impl Router {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Warmpath => "warmpath",
            Self::CacheOnly => "cache-only",
            Self::RoundRobin => "round-robin",
        }
    }
}

pub(super) struct Chooser {
    router: Router,
    policy: Policy,
    world: World,
    gateway: Gateway,
    turn: usize,
}

impl Chooser {
    pub(super) fn new(args: &Args, router: Router) -> anyhow::Result<Self> {
        let mut json = serde_json::json!({
            "region": "here",
            "regions": {"here": {"jurisdiction": "here"}},
            "pools": {"pool": {"region": "here", "model": "model"}},
            "zones": {"zone": {"regions": ["*"], "clusters": {"pool": "pool"}}},
            "cost": {
                "prefill_ms_per_1k_tokens": args.prefill_ms_per_1k_tokens
            }
        });
        merge(&mut json, serde_json::from_str(&args.policy)?);
        let policy: Policy = serde_json::from_value(json)?;
        policy.check()?;
        let replica = |slot: u16| Replica {
            slot,
            endpoint: format!("10.0.{}.{}:8000", slot / 250, slot % 250),
            rank: None,
            pool: "pool".into(),
            block_tokens: 512,
            dropped_tokens: 0,
            state: ReplicaState::Ready,
            weight: Replica::PLAIN,
            tiers: Vec::new(),
            ends: None,
            adapters: None,
        };
        let world = World {
            replicas: (0..args.replicas).map(replica).collect(),
            loads: vec![Load::default(); usize::from(args.replicas)],
            fresh: true,
        };
        let gateway = Gateway::new(&world);
        Ok(Self { router, policy, world, gateway, turn: 0 })
    }

    pub(super) fn choose(&mut self, fleet: &Fleet, request: &Request, now: f64) -> usize {
        match self.router {
            Router::RoundRobin => {
                self.turn += 1;
                self.turn % fleet.engines.len().max(1)
            }
            Router::CacheOnly => {
                let matches =
                    Announced { fleet, request }.matches(&keys(request, 1 << 20), &|_: u16| true);
                let best = matches.found.iter().rev().max_by_key(|m| m.blocks);
                best.map_or(0, |m| usize::from(m.slot))
            }
            Router::Warmpath => self.by_decision(fleet, request, now),
        }
    }

    fn by_decision(&mut self, fleet: &Fleet, request: &Request, now: f64) -> usize {
        self.gateway.advance(&mut self.world, &self.policy.cost, now);
        for (load, engine) in self.world.loads.iter_mut().zip(&fleet.engines) {
            (load.waiting, load.running) = engine.load(now);
        }
        let keys = keys(request, self.policy.prefix_tokens / 16);
        let ask = Ask {
            zone: Claim::Zone("zone"),
            model: Wants::Model { name: "model", adapter: "" },
            keys: &keys,
            prompt_tokens: request.input_tokens as u32,
            affinity: 0,
            left_out: None,
            degrade: None,
        };
        let local = self.gateway.local(now);
        let announced = Announced { fleet, request };
        let choice = match decide_with(&self.policy, &self.world, &local, &ask, &announced) {
            Outcome::Route(route) => Choice::of(&route),
            Outcome::Refuse(_) => None,
        };
        let Some(choice) = choice else { return 0 };
        let at = choice.at;
        self.gateway.sent(&mut self.world, choice, &keys, now);
        at
    }

    /// What came of the request that was sent last.
    pub(super) fn served(&mut self, served: &Served) {
        self.gateway.served(served);
    }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
