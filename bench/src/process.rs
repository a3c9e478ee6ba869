//! A child process that ends with its owner, and what it and its own children use.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// A running program whose output goes to a file.
#[derive(Debug)]
pub struct Process {
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts the program; what it prints goes to `NAME.log` in `dir`.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(name: &str, dir: &Path, command: &mut Command) -> anyhow::Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let out = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let child = command
            .spawn()
            .with_context(|| format!("{name}: can't start {}", command.get_program().display()))?;
        Ok(Self { log, child })
    }

    /// Its id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until something holds.
    ///
    /// # Errors
    /// It ended before, or it took longer than `patience`; with the end of its output.
    pub fn until(
        &mut self,
        patience: Duration,
        mut holds: impl FnMut() -> bool,
    ) -> anyhow::Result<()> {
        let start = Instant::now();
        while !holds() {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended with {status}: {}", self.tail());
            }
            if start.elapsed() > patience {
                bail!("it was not ready within {} s: {}", patience.as_secs(), self.tail());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// The last lines that it printed.
    pub fn tail(&self) -> String {
        let output = std::fs::read(&self.log).unwrap_or_default();
        let output = String::from_utf8_lossy(&output).into_owned();
        let lines: Vec<&str> = output.lines().collect();
        lines.get(lines.len().saturating_sub(5)..).unwrap_or_default().join(" | ")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
