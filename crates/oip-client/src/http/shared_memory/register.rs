//! The first request of a connection: it passes the descriptor of the region, and the server says whether it maps it.

use std::time::Duration;

use http::{HeaderMap, Method};
use oip_types::{CONNECTION_REGION, rest::EncodedBody};
use serde::Deserialize;

use crate::http::message::Message;

/// How long the server may take to answer. One that serves one connection after the other does not.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// After this long a server that does not offer shared memory is asked again: another one may be there.
pub(super) const NOT_OFFERED: Duration = Duration::from_secs(60);

/// After this long a server that has no memory left for it is asked again.
const NO_ROOM: Duration = Duration::from_secs(1);

/// The request.
pub(super) fn message() -> Message {
    Message {
        method: Method::POST,
        path: "/v2/connectionsharedmemory/register".to_owned(),
        headers: HeaderMap::new(),
        body: EncodedBody {
            json: bytes::Bytes::new(),
            binary: Vec::new(),
        },
        is_health: false,
    }
}

/// For how long no region of so many bytes or more is asked for, if the server refuses one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) pause: Duration,
    pub(super) least: u64,
}

impl Refused {
    /// Of any size, for a while.
    pub(super) fn all(pause: Duration) -> Self {
        Self { pause, least: 0 }
    }
}

/// What an answer to the request for a region of so many bytes means. Only a server that has mapped it answers so.
pub(super) fn judge(status: u16, body: &[u8], bytes: u64) -> Result<(), Refused> {
    #[derive(Deserialize)]
    struct Accepted {
        region: String,
        byte_size: u64,
    }

    match status {
        200 => {
            let accepted = serde_json::from_slice::<Accepted>(body).ok();
            let is_ours = accepted.is_some_and(|it| it.region == CONNECTION_REGION && it.byte_size == bytes);
            is_ours.then_some(()).ok_or(Refused::all(NOT_OFFERED))
        }
        // There may be room for a smaller one.
        429 | 503 => Err(Refused {
            pause: NO_ROOM,
            least: bytes,
        }),
        413 => Err(Refused {
            pause: NOT_OFFERED,
            least: bytes,
        }),
        _ => Err(Refused::all(NOT_OFFERED)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_says_so_has_mapped_it() {
        let accepted = br#"{"region":"$connection","byte_size":4096}"#;
        assert_eq!(judge(200, accepted, 4096), Ok(()));
        let never = Err(Refused::all(NOT_OFFERED));
        for (status, body) in [
            (200, &b"{}"[..]),
            (200, b""),
            (200, br#"{"region":"r","byte_size":4096}"#),
            (200, br#"{"region":"$connection","byte_size":4097}"#),
            (400, b""),
            (404, accepted),
            (501, b""),
        ] {
            assert_eq!(judge(status, body, 4096), never, "{status}");
        }
        let larger = |pause| Err(Refused { pause, least: 4096 });
        assert_eq!(judge(429, b"", 4096), larger(NO_ROOM));
        assert_eq!(judge(413, b"", 4096), larger(NOT_OFFERED));
    }
}
