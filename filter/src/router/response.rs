//! An answer as it passes: who gave it, when it began, and what its end says.

use warmpath_routing::orca::Orca;
use warmpath_routing::usage::{TAIL_BYTES, Tail, Usage};

use super::ticket::Answer;
use crate::host::{self, Headers};

/// ORCA's report of an engine's load.
const ORCA: &str = "endpoint-load-metrics";

/// What is watched of an answer.
#[derive(Debug, Default)]
pub(super) struct Watch {
    tail: Tail,
    /// Server-sent events: the first of them comes with the first token.
    pub(super) stream: bool,
    pub(super) begun: bool,
    /// Its end is still to be read.
    read: bool,
}

impl Watch {
    /// The headers are there.
    pub(super) fn begin(&mut self, orca: bool) -> host::Result<Answer> {
        let status = header(":status")?.parse().unwrap_or(0);
        let kind = header("content-type")?;
        self.stream = kind.starts_with("text/event-stream");
        // Of compressed bytes nothing can be read. Only what engines say themselves counts.
        let plain = matches!(header("content-encoding")?.as_str(), "" | "identity");
        let details = property(&["response", "code_details"])?;
        let of_engine = details == "via_upstream";
        let readable = self.stream || kind.starts_with("application/json");
        self.read = of_engine && plain && status == 200 && readable;
        Ok(Answer {
            orca: if orca { report()? } else { None },
            status,
            of_engine,
            // A tripped circuit breaker (`…{overflow}`) is Envoy's own doing.
            upstream_failed: details.starts_with("upstream_") && !details.contains("overflow"),
            upstream: Some(property(&["upstream", "address"])?).filter(|at| !at.is_empty()),
            attempts: host::number(&["upstream", "request_attempt_count"])?.unwrap_or(1) as usize,
        })
    }

    /// A piece of the body passes. Only its end is copied.
    pub(super) fn piece(&mut self, size: usize) -> host::Result<()> {
        if self.read && size > 0 {
            let start = size.saturating_sub(TAIL_BYTES);
            self.tail.push(&host::response_body(start, TAIL_BYTES)?);
        }
        Ok(())
    }

    /// The answer is whole: whether its end is to be looked at, which it is once.
    pub(super) fn is_due(&mut self) -> bool {
        std::mem::take(&mut self.read)
    }

    /// What the end says of tokens.
    pub(super) fn usage(&self) -> Option<Usage> {
        self.tail.usage()
    }
}

/// The engine's load; the client is not told of it.
fn report() -> host::Result<Option<Orca>> {
    let Some(value) = Headers::Response.get(ORCA)? else { return Ok(None) };
    Headers::Response.remove(ORCA)?;
    Ok(Orca::parse(&value))
}

fn header(name: &str) -> host::Result<String> {
    Ok(Headers::Response.get(name)?.map(super::exchange::text).unwrap_or_default())
}

fn property(path: &[&str]) -> host::Result<String> {
    Ok(host::property(path)?.map(super::exchange::text).unwrap_or_default())
}
