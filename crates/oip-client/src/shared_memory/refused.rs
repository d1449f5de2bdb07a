//! For how long a server is not asked again that did not give a connection its region.

use std::time::Duration;

use oip_types::ErrorCode;

/// How long the server may take to answer. One that serves one connection after the other does not.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// After this long a server that does not offer shared memory is asked again: another one may be there.
pub(crate) const NOT_OFFERED: Duration = Duration::from_secs(60);

/// After this long a server that broke the connection off is asked again.
pub(crate) const BROKEN: Duration = Duration::from_secs(5);

/// After this long a server that has no memory left for it is asked again.
const NO_ROOM: Duration = Duration::from_secs(1);

/// For how long no region of so many bytes or more is asked for, if the server refuses one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) pause: Duration,
    pub(crate) least: u64,
}

impl Refused {
    /// Of any size, for a while.
    pub(crate) fn all(pause: Duration) -> Self {
        Self { pause, least: 0 }
    }

    /// Creates a region of so many bytes was refused with this code.
    pub(crate) fn with_code(code: Option<ErrorCode>, bytes: u64) -> Self {
        match code {
            // There may be room for a smaller one.
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
        let larger = |pause| Refused { pause, least: 4096 };
        for (code, refused) in [
            (Some(ErrorCode::Overloaded), larger(NO_ROOM)),
            (Some(ErrorCode::Unavailable), larger(NO_ROOM)),
            (Some(ErrorCode::TooLarge), larger(NOT_OFFERED)),
            (Some(ErrorCode::InvalidArgument), Refused::all(NOT_OFFERED)),
            (Some(ErrorCode::Unimplemented), Refused::all(NOT_OFFERED)),
            (None, Refused::all(NOT_OFFERED)),
        ] {
            assert_eq!(Refused::with_code(code, 4096), refused, "{code:?}");
        }
    }
}
