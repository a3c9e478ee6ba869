//! A child process that ends with its owner.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::ports::spawn;

/// A running program whose output goes to a file.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts the program; its output is appended to `NAME.log` in `dir`.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(name: &str, dir: &Path, command: &mut Command) -> anyhow::Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let out = File::options().create(true).append(true).open(&log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let child = spawn(command)
            .with_context(|| format!("{name}: can't start {}", command.get_program().display()))?;
        Ok(Self { name: name.into(), log, child })
    }

    /// Its id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it printed so far.
    pub fn output(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The last lines of that, in one.
    pub fn tail(&self) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        lines.get(lines.len().saturating_sub(5)..).unwrap_or_default().join(" | ")
    }

    /// An error if it has ended, with the end of what it printed.
    ///
    /// # Errors
    /// It has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let output = self.output();
            let from = output.floor_char_boundary(output.len().saturating_sub(4000));
            let tail = output.get(from..).unwrap_or_default();
            bail!("{} ended with {status}:\n{tail}", self.name);
        }
        Ok(())
    }

    /// Waits until something holds.
    ///
    /// # Errors
    /// It ended before, or it took longer than `patience`; with the end of what it printed.
    pub fn until(
        &mut self,
        patience: Duration,
        mut holds: impl FnMut() -> bool,
    ) -> anyhow::Result<()> {
        let start = Instant::now();
        while !holds() {
            self.check()?;
            if start.elapsed() > patience {
                let (name, seconds) = (&self.name, patience.as_secs());
                bail!("{name} was not ready within {seconds} s: {}", self.tail());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
