//! What the simulated gateway knows itself, as the filter does: what it has sent, and what answers
//! have taught it of prices.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};

use warmpath_routing::cost::CostModel;
use warmpath_routing::decision::{Local, Route};
use warmpath_routing::fingerprint::Key;
use warmpath_routing::learn::{Learned, Timing};
use warmpath_routing::traffic::{Places, Traffic};
use warmpath_routing::view::World;

use super::fleet::Served;

/// One gateway with one worker.
pub(super) struct Gateway {
    traffic: Traffic,
    /// The replicas' names, in the world's order.
    names: Vec<u64>,
    learned: Learned,
    prices: BTreeMap<String, CostModel>,
    /// What happens to requests under way.
    due: BinaryHeap<Reverse<Due>>,
    /// Events so far, so that those of one moment keep their order.
    count: u64,
    sent: Option<Sent>,
}

/// What was decided.
pub(super) struct Choice {
    /// The replica's place in the world.
    pub(super) at: usize,
    pool: String,
    cold_tokens: u32,
    known_blocks: usize,
    prompt_tokens: u32,
}

impl Choice {
    /// `None` where no replica is named.
    pub(super) fn of(route: &Route<'_>) -> Option<Self> {
        Some(Self {
            at: *route.replicas.first()?,
            pool: route.pool.to_owned(),
            cold_tokens: route.cold_tokens(),
            known_blocks: (route.cached_tokens / 16) as usize,
            prompt_tokens: route.prompt_tokens,
        })
    }
}

/// A request that was sent and not served yet.
struct Sent {
    choice: Choice,
    replica: u64,
    queued: u32,
    at_ms: f64,
}

/// An event and when it comes, in microseconds of the trace.
struct Due {
    at: (u64, u64),
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

enum Event {
    /// The first token has come.
    FirstToken { pool: String, replica: u64, cold_tokens: u32, timing: Timing },
    /// The answer has ended.
    End { replica: u64 },
}

impl Gateway {
    pub(super) fn new(world: &World) -> Self {
        Self {
            traffic: Traffic::new(1),
            names: world.replicas.iter().map(warmpath_routing::view::Replica::name).collect(),
            learned: Learned::default(),
            prices: BTreeMap::new(),
            due: BinaryHeap::new(),
            count: 0,
            sent: None,
        }
    }

    /// Lets time pass: first tokens come, answers end.
    pub(super) fn advance(&mut self, world: &mut World, cost: &CostModel, now_ms: f64) {
        while self.due.peek().is_some_and(|Reverse(due)| due.at.0 <= micros(now_ms)) {
            let Some(Reverse(Due { event, .. })) = self.due.pop() else { break };
            let places = Places { names: &self.names, loads: &mut world.loads };
            match event {
                Event::FirstToken { pool, replica, cold_tokens, timing } => {
                    self.traffic.prefilled(places, replica, cold_tokens);
                    self.learned.observe(cost, &timing);
                    self.prices.insert(pool, self.learned.prices(cost));
                }
                Event::End { replica } => self.traffic.landed(places, replica),
            }
        }
    }

    /// For a decision.
    pub(super) fn local(&self, now_ms: f64) -> Local<'_> {
        self.traffic.local(&self.prices, false, now_ms as u64)
    }

    /// A request goes where it was decided.
    pub(super) fn sent(&mut self, world: &mut World, choice: Choice, keys: &[Key], now_ms: f64) {
        let at = choice.at;
        let (Some(replica), Some(name)) = (world.replicas.get(at), self.names.get(at)) else {
            return;
        };
        let queued = world.loads.get(at).map_or(0, CostModel::queued);
        self.traffic.recent.sent(keys, choice.known_blocks, replica.slot, now_ms as u64);
        let places = Places { names: &self.names, loads: &mut world.loads };
        self.traffic.sent(places, *name, choice.cold_tokens);
        self.sent = Some(Sent { choice, replica: *name, queued, at_ms: now_ms });
    }

    /// What came of it.
    pub(super) fn served(&mut self, served: &Served) {
        let Some(Sent { choice, replica, queued, at_ms }) = self.sent.take() else { return };
        let Choice { pool, cold_tokens, prompt_tokens, .. } = choice;
        let cached = served.cached as u32;
        let timing = Timing {
            uncached: prompt_tokens.saturating_sub(cached),
            cached,
            queued,
            rtt_ms: 0.0,
            first_token_ms: served.first_token_ms,
        };
        self.later(
            at_ms + served.first_token_ms,
            Event::FirstToken { pool, replica, cold_tokens, timing },
        );
        self.later(at_ms + served.end_ms, Event::End { replica });
    }

    fn later(&mut self, at_ms: f64, event: Event) {
        self.count += 1;
        self.due.push(Reverse(Due { at: (micros(at_ms), self.count), event }));
    }
}

fn micros(ms: f64) -> u64 {
    (ms * 1_000.0) as u64
}
