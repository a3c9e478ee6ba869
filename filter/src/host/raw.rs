//! The imports from the host, and the only unsafe code of the crate.
//!
//! The SDK has functions for these, but they panic on statuses that they don't list, header values
//! that are no UTF-8 included, and a panic ends the VM: the service's for good. Here every status
//! is a number. Signatures: proxy-wasm ABI 0.2.1, `abi-versions/v0.2.1/README.md` of
//! github.com/proxy-wasm/spec.
#![allow(unsafe_code)]

use std::ptr::{null, null_mut};

/// A status of the ABI; 0 is fine.
pub(super) type Status = u32;

/// The status that natively built code gets from every call.
#[cfg(not(target_arch = "wasm32"))]
const UNIMPLEMENTED: Status = 12;

// Declares the imports; natively, where there is no host, functions that say so.
macro_rules! imports {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?);)*) => {
        #[cfg(target_arch = "wasm32")]
        #[link(wasm_import_module = "env")]
        unsafe extern "C" {
            $(fn $name($($arg: $type),*) -> Status;)*
        }
        $(
            #[cfg(not(target_arch = "wasm32"))]
            #[allow(clippy::too_many_arguments)]
            unsafe fn $name($(_: $type),*) -> Status {
                UNIMPLEMENTED
            }
        )*
    };
}

imports! {
    fn proxy_get_current_time_nanoseconds(time: *mut u64);
    fn proxy_set_tick_period_milliseconds(period: u32);
    fn proxy_get_buffer_bytes(
        kind: u32, start: usize, most: usize, data: *mut *mut u8, size: *mut usize,
    );
    fn proxy_set_buffer_bytes(
        kind: u32, start: usize, size: usize, data: *const u8, data_size: usize,
    );
    fn proxy_get_header_map_pairs(map: u32, data: *mut *mut u8, size: *mut usize);
    fn proxy_replace_header_map_value(
        map: u32, key: *const u8, key_size: usize, value: *const u8, value_size: usize,
    );
    fn proxy_remove_header_map_value(map: u32, key: *const u8, key_size: usize);
    fn proxy_get_property(
        path: *const u8, path_size: usize, data: *mut *mut u8, size: *mut usize,
    );
    fn proxy_set_property(
        path: *const u8, path_size: usize, value: *const u8, value_size: usize,
    );
    fn proxy_get_shared_data(
        key: *const u8, key_size: usize, data: *mut *mut u8, size: *mut usize, cas: *mut u32,
    );
    fn proxy_set_shared_data(
        key: *const u8, key_size: usize, value: *const u8, value_size: usize, cas: u32,
    );
    fn proxy_send_local_response(
        status: u32, details: *const u8, details_size: usize, body: *const u8, body_size: usize,
        headers: *const u8, headers_size: usize, grpc_status: i32,
    );
    fn proxy_continue_stream(stream: u32);
    fn proxy_set_effective_context(context: u32);
    fn proxy_grpc_send(token: u32, message: *const u8, size: usize, end: bool);
    fn proxy_grpc_cancel(token: u32);
    fn proxy_define_metric(kind: u32, name: *const u8, size: usize, id: *mut u32);
    fn proxy_record_metric(id: u32, value: u64);
    fn proxy_increment_metric(id: u32, by: i64);
    fn proxy_call_foreign_function(
        name: *const u8, name_size: usize, arguments: *const u8, arguments_size: usize,
        data: *mut *mut u8, size: *mut usize,
    );
}

/// Takes over bytes that the host allocated through `proxy_on_memory_allocate`, which is a `Vec` of
/// exactly that capacity.
#[allow(clippy::same_length_and_capacity)]
unsafe fn take(data: *mut u8, size: usize) -> Option<Vec<u8>> {
    // SAFETY: by the ABI a non-null pointer that comes with an Ok status is ours, made by the
    // SDK's allocator with this very size.
    (!data.is_null()).then(|| unsafe { Vec::from_raw_parts(data, size, size) })
}

/// Calls an import that hands out bytes.
fn bytes(call: impl FnOnce(*mut *mut u8, *mut usize) -> Status) -> Result<Option<Vec<u8>>, Status> {
    let (mut data, mut size) = (null_mut(), 0);
    match call(&raw mut data, &raw mut size) {
        // SAFETY: the status is Ok.
        0 => Ok(unsafe { take(data, size) }),
        status => Err(status),
    }
}

fn done(status: Status) -> Result<(), Status> {
    if status == 0 { Ok(()) } else { Err(status) }
}

// SAFETY of all below: pointers and lengths come from live slices or live locals, and the host
// only reads the former and writes the latter during the call.

pub(super) fn now_nanos() -> Result<u64, Status> {
    let mut time = 0;
    done(unsafe { proxy_get_current_time_nanoseconds(&raw mut time) }).map(|()| time)
}

/// Lets the request of the effective context go on.
pub(super) fn resume_request() -> Result<(), Status> {
    const REQUEST: u32 = 0;
    done(unsafe { proxy_continue_stream(REQUEST) })
}

pub(super) fn set_effective_context(context: u32) -> Result<(), Status> {
    done(unsafe { proxy_set_effective_context(context) })
}

pub(super) fn set_tick_period(millis: u32) -> Result<(), Status> {
    done(unsafe { proxy_set_tick_period_milliseconds(millis) })
}

pub(super) fn buffer(kind: u32, start: usize, most: usize) -> Result<Option<Vec<u8>>, Status> {
    bytes(|data, size| unsafe { proxy_get_buffer_bytes(kind, start, most, data, size) })
}

pub(super) fn set_buffer(kind: u32, start: usize, size: usize, bytes: &[u8]) -> Result<(), Status> {
    done(unsafe { proxy_set_buffer_bytes(kind, start, size, bytes.as_ptr(), bytes.len()) })
}

pub(super) fn headers(map: u32) -> Result<Option<Vec<u8>>, Status> {
    bytes(|data, size| unsafe { proxy_get_header_map_pairs(map, data, size) })
}

pub(super) fn set_header(map: u32, key: &[u8], value: &[u8]) -> Result<(), Status> {
    done(unsafe {
        proxy_replace_header_map_value(map, key.as_ptr(), key.len(), value.as_ptr(), value.len())
    })
}

pub(super) fn remove_header(map: u32, key: &[u8]) -> Result<(), Status> {
    done(unsafe { proxy_remove_header_map_value(map, key.as_ptr(), key.len()) })
}

pub(super) fn property(path: &[u8]) -> Result<Option<Vec<u8>>, Status> {
    bytes(|data, size| unsafe { proxy_get_property(path.as_ptr(), path.len(), data, size) })
}

pub(super) fn set_property(path: &[u8], value: &[u8]) -> Result<(), Status> {
    done(unsafe { proxy_set_property(path.as_ptr(), path.len(), value.as_ptr(), value.len()) })
}

/// A value and its version, which is never 0.
pub(super) fn shared(key: &[u8]) -> Result<(Option<Vec<u8>>, u32), Status> {
    let mut cas = 0;
    let value = bytes(|data, size| unsafe {
        proxy_get_shared_data(key.as_ptr(), key.len(), data, size, &raw mut cas)
    })?;
    Ok((value, cas))
}

/// Version 0 overwrites whatever is there.
pub(super) fn set_shared(key: &[u8], value: &[u8], version: u32) -> Result<(), Status> {
    done(unsafe {
        proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), version)
    })
}

pub(super) fn respond(
    status: u32,
    details: &[u8],
    headers: &[u8],
    body: &[u8],
) -> Result<(), Status> {
    const NO_GRPC: i32 = -1;
    done(unsafe {
        proxy_send_local_response(
            status,
            details.as_ptr(),
            details.len(),
            body.as_ptr(),
            body.len(),
            headers.as_ptr(),
            headers.len(),
            NO_GRPC,
        )
    })
}

pub(super) fn grpc_send(token: u32, message: &[u8]) -> Result<(), Status> {
    done(unsafe { proxy_grpc_send(token, message.as_ptr(), message.len(), false) })
}

pub(super) fn grpc_cancel(token: u32) -> Result<(), Status> {
    done(unsafe { proxy_grpc_cancel(token) })
}

pub(super) fn define_metric(kind: u32, name: &[u8]) -> Result<u32, Status> {
    let mut id = 0;
    done(unsafe { proxy_define_metric(kind, name.as_ptr(), name.len(), &raw mut id) }).map(|()| id)
}

pub(super) fn record_metric(id: u32, value: u64) -> Result<(), Status> {
    done(unsafe { proxy_record_metric(id, value) })
}

pub(super) fn increment_metric(id: u32, by: i64) -> Result<(), Status> {
    done(unsafe { proxy_increment_metric(id, by) })
}

pub(super) fn foreign(name: &[u8]) -> Result<(), Status> {
    bytes(|data, size| unsafe {
        proxy_call_foreign_function(name.as_ptr(), name.len(), null(), 0, data, size)
    })
    .map(drop)
}
