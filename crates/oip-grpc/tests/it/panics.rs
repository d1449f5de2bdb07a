//! A service with a bug.

use std::sync::Arc;

use oip_grpc::{
    GrpcConfig,
    proto::{ServerReadyRequest, grpc_inference_service_client::GrpcInferenceServiceClient},
    service,
};
use oip_service::{BoxFuture, InferenceService, Readiness, RequestContext, testing::TestService};
use oip_types::{InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata, ServiceError};
use tonic::Code;

use crate::support::{floats, good};

/// Panics in `early` and `late`, and when it is asked whether it is ready.
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
async fn a_panic_is_internal_and_the_next_request_is_answered() {
    let service = service(Arc::new(Panicking::default()), GrpcConfig::default());
    let mut client = GrpcInferenceServiceClient::new(service);
    for model in ["early", "late"] {
        let status = client.model_infer(floats(model, &[1.0])).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal, "{model}");
        assert!(status.message().contains("the service panicked"), "{status}");
    }
    let status = client.server_ready(ServerReadyRequest {}).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    client.model_infer(good()).await.unwrap();
}
