//! The role `router`: the HTTP filter on every worker.

use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext};

use crate::config;
use crate::host;

/// What all requests of one worker share.
pub struct Router {
    config: config::Router,
}

impl Router {
    /// Sets up ticks.
    ///
    /// # Errors
    /// The host's.
    pub fn start(config: config::Router) -> host::Result<Self> {
        host::set_tick_period(config.shell.refresh_ms)?;
        Ok(Self { config })
    }

    /// Brings the view of the world up to date.
    pub fn on_tick(&self) {
        let _ = self.config.policy.region;
    }
}

/// One request and its response.
pub struct Exchange {
    #[expect(dead_code)]
    router: Rc<Router>,
}

impl Exchange {
    /// A request that has just begun.
    pub fn new(router: Rc<Router>) -> Self {
        Self { router }
    }
}

impl Context for Exchange {}
impl HttpContext for Exchange {}
