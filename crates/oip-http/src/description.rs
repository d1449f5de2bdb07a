//! The REST side described for programs (`OpenAPI` 3.1) and for people (a page to browse it and try it out).

use axum::{
    http::{
        HeaderName, HeaderValue,
        header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
    },
    response::{IntoResponse, Response},
};

/// The description in `OpenAPI` 3.1, which `/openapi.json` is answered with.
///
/// It names every path once, without its form that ends in a slash.
pub const OPENAPI: &str = include_str!("openapi.json");

const PAGE: &str = include_str!("docs.html");

pub(crate) async fn openapi() -> Response {
    (
        [(CONTENT_TYPE, HeaderValue::from_static("application/json"))],
        OPENAPI,
    )
        .into_response()
}

/// The page loads nothing but the description, and talks to nobody but this server.
pub(crate) async fn page() -> Response {
    let headers: [(HeaderName, HeaderValue); 3] = [
        (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (
            CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(
                "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                 base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            ),
        ),
    ];
    (headers, PAGE).into_response()
}
