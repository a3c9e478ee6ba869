//! A request on its way in: headers, body, trailers.

use proxy_wasm::types::Action;
use warmpath_prompt::Large;
use warmpath_routing::decision::Refusal;

use super::{Begun, Flow, Stage};
use crate::host::{self, Headers};
use crate::router::inflate::{Coding, InflateError};

impl Flow {
    pub(super) fn request_headers(&mut self, end: bool) -> Action {
        let answered = match self.begin(end) {
            // Needs `allow_on_headers_stop_iteration`, or Envoy would hold back the body too.
            Ok(Begun::Body) => return Action::Pause,
            Ok(Begun::Decide) => return self.route(&[], false),
            Ok(Begun::Models(name)) => self.list(name.as_deref()),
            Ok(Begun::Encoded(encoding)) => {
                self.count_and_refuse(&Refusal::unsupported_encoding(&encoding))
            }
            Err(error) => {
                log::error!("router: {error}");
                self.fail("host")
            }
        };
        self.stage = Stage::Done;
        // If even that fails, it stays where it is and times out.
        answered.unwrap_or(Action::Pause)
    }

    // What to do with more of a request that was looked at already.
    pub(super) fn settled(&self) -> Option<Action> {
        match self.stage {
            Stage::Done => Some(Action::Continue),
            Stage::Waiting(_) => Some(Action::Pause),
            Stage::Reading => None,
        }
    }

    pub(super) fn request_body(&mut self, size: usize, end: bool) -> Action {
        if let Some(action) = self.settled() {
            return action;
        }
        if let Some(coding) = self.coding {
            self.compressed = size;
            let too_large = size > self.router.most_inflated;
            return if end || too_large { self.inflate(coding) } else { Action::Pause };
        }
        if size > self.router.most_body {
            return self.large_body(size, end);
        }
        if !end {
            return Action::Pause;
        }
        let bytes = self.buffered();
        self.route(&bytes, self.router.may_wait())
    }

    /// A compressed body is there, whole, or larger than it may become: puts what it was made of in its
    /// place, for the decision and for the engine.
    pub(super) fn inflate(&mut self, coding: Coding) -> Action {
        match self.try_inflate(coding) {
            Ok(bytes) => {
                self.coding = None;
                self.request_body(bytes, true)
            }
            Err(error) => {
                self.stage = Stage::Done;
                let refused = match error {
                    InflateError::TooLarge => {
                        let most = self.router.most_inflated;
                        self.count_and_refuse(&Refusal::request_too_large(most))
                    }
                    InflateError::Corrupt => self.count_and_refuse(&Refusal::bad_encoding()),
                    InflateError::Host(error) => {
                        log::error!("router: {error}");
                        self.fail("host")
                    }
                };
                refused.unwrap_or(Action::Pause)
            }
        }
    }

    pub(super) fn try_inflate(&self, coding: Coding) -> Result<usize, InflateError> {
        let most = self.router.most_inflated;
        if self.compressed > most {
            return Err(InflateError::TooLarge);
        }
        let body = host::request_body(0, self.compressed).map_err(InflateError::Host)?;
        let mut first = true;
        let bytes = coding.inflate(&body, most, |piece| {
            if std::mem::take(&mut first) {
                host::set_request_body(piece)
            } else {
                host::append_request_body(piece)
            }
        })?;
        let told = if bytes == 0 { host::set_request_body(&[]) } else { Ok(()) };
        told.and_then(|()| Headers::Request.remove("content-encoding"))
            .and_then(|()| Headers::Request.remove("transfer-encoding"))
            .and_then(|()| Headers::Request.set("content-length", &bytes.to_string()))
            .map_err(InflateError::Host)?;
        Ok(bytes)
    }

    pub(super) fn count_and_refuse(&mut self, refusal: &Refusal) -> host::Result<Action> {
        self.router.with(|all| all.metrics().refused(refusal));
        self.refuse(refusal)
    }

    /// More of a body that is not looked into. It goes on as soon as its model is known.
    pub(super) fn large_body(&mut self, size: usize, end: bool) -> Action {
        let matters = self.router.parts_models();
        let form = self.form.as_deref();
        let large = self.large.get_or_insert_with(|| Large::new(form));
        let looked = if matters {
            large.feed(size, end, host::request_body)
        } else {
            large.pass(size);
            Ok(true)
        };
        let found = looked.unwrap_or_else(|error| {
            log::error!("router: {error}");
            true
        });
        if !(found || end) {
            return Action::Pause;
        }
        let start = self.buffered();
        self.route(&start, end && self.router.may_wait())
    }

    pub(super) fn request_trailers(&mut self) -> Action {
        if let Some(action) = self.settled() {
            return action;
        }
        if let Some(coding) = self.coding {
            return self.inflate(coding);
        }
        if let Some(size) = self.large.as_ref().map(Large::bytes) {
            return self.large_body(size, true);
        }
        let bytes = self.buffered();
        self.route(&bytes, self.router.may_wait())
    }
}
