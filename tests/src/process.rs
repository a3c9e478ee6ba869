//! A child process that ends with its owner.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;

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

    /// What it printed so far.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
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
            anyhow::bail!("{} ended with {status}:\n{tail}", self.name);
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
