//! An Envoy whose decisions are looked at one by one.

use std::path::Path;

use anyhow::Context;
use warmpath_tests::{Process, Tools};

use super::ground::{ENGINES, Ground, WORKERS, free_ports};
use super::{engines, envoy};
use crate::ending;

/// One Envoy with Warmpath that says why it decides so.
#[derive(Debug)]
pub struct Watched {
    /// Where it listens.
    pub port: u16,
    /// Whom requests are for.
    pub zone: &'static str,
    _processes: [Process; 3],
    _dir: tempfile::TempDir,
}

impl Watched {
    /// Starts it. The first engine's events are published on `events`, by the caller.
    ///
    /// # Errors
    /// When the engines, the relay or Envoy don't start, or Envoy doesn't decide by the map within a
    /// minute.
    pub fn start(model: &Path, events: u16) -> anyhow::Result<Self> {
        let dir = ending::directory()?;
        let mut ports = free_ports(ENGINES * 2)?.into_iter();
        let mut take = || ports.by_ref().take(ENGINES).collect::<Vec<u16>>();
        let ground = Ground {
            workers: WORKERS,
            models: 1,
            dir: dir.path().to_owned(),
            model: model.canonicalize()?,
            tools: Tools::find()?,
            engines: take(),
            events: vec![take()],
        };
        let upstream = engines::start(&ground, &[8 << 10])?;
        let mut publishers = ground.events.concat();
        *publishers.first_mut().context("an engine")? = events;
        let (port, _, [relay, envoy]) = envoy::warmpath(&ground, "watched", &publishers, true)?;
        Ok(Self { port, zone: envoy::ZONE, _processes: [envoy, relay, upstream], _dir: dir })
    }
}
