//! An end by a signal: what was started ends too, and no directory stays behind.

use std::process::exit;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use crate::usage;

/// Ends this process at SIGINT and SIGTERM, with all that it started. (A process that a signal ends
/// drops nothing.)
pub fn watch() {
    std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        let Some(number) = runtime.block_on(next()) else { return };
        for id in usage::descendants() {
            let id = i32::try_from(id).ok().and_then(Pid::from_raw);
            let _ = id.map(|id| kill_process(id, Signal::KILL));
        }
        let directories = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
        for directory in directories {
            if directory.file_name().to_string_lossy().starts_with(&prefix()) {
                let _ = std::fs::remove_dir_all(directory.path());
            }
        }
        exit(128 + number);
    });
}

/// The number of the signal that came.
async fn next() -> Option<i32> {
    let mut interrupt = signal(SignalKind::interrupt()).ok()?;
    let mut terminate = signal(SignalKind::terminate()).ok()?;
    let kind = tokio::select! {
        _ = interrupt.recv() => SignalKind::interrupt(),
        _ = terminate.recv() => SignalKind::terminate(),
    };
    Some(kind.as_raw_value())
}

/// How the directories of this process begin.
fn prefix() -> String {
    format!("warmpath-bench-{}-", std::process::id())
}

/// A directory that goes with this process.
///
/// # Errors
/// When the directory can't be made.
pub(crate) fn directory() -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix(&prefix()).tempdir()
}
