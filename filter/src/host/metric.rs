//! Envoy's metrics, each defined once in a VM.

use std::cell::RefCell;

use proxy_wasm::types::MetricType;

use super::raw;

/// Values of histograms that are kept from one tick to the next: hundreds a second, which is what a
/// distribution needs. To tell Envoy one costs about as much as to measure one.
const MOST_VALUES: usize = 32;

/// With so many tells a gauge that is set is told whether it changed or not: another VM may have
/// written to it.
const GAUGES_EVERY: u32 = 20;

/// What was counted and Envoy was not told yet. A request counts some ten things, and a call out of
/// the VM for each would be dearer than the counting.
#[derive(Debug, Default)]
struct Untold {
    /// By how much each counter grew.
    counters: Vec<Metric<u64>>,
    gauges: Vec<Metric<Level>>,
    /// How often Envoy was told.
    tells: u32,
    /// Histograms of Envoy's, and values.
    values: Vec<(u32, u64)>,
}

#[derive(Debug)]
struct Metric<T> {
    name: String,
    /// Envoy's; `None` where it refused the metric.
    id: Option<u32>,
    value: T,
}

/// What a gauge is at.
#[derive(Debug, Default)]
struct Level {
    /// What it was set to since Envoy was last told of anything.
    set: Option<u64>,
    told: Option<u64>,
}

/// The place of the metric of this name. A name that is known keeps its place, so that configuring a
/// VM again and again takes no more memory.
fn place<T: Default>(
    all: &mut Vec<Metric<T>>,
    name: &str,
    define: impl FnOnce(&str) -> Option<u32>,
) -> usize {
    all.iter().position(|metric| metric.name == name).unwrap_or_else(|| {
        all.push(Metric { name: name.to_owned(), id: define(name), value: T::default() });
        all.len() - 1
    })
}

impl Untold {
    fn counter(&mut self, name: &str, define: impl FnOnce(&str) -> Option<u32>) -> usize {
        place(&mut self.counters, name, define)
    }

    fn gauge(&mut self, name: &str, define: impl FnOnce(&str) -> Option<u32>) -> usize {
        place(&mut self.gauges, name, define)
    }

    fn add(&mut self, place: usize, by: u64) {
        if let Some(Metric { value, .. }) = self.counters.get_mut(place) {
            *value = value.saturating_add(by);
        }
    }

    fn set(&mut self, place: usize, value: u64, own: bool) {
        if let Some(Metric { value: level, .. }) = self.gauges.get_mut(place) {
            level.set = Some(value);
            level.told = level.told.filter(|_| !own);
        }
    }

    fn has_room(&self) -> bool {
        self.values.len() < MOST_VALUES
    }

    fn record(&mut self, id: u32, value: u64) {
        if self.has_room() {
            self.values.push((id, value));
        }
    }

    fn tell(&mut self, mut increment: impl FnMut(u32, u64), mut record: impl FnMut(u32, u64)) {
        for Metric { id, value, .. } in self.counters.iter_mut().filter(|it| it.value > 0) {
            let by = std::mem::take(value);
            if let Some(id) = *id {
                increment(id, by);
            }
        }
        let all = self.tells.is_multiple_of(GAUGES_EVERY);
        self.tells = self.tells.wrapping_add(1);
        for Metric { id, value: level, .. } in &mut self.gauges {
            let set = level.set.take().filter(|value| all || level.told != Some(*value));
            if let (Some(value), Some(id)) = (set, *id) {
                level.told = set;
                record(id, value);
            }
        }
        self.values.drain(..).for_each(|(id, value)| record(id, value));
    }
}

thread_local! {
    static UNTOLD: RefCell<Untold> = RefCell::default();
}

/// Tells Envoy what was counted since it was last told.
pub fn tell_metrics() {
    // A metric is not worth failing for.
    let increment = |id, by| {
        let _ = raw::increment_metric(id, i64::try_from(by).unwrap_or(i64::MAX));
    };
    let record = |id, value| {
        let _ = raw::record_metric(id, value);
    };
    UNTOLD.with_borrow_mut(|untold| untold.tell(increment, record));
}

/// A metric of Envoy's, which never falls. Envoy is told with the next [`tell_metrics`].
#[derive(Clone, Copy, Debug)]
pub struct Counter(usize);

/// A metric of Envoy's, which is a value of now. Envoy is told with the next [`tell_metrics`].
#[derive(Clone, Copy, Debug)]
pub struct Gauge(usize);

/// A metric of Envoy's, which is a distribution. Envoy is told with the next [`tell_metrics`], of as
/// many values as make one out.
#[derive(Clone, Copy, Debug)]
pub struct Histogram(Option<u32>);

fn metric(kind: MetricType, name: &str) -> Option<u32> {
    raw::define_metric(kind as u32, name.as_bytes())
        .inspect_err(|status| log::warn!("no metric {name}: status {status}"))
        .ok()
}

impl Counter {
    /// Defines the metric; one that Envoy refuses counts nothing.
    pub fn define(name: &str) -> Self {
        let define = |name: &str| metric(MetricType::Counter, name);
        Self(UNTOLD.with_borrow_mut(|untold| untold.counter(name, define)))
    }

    /// Adds to it.
    pub fn add(self, by: u64) {
        UNTOLD.with_borrow_mut(|untold| untold.add(self.0, by));
    }
}

impl Gauge {
    /// Defines the metric; one that Envoy refuses shows nothing.
    pub fn define(name: &str) -> Self {
        let define = |name: &str| metric(MetricType::Gauge, name);
        Self(UNTOLD.with_borrow_mut(|untold| untold.gauge(name, define)))
    }

    /// Sets it to what all workers will find.
    pub fn set(self, value: u64) {
        UNTOLD.with_borrow_mut(|untold| untold.set(self.0, value, false));
    }

    /// Sets it to what this worker alone has: Envoy is told even if that is what it was.
    pub fn set_own(self, value: u64) {
        UNTOLD.with_borrow_mut(|untold| untold.set(self.0, value, true));
    }
}

impl Histogram {
    /// Defines the metric; one that Envoy refuses shows nothing.
    pub fn define(name: &str) -> Self {
        Self(metric(MetricType::Histogram, name))
    }

    /// Whether another value is wanted before the next [`tell_metrics`].
    pub fn has_room(self) -> bool {
        self.0.is_some() && UNTOLD.with_borrow(Untold::has_room)
    }

    /// Adds a value.
    pub fn record(self, value: u64) {
        if let Some(id) = self.0 {
            UNTOLD.with_borrow_mut(|untold| untold.record(id, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_told_once_and_whole() {
        let mut untold = Untold::default();
        let [a, b] = ["a", "b"].map(|name| untold.counter(name, |_| Some(name.len() as u32 + 6)));
        let refused = untold.counter("refused", |_| None);
        assert_eq!(untold.counter("a", |_| panic!("it is defined already")), a);
        for (place, by) in [(a, 1), (refused, 9), (a, 2), (b, 0)] {
            untold.add(place, by);
        }
        let mut told = Vec::new();
        untold.tell(|id, by| told.push((id, by)), |_, _| panic!("no histogram"));
        untold.tell(|id, by| told.push((id, by)), |_, _| panic!("no histogram"));
        assert_eq!(told, [(7, 3)]);
        untold.add(b, u64::MAX);
        untold.add(b, 5);
        untold.record(9, 1);
        untold.record(9, 1);
        let mut values = Vec::new();
        untold.tell(|id, by| told.push((id, by)), |id, value| values.push((id, value)));
        assert_eq!(told, [(7, 3), (7, u64::MAX)]);
        assert_eq!(values, [(9, 1), (9, 1)]);

        for value in 0..2 * MOST_VALUES as u64 {
            untold.record(9, value);
        }
        assert!(!untold.has_room());
        values.clear();
        untold.tell(|_, _| {}, |id, value| values.push((id, value)));
        let last = MOST_VALUES as u64 - 1;
        assert_eq!((values.len(), values.last()), (MOST_VALUES, Some(&(9, last))));
        assert!(untold.has_room());
        untold.tell(|_, _| {}, |_, _| panic!("they were told"));
    }

    #[test]
    fn gauges_are_told_when_they_change_and_now_and_then() {
        let mut untold = Untold::default();
        let place = untold.gauge("g", |_| Some(7));
        assert_eq!(untold.gauge("g", |_| panic!("it is defined already")), place);
        let mut tell = |value: Option<u64>, own| {
            if let Some(value) = value {
                untold.set(place, value, own);
            }
            let mut told = Vec::new();
            untold.tell(|_, _| panic!("no counter"), |id, value| told.push((id, value)));
            told
        };
        assert_eq!(tell(None, false), [], "nothing is known yet");
        assert_eq!(tell(Some(0), false), [(7, 0)]);
        assert_eq!(tell(Some(0), false), []);
        assert_eq!(tell(Some(3), false), [(7, 3)]);
        assert_eq!(tell(None, false), []);
        let more: Vec<_> = (0..GAUGES_EVERY).flat_map(|_| tell(Some(3), false)).collect();
        assert_eq!(more, [(7, 3)], "another VM may have written to it");
        let none: Vec<_> = (0..GAUGES_EVERY).flat_map(|_| tell(None, false)).collect();
        assert_eq!(none, [], "another VM may know better");
        for _ in 0..2 {
            assert_eq!(tell(Some(3), true), [(7, 3)], "another VM has its own");
        }
    }

    #[test]
    fn without_a_host_nothing_fails() {
        Counter::define("x").add(1);
        Gauge::define("x").set(1);
        tell_metrics();
    }
}
