//! A decision in one line, for a header or an access log.

use std::fmt::Write;

use super::Route;
use crate::view::World;

impl Route<'_> {
    /// The decision as a dictionary of RFC 8941 (structured fields): strings quoted, numbers bare,
    /// costs in milliseconds. It names places and figures, never text of the prompt nor a hash of
    /// it, by which a log's reader could confirm a guess.
    pub fn explain(&self, world: &World) -> String {
        let mut line = String::with_capacity(320);
        let string = |line: &mut String, name: &str, value: &str| {
            let safe = value.chars().filter(|c| matches!(c, ' '..='~') && !matches!(c, '"' | '\\'));
            if !line.is_empty() {
                line.push_str(", ");
            }
            line.push_str(name);
            line.push_str("=\"");
            line.extend(safe);
            line.push('"');
        };
        string(&mut line, "zone", self.zone);
        string(&mut line, "region", self.region);
        string(&mut line, "pool", self.pool);
        if let Some(replica) = self.replicas.first().and_then(|at| world.replicas.get(*at)) {
            string(&mut line, "replica", &replica.endpoint);
            if let Some(rank) = replica.rank {
                let _ = write!(line, ", rank={rank}");
            }
        }
        string(&mut line, "reason", self.reason.name());
        if let Some(degrade) = self.degrade {
            string(&mut line, "degrade", degrade.name());
        }
        if self.spilled {
            line.push_str(", spilled");
        }
        if self.crowded {
            line.push_str(", crowded");
        }
        let _ = write!(
            line,
            ", cached={}, prompt={}, blocks={}, holders={}, probes={}, prefill_ms={:.1}, \
             network_ms={:.1}, queue_ms={:.1}",
            self.cached_tokens,
            self.prompt_tokens,
            self.blocks,
            self.holders,
            self.probes,
            self.cost.prefill,
            self.cost.network,
            self.cost.queue,
        );
        if let Some(tier) = self.tier {
            string(&mut line, "tier", tier.name());
            let offloaded = self.offloaded_tokens;
            let _ = write!(line, ", offloaded={offloaded}, load_ms={:.1}", self.cost.load);
        }
        if self.hoped_tokens > self.cached_tokens {
            let _ = write!(line, ", hoped={}", self.hoped_tokens);
        }
        if self.cost.abroad > 0.0 {
            let _ = write!(line, ", abroad_ms={:.1}", self.cost.abroad);
        }
        line
    }
}
