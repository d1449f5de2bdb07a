//! The registration: the first request of a connection passes the region's descriptor, and the server
//! confirms that it has mapped the region.

use http::{HeaderMap, Method};
use oip_types::{CONNECTION_REGION, ErrorCode, rest::EncodedBody};
use serde::Deserialize;

use crate::{
    http::message::Message,
    shared_memory::refusal::{NOT_OFFERED, Refusal},
};

/// Creates the registration request.
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

/// Interprets the response to the registration of a region of `bytes`. Only a server that has mapped the
/// region confirms it.
pub(super) fn judge(status: u16, body: &[u8], bytes: u64) -> Result<(), Refusal> {
    #[derive(Deserialize)]
    struct RegisterResponse {
        region: String,
        byte_size: u64,
    }

    match status {
        200 => {
            let accepted = serde_json::from_slice::<RegisterResponse>(body).ok();
            let is_ours = accepted.is_some_and(|it| it.region == CONNECTION_REGION && it.byte_size == bytes);
            is_ours.then_some(()).ok_or(Refusal::all(NOT_OFFERED))
        }
        429 => Err(Refusal::with_code(Some(ErrorCode::Overloaded), bytes)),
        503 => Err(Refusal::with_code(Some(ErrorCode::Unavailable), bytes)),
        413 => Err(Refusal::with_code(Some(ErrorCode::TooLarge), bytes)),
        _ => Err(Refusal::with_code(None, bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_says_so_has_mapped_it() {
        let accepted = br#"{"region":"$connection","byte_size":4096}"#;
        assert_eq!(judge(200, accepted, 4096), Ok(()));
        let never = Err(Refusal::all(NOT_OFFERED));
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
