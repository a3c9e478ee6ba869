//! The engines: one process of this program that is all of them.

use std::process::Command;

use anyhow::Context;
use warmpath_tests::Process;

use super::ground::{Ground, PATIENCE, answers};

/// Starts them, and waits until they answer.
pub(super) fn start(ground: &Ground, sizes: &[usize]) -> anyhow::Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("upstream").arg("--model").arg(&ground.model);
    command.args(["--http", &join(&ground.engines)]);
    command.args(["--events", &join(&ground.events.concat())]);
    command.args(["--sizes", &join(sizes)]);
    let mut process = Process::start("upstream", &ground.dir, &mut command)?;
    let engines = ground.engines.clone();
    process
        .until(PATIENCE, || engines.iter().all(|port| answers(*port, "/health")))
        .context("the upstream")?;
    Ok(process)
}

fn join<T: ToString>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}
