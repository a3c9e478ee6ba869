//! The response on its way back, and the end of it all.

use proxy_wasm::types::Action;

use super::{EXPLAIN, Flow};
use crate::host::{self, Headers};
use crate::router::response::{Progress, begins_early};

impl Flow {
    pub(super) fn response_headers(&mut self, end: bool) -> Action {
        if self.router.explain && !self.explain.is_empty() {
            let last = self.last_key.map(|key| format!(", last=\"{key:?}\"")).unwrap_or_default();
            let _ = Headers::Response.set(EXPLAIN, &format!("{}{last}", self.explain));
        }
        self.watch.progress = Progress::Begun;
        if let Some(ticket) = &mut self.ticket {
            let looks = self.router.with(|all| all.looks_into(ticket)).unwrap_or(false);
            // The client must not see an engine's load report.
            // The engine that stored a response has to be known of each.
            if looks || self.orca || self.stored.matters() {
                match self.watch.begin(ticket.named.foreseen(), self.api, self.orca) {
                    Ok(answer) => {
                        let holder = self.router.with(|all| {
                            all.answered(ticket, &answer, host::now_ms);
                            all.who_answered(ticket, &answer)
                        });
                        self.holds(holder.flatten());
                    }
                    Err(error) => log::debug!("router: {error}"),
                }
            }
            self.watch.read &= looks;
            if end {
                self.own_failure(0);
                self.finish();
            }
        }
        Action::Continue
    }

    /// A replica answers with 200: it holds what was sought.
    pub(super) fn holds(&mut self, holder: Option<u64>) {
        let Some(holder) = holder else { return };
        if let Some(id) = self.stored.answered(holder, self.watch.stream) {
            self.remember(&id, holder);
        }
    }

    pub(super) fn remember(&self, id: &str, holder: u64) {
        self.router.with(|all| all.remember(self.claim(), id, holder, host::now_ms()));
    }

    pub(super) fn own_failure(&mut self, size: usize) {
        let Some(ticket) = &mut self.ticket else { return };
        match self.watch.own_failure(size) {
            Ok(None) => {}
            Ok(Some(answer)) => {
                self.router.with(|all| all.answered(ticket, &answer, host::now_ms));
            }
            Err(error) => log::debug!("router: {error}"),
        }
    }

    pub(super) fn over(&mut self) {
        let Some(ticket) = &self.ticket else { return };
        match self.watch.broke_off() {
            Ok(None) => {}
            Ok(Some((endpoint, client))) => {
                let now_ms = host::now_ms();
                self.router.with(|all| all.broke_off(ticket, &endpoint, Some(&client), now_ms));
            }
            Err(error) => log::debug!("router: {error}"),
        }
    }

    // Answers pass as they come: nothing here holds one back.
    pub(super) fn response_body(&mut self, size: usize, end: bool) -> Action {
        if end {
            self.own_failure(size);
        }
        match self.stored.piece(size, host::response_body) {
            Ok(None) => {}
            Ok(Some((id, holder))) => self.remember(&id, holder),
            Err(error) => log::debug!("router: {error}"),
        }
        let Some(ticket) = &mut self.ticket else { return Action::Continue };
        if self.watch.is_first_token(self.api, size) {
            // An answer in one piece comes with its last token, which tells nothing of the first.
            let timed = self.watch.stream && self.watch.read && !begins_early(self.api);
            let at = if timed { host::now_nanos().ok() } else { None };
            self.router.with(|all| all.first_token(ticket, at));
        }
        if let Err(error) = self.watch.piece(size) {
            log::debug!("router: {error}");
        }
        if end {
            self.finish();
        }
        Action::Continue
    }
}

impl Flow {
    pub(super) fn finish(&mut self) {
        let taken = self.watch.end();
        if let Some(ticket) = self.ticket.as_ref().filter(|_| taken) {
            self.router.with(|all| all.lived(ticket));
        }
        if let Some(ticket) = self.ticket.as_ref().filter(|_| self.watch.is_due()) {
            self.router.with(|all| all.finished(ticket, self.watch.usage()));
        }
    }
}

impl Drop for Flow {
    // Envoy deletes every context exactly once, whatever became of its request.
    fn drop(&mut self) {
        self.router.release(&mut self.awaited);
        if let Some(mut ticket) = self.ticket.take() {
            self.router.with(|all| all.landed(&mut ticket));
        }
    }
}
