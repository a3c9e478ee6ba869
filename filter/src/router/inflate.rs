//! Compressed bodies, undone: engines read none, and neither the model nor the prompt can be told.
//!
//! Envoy's own decompressors would do it before this filter. But what they make of a body passes the
//! buffers' watermarks: 3 MB of gzip were seen to become 300 MB for as long as the client stayed, and
//! what exceeds their ratio is cut off without a word. Here a body may grow so far and no further.

use std::io::{self, Read};

use brotli_decompressor::Decompressor;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use ruzstd::decoding::StreamingDecoder;

use crate::host;

/// Bytes that are inflated at a time.
const PIECE: usize = 1 << 16;

/// A body may grow to so many bytes however small it came, and beyond that to so many times its size:
/// repeated text shrinks to a thousandth, and many such bodies would fill the memory.
const FLOOR: usize = 1 << 18;
const RATIO: usize = 100;

/// The largest window of `zstd`, in bytes: RFC 9659 (section 3) has clients use no larger one.
const ZSTD_WINDOW: u64 = 8 << 20;

/// How a body is compressed: the content codings of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    Gzip,
    /// The zlib format (RFC 9110, 8.4.1.2).
    Deflate,
    Brotli,
    Zstd,
}

/// Why a body can't be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InflateError {
    /// It grows too large.
    TooLarge,
    /// It is not of its coding, or ends too early.
    Corrupt,
    /// Where Envoy refuses to change the body or its headers.
    Host(host::HostError),
}

impl Coding {
    /// By the header `content-encoding`; `None` for one that is not undone here, or several.
    pub(super) fn of_header(value: &[u8]) -> Option<Self> {
        let value = value.trim_ascii();
        let is = |name: &str| value.eq_ignore_ascii_case(name.as_bytes());
        match () {
            () if is("gzip") || is("x-gzip") => Some(Self::Gzip),
            () if is("deflate") => Some(Self::Deflate),
            () if is("br") => Some(Self::Brotli),
            () if is("zstd") => Some(Self::Zstd),
            () => None,
        }
    }

    /// Inflates a body piece by piece, to `most` bytes in all. Gives how many there are.
    ///
    /// # Errors
    /// [`InflateError`]; `put` may have been given pieces before.
    pub(super) fn inflate(
        self,
        body: &[u8],
        most: usize,
        put: impl FnMut(&[u8]) -> host::Result<()>,
    ) -> Result<usize, InflateError> {
        let most = most.min(body.len().saturating_mul(RATIO).max(FLOOR));
        match self {
            Self::Gzip => pump(MultiGzDecoder::new(body), most, put),
            Self::Deflate => pump(ZlibDecoder::new(body), most, put),
            Self::Brotli => pump(Decompressor::new(body, PIECE), most, put),
            Self::Zstd => {
                if window(body).is_none_or(|window| window > ZSTD_WINDOW) {
                    return Err(InflateError::Corrupt);
                }
                let mut rest = body;
                let decoder =
                    StreamingDecoder::new(&mut rest).map_err(|_| InflateError::Corrupt)?;
                let bytes = pump(decoder, most, put)?;
                // More than one frame is not what clients send.
                if rest.is_empty() { Ok(bytes) } else { Err(InflateError::Corrupt) }
            }
        }
    }
}

fn pump(
    mut from: impl Read,
    most: usize,
    mut put: impl FnMut(&[u8]) -> host::Result<()>,
) -> Result<usize, InflateError> {
    let mut piece = vec![0; PIECE];
    let mut bytes: usize = 0;
    loop {
        let size = match from.read(&mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(size) => size,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return Err(InflateError::Corrupt),
        };
        bytes = bytes.saturating_add(size);
        if bytes > most {
            return Err(InflateError::TooLarge);
        }
        put(piece.get(..size).unwrap_or_default()).map_err(InflateError::Host)?;
    }
}

/// The window that a zstd frame asks for, in bytes (RFC 8878, 3.1.1.1); `None` if it is no frame. A
/// decoder takes that much memory at once, which a VM never gives back.
fn window(frame: &[u8]) -> Option<u64> {
    let rest = frame.strip_prefix(&[0x28, 0xb5, 0x2f, 0xfd])?;
    let (descriptor, rest) = rest.split_first()?;
    let is_single_segment = descriptor & 0x20 != 0;
    if !is_single_segment {
        let window = *rest.first()?;
        let base = 1_u64 << (10 + (window >> 3));
        return Some(base + base / 8 * u64::from(window & 7));
    }
    // The whole content is the window.
    let dictionary = *[0, 1, 2, 4].get(usize::from(descriptor & 3))?;
    let size = 1 << (descriptor >> 6);
    let field = rest.get(dictionary..dictionary + size)?;
    let mut bytes = [0; 8];
    bytes.get_mut(..size)?.copy_from_slice(field);
    let content = u64::from_le_bytes(bytes);
    Some(if size == 2 { content.saturating_add(256) } else { content })
}

#[cfg(test)]
mod tests;
