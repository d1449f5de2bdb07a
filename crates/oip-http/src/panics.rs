//! A service that panics: its client gets status 500, and the connection stays open.

use axum::{extract::Request, middleware::Next, response::Response};
use oip_service::catch_panic;

use crate::answer;

/// Answers a request; a panic on the way is an internal error.
pub(crate) async fn contain(request: Request, next: Next) -> Response {
    let answered = catch_panic(next.run(request)).await;
    answered.unwrap_or_else(|error| answer::error(&error))
}
