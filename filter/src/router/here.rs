//! What this gateway itself knows of replicas: what it has sent, and how that went.
//!
//! Each worker counts its own and hears of the others' with every tick, through ledgers in shared
//! data.

use std::collections::{BTreeMap, BTreeSet};

use warmpath_routing::cost::CostModel;
use warmpath_routing::decision::Local;
use warmpath_routing::health::{Cause, Ejection, Health};
use warmpath_routing::ledger::{Line, Lines, Member};
use warmpath_routing::recent::Recent;

use super::view::View;
use crate::host::HostError;
use crate::shared::{Data, Ledgers};

/// Own and others' counts, and what follows from them for each replica of the view.
pub(super) struct Here {
    member: Member,
    own: Lines,
    others: Lines,
    health: Health,
    pub(super) recent: Recent,
    // In the order of the view's replicas.
    ejected: Vec<bool>,
    cold_tokens: Vec<u32>,
}

/// Sums over all workers of this Envoy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) in_flight: u64,
    pub(super) cold_tokens: u64,
    /// Replicas that are ejected.
    pub(super) ejected: u64,
}

impl Here {
    /// Of a worker with a random id.
    pub(super) fn new(id: u64) -> Self {
        Self {
            member: Member::new(id),
            own: Lines::new(),
            others: Lines::new(),
            health: Health::default(),
            recent: Recent::default(),
            ejected: Vec::new(),
            cold_tokens: Vec::new(),
        }
    }

    /// Tells the other workers, hears them, and puts all into the view.
    ///
    /// # Errors
    /// The host's; the others' last word stands until it can be read again.
    pub(super) fn exchange(
        &mut self,
        data: &mut impl Data,
        view: &mut View,
        now_ms: u64,
    ) -> Result<(), HostError> {
        let known: BTreeSet<u64> = view.names.iter().copied().collect();
        self.health.retain(|name| known.contains(&name));
        for line in self.own.values_mut() {
            line.ejected_until_ms = 0;
        }
        for (name, until_ms) in self.health.ejected(now_ms) {
            self.own.entry(name).or_default().ejected_until_ms = until_ms;
        }
        self.own.retain(|_, line| *line != Line::default());
        let heard = self.member.beat(&mut Ledgers(data), now_ms, &self.own);
        if let Ok(others) = &heard {
            self.others.clone_from(others);
        }
        self.show(view, now_ms);
        heard.map(drop)
    }

    /// Gives up this worker's place.
    pub(super) fn leave(&mut self, data: &mut impl Data) {
        // The host may be on its way out too; the place then expires.
        let _ = self.member.leave(&mut Ledgers(data));
    }

    /// Writes what is known of each replica into the view.
    fn show(&mut self, view: &mut View, now_ms: u64) {
        self.ejected.clear();
        self.cold_tokens.clear();
        for (name, load) in view.names.iter().zip(&mut view.world.loads) {
            let line = self.line(*name);
            load.in_flight = line.in_flight;
            self.cold_tokens.push(line.cold_tokens);
            self.ejected.push(line.ejected_until_ms > now_ms);
        }
    }

    fn show_one(&mut self, view: &mut View, name: u64) {
        let line = self.line(name);
        let all = view.names.iter().zip(&mut view.world.loads).zip(&mut self.cold_tokens);
        for ((_, load), cold_tokens) in all.filter(|((at, _), _)| **at == name) {
            load.in_flight = line.in_flight;
            *cold_tokens = line.cold_tokens;
        }
    }

    fn line(&self, name: u64) -> Line {
        let mut line = self.own.get(&name).copied().unwrap_or_default();
        if let Some(others) = self.others.get(&name) {
            line.add(others);
        }
        line
    }

    /// For a decision.
    pub(super) fn local<'a>(
        &'a self,
        prices: &'a BTreeMap<String, CostModel>,
        batch: bool,
        now_ms: u64,
    ) -> Local<'a> {
        Local {
            ejected: &self.ejected,
            cold_tokens: &self.cold_tokens,
            prices,
            recent: Some(self.recent.at(now_ms)),
            batch,
        }
    }

    /// Whether requests of this worker are under way.
    pub(super) fn has_in_flight(&self) -> bool {
        self.own.values().any(|line| line.in_flight > 0)
    }

    /// A request was sent, with so many tokens to compute.
    pub(super) fn sent(&mut self, view: &mut View, name: u64, cold_tokens: u32) {
        let line = self.own.entry(name).or_default();
        line.in_flight = line.in_flight.saturating_add(1);
        line.cold_tokens = line.cold_tokens.saturating_add(cold_tokens);
        self.show_one(view, name);
    }

    /// They are computed.
    pub(super) fn prefilled(&mut self, view: &mut View, name: u64, cold_tokens: u32) {
        if let Some(line) = self.own.get_mut(&name) {
            line.cold_tokens = line.cold_tokens.saturating_sub(cold_tokens);
        }
        self.show_one(view, name);
    }

    /// The request has ended.
    pub(super) fn landed(&mut self, view: &mut View, name: u64) {
        if let Some(line) = self.own.get_mut(&name) {
            line.in_flight = line.in_flight.saturating_sub(1);
        }
        self.show_one(view, name);
    }

    /// A replica could not serve. Says whether that ejects it.
    pub(super) fn failed(
        &mut self,
        rule: &Ejection,
        view: &View,
        name: u64,
        cause: Cause,
        now_ms: u64,
    ) -> bool {
        let ejected = self.health.failed(rule, name, cause, now_ms);
        if ejected {
            self.mark(view, name, true);
        }
        ejected
    }

    /// Whether a replica failed when it was last heard of.
    pub(super) fn doubts(&self, name: u64) -> bool {
        self.health.doubts(name)
    }

    /// Whether this worker or another one has ejected a replica.
    pub(super) fn is_ejected(&self, name: u64, now_ms: u64) -> bool {
        self.line(name).ejected_until_ms > now_ms
    }

    /// A replica has served.
    pub(super) fn served(&mut self, view: &View, name: u64) {
        self.health.served(name);
        if let Some(line) = self.own.get_mut(&name)
            && line.ejected_until_ms > 0
        {
            line.ejected_until_ms = 0;
            // Another worker may still think otherwise; the next exchange tells.
            self.mark(view, name, false);
        }
    }

    fn mark(&mut self, view: &View, name: u64, ejected: bool) {
        for (at, place) in view.names.iter().zip(&mut self.ejected) {
            if *at == name {
                *place = ejected;
            }
        }
    }

    /// Sums over all workers, as of the last exchange.
    pub(super) fn totals(&self, now_ms: u64) -> Totals {
        let names: BTreeSet<u64> = self.own.keys().chain(self.others.keys()).copied().collect();
        let mut totals = Totals::default();
        for name in names {
            let line = self.line(name);
            totals.in_flight += u64::from(line.in_flight);
            totals.cold_tokens += u64::from(line.cold_tokens);
            totals.ejected += u64::from(line.ejected_until_ms > now_ms);
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use warmpath_routing::ledger::EXPIRY_MS;
    use warmpath_routing::view::{Load, Replica, ReplicaState};

    use super::*;
    use crate::shared::Memory;

    /// Two replicas, as every worker sees them.
    fn view() -> View {
        let replica = |slot: u16| Replica {
            slot,
            endpoint: format!("10.0.0.{slot}:8000"),
            rank: None,
            pool: "p".into(),
            block_tokens: 16,
            dropped_tokens: 0,
            state: ReplicaState::Ready,
            weight: Replica::PLAIN,
            tiers: Vec::new(),
            ends: None,
            adapters: None,
        };
        let mut view = View::default();
        view.world.replicas = (1..3).map(replica).collect();
        view.world.loads = vec![Load::default(); 2];
        view.names = view.world.replicas.iter().map(Replica::name).collect();
        view
    }

    fn in_flight(view: &View) -> Vec<u32> {
        view.world.loads.iter().map(|load| load.in_flight).collect()
    }

    #[test]
    fn workers_see_each_other_s_requests_and_outlive_each_other() {
        let mut data = Memory::default();
        let (mut a, mut b) = (Here::new(1), Here::new(2));
        let (mut of_a, mut of_b) = (view(), view());
        let [first, second] = of_a.names[..] else { panic!() };
        for _ in 0..3 {
            a.sent(&mut of_a, first, 100);
        }
        b.sent(&mut of_b, first, 10);
        b.sent(&mut of_b, second, 0);
        for now in [1_000, 1_050] {
            a.exchange(&mut data, &mut of_a, now).unwrap();
            b.exchange(&mut data, &mut of_b, now).unwrap();
        }
        assert_eq!((in_flight(&of_a), in_flight(&of_b)), (vec![4, 1], vec![4, 1]));
        assert_eq!(b.local(&BTreeMap::new(), false, 1_050).cold_tokens, [310, 0]);
        let totals = Totals { in_flight: 5, cold_tokens: 310, ..Totals::default() };
        assert_eq!((a.totals(1_050), b.totals(1_050)), (totals, totals));

        // What one sends or ends counts at once with itself, and with the next tick elsewhere.
        a.prefilled(&mut of_a, first, 100);
        a.landed(&mut of_a, first);
        assert_eq!((in_flight(&of_a), in_flight(&of_b)), (vec![3, 1], vec![4, 1]));

        // The first one's VM is loaded again: what it had is forgotten, soon also by others.
        let mut again = Here::new(3);
        let mut of_again = view();
        let later = 1_050 + EXPIRY_MS + 1;
        b.exchange(&mut data, &mut of_b, later).unwrap();
        again.exchange(&mut data, &mut of_again, later).unwrap();
        assert_eq!((in_flight(&of_b), in_flight(&of_again)), (vec![1, 1], vec![1, 1]));
        // The second goes in order: nobody waits for that to expire.
        b.leave(&mut data);
        again.exchange(&mut data, &mut of_again, later).unwrap();
        assert_eq!(in_flight(&of_again), [0, 0]);
        assert_eq!(again.totals(later), Totals::default());
    }

    #[test]
    fn what_one_worker_ejects_the_others_leave_alone_too() {
        let mut data = Memory::default();
        let (mut a, mut b) = (Here::new(1), Here::new(2));
        let (mut of_a, mut of_b) = (view(), view());
        let [first, _] = of_a.names[..] else { panic!() };
        let rule = Ejection::default();
        for now in [1_000, 1_050] {
            a.exchange(&mut data, &mut of_a, now).unwrap();
            b.exchange(&mut data, &mut of_b, now).unwrap();
        }
        let told: Vec<bool> =
            (0..3).map(|_| a.failed(&rule, &of_a, first, Cause::Replica, 1_060)).collect();
        assert_eq!(told, [false, false, true]);
        assert_eq!(a.ejected, [true, false]);
        a.exchange(&mut data, &mut of_a, 1_100).unwrap();
        b.exchange(&mut data, &mut of_b, 1_100).unwrap();
        assert_eq!((&a.ejected, &b.ejected), (&vec![true, false], &vec![true, false]));
        assert_eq!(b.totals(1_100).ejected, 1);
        b.exchange(&mut data, &mut of_b, 1_060 + rule.base_ms).unwrap();
        assert_eq!(b.ejected, [false, false]);
        // A replica that goes takes what was known of it along.
        of_a.names.remove(0);
        of_a.world.loads.remove(0);
        a.exchange(&mut data, &mut of_a, 1_200).unwrap();
        assert_eq!(a.totals(1_200), Totals::default());
    }
}
