//! A decision in one line, for a header or an access log.

use super::outcome::Route;
use crate::view::World;

/// A line that is written without the formatting machinery, which would be the dearest part of a
/// decision that costs little: it is made for every request.
struct Line(String);

impl Line {
    fn field(&mut self, name: &str) {
        if !self.0.is_empty() {
            self.0.push_str(", ");
        }
        self.0.push_str(name);
    }

    fn string(&mut self, name: &str, value: &str) {
        let safe = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
        self.field(name);
        self.0.push_str("=\"");
        if value.bytes().all(safe) {
            self.0.push_str(value);
        } else {
            self.0.extend(value.bytes().filter(|byte| safe(*byte)).map(char::from));
        }
        self.0.push('"');
    }

    fn number(&mut self, name: &str, value: impl itoa::Integer) {
        self.field(name);
        self.0.push('=');
        self.0.push_str(itoa::Buffer::new().format(value));
    }

    /// To a tenth of a millisecond.
    fn ms(&mut self, name: &str, ms: f64) {
        // Not `round`, which is a call in wasm.
        let tenths = (ms * 10.0 + 0.5) as u64;
        self.number(name, tenths / 10);
        self.0.push('.');
        self.0.push_str(itoa::Buffer::new().format(tenths % 10));
    }
}

impl Route<'_> {
    /// The decision as a dictionary of RFC 8941 (structured fields): strings quoted, numbers bare,
    /// costs in milliseconds. It names places and figures, never text of the prompt nor a hash of
    /// it, by which a log's reader could confirm a guess.
    pub fn explain(&self, world: &World) -> String {
        let mut line = Line(String::with_capacity(320));
        line.string("zone", self.zone);
        line.string("region", self.region);
        line.string("pool", self.pool);
        if let Some(replica) = self.replicas.first().and_then(|at| world.replicas.get(*at)) {
            line.string("replica", &replica.endpoint);
            if let Some(rank) = replica.rank {
                line.number("rank", rank);
            }
        }
        line.string("reason", self.reason.name());
        if let Some(degrade) = self.degrade {
            line.string("degrade", degrade.name());
        }
        if self.spilled {
            line.field("spilled");
        }
        if self.crowded {
            line.field("crowded");
        }
        line.number("cached", self.cached_tokens);
        line.number("prompt", self.prompt_tokens);
        line.number("blocks", self.blocks);
        line.number("holders", self.holders);
        line.number("probes", self.probes);
        line.ms("prefill_ms", self.cost.prefill);
        line.ms("network_ms", self.cost.network);
        line.ms("queue_ms", self.cost.queue);
        if let Some(tier) = self.tier {
            line.string("tier", tier.name());
            line.number("offloaded", self.offloaded_tokens);
            line.ms("load_ms", self.cost.load);
        }
        if self.hoped_tokens > self.cached_tokens {
            line.number("hoped", self.hoped_tokens);
        }
        if self.cost.abroad > 0.0 {
            line.ms("abroad_ms", self.cost.abroad);
        }
        line.0
    }
}
