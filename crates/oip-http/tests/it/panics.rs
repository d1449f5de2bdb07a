//! A service with a bug.

use std::sync::Arc;

use axum::body::Body;
use oip_http::{HttpConfig, router};
use oip_service::{BoxFuture, InferenceService, Readiness, RequestContext, testing::TestService};
use oip_types::{InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata, ServiceError};

use crate::support::{infer, send, x};

/// Panics wherever its model is `early`, `late` or `metadata`.
#[derive(Default)]
struct Panicking(TestService);

impl InferenceService for Panicking {
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
    let app = router(Arc::new(Panicking::default()), HttpConfig::default());
    for model in ["early", "late", "metadata"] {
        let answer = infer(&app, model, &x("FP32", "[1]", "[1]")).await;
        assert_eq!(answer.status, 500, "{model}");
        assert!(
            answer.error().contains("the service panicked"),
            "{}",
            answer.error()
        );
    }
    let ready = send(&app, axum::http::Method::GET, "/v2/health/ready", Body::empty()).await;
    assert_eq!(ready.status, 500);
    let answer = infer(&app, "identity_fp32", &x("FP32", "[1]", "[1]")).await;
    assert_eq!(answer.status, 200);
}
