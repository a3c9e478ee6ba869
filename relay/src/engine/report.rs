//! What polls of an engine report: whether it is up, how busy it is, whether it sleeps, which ranks it has.

use std::time::Duration;

/// What one poll found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// It can serve.
    pub up: bool,
    /// How busy it is, where /metrics could be read.
    pub load: Option<Load>,
    /// The network's round trip to it, once that was measured.
    pub round_trip: Option<Duration>,
}

/// How busy an engine says it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Requests that wait.
    pub waiting: u32,
    /// Requests that run.
    pub running: u32,
    /// Share of the KV cache in use, 0 to 1.
    pub kv_usage: f32,
}

/// How deep an engine sleeps, by `vllm:engine_sleep_state` (vLLM 0.32.0, `v1/metrics/loggers.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// It computes nothing; whether it kept its cache isn't said.
    Paused,
    /// Its cache is gone. It says so in its events with its first step after it was woken.
    Emptied,
}

impl Sleep {
    /// For status.
    pub fn name(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Emptied => "emptied",
        }
    }
}

/// The data-parallel ranks that an engine's API has, as its metrics name them, and its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Engines {
    /// In order.
    pub ranks: Vec<u32>,
    /// There are no others: vLLM lists all from its start on.
    pub complete: bool,
    /// What the engine is: `vllm` or `sglang`, as its metrics begin.
    pub kind: Option<&'static str>,
}

impl Engines {
    /// The one that a request's header means by this number, where that is known.
    pub fn nth(&self, header: u32) -> Option<u32> {
        self.ranks.get(header as usize).copied().filter(|_| self.complete)
    }
}
