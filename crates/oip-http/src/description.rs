//! Serves the REST API's description, for programs (`OpenAPI` 3.1) and for people (a page to browse and try
//! the API). The description includes the ready models.

use axum::{
    Extension,
    extract::State,
    http::{
        HeaderName, HeaderValue, StatusCode,
        header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
    },
    response::{IntoResponse, Response},
};
use oip_resources::Lease;
use oip_service::Grant;
use oip_types::ServiceError;

use crate::{
    app::App,
    described_models::{ready_models, with_models},
    leased::leased,
    missing::may_see,
    response::{self, respond},
};

/// The static `OpenAPI` 3.1 description; `/openapi.json` adds the service's models.
///
/// It lists every path once, without the variant with a trailing slash.
pub const OPENAPI: &str = include_str!("openapi.json");

const PAGE: &str = include_str!("docs.html");

/// Memory that the parsed description takes per byte of text.
const TREE: u64 = 12;

pub(crate) async fn openapi(State(app): State<App>, grant: Option<Extension<Grant>>) -> Response {
    let lease = Lease::new(&app.config.budget, &app.config.time);
    let guard = lease.guard();
    let service = app.service.clone();
    let write = {
        let lease = lease.clone();
        move || -> Result<Response, ServiceError> {
            let _tree = lease.charge(OPENAPI.len() as u64 * TREE)?;
            let models = ready_models(&*service, &|name| may_see(grant.as_deref(), name));
            let text = with_models(OPENAPI, &models)?;
            let mut response = response::json(StatusCode::OK, text);
            let headers = response.headers_mut();
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            leased(response, &lease)
        }
    };
    let written = app.config.cpu.run(&lease, OPENAPI.len() as u64, write).await;
    guard.disarm();
    respond(written)
}

/// Returns the documentation page. The page loads nothing from this server but the description.
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
