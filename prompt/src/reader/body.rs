//! How much of a request's body there is to read.

use warmpath_routing::requested::Requested;

use super::large::Large;

/// How much of an unread body tells requests apart, in bytes.
const AFFINITY_BYTES: usize = 2_048;

/// How much of the body there is.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// None at all; what the path says of the model.
    None(&'a Requested<'a>),
    /// All of it.
    Whole(&'a [u8]),
    /// Too much to read; this is its start.
    TooLarge(&'a Large, &'a [u8]),
}

impl Body<'_> {
    /// What keeps requests together whose prompt has no block: the start of the body. Requests
    /// without a body are spread by the time.
    pub fn affinity(self, now_ms: u64) -> u128 {
        let bytes = match self {
            Self::None(_) => &now_ms.to_le_bytes(),
            Self::Whole(bytes) | Self::TooLarge(_, bytes) => {
                bytes.get(..AFFINITY_BYTES).unwrap_or(bytes)
            }
        };
        let hash = blake3::hash(bytes);
        hash.as_bytes().first_chunk().map_or(0, |first| u128::from_le_bytes(*first))
    }
}
