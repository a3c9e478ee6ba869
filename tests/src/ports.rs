//! The quick start's ports, and free ones in their place.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;

/// Ports as the quick start's files name them, mapped to those in use.
#[derive(Clone, Debug)]
pub struct Ports(BTreeMap<u16, u16>);

/// Envoy's listener.
const GATEWAY: u16 = 10000;
/// Envoy's admin interface.
const ADMIN: u16 = 9901;
/// The relay's side-stream, and its admin interface.
const RELAY: [u16; 2] = [18900, 18901];
/// First port of the engines' HTTP, events and replay.
const ENGINE: [u16; 3] = [18001, 18101, 18201];

impl Ports {
    /// The files' own ports.
    pub fn fixed() -> Self {
        Self(Self::all().map(|port| (port, port)).collect())
    }

    /// Free ports below those that the system gives to outgoing connections, so that none of these
    /// takes one before it is used. Each call in a process has ports of its own.
    ///
    /// # Errors
    /// None is free.
    pub fn free() -> anyhow::Result<Self> {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        const FIRST: u16 = 20_000;
        const COUNT: u16 = 12_000;
        let start = (std::process::id() % u32::from(COUNT)) as u16;
        let mut candidates = std::iter::repeat_with(|| {
            FIRST + (start + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT
        })
        .take(usize::from(COUNT))
        .filter(|port| try_port(*port).is_ok());
        Self::all()
            .map(|port| Ok((port, candidates.next().context("no free port")?)))
            .collect::<anyhow::Result<_>>()
            .map(Self)
    }

    /// An error that names the first port which something else listens on.
    ///
    /// # Errors
    /// A port is taken.
    pub fn check_free(&self, engines: bool) -> anyhow::Result<()> {
        let engine = |port: &u16| ENGINE.iter().any(|first| (*first..*first + 4).contains(port));
        for (_, port) in self.0.iter().filter(|(name, _)| engines || !engine(name)) {
            try_port(*port).with_context(|| {
                format!("port {port} is taken: is another quick start running? End it first")
            })?;
        }
        Ok(())
    }

    /// The text with the quick start's ports replaced.
    pub fn apply(&self, text: &str) -> String {
        // Free ports lie above the files' own, so that none of them is replaced again.
        self.0.iter().fold(text.to_owned(), |text, (from, to)| {
            replace_number(&text, &from.to_string(), &to.to_string())
        })
    }

    /// Envoy's listener.
    pub fn gateway(&self) -> u16 {
        self.at(GATEWAY)
    }

    /// Envoy's admin interface.
    pub fn admin(&self) -> u16 {
        self.at(ADMIN)
    }

    /// The relay's admin interface.
    pub fn relay_admin(&self) -> u16 {
        self.at(RELAY[1])
    }

    /// HTTP, events and replay of an engine.
    pub fn engine(&self, engine: u16) -> [u16; 3] {
        ENGINE.map(|first| self.at(first + engine))
    }

    fn at(&self, port: u16) -> u16 {
        self.0.get(&port).copied().unwrap_or(port)
    }

    fn all() -> impl Iterator<Item = u16> {
        let engines = ENGINE.into_iter().flat_map(|first| first..first + 4);
        [GATEWAY, ADMIN].into_iter().chain(RELAY).chain(engines)
    }
}

/// Held while a port is tried and while a program is started: a new process has a copy of all
/// sockets until its program runs, so that a port only tried would still be taken.
static ALONE: Mutex<()> = Mutex::new(());

/// An error if something listens on the port.
fn try_port(port: u16) -> io::Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    TcpListener::bind(("127.0.0.1", port)).map(drop)
}

/// Starts a program without keeping a port taken that another thread tries.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    command.spawn()
}

/// Replaces a number where it stands alone.
fn replace_number(text: &str, from: &str, to: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(from) {
        let (before, after) = rest.split_at(at);
        let after = after.get(from.len()..).unwrap_or_default();
        let alone = !before.ends_with(|c: char| c.is_ascii_digit())
            && !after.starts_with(|c: char| c.is_ascii_digit());
        out.push_str(before);
        out.push_str(if alone { to } else { from });
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_being_started_takes_no_port() {
        let starts = std::thread::spawn(|| {
            for _ in 0..500 {
                let ended = spawn(&mut Command::new("true")).and_then(|mut child| child.wait());
                assert!(ended.is_ok_and(|status| status.success()));
            }
        });
        while !starts.is_finished() {
            let checked = Ports::free().and_then(|ports| ports.check_free(true));
            assert!(checked.is_ok(), "{checked:?}");
        }
        assert!(starts.join().is_ok());
    }
}
