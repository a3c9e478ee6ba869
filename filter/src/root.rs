//! The root context: finds out its role and hands over to it.

use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

use crate::config::Config;
use crate::host;
use crate::router::{Exchange, Router};
use crate::sidestream::Service;

/// One plugin configuration's root.
#[derive(Default)]
pub struct Root {
    role: Role,
}

#[derive(Default)]
enum Role {
    #[default]
    Unset,
    SideStream(Box<Service>),
    Router(Rc<Router>),
}

impl Root {
    fn configure() -> Result<Role, String> {
        let bytes = host::configuration().map_err(|error| error.to_string())?;
        match Config::parse(&bytes).map_err(|error| error.to_string())? {
            Config::SideStream(config) => Service::start(config)
                .map(|service| Role::SideStream(Box::new(service)))
                .map_err(|error| error.to_string()),
            Config::Router(config) => Router::start(*config)
                .map(|router| Role::Router(Rc::new(router)))
                .map_err(|error| error.to_string()),
        }
    }
}

impl Context for Root {
    fn on_grpc_stream_message(&mut self, token: u32, size: usize) {
        if let Role::SideStream(service) = &mut self.role {
            service.on_message(token, size);
        }
    }

    fn on_grpc_stream_close(&mut self, token: u32, status: u32) {
        if let Role::SideStream(service) = &mut self.role {
            service.on_close(token, status);
        }
    }
}

impl Drop for Root {
    // What was counted since the last tick.
    fn drop(&mut self) {
        host::tell_metrics();
    }
}

impl RootContext for Root {
    // Envoy calls this in a throw-away VM too, to try the configuration: nothing may be written to
    // shared data, and no stream be opened, before the first tick.
    fn on_configure(&mut self, _size: usize) -> bool {
        match Self::configure() {
            Ok(role) => {
                self.role = role;
                true
            }
            Err(error) => {
                log::error!("warmpath: configuration refused: {error}");
                false
            }
        }
    }

    fn on_tick(&mut self) {
        match &mut self.role {
            Role::SideStream(service) => service.on_tick(),
            Role::Router(router) => router.on_tick(),
            Role::Unset => {}
        }
        host::tell_metrics();
    }

    fn create_http_context(&self, id: u32) -> Option<Box<dyn HttpContext>> {
        Some(match &self.role {
            Role::Router(router) => Box::new(Exchange::new(Rc::clone(router), id)),
            Role::SideStream(_) | Role::Unset => Box::new(Misplaced),
        })
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

/// An HTTP filter whose configuration is not a router's: no request may pass it unrouted.
struct Misplaced;

impl Context for Misplaced {}

impl HttpContext for Misplaced {
    fn on_http_request_headers(&mut self, _headers: usize, _end: bool) -> Action {
        let body = b"warmpath: this HTTP filter is not configured with \"role\": \"router\"\n";
        if let Err(error) = host::respond(503, "warmpath_misplaced", &[], body) {
            log::error!("warmpath: {error}");
        }
        Action::Pause
    }
}
