//! Where engines and the map drift apart, as all workers of this Envoy have seen it: one table in
//! shared data, to which each adds with its ticks. Where all is well there is nothing to add.

use std::collections::BTreeMap;

use warmpath_routing::drift::{
    Answered, Change, Hints, Id, Kind, MOST_DRIFTS, Observation, Suspect, Table,
};

use super::view::View;
use crate::host::{Counter, Gauge, HostError};
use crate::shared::{self, Data};

/// How often it is tried while other workers write as well; then it waits for the next tick.
const TRIES: usize = 4;
/// Answers that wait so; what is beyond is lost.
const MOST_NEWS: usize = 256;

/// The workers' common table.
pub(super) struct Drifts {
    table: Table,
    /// The version of it that was read.
    version: Option<u32>,
    news: Vec<Answered>,
    /// The last forecasts that held, of replicas of which the table has nothing: that others of their
    /// model are right tells where only one is wrong.
    held: BTreeMap<Id, [Observation; 2]>,
    began: Counter,
    drifting: Vec<(Kind, Gauge)>,
    poison: Vec<(Suspect, Gauge)>,
}

impl Drifts {
    pub(super) fn define() -> Self {
        let gauge = |name: String| Gauge::define(&format!("warmpath.router.{name}"));
        let kinds = Kind::ALL.into_iter().filter(|kind| kind.is_fault());
        Self {
            table: Table::default(),
            version: None,
            news: Vec::new(),
            held: BTreeMap::new(),
            began: Counter::define("warmpath.router.drift_began"),
            drifting: kinds
                .map(|kind| (kind, gauge(format!("drifting.{}", kind.name()))))
                .collect(),
            poison: Suspect::ALL
                .map(|suspect| (suspect, gauge(format!("suspect.{}", suspect.name()))))
                .into(),
        }
    }

    /// Takes in an answer of which is known what became of it.
    pub(super) fn push(&mut self, answered: Answered) {
        if answered.seen.is_right() && !self.table.minds(answered.id) {
            return;
        }
        if self.news.len() < MOST_NEWS {
            self.news.push(answered);
        }
    }

    /// A forecast of something cached that held. Says whether that is all there is to say of it.
    pub(super) fn held(&mut self, id: Id, seen: &Observation) -> bool {
        if self.table.minds(id) {
            return false;
        }
        if self.held.len() < MOST_DRIFTS || self.held.contains_key(&id) {
            let [first, _] = self.held.get(&id).copied().unwrap_or_default();
            self.held.insert(id, [*seen, first]);
        }
        true
    }

    pub(super) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Whether answers should tell all that they can.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.table.is_in_doubt()
    }

    /// Reads what the others have seen, adds what this worker has, and tells of what changed by that.
    ///
    /// # Errors
    /// When shared data can't be read or written; the next tick tries again.
    pub(super) fn exchange(&mut self, data: &mut impl Data, view: &View) -> Result<(), HostError> {
        let done = self.add(data, view);
        self.show();
        done
    }

    fn add(&mut self, data: &mut impl Data, view: &View) -> Result<(), HostError> {
        for _ in 0..TRIES {
            let found = data.get_versioned(shared::DRIFTS)?;
            let version = found.as_ref().map(|(_, version)| *version);
            if self.version != version || version.is_none() {
                // What nobody can have written counts for nothing.
                let table = found.and_then(|(bytes, _)| Table::decode(&bytes));
                (self.table, self.version) = (table.unwrap_or_default(), version);
            }
            let mut table = self.table.clone();
            let reports = self.changes(&mut table, view);
            if table == self.table {
                self.news.clear();
                return Ok(());
            }
            let version = version.unwrap_or(shared::ABSENT);
            if data.set_if(shared::DRIFTS, &table.encode(), version)? {
                self.news.clear();
                self.held.retain(|id, _| !table.minds(*id));
                (self.table, self.version) = (table, None);
                for report in &reports {
                    self.report(report);
                }
                return Ok(());
            }
        }
        Ok(())
    }

    fn changes(&self, table: &mut Table, view: &View) -> Vec<Report> {
        let mut reports = Vec::new();
        if view.world.fresh {
            table.retain(|name| view.names.contains(&name));
            for ((replica, name), hints) in view.replicas() {
                if hints.caches_nothing != table.is_hinted(name)
                    && let Some(change) = table.hint(name, hints.caches_nothing)
                {
                    let (model, endpoint) = (replica.pool.clone(), replica.endpoint.clone());
                    reports.push(Report { change, model, endpoint, seen: Observation::default() });
                }
            }
        }
        for Answered { id, model, endpoint, seen } in &self.news {
            let of_it = view.replicas().find(|((_, name), _)| *name == id.replica);
            let hints = of_it.map_or_else(Hints::default, |(_, hints)| hints);
            for change in table.observe(*id, seen, hints) {
                let (model, endpoint) = (model.clone(), endpoint.clone());
                reports.push(Report { change, model, endpoint, seen: *seen });
            }
            let of_model = Id { replica: 0, ..*id }..=Id { replica: u64::MAX, ..*id };
            let others = self.held.range(of_model).filter(|(other, _)| *other != id);
            for (other, held) in others {
                let known = view.names.contains(&other.replica) && !table.knows(*other);
                for seen in held.iter().filter(|held| known && held.expected > 0) {
                    // Right answers change nothing that would have to be told.
                    let _ = table.observe(*other, seen, Hints::default());
                }
            }
        }
        reports
    }

    fn report(&self, report: &Report) {
        let Report { change, model, endpoint, seen: Observation { expected, actual, .. } } = report;
        match change {
            Change::Began(Kind::Evicted, suspect) | Change::Renamed(Kind::Evicted, suspect) => {
                log::warn!(
                    "router: prefixes of {model} leave the cache of {endpoint} before their requests \
                     begin (the last: {expected} tokens expected, {actual} cached); {}: {}",
                    suspect.name(),
                    suspect.advice()
                );
            }
            Change::Began(kind, suspect) | Change::Renamed(kind, suspect) => {
                if matches!(change, Change::Began(..)) {
                    self.began.add(1);
                }
                log::error!(
                    "router: the prefix map and {model} at {endpoint} drift apart ({}: {expected} \
                     tokens expected, {actual} cached of late); suspect {}: {}",
                    kind.name(),
                    suspect.name(),
                    suspect.advice()
                );
            }
            Change::Ended(kind) => log::info!(
                "router: the prefix map and {model} at {endpoint} agree again ({})",
                kind.name()
            ),
        }
    }

    /// Alike whichever worker does it.
    fn show(&self) {
        for (kind, gauge) in &self.drifting {
            gauge.set(self.table.drifting(*kind) as u64);
        }
        for (suspect, gauge) in &self.poison {
            gauge.set(self.table.suspected(*suspect) as u64);
        }
    }

    #[cfg(test)]
    pub(super) fn table(&self) -> &Table {
        &self.table
    }
}

/// A change to report, and of what.
struct Report {
    change: Change,
    model: String,
    endpoint: String,
    seen: Observation,
}
