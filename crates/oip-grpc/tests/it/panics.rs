//! Tests a service that panics.

use std::sync::Arc;

use oip_grpc::{
    GrpcConfig,
    proto::{
        ModelConfigRequest, ModelStatisticsRequest, RepositoryIndexRequest, RepositoryModelLoadRequest,
        RepositoryModelUnloadRequest, ServerMetadataRequest, ServerReadyRequest,
        grpc_inference_service_client::GrpcInferenceServiceClient,
    },
    service,
};
use oip_service::{
    BoxFuture, InferenceService, ModelConfiguration, ModelRepository, Readiness, RequestContext, Statistics,
    testing::TestService,
};
use oip_types::{
    InferRequest, InferResponse, LoadOptions, ModelConfig, ModelIndexEntry, ModelMetadata, ModelRef,
    ServerMetadata, ServiceError, UnloadOptions,
};
use tonic::{Code, codegen::tokio_stream};

use crate::support::{floats, good};

/// Panics in `early` and `late`, and in the readiness check.
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
    let service = service(Arc::new(PanickingService::default()), GrpcConfig::default());
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

/// On a stream, requests before and after the panicking one get responses.
#[tokio::test]
async fn a_panic_is_one_answer_of_a_stream() {
    let service = service(Arc::new(PanickingService::default()), GrpcConfig::default());
    let mut client = GrpcInferenceServiceClient::new(service);
    let requests = [good(), floats("early", &[1.0]), floats("late", &[1.0]), good()];
    let answers = client
        .model_stream_infer(tokio_stream::iter(requests))
        .await
        .unwrap();
    let mut answers = answers.into_inner();
    let (mut answered, mut failed) = (0, 0);
    while let Some(answer) = answers.message().await.unwrap() {
        let error = answer.error_message;
        assert!(
            error.is_empty() || error.contains("the service panicked"),
            "{error}"
        );
        *(if error.is_empty() {
            &mut answered
        } else {
            &mut failed
        }) += 1;
    }
    assert_eq!((answered, failed), (2, 2));
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
async fn panics_of_extensions_cost_one_call_each() {
    let service = service(Arc::new(PanickingExtensions::default()), GrpcConfig::default());
    let mut client = GrpcInferenceServiceClient::new(service);
    let model = || "identity_fp32".to_owned();
    let config = ModelConfigRequest {
        name: model(),
        ..Default::default()
    };
    let statistics = ModelStatisticsRequest {
        name: model(),
        ..Default::default()
    };
    let load = RepositoryModelLoadRequest {
        model_name: model(),
        ..Default::default()
    };
    let unload = RepositoryModelUnloadRequest {
        model_name: model(),
        ..Default::default()
    };
    for (call, status) in [
        (
            "metadata",
            client.server_metadata(ServerMetadataRequest {}).await.err(),
        ),
        ("config", client.model_config(config).await.err()),
        ("statistics", client.model_statistics(statistics).await.err()),
        (
            "index",
            client
                .repository_index(RepositoryIndexRequest::default())
                .await
                .err(),
        ),
        ("load", client.repository_model_load(load).await.err()),
        ("unload", client.repository_model_unload(unload).await.err()),
    ] {
        let status = status.expect(call);
        assert_eq!(status.code(), Code::Internal, "{call}: {status}");
        assert!(!status.message().contains("on purpose"), "{call}: {status}");
    }
    client.model_infer(good()).await.unwrap();
}
