//! Instructions of the hot path, counted by callgrind, against stored counts.
//!
//! Clocks are noisy where machines are shared; instructions are not. A count depends on the
//! compiler and on the vector instructions that the processor has, so the file says which compiler
//! it is of, and another one's counts are shown, not judged.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::cases::{CASES, Call, case};

/// Share by which a count may grow, or shrink, without a word: hash seeds differ from run to run.
const TOLERANCE: f64 = 0.03;

/// Calls whose instructions are counted: their mean is the count.
const CALLS: u64 = 8;

/// What is stored.
#[derive(Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Stored {
    /// `rustc --version`.
    compiler: String,
    /// Instructions of one call, by case.
    instructions: BTreeMap<String, u64>,
}

/// The one function whose instructions count.
#[inline(never)]
pub fn measured(call: &mut Call) {
    call();
}

/// Runs a case under callgrind's eyes.
///
/// # Errors
/// When there is no case of this name.
pub fn run_case(name: &str) -> anyhow::Result<()> {
    let mut call = case(name)?;
    call();
    for _ in 0..CALLS {
        measured(&mut call);
    }
    Ok(())
}

/// Counts all cases and compares them with the file, or writes it anew. Says whether all is well.
///
/// # Errors
/// When Valgrind is missing or fails, or the file can't be read or written.
pub fn guard(file: &Path, update: bool) -> anyhow::Result<bool> {
    let dir = tempfile::tempdir()?;
    let mut counted = Stored { compiler: compiler()?, ..Stored::default() };
    for (name, _) in CASES {
        counted.instructions.insert(name.to_owned(), count(name, dir.path())?);
    }
    if update {
        std::fs::write(file, serde_json::to_string_pretty(&counted)? + "\n")?;
    }
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("{}: no counts; --update writes them", file.display()))?;
    let stored: Stored = serde_json::from_str(&text).with_context(|| file.display().to_string())?;
    let (lines, good) = compare(&stored, &counted);
    for line in lines {
        println!("{line}");
    }
    if stored.compiler != counted.compiler {
        println!(
            "counted with {}, stored with {}: not judged; --update stores these",
            counted.compiler, stored.compiler
        );
        return Ok(true);
    }
    Ok(good)
}

fn compare(stored: &Stored, counted: &Stored) -> (Vec<String>, bool) {
    let mut good = true;
    let mut lines = Vec::new();
    for (name, now) in &counted.instructions {
        let Some(before) = stored.instructions.get(name) else {
            lines.push(format!("{name:<32} {now:>12}  NEW: --update stores it"));
            good = false;
            continue;
        };
        let growth = *now as f64 / (*before).max(1) as f64 - 1.0;
        let verdict = if growth > TOLERANCE {
            good = false;
            "SLOWER: make it good, or --update and say why"
        } else if growth < -TOLERANCE {
            good = false;
            "faster: --update keeps it so"
        } else {
            "ok"
        };
        lines.push(format!("{name:<32} {now:>12}  {:>+6.1} %  {verdict}", growth * 100.0));
    }
    (lines, good)
}

fn count(name: &str, dir: &Path) -> anyhow::Result<u64> {
    let out = dir.join(name.replace('/', "-"));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*guard*measured*"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe()?)
        .args(["case", name])
        .output()
        .context("valgrind can't be started; install it")?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let total = instructions(&std::fs::read_to_string(&out)?);
    if total == 0 {
        bail!("{name}: callgrind counted nothing, or did not find the measured function");
    }
    Ok(total / CALLS)
}

/// What all functions took themselves, from a callgrind profile
/// (<https://valgrind.org/docs/manual/cl-format.html>), but for glibc's inner allocator: how far
/// that has to look depends on where things happen to lie, down to the length of the program's
/// path. Calls of `malloc` and `free` count.
fn instructions(profile: &str) -> u64 {
    const ALLOCATOR: [&str; 5] =
        ["_int_", "malloc_consolidate", "unlink_chunk", "sysmalloc", "systrim"];
    // A name comes with its number once, `(7) malloc`, and then as `(7)`.
    let mut inner = BTreeMap::new();
    let mut counts = false;
    let mut of_callee = false;
    let mut sum = 0;
    for line in profile.lines() {
        if let Some(function) = line.strip_prefix("fn=") {
            let (number, name) = function.split_once(' ').unwrap_or((function, ""));
            let known = inner.get(number).copied().unwrap_or(false);
            let skip = known || ALLOCATOR.iter().any(|start| name.starts_with(start));
            inner.insert(number, skip);
            counts = !skip;
        } else if let Some(function) = line.strip_prefix("cfn=") {
            // May be where the name comes.
            if let Some((number, name)) = function.split_once(' ') {
                inner.insert(number, ALLOCATOR.iter().any(|start| name.starts_with(start)));
            }
        } else if line.starts_with("calls=") {
            of_callee = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<u64>().ok());
            if counts && !std::mem::take(&mut of_callee) {
                sum += cost.unwrap_or(0);
            }
            of_callee = false;
        }
    }
    sum
}

fn compiler() -> anyhow::Result<String> {
    let output = Command::new("rustc").arg("--version").output().context("rustc --version")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(count: u64) -> Stored {
        Stored { compiler: "rustc 1".into(), instructions: [("a".to_owned(), count)].into() }
    }

    #[test]
    fn what_is_called_and_the_inner_allocator_are_left_out() {
        let profile = "events: Ir\n\nfn=(1) run\n5 10\ncfn=(2) _int_malloc\ncalls=3 0\n6 700\n+1 20\n\n\
                       fn=(2)\n0 700\n\nfn=(3) malloc\n* 4\n\ntotals: 734\n";
        assert_eq!(instructions(profile), 34);
    }

    #[test]
    fn a_change_beyond_the_tolerance_is_told_both_ways() {
        assert!(compare(&stored(1000), &stored(1020)).1);
        assert!(!compare(&stored(1000), &stored(1040)).1);
        assert!(!compare(&stored(1000), &stored(900)).1);
        assert!(!compare(&Stored::default(), &stored(1)).1);
    }
}
