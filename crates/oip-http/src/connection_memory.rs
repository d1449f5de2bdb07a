//! Registers shared memory for a client's connection over a Unix socket. docs/oip.md describes the request.

use axum::{
    http::{Request, StatusCode},
    response::Response,
};
use oip_resources::{ConnectionRegion, not_passed};
use oip_service::extensions::not_offered;
use oip_types::{CONNECTION_REGION, rest::json_body};
use serde_json::json;

use crate::{
    HttpConfig,
    response::{self, respond},
};

/// The path of requests that register a connection's shared memory region. Such a request is the first on a
/// Unix socket connection and carries a file descriptor. [`HttpService`](crate::HttpService) handles it; the
/// router does not.
pub const REGISTER_CONNECTION_MEMORY: &str = "/v2/connectionsharedmemory/register";

/// Opens the shared memory of the request's connection.
pub(crate) fn register<B>(config: &HttpConfig, request: &Request<B>) -> Response {
    let opener = config.connection_memory.as_deref();
    let opened = opener
        .ok_or_else(|| not_offered("connection_shared_memory"))
        .and_then(|opener| {
            let region = request.extensions().get::<ConnectionRegion>();
            region.ok_or_else(not_passed)?.open(opener)
        });
    respond(opened.map(|byte_size| {
        let body = json!({ "region": CONNECTION_REGION, "byte_size": byte_size });
        response::json(StatusCode::OK, json_body(&body))
    }))
}
