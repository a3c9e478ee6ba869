//! Results: medians over the rounds, as Markdown, and everything as JSON.

use std::fmt::Write;

use serde::Serialize;

use crate::usage;

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// What was measured.
    pub system: String,
    /// Size of the bodies.
    pub bytes: usize,
    /// How requests came.
    pub shape: String,
    /// Good answers.
    pub requests_per_second: f64,
    /// Others.
    pub errors: u64,
    /// Median latency, in microseconds.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Processor time of the whole proxy per request; none without a proxy.
    pub cpu_us: Option<f64>,
    /// Resident memory of the whole proxy, in megabytes.
    pub resident_mb: Option<f64>,
    /// Share of Warmpath's decisions that were taken for the reason that this row is about.
    pub as_meant: Option<f64>,
}

impl Cell {
    /// For whoever watches.
    pub fn line(&self) -> String {
        format!(
            "{:>6} B {:<12} {:<26} {:>8.0} req/s  p50 {:>7.0} µs  p99 {:>8.0} µs  CPU {:>6} µs{}{}",
            self.bytes,
            self.shape,
            self.system,
            self.requests_per_second,
            self.p50_us,
            self.p99_us,
            self.cpu_us.map_or("–".into(), |us| format!("{us:.0}")),
            if self.errors > 0 { format!("  {} ERRORS", self.errors) } else { String::new() },
            match self.as_meant {
                Some(share) if share < 0.9 => format!("  only {:.0} % as meant", share * 100.0),
                _ => String::new(),
            }
        )
    }
}

/// All results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    machine: String,
    date: String,
    command: String,
    rounds: usize,
    seconds: f64,
    load_before: f64,
    /// Load average at the end: the benchmark's own and others'.
    pub load_after: f64,
    missing: Vec<(String, String)>,
    cells: Vec<Cell>,
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = std::process::Command::new(program).args(arguments).output();
    output.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default()
}

fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{}, {cores} cores", model.map_or("unknown processor", |(_, name)| name.trim()))
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len().checked_sub(1)? / 2;
    let low = *values.get(middle)?;
    let high = *values.get(values.len() / 2)?;
    Some(low.midpoint(high))
}

impl Report {
    /// A report without results.
    pub fn new(command: &str, rounds: usize, seconds: f64, missing: &[(String, String)]) -> Self {
        Self {
            machine: machine(),
            date: output("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            command: command.into(),
            rounds,
            seconds,
            load_before: usage::load_average(),
            load_after: 0.0,
            missing: missing.to_vec(),
            cells: Vec::new(),
        }
    }

    /// Adds a result.
    pub fn add(&mut self, cell: Cell) {
        self.cells.push(cell);
    }

    fn distinct<T: PartialEq>(&self, of: impl Fn(&Cell) -> T) -> Vec<T> {
        self.cells.iter().map(of).fold(Vec::new(), |mut seen, value| {
            if !seen.contains(&value) {
                seen.push(value);
            }
            seen
        })
    }

    fn median(&self, key: (&str, usize, &str), of: impl Fn(&Cell) -> Option<f64>) -> Option<f64> {
        let cells =
            self.cells.iter().filter(|c| (c.system.as_str(), c.bytes, c.shape.as_str()) == key);
        median(cells.filter_map(of).collect())
    }

    /// The tables.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{}; {}; `{}`; {} rounds of {} s, medians; load before {:.2}, after {:.2}.\n\
             CPU is of the whole proxy (with Warmpath, the relay too). *added* is against plain Envoy \
             in the same run.",
            self.machine,
            self.date,
            self.command,
            self.rounds,
            self.seconds,
            self.load_before,
            self.load_after
        );
        for (name, why) in &self.missing {
            let _ = writeln!(text, "\nMissing: **{name}**: {why}");
        }
        let systems = self.distinct(|cell| cell.system.clone());
        for bytes in self.distinct(|cell| cell.bytes) {
            for shape in self.distinct(|cell| cell.shape.clone()) {
                let _ = writeln!(
                    text,
                    "\n### {} KB, {shape}\n\n\
                     | | req/s | p50 µs | p99 µs | CPU µs/req | MB | added p50 | added CPU | CPU × |\n\
                     | --- | --: | --: | --: | --: | --: | --: | --: | --: |",
                    bytes >> 10
                );
                for system in &systems {
                    self.row(&mut text, system, bytes, &shape);
                }
            }
        }
        text
    }

    fn row(&self, text: &mut String, system: &str, bytes: usize, shape: &str) {
        let of = |value: fn(&Cell) -> Option<f64>| self.median((system, bytes, shape), value);
        let plain = |value: fn(&Cell) -> Option<f64>| self.median(("envoy", bytes, shape), value);
        let number = |value: Option<f64>| value.map_or("–".into(), |v| format!("{v:.0}"));
        let signed = |value: Option<f64>| value.map_or("–".into(), |v| format!("{v:+.0}"));
        let proxied = system != "direct" && system != "envoy";
        let p50 = |cell: &Cell| Some(cell.p50_us);
        let cpu = |cell: &Cell| cell.cpu_us;
        let added = |value: fn(&Cell) -> Option<f64>| {
            if proxied { Some(of(value)? - plain(value)?) } else { None }
        };
        let ratio = if proxied { of(cpu).zip(plain(cpu)).map(|(a, b)| a / b) } else { None };
        let errors = self.median((system, bytes, shape), |c| Some(c.errors as f64)).unwrap_or(0.0);
        let meant = self.median((system, bytes, shape), |c| c.as_meant).filter(|m| *m < 0.9);
        let mut name = system.to_owned();
        if errors > 0.0 {
            let _ = write!(name, " ({errors:.0} errors)");
        }
        if let Some(share) = meant {
            let _ = write!(name, " (only {:.0} % so)", share * 100.0);
        }
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {} | {} | {} | {} | {} | {} |",
            number(of(|c| Some(c.requests_per_second))),
            number(of(p50)),
            number(of(|c| Some(c.p99_us))),
            number(of(cpu)),
            number(of(|c| c.resident_mb)),
            signed(added(p50)),
            signed(added(cpu)),
            ratio.map_or("–".into(), |r| format!("{r:.2}")),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_gives_medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn a_table_compares_with_plain_envoy() {
        let cell = |system: &str, p50_us, cpu_us| Cell {
            system: system.into(),
            bytes: 8192,
            shape: "closed 1".into(),
            requests_per_second: 10.0,
            errors: 0,
            p50_us,
            p99_us: 500.0,
            cpu_us,
            resident_mb: Some(50.0),
            as_meant: None,
        };
        let mut report = Report::new("x", 1, 1.0, &[("peer".into(), "why".into())]);
        report.add(cell("direct", 60.0, None));
        report.add(cell("envoy", 300.0, Some(200.0)));
        report.add(cell("warmpath warm", 380.0, Some(260.0)));
        let text = report.markdown();
        assert!(text.contains("Missing: **peer**: why"), "{text}");
        assert!(
            text.contains("| warmpath warm | 10 | 380 | 500 | 260 | 50 | +80 | +60 | 1.30 |"),
            "{text}"
        );
        assert!(text.contains("| direct | 10 | 60 | 500 | – | 50 | – | – | – |"), "{text}");
    }
}
