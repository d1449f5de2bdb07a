//! The first request of a connection: it passes the descriptor of the region, and the server says whether it maps it.

use http::{HeaderMap, Method};
use oip_types::{CONNECTION_REGION, ErrorCode, rest::EncodedBody};
use serde::Deserialize;

use crate::{
    http::message::Message,
    shared_memory::refused::{NOT_OFFERED, Refused},
};

/// Returns the request.
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
        429 => Err(Refused::with_code(Some(ErrorCode::Overloaded), bytes)),
        503 => Err(Refused::with_code(Some(ErrorCode::Unavailable), bytes)),
        413 => Err(Refused::with_code(Some(ErrorCode::TooLarge), bytes)),
        _ => Err(Refused::with_code(None, bytes)),
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
        for status in [413, 429, 503] {
            assert_eq!(judge(status, b"", 4096).unwrap_err().least, 4096);
        }
    }
}
