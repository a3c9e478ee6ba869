//! The wasm shell: what Envoy loads.
//!
//! One module, two roles by its configuration: `sidestream`, a service on Envoy's main thread that
//! follows the relay, and `router`, the HTTP filter on every worker. Both only carry: what is
//! decided is decided in `warmpath_routing`.

pub mod config;
pub mod host;
pub mod root;
pub mod router;
pub mod shared;
pub mod sidestream;

// `main!` defines the entry point of the module, an unmangled function, which Rust counts as unsafe.
#[cfg(target_arch = "wasm32")]
#[allow(unsafe_code, missing_docs, unused_qualifications)]
mod entry {
    // Only this much: of hostcalls nothing but logging is allowed in here.
    proxy_wasm::main! {{
        proxy_wasm::set_log_level(proxy_wasm::types::LogLevel::Info);
        proxy_wasm::set_root_context(|_| Box::new(crate::root::Root::default()));
    }}
}
