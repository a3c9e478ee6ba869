//! What processes have used, from `/proc`.

use std::collections::{BTreeMap, BTreeSet};

/// `USER_HZ`: ticks per second in `/proc`, the same on every Linux that Envoy runs on.
const TICKS: f64 = 100.0;

/// What a tree of processes used so far.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Seconds of processor time, user and system, of all threads that ever ran; in whole ticks.
    cpu_seconds: f64,
    /// Nanoseconds of processor time by thread, of those that run.
    threads: BTreeMap<u32, u64>,
    /// Bytes resident now.
    pub resident: u64,
}

impl Usage {
    /// Seconds of processor time used since `before`: to the nanosecond, unless a thread has ended
    /// since.
    pub fn cpu_seconds_since(&self, before: &Self) -> f64 {
        let ended = before.threads.keys().any(|thread| !self.threads.contains_key(thread));
        let used = |(thread, nanos): (&u32, &u64)| {
            nanos.saturating_sub(before.threads.get(thread).copied().unwrap_or(0))
        };
        match self.threads.iter().map(used).sum::<u64>() {
            nanos if nanos > 0 && !ended => nanos as f64 / 1e9,
            _ => self.cpu_seconds - before.cpu_seconds,
        }
    }
}

struct Stat {
    id: u32,
    parent: u32,
    ticks: u64,
    pages: u64,
}

fn stat(id: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name may hold anything, blanks too; it ends with the last parenthesis.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // Field 3 of proc(5), the state, is the first here.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Stat {
        id,
        parent: number(4)? as u32,
        ticks: number(14)? + number(15)?,
        pages: number(24)?,
    })
}

/// Processor time of a process's threads, in nanoseconds: the first number of `schedstat`, which is
/// missing or 0 on kernels without the statistics.
fn threads(id: u32) -> Vec<(u32, u64)> {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten();
    let thread = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let nanos = text.split(' ').next()?.parse().ok()?;
        Some((task.file_name().to_str()?.parse().ok()?, nanos))
    };
    tasks.filter_map(|task| thread(task.ok()?)).collect()
}

/// All processes.
fn processes() -> Vec<Stat> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| stat(entry.ok()?.file_name().to_str()?.parse().ok()?)).collect()
}

/// These processes and all of theirs.
fn tree(roots: &[u32], all: &[Stat]) -> BTreeSet<u32> {
    let mut tree: BTreeSet<u32> = roots.iter().copied().collect();
    loop {
        let before = tree.len();
        tree.extend(
            all.iter().filter(|s| tree.contains(&s.parent)).map(|s| s.id).collect::<Vec<_>>(),
        );
        if tree.len() == before {
            return tree;
        }
    }
}

/// All processes that this one has started, and theirs.
pub fn descendants() -> Vec<u32> {
    let own = std::process::id();
    tree(&[own], &processes()).into_iter().filter(|id| *id != own).collect()
}

/// What these processes and all of theirs used.
pub fn of(roots: &[u32]) -> Usage {
    let all = processes();
    let tree = tree(roots, &all);
    let mut usage = Usage::default();
    for stat in all.iter().filter(|stat| tree.contains(&stat.id)) {
        usage.cpu_seconds += stat.ticks as f64 / TICKS;
        usage.resident += stat.pages * 4096;
        usage.threads.extend(threads(stat.id));
    }
    usage
}

/// The machine's load average of the last minute.
pub fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin(millis: u128) {
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < millis {}
    }

    #[test]
    fn this_process_uses_something_and_nobody_nothing() {
        let before = of(&[std::process::id()]);
        spin(50);
        let after = of(&[std::process::id()]);
        let used = after.cpu_seconds_since(&before);
        assert!(used > 0.0 && after.resident > 1 << 20, "{after:?}");
        assert_eq!(of(&[]).resident, 0);
    }

    #[test]
    fn threads_count_to_the_nanosecond_and_ticks_where_one_has_ended() {
        let usage = |cpu_seconds, threads: &[(u32, u64)]| Usage {
            cpu_seconds,
            threads: threads.iter().copied().collect(),
            resident: 0,
        };
        let before = usage(1.0, &[(1, 1_000), (2, 500)]);
        let more = usage(1.02, &[(1, 1_500), (2, 500), (3, 7_000)]);
        assert!((more.cpu_seconds_since(&before) - 7.5e-6).abs() < 1e-12);
        let fewer = usage(1.02, &[(1, 1_500)]);
        assert!((fewer.cpu_seconds_since(&before) - 0.02).abs() < 1e-12);
        let none = usage(1.02, &[]);
        assert!((none.cpu_seconds_since(&usage(1.0, &[])) - 0.02).abs() < 1e-12);
    }
}
