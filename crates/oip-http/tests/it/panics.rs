//! Tests a service that panics.

use std::sync::Arc;

use axum::{body::Body, http::Method};
use oip_http::{HttpConfig, service};
use oip_service::testing::{PanickingExtensions, PanickingService};

use crate::support::{infer, send, x};

#[tokio::test]
async fn a_panic_is_status_500_and_the_next_request_is_answered() {
    let app = service(Arc::new(PanickingService::default()), HttpConfig::default());
    for model in ["early", "late", "metadata"] {
        let answer = infer(&app, model, &x("FP32", "[1]", "[1]")).await;
        assert_eq!(answer.status, 500, "{model}");
        assert!(
            answer.error().contains("the service panicked"),
            "{}",
            answer.error()
        );
    }
    let ready = send(&app, Method::GET, "/v2/health/ready", Body::empty()).await;
    assert_eq!(ready.status, 500);
    let answer = infer(&app, "identity_fp32", &x("FP32", "[1]", "[1]")).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn panics_of_extensions_cost_one_request_each() {
    let app = service(Arc::new(PanickingExtensions::default()), HttpConfig::default());
    for (method, path) in [
        (Method::GET, "/v2"),
        (Method::GET, "/v2/models"),
        (Method::GET, "/v2/models/stats"),
        (Method::GET, "/v2/models/identity_fp32/stats"),
        (Method::GET, "/v2/models/identity_fp32/config"),
        (Method::POST, "/v2/repository/index"),
        (Method::POST, "/v2/repository/models/m/load"),
        (Method::POST, "/v2/repository/models/m/unload"),
    ] {
        let answer = send(&app, method, path, Body::empty()).await;
        assert_eq!(answer.status, 500, "{path}");
        assert!(
            !answer.error().is_empty() && !answer.text().contains("on purpose"),
            "{path}"
        );
        let answer = infer(&app, "identity_fp32", &x("FP32", "[1]", "[1]")).await;
        assert_eq!(answer.status, 200, "after {path}");
    }
}
