//! `warmpath relay`.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::output;
use anyhow::Context as _;
use clap::ValueEnum;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::error;
use tracing_subscriber::EnvFilter;
use warmpath_relay::{Config, RelayError};

/// The configuration is wrong.
const BAD_CONFIGURATION: u8 = 2;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration, YAML; relative paths in it start from its directory. Read again at SIGHUP
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Check the configuration and the models' files, then end
    #[arg(long)]
    check: bool,
    /// How log lines are written, to standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// error, warn, info, debug, trace, or a filter as in RUST_LOG, which it overrides
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Ends with 0 after a signal or a good check, 2 where the configuration is wrong, 1 otherwise.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { config: path, check, log_format, log_level } = args;
    let filter = match &log_level {
        Some(level) => EnvFilter::try_new(level).context("--log-level")?,
        None => EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info")),
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // It would tell of them by `eprintln!`, which panics where nobody reads standard error.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    match log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
    let config = match Config::read(&path) {
        Ok(config) => config,
        Err(error) => return Ok(refuse(&error)),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = if check {
        runtime.block_on(warmpath_relay::check(&config))
    } else {
        runtime.block_on(async {
            let stop = stop_signal().context("can't wait for signals")?;
            let reloads = reloads(path.clone()).context("can't wait for signals")?;
            anyhow::Ok(
                warmpath_relay::run_reloading(
                    config,
                    warmpath_relay::artefact::build,
                    |_| {},
                    reloads,
                    stop,
                )
                .await,
            )
        })?
    };
    match result {
        Ok(()) => {
            if check {
                output::line(format_args!("{}: ok", path.display()))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(error @ RelayError::Model { .. }) => Ok(refuse(&error)),
        Err(error) => Err(error.into()),
    }
}

fn refuse(error: &dyn std::error::Error) -> ExitCode {
    output::tell(format_args!("warmpath relay: {error}"));
    ExitCode::from(BAD_CONFIGURATION)
}

/// The configuration, read again at each SIGHUP; one that is wrong is told and left out.
fn reloads(path: PathBuf) -> std::io::Result<mpsc::Receiver<Config>> {
    let mut hangup = signal(SignalKind::hangup())?;
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            match Config::read(&path) {
                Ok(config) => {
                    if sender.send(config).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    error!(%error, "the new configuration can't be used; the old one stays");
                }
            }
        }
    });
    Ok(receiver)
}

/// Completes at SIGINT or SIGTERM.
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
