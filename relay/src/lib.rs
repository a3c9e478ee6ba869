//! The relay: engines' KV events and load in, the side-stream to Envoy out.
#![forbid(unsafe_code)]

pub mod events;
pub mod index;
