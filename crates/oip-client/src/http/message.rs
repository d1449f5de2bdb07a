//! A request in parts: method, path, headers and body.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use oip_types::rest::EncodedBody;

/// The parts of a request, from which each attempt of a call is built.
#[derive(Clone)]
pub(super) struct Message {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: EncodedBody,
    /// Whether error statuses are valid results, as for health checks.
    pub(super) is_health: bool,
}

impl Message {
    pub(super) fn get(path: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            path: path.into(),
            headers: HeaderMap::new(),
            is_health: false,
            body: EncodedBody {
                json: Bytes::new(),
                binary: Vec::new(),
            },
        }
    }

    pub(super) fn health(path: impl Into<String>) -> Self {
        Self {
            is_health: true,
            ..Self::get(path)
        }
    }

    pub(super) fn post(path: impl Into<String>, body: &serde_json::Value) -> Self {
        let content_type = HeaderValue::from_static("application/json");
        Self {
            method: Method::POST,
            headers: HeaderMap::from_iter([(header::CONTENT_TYPE, content_type)]),
            body: EncodedBody {
                json: body.to_string().into(),
                binary: Vec::new(),
            },
            ..Self::get(path)
        }
    }
}
