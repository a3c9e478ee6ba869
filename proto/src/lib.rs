//! The side-stream's messages, generated from `proto/sidestream.proto`.
//!
//! With the feature `grpc` the tonic client and server are there too.
#![forbid(unsafe_code)]

/// Messages and, with the feature `grpc`, service of `warmpath.sidestream.v1`.
pub mod v1 {
    #![allow(missing_docs, unreachable_pub, unused_qualifications, clippy::pedantic)]
    include!(concat!(env!("OUT_DIR"), "/warmpath.sidestream.v1.rs"));
}
