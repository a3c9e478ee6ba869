//! What processes have used, from `/proc`.

use std::collections::BTreeSet;

/// `USER_HZ`: ticks per second in `/proc`, the same on every Linux that Envoy runs on.
const TICKS: f64 = 100.0;

/// What a tree of processes used so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Seconds of processor time, user and system, of all threads that ever ran.
    pub cpu_seconds: f64,
    /// Bytes resident now.
    pub resident: u64,
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

/// What these processes and all of theirs used.
pub fn of(roots: &[u32]) -> Usage {
    let all: Vec<Stat> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| stat(entry.ok()?.file_name().to_str()?.parse().ok()?))
        .collect();
    let mut tree: BTreeSet<u32> = roots.iter().copied().collect();
    loop {
        let before = tree.len();
        tree.extend(
            all.iter().filter(|s| tree.contains(&s.parent)).map(|s| s.id).collect::<Vec<_>>(),
        );
        if tree.len() == before {
            break;
        }
    }
    let members = all.iter().filter(|stat| tree.contains(&stat.id));
    members.fold(Usage::default(), |sum, stat| Usage {
        cpu_seconds: sum.cpu_seconds + stat.ticks as f64 / TICKS,
        resident: sum.resident + stat.pages * 4096,
    })
}

/// The machine's load average of the last minute.
pub fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_something_and_nobody_nothing() {
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 50 {}
        let used = of(&[std::process::id()]);
        assert!(used.cpu_seconds > 0.0 && used.resident > 1 << 20, "{used:?}");
        assert_eq!(of(&[]).resident, 0);
    }
}
