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
use oip_service::testing::{PanickingExtensions, PanickingService};
use tonic::{Code, codegen::tokio_stream};

use crate::support::{floats, good};

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
