//! Tests a service that panics.

use std::sync::Arc;

use axum::{body::Body, http::Method};
use oip_http::{HttpConfig, service};
use oip_service::{
    BoxFuture, InferenceService, ModelConfiguration, ModelRepository, Readiness, RequestContext, Statistics,
    testing::TestService,
};
use oip_types::{
    InferRequest, InferResponse, LoadOptions, ModelConfig, ModelIndexEntry, ModelMetadata, ModelRef,
    ServerMetadata, ServiceError, UnloadOptions,
};

use crate::support::{infer, send, x};

/// Panics if the model is `early`, `late` or `metadata`.
#[derive(Default)]
struct PanickingService(TestService);

impl InferenceService for PanickingService {
    fn server_metadata(&self) -> ServerMetadata {
        self.0.server_metadata()
    }

    fn readiness(&self) -> Readiness {
        panic!("on purpose")
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        assert_ne!(model.name(), "metadata", "on purpose");
        let name = ["early", "late"]
            .contains(&model.name())
            .then_some("identity_fp32");
        self.0
            .model_metadata(ModelRef::new(name.unwrap_or(model.name()), None)?)
    }

    fn infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        assert_ne!(request.model().name(), "early", "on purpose");
        Box::pin(async {
            assert_ne!(request.model().name(), "late", "on purpose");
            self.0.infer(request, cx).await
        })
    }
}

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

/// Panics in each extension: in the call, or while its future runs.
#[derive(Default)]
struct PanickingExtensions(TestService);

impl InferenceService for PanickingExtensions {
    fn server_metadata(&self) -> ServerMetadata {
        panic!("on purpose")
    }

    fn readiness(&self) -> Readiness {
        Readiness::Ready
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        self.0.model_metadata(model)
    }

    fn infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        self.0.infer(request, cx)
    }

    fn repository(&self) -> Option<&dyn ModelRepository> {
        Some(self)
    }

    fn configuration(&self) -> Option<&dyn ModelConfiguration> {
        Some(self)
    }

    fn statistics(&self) -> Option<&dyn Statistics> {
        panic!("on purpose")
    }
}

impl ModelRepository for PanickingExtensions {
    fn index(&self) -> Vec<ModelIndexEntry> {
        panic!("on purpose")
    }

    fn load(&self, _: ModelRef<'_>, _: LoadOptions) -> BoxFuture<'_, Result<(), ServiceError>> {
        Box::pin(async { panic!("on purpose") })
    }

    fn unload(&self, _: ModelRef<'_>, _: UnloadOptions) -> BoxFuture<'_, Result<(), ServiceError>> {
        panic!("on purpose")
    }
}

impl ModelConfiguration for PanickingExtensions {
    fn model_config(&self, _: ModelRef<'_>) -> Result<Arc<ModelConfig>, ServiceError> {
        panic!("on purpose")
    }
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
