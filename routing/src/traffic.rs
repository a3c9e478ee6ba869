//! What a gateway itself knows of replicas: what it has sent, and how that went.
//!
//! Each worker counts its own and hears of the others' from time to time, through ledgers on a board
//! that they share.

use std::collections::{BTreeMap, BTreeSet};

use crate::cost::CostModel;
use crate::decision::Local;
use crate::health::{Cause, Ejection, Health};
use crate::ledger::{Board, Line, Lines, Member};
use crate::recent::Recent;
use crate::view::Load;

/// The replicas that a decision sees: their names ([`crate::view::Replica::name`]), and their loads
/// in the same order, whose `in_flight` is kept here.
pub struct Places<'a> {
    /// By name.
    pub names: &'a [u64],
    /// As many.
    pub loads: &'a mut [Load],
}

/// Own and others' counts, and what follows from them for each replica.
pub struct Traffic {
    member: Member,
    own: Lines,
    others: Lines,
    health: Health,
    /// Prompts that were sent a moment ago.
    pub recent: Recent,
    // In the order of the view's replicas.
    ejected: Vec<bool>,
    cold_tokens: Vec<u32>,
}

/// Sums over all workers of this Envoy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests under way.
    pub in_flight: u64,
    /// Tokens that those have in prefill.
    pub cold_tokens: u64,
    /// Replicas that are ejected.
    pub ejected: u64,
}

impl Traffic {
    /// Of a worker with a random id.
    pub fn new(id: u64) -> Self {
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

    /// Tells the other workers, hears them, and counts what all of them sent.
    ///
    /// # Errors
    /// Where the board can't be read or written; the others' last word stands until it can.
    pub fn exchange<B: Board>(
        &mut self,
        board: &mut B,
        places: Places<'_>,
        now_ms: u64,
    ) -> Result<(), B::Error> {
        let known: BTreeSet<u64> = places.names.iter().copied().collect();
        self.health.retain(|name| known.contains(&name));
        for line in self.own.values_mut() {
            line.ejected_until_ms = 0;
        }
        for (name, until_ms) in self.health.ejected(now_ms) {
            self.own.entry(name).or_default().ejected_until_ms = until_ms;
        }
        self.own.retain(|_, line| *line != Line::default());
        let heard = self.member.beat(board, now_ms, &self.own);
        if let Ok(others) = &heard {
            self.others.clone_from(others);
        }
        self.show(places, now_ms);
        heard.map(drop)
    }

    /// Gives up this worker's place.
    pub fn leave<B: Board>(&mut self, board: &mut B) {
        // The host may be on its way out too; the place then expires.
        let _ = self.member.leave(board);
    }

    fn show(&mut self, places: Places<'_>, now_ms: u64) {
        self.ejected.clear();
        self.cold_tokens.clear();
        for (name, load) in places.names.iter().zip(places.loads) {
            let line = self.line(*name);
            load.in_flight = line.in_flight;
            self.cold_tokens.push(line.cold_tokens);
            self.ejected.push(line.ejected_until_ms > now_ms);
        }
    }

    fn show_one(&mut self, places: Places<'_>, name: u64) {
        let line = self.line(name);
        // Before the first exchange nothing is known of any.
        self.cold_tokens.resize(places.names.len(), 0);
        self.ejected.resize(places.names.len(), false);
        let all = places.names.iter().zip(places.loads).zip(&mut self.cold_tokens);
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
    pub fn local<'a>(
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
    pub fn has_in_flight(&self) -> bool {
        self.own.values().any(|line| line.in_flight > 0)
    }

    /// A request was sent, with so many tokens to compute.
    pub fn sent(&mut self, places: Places<'_>, name: u64, cold_tokens: u32) {
        let line = self.own.entry(name).or_default();
        line.in_flight = line.in_flight.saturating_add(1);
        line.cold_tokens = line.cold_tokens.saturating_add(cold_tokens);
        self.show_one(places, name);
    }

    /// They are computed.
    pub fn prefilled(&mut self, places: Places<'_>, name: u64, cold_tokens: u32) {
        if let Some(line) = self.own.get_mut(&name) {
            line.cold_tokens = line.cold_tokens.saturating_sub(cold_tokens);
        }
        self.show_one(places, name);
    }

    /// The request has ended.
    pub fn landed(&mut self, places: Places<'_>, name: u64) {
        if let Some(line) = self.own.get_mut(&name) {
            line.in_flight = line.in_flight.saturating_sub(1);
        }
        self.show_one(places, name);
    }

    /// A replica could not serve. Says whether that ejects it.
    pub fn failed(
        &mut self,
        rule: &Ejection,
        names: &[u64],
        name: u64,
        cause: Cause,
        now_ms: u64,
    ) -> bool {
        let ejected = self.health.failed(rule, name, cause, now_ms);
        if ejected {
            self.mark(names, name, true);
        }
        ejected
    }

    /// Whether a replica failed when it was last heard of.
    pub fn doubts(&self, name: u64) -> bool {
        self.health.doubts(name)
    }

    /// Whether this worker or another one has ejected a replica.
    pub fn is_ejected(&self, name: u64, now_ms: u64) -> bool {
        self.line(name).ejected_until_ms > now_ms
    }

    /// A replica has served.
    pub fn served(&mut self, names: &[u64], name: u64) {
        self.health.served(name);
        if let Some(line) = self.own.get_mut(&name)
            && line.ejected_until_ms > 0
        {
            line.ejected_until_ms = 0;
            // Another worker may still think otherwise; the next exchange tells.
            self.mark(names, name, false);
        }
    }

    fn mark(&mut self, names: &[u64], name: u64, ejected: bool) {
        for (at, place) in names.iter().zip(&mut self.ejected) {
            if *at == name {
                *place = ejected;
            }
        }
    }

    /// Sums over all workers, as of the last exchange.
    pub fn totals(&self, now_ms: u64) -> Totals {
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
    use super::*;
    use crate::ledger::EXPIRY_MS;
    use crate::ledger::tests::Shared;

    /// Two replicas, as every worker sees them.
    struct View {
        names: Vec<u64>,
        loads: Vec<Load>,
    }

    impl View {
        fn places(&mut self) -> Places<'_> {
            Places { names: &self.names, loads: &mut self.loads }
        }
    }

    fn view() -> View {
        View { names: vec![11, 12], loads: vec![Load::default(); 2] }
    }

    fn in_flight(view: &View) -> Vec<u32> {
        view.loads.iter().map(|load| load.in_flight).collect()
    }

    #[test]
    fn workers_see_each_other_s_requests_and_outlive_each_other() {
        let mut data = Shared::default();
        let (mut a, mut b) = (Traffic::new(1), Traffic::new(2));
        let (mut of_a, mut of_b) = (view(), view());
        let [first, second] = of_a.names[..] else { panic!() };
        for _ in 0..3 {
            a.sent(of_a.places(), first, 100);
        }
        b.sent(of_b.places(), first, 10);
        b.sent(of_b.places(), second, 0);
        for now in [1_000, 1_050] {
            a.exchange(&mut data, of_a.places(), now).unwrap();
            b.exchange(&mut data, of_b.places(), now).unwrap();
        }
        assert_eq!((in_flight(&of_a), in_flight(&of_b)), (vec![4, 1], vec![4, 1]));
        assert_eq!(b.local(&BTreeMap::new(), false, 1_050).cold_tokens, [310, 0]);
        let totals = Totals { in_flight: 5, cold_tokens: 310, ..Totals::default() };
        assert_eq!((a.totals(1_050), b.totals(1_050)), (totals, totals));

        // What one sends or ends counts at once with itself, and with the next tick elsewhere.
        a.prefilled(of_a.places(), first, 100);
        a.landed(of_a.places(), first);
        assert_eq!((in_flight(&of_a), in_flight(&of_b)), (vec![3, 1], vec![4, 1]));

        // The first one's VM is loaded again: what it had is forgotten, soon also by others.
        let mut again = Traffic::new(3);
        let mut of_again = view();
        let later = 1_050 + EXPIRY_MS + 1;
        b.exchange(&mut data, of_b.places(), later).unwrap();
        again.exchange(&mut data, of_again.places(), later).unwrap();
        assert_eq!((in_flight(&of_b), in_flight(&of_again)), (vec![1, 1], vec![1, 1]));
        // The second goes in order: nobody waits for that to expire.
        b.leave(&mut data);
        again.exchange(&mut data, of_again.places(), later).unwrap();
        assert_eq!(in_flight(&of_again), [0, 0]);
        assert_eq!(again.totals(later), Totals::default());
    }

    #[test]
    fn what_is_sent_counts_without_others_to_hear_of() {
        let (mut alone, mut view) = (Traffic::new(1), view());
        let [_, second] = view.names[..] else { panic!() };
        alone.sent(view.places(), second, 100);
        assert_eq!(in_flight(&view), [0, 1]);
        assert_eq!(alone.local(&BTreeMap::new(), false, 0).cold_tokens, [0, 100]);
        alone.prefilled(view.places(), second, 100);
        alone.landed(view.places(), second);
        assert_eq!(in_flight(&view), [0, 0]);
        assert_eq!(alone.local(&BTreeMap::new(), false, 0).cold_tokens, [0, 0]);
    }

    #[test]
    fn what_one_worker_ejects_the_others_leave_alone_too() {
        let mut data = Shared::default();
        let (mut a, mut b) = (Traffic::new(1), Traffic::new(2));
        let (mut of_a, mut of_b) = (view(), view());
        let [first, _] = of_a.names[..] else { panic!() };
        let rule = Ejection::default();
        for now in [1_000, 1_050] {
            a.exchange(&mut data, of_a.places(), now).unwrap();
            b.exchange(&mut data, of_b.places(), now).unwrap();
        }
        let told: Vec<bool> =
            (0..3).map(|_| a.failed(&rule, &of_a.names, first, Cause::Replica, 1_060)).collect();
        assert_eq!(told, [false, false, true]);
        assert_eq!(a.ejected, [true, false]);
        a.exchange(&mut data, of_a.places(), 1_100).unwrap();
        b.exchange(&mut data, of_b.places(), 1_100).unwrap();
        assert_eq!((&a.ejected, &b.ejected), (&vec![true, false], &vec![true, false]));
        assert_eq!(b.totals(1_100).ejected, 1);
        b.exchange(&mut data, of_b.places(), 1_060 + rule.base_ms).unwrap();
        assert_eq!(b.ejected, [false, false]);
        // A replica that goes takes what was known of it along.
        of_a.names.remove(0);
        of_a.loads.remove(0);
        a.exchange(&mut data, of_a.places(), 1_200).unwrap();
        assert_eq!(a.totals(1_200), Totals::default());
    }
}
