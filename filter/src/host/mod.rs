//! The host, which is Envoy: the only module that calls it.
//!
//! Every call returns what went wrong as a [`HostError`]; nothing here panics.

mod header_list;
mod metric;
mod raw;

pub use header_list::{HeaderList, text};
pub use metric::{Counter, Gauge, Histogram, tell_metrics};

use std::fmt;

use proxy_wasm::{hostcalls, types};

/// A call that the host refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostError {
    /// What was called.
    pub call: &'static str,
    /// The status of the ABI that came back.
    pub status: u32,
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.status {
            1 => "not found",
            2 => "bad argument",
            3 => "serialization failure",
            4 => "parse failure",
            5 => "bad expression",
            6 => "invalid memory access",
            7 => "empty",
            8 => "CAS mismatch",
            10 => "internal failure",
            11 => "broken connection",
            12 => "unimplemented",
            _ => "unknown status",
        };
        write!(f, "Envoy answered {} with {name} ({})", self.call, self.status)
    }
}

impl std::error::Error for HostError {}

/// What a hostcall comes to.
pub type Result<T> = std::result::Result<T, HostError>;

const NOT_FOUND: u32 = types::Status::NotFound as u32;
const CAS_MISMATCH: u32 = types::Status::CasMismatch as u32;

fn named<T>(call: &'static str, result: std::result::Result<T, u32>) -> Result<T> {
    result.map_err(|status| HostError { call, status })
}

fn found<T>(call: &'static str, result: std::result::Result<Option<T>, u32>) -> Result<Option<T>> {
    match result {
        Err(NOT_FOUND) => Ok(None),
        other => named(call, other),
    }
}

/// Wall clock, in nanoseconds since 1970.
///
/// # Errors
/// Where Envoy doesn't say the time.
pub fn now_nanos() -> Result<u64> {
    named("get_current_time", raw::now_nanos())
}

/// Wall clock, in milliseconds since 1970; 0 where the host has none.
pub fn now_ms() -> u64 {
    now_nanos().unwrap_or(0) / 1_000_000
}

/// Makes the calls that follow, to the end of this callback, those of another context: that of a
/// request that was stopped.
///
/// # Errors
/// Where there is no such context any more.
pub fn act_for(context: u32) -> Result<()> {
    named("set_effective_context", raw::set_effective_context(context))
}

/// Lets the stopped request of the context acted for go on, once this callback is over.
///
/// # Errors
/// Where the request is not paused any more, or gone.
pub fn resume_request() -> Result<()> {
    named("continue_stream", raw::resume_request())
}

/// Asks for ticks of the running root context.
///
/// # Errors
/// Where Envoy refuses the period; it never did.
pub fn set_tick_period(millis: u32) -> Result<()> {
    named("set_tick_period", raw::set_tick_period(millis))
}

/// The plugin configuration; empty if there is none. Within `on_configure` only.
///
/// # Errors
/// Outside of the callback in which Envoy gives the configuration.
pub fn configuration() -> Result<Vec<u8>> {
    let kind = types::BufferType::PluginConfiguration as u32;
    found("get_buffer(configuration)", raw::buffer(kind, 0, usize::MAX))
        .map(Option::unwrap_or_default)
}

/// A part of the request body that is buffered so far.
///
/// # Errors
/// Outside of a request's body and trailers callbacks: there is no such buffer.
pub fn request_body(start: usize, most: usize) -> Result<Vec<u8>> {
    let kind = types::BufferType::HttpRequestBody as u32;
    found("get_buffer(request body)", raw::buffer(kind, start, most)).map(Option::unwrap_or_default)
}

/// Puts other bytes in the place of the request body that is buffered so far.
///
/// # Errors
/// Where the buffer can't be changed: it was sent on already.
pub fn set_request_body(bytes: &[u8]) -> Result<()> {
    // Envoy replaces what begins at 0 and has at least the buffer's length, all of it.
    set_body(0, usize::MAX, bytes)
}

/// Adds to the request body that is buffered so far.
///
/// # Errors
/// Where the buffer can't be changed: it was sent on already.
pub fn append_request_body(bytes: &[u8]) -> Result<()> {
    // What begins behind the buffer's end is appended.
    set_body(usize::MAX, 0, bytes)
}

fn set_body(start: usize, size: usize, bytes: &[u8]) -> Result<()> {
    let kind = types::BufferType::HttpRequestBody as u32;
    named("set_buffer(request body)", raw::set_buffer(kind, start, size, bytes))
}

/// A part of the response body that passes just now.
///
/// # Errors
/// Outside of a response's body callback: there is no such buffer.
pub fn response_body(start: usize, most: usize) -> Result<Vec<u8>> {
    let kind = types::BufferType::HttpResponseBody as u32;
    found("get_buffer(response body)", raw::buffer(kind, start, most))
        .map(Option::unwrap_or_default)
}

/// Which message's headers.
#[derive(Clone, Copy, Debug)]
pub enum Headers {
    /// The request's.
    Request,
    /// The response's.
    Response,
}

impl Headers {
    fn map(self) -> u32 {
        match self {
            Self::Request => types::MapType::HttpRequestHeaders as u32,
            Self::Response => types::MapType::HttpResponseHeaders as u32,
        }
    }

    /// All of them, by one call: each that hands out bytes costs as much as three that don't.
    ///
    /// # Errors
    /// Where the message has no such headers yet.
    pub fn all(self) -> Result<HeaderList> {
        let bytes = named("get_headers", raw::headers(self.map()))?;
        Ok(HeaderList(bytes.unwrap_or_default()))
    }

    /// Sets a header in the place of all of that name.
    ///
    /// # Errors
    /// Where the headers were sent on already, or may not be changed.
    pub fn set(self, name: &str, value: &str) -> Result<()> {
        named("set_header", raw::set_header(self.map(), name.as_bytes(), value.as_bytes()))
    }

    /// Removes all headers of the name; fine if there are none.
    ///
    /// # Errors
    /// Where the headers were sent on already, or may not be changed.
    pub fn remove(self, name: &str) -> Result<()> {
        match raw::remove_header(self.map(), name.as_bytes()) {
            Err(NOT_FOUND) => Ok(()),
            other => named("remove_header", other),
        }
    }
}

/// A property of the stream or the node, as the host serialises it. `path`: its names, a NUL between
/// them.
///
/// # Errors
/// Where Envoy can't give it; one that isn't there is `None`.
pub fn property(path: &str) -> Result<Option<Vec<u8>>> {
    found("get_property", raw::property(path.as_bytes()))
}

/// A property that is a whole number.
///
/// # Errors
/// Where Envoy can't give it; one that isn't there, or is no number, is `None`.
pub fn number(path: &str) -> Result<Option<u64>> {
    let bytes = property(path)?;
    Ok(bytes.and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes))
}

/// Writes a property of the stream; Envoy's filter state has it as `wasm.<name>`.
///
/// # Errors
/// Where Envoy refuses to keep it for the stream.
pub fn set_property(name: &str, value: &str) -> Result<()> {
    named("set_property", raw::set_property(name.as_bytes(), value.as_bytes()))
}

/// A value of shared data; `None` if it was never set.
///
/// # Errors
/// Where shared data can't be read: the status that Envoy gave.
pub fn shared(key: &[u8]) -> Result<Option<Vec<u8>>> {
    named("get_shared_data", raw::shared(key).map(|(value, _)| value).or_else(none_if_not_found))
}

/// A value of shared data (empty, if it was set so) with its version; `None` if it was never set.
///
/// # Errors
/// Where shared data can't be read: the status that Envoy gave.
pub fn shared_versioned(key: &[u8]) -> Result<Option<(Vec<u8>, u32)>> {
    let value = raw::shared(key).map(|(value, version)| Some((value.unwrap_or_default(), version)));
    named("get_shared_data", value.or_else(none_if_not_found))
}

fn none_if_not_found<T>(status: u32) -> std::result::Result<Option<T>, u32> {
    if status == NOT_FOUND { Ok(None) } else { Err(status) }
}

/// Sets a value of shared data whatever it was.
///
/// # Errors
/// Where shared data can't be written: the status that Envoy gave.
pub fn set_shared(key: &[u8], value: &[u8]) -> Result<()> {
    named("set_shared_data", raw::set_shared(key, value, 0))
}

/// Sets a value of shared data if it still has this version; says whether it did. Version 0
/// overwrites whatever is there.
///
/// # Errors
/// Where shared data can't be written: the status that Envoy gave.
pub fn set_shared_if(key: &[u8], value: &[u8], version: u32) -> Result<bool> {
    match raw::set_shared(key, value, version) {
        Err(CAS_MISMATCH) => Ok(false),
        other => named("set_shared_data", other).map(|()| true),
    }
}

/// Answers the request in the upstream's place. `details` is for the access log.
///
/// # Errors
/// Where an answer was begun already.
pub fn respond(status: u32, details: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<()> {
    let map = encode_map(headers);
    named("send_local_response", raw::respond(status, details.as_bytes(), &map, body))
}

/// Envoy has chosen a route before the filter ran: makes it choose again.
///
/// # Errors
/// Where the stream is over.
pub fn clear_route_cache() -> Result<()> {
    match raw::foreign(b"clear_route_cache") {
        // Before Envoy had this function it cleared by itself when a header changed.
        Err(NOT_FOUND) => Ok(()),
        other => named("clear_route_cache", other),
    }
}

/// Opens a gRPC stream; its token. From a tick only.
///
/// # Errors
/// Where Envoy can't open a stream: a cluster that isn't there is one reason.
pub fn grpc_open(cluster: &str, service: &str, method: &str) -> Result<u32> {
    // The SDK's own call, as it alone can register the token for callbacks. It panics on statuses
    // other than Ok, ParseFailure and InternalFailure: Envoy gives these three only (grpcStream in
    // source/extensions/common/wasm/context.cc), the rest would be a pointer out of memory.
    hostcalls::open_grpc_stream(cluster, service, method, Vec::new())
        .map_err(|status| HostError { call: "grpc_stream", status: status as u32 })
}

/// Sends a message on a stream that neither side has closed.
///
/// # Errors
/// Where the stream is closed.
pub fn grpc_send(token: u32, message: &[u8]) -> Result<()> {
    named("grpc_send", raw::grpc_send(token, message))
}

/// Resets a stream that neither side has closed. From a tick only: inside one of the stream's own
/// callbacks it would pull the stream away under Envoy.
///
/// # Errors
/// Where the stream is closed already.
pub fn grpc_cancel(token: u32) -> Result<()> {
    named("grpc_cancel", raw::grpc_cancel(token))
}

/// The gRPC message that is being received. Within its callback only.
///
/// # Errors
/// Outside of the callback in which a message comes.
pub fn grpc_message(size: usize) -> Result<Vec<u8>> {
    let kind = types::BufferType::GrpcReceiveBuffer as u32;
    found("get_buffer(gRPC)", raw::buffer(kind, 0, size)).map(Option::unwrap_or_default)
}

/// Headers as the ABI takes them: count, sizes, then zero-ended names and values.
fn encode_map(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&(pairs.len() as u32).to_le_bytes());
    for (name, value) in pairs {
        bytes.extend_from_slice(&(name.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
    }
    for (name, value) in pairs {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(0);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_laid_out_as_the_abi_says() {
        assert_eq!(encode_map(&[]), [0; 4]);
        assert_eq!(
            encode_map(&[("a", "bc")]),
            [1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, b'a', 0, b'b', b'c', 0]
        );
    }

    #[test]
    fn without_a_host_every_call_is_an_error_and_none_a_panic() {
        let error = shared(b"key").unwrap_err();
        assert_eq!(error, HostError { call: "get_shared_data", status: 12 });
        assert_eq!(error.to_string(), "Envoy answered get_shared_data with unimplemented (12)");
        assert_eq!(now_ms(), 0);
    }
}
