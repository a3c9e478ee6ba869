//! Loads that engines report with their answers, until the relay says something newer.

use std::collections::BTreeMap;

use warmpath_routing::orca::Orca;
use warmpath_routing::view::Load;

use super::view::View;

/// How long a report counts that no poll confirms: the relay polls more often, but tells no news
/// where there are none.
const HOLD_MS: u64 = 1_000;

/// Reports by replica. Only those of the view's replicas are kept.
#[derive(Debug, Default)]
pub(super) struct OrcaLoads {
    reports: BTreeMap<u64, Report>,
    /// The version of the loads that the reports lie over.
    over: Option<u32>,
}

#[derive(Debug)]
struct Report {
    orca: Orca,
    /// What the relay had said by then.
    told: Load,
    until_ms: u64,
}

impl OrcaLoads {
    /// An engine reports its load with an answer.
    pub(super) fn heard(&mut self, view: &mut View, name: u64, orca: Orca, now_ms: u64) {
        let Some(load) = place(view, name) else { return };
        let told = self.reports.get(&name).map_or(*load, |report| report.told);
        *load = orca.over(*load);
        self.reports.insert(name, Report { orca, told, until_ms: now_ms.saturating_add(HOLD_MS) });
    }

    /// The view was refreshed: what is old goes, the rest is laid over what was read again.
    pub(super) fn refresh(&mut self, view: &mut View, now_ms: u64) {
        let version = view.loads_version();
        let read = std::mem::replace(&mut self.over, version) != version;
        self.reports.retain(|name, report| {
            let Some(load) = place(view, *name) else { return false };
            let same = (load.waiting, load.running, load.kv_usage)
                == (report.told.waiting, report.told.running, report.told.kv_usage);
            if read && !same {
                return false;
            }
            let base = Load { in_flight: load.in_flight, ..report.told };
            let counts = report.until_ms > now_ms;
            *load = if counts { report.orca.over(base) } else { base };
            counts
        });
    }
}

fn place(view: &mut View, name: u64) -> Option<&mut Load> {
    let at = view.names.iter().position(|known| *known == name)?;
    view.world.loads.get_mut(at)
}
