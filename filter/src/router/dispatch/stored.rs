//! Requests that refer to stored responses, and answers that bring new ones.

use warmpath_routing::residency::Claim;
use warmpath_routing::stored::Name;

use super::Dispatch;
use crate::router::stored;
use crate::router::ticket::{Answer, Ticket};
use crate::shared::Data;

impl<D: Data> Dispatch<D> {
    /// The place in the view of the replica that holds a response, if that is known.
    pub(super) fn holder(&mut self, claim: Claim<'_>, id: &str, now_ms: u64) -> Option<usize> {
        let name = self.stored_name(claim, id)?;
        match stored::find(&mut self.map.0, name, seconds(now_ms)) {
            Ok(holder) => self.view.names.iter().position(|name| Some(*name) == holder),
            Err(error) => {
                self.metrics.host_errors.add(1);
                log::error!("router: {error}");
                None
            }
        }
    }

    /// A replica holds a response: the next request for it goes there, whichever worker has it.
    pub(in crate::router) fn remember(
        &mut self,
        claim: Claim<'_>,
        id: &str,
        holder: u64,
        now_ms: u64,
    ) {
        let Some(name) = self.stored_name(claim, id) else { return };
        match stored::remember(&mut self.map.0, name, holder, seconds(now_ms)) {
            Ok(true) => self.metrics.responses_known.add(1),
            Ok(false) => {}
            Err(error) => {
                self.metrics.host_errors.add(1);
                log::error!("router: {error}");
            }
        }
    }

    /// The name of the replica that an answer is of, if it is one with 200.
    pub(in crate::router) fn who_answered(&self, ticket: &Ticket, answer: &Answer) -> Option<u64> {
        let upstream = answer.upstream.as_ref().filter(|_| answer.of_engine)?;
        if answer.status != 200 {
            return None;
        }
        let named = ticket.named.position(upstream);
        named.and_then(|at| ticket.named.names().get(at).copied()).or_else(|| {
            let mut all = self.view.world.replicas.iter().zip(&self.view.names);
            all.find(|(replica, _)| replica.endpoint == *upstream).map(|(_, name)| *name)
        })
    }

    fn stored_name(&self, claim: Claim<'_>, id: &str) -> Option<Name> {
        let (zone, _) = self.zone(claim).ok()?;
        Name::new(zone, id)
    }
}

fn seconds(now_ms: u64) -> u32 {
    u32::try_from(now_ms / 1_000).unwrap_or(u32::MAX)
}
