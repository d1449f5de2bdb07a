//! How long to wait before requesting a region again after the server refused one.

use std::time::Duration;

use oip_types::ErrorCode;

/// Timeout for the registration. Servers that handle one connection at a time exceed it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// Delay after a server did not offer shared memory. By then, another server may have replaced it.
pub(crate) const NOT_OFFERED: Duration = Duration::from_secs(60);

/// Delay after the server closed the connection during the registration.
pub(crate) const BROKEN: Duration = Duration::from_secs(5);

/// Time to wait before the next request for a region, after the server had no memory for one.
const NO_ROOM: Duration = Duration::from_secs(1);

/// A refused region: for the duration of `pause`, regions of at least `least` bytes are not requested.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) pause: Duration,
    pub(crate) least: u64,
}

impl Refusal {
    /// Creates a refusal of regions of all sizes, for `pause`.
    pub(crate) fn all(pause: Duration) -> Self {
        Self { pause, least: 0 }
    }

    /// Creates the refusal for a region of `bytes` bytes that the server refused with `code`.
    pub(crate) fn with_code(code: Option<ErrorCode>, bytes: u64) -> Self {
        match code {
            // A smaller region may still fit.
            Some(ErrorCode::Overloaded | ErrorCode::Unavailable) => Self {
                pause: NO_ROOM,
                least: bytes,
            },
            Some(ErrorCode::TooLarge) => Self {
                pause: NOT_OFFERED,
                least: bytes,
            },
            _ => Self::all(NOT_OFFERED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_regions_are_tried_where_there_may_be_room() {
        let larger = |pause| Refusal { pause, least: 4096 };
        for (code, refused) in [
            (Some(ErrorCode::Overloaded), larger(NO_ROOM)),
            (Some(ErrorCode::Unavailable), larger(NO_ROOM)),
            (Some(ErrorCode::TooLarge), larger(NOT_OFFERED)),
            (Some(ErrorCode::InvalidArgument), Refusal::all(NOT_OFFERED)),
            (Some(ErrorCode::Unimplemented), Refusal::all(NOT_OFFERED)),
            (None, Refusal::all(NOT_OFFERED)),
        ] {
            assert_eq!(Refusal::with_code(code, 4096), refused, "{code:?}");
        }
    }
}
